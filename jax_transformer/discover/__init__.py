"""Discover what an unknown PyTorch encoder-decoder computes: how it is called, its structure and its numerics."""
