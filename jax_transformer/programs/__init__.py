"""Reads PyTorch programs: finds how to call a module, and records every operation that it runs.

Nothing here knows what the program should compute, or what a Transformer is.
"""
