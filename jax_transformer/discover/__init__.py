"""Find out what a PyTorch encoder-decoder computes: its config, a map of its parameters, and a proof by parity."""
