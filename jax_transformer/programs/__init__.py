"""Read programs: find how to call a PyTorch module, and record every operation that it runs.

Nothing here knows what the program should compute, or what a Transformer is.
"""
