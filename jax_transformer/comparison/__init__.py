"""Compares any two programs by numbers, and lowers them for a proof. Nothing here knows what a Transformer is."""
