"""Compare any two programs by numbers, and lower them for a proof. Nothing here knows what a Transformer is."""
