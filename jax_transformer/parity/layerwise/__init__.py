"""Compares any two programs in the dtypes in which they run, layer by layer, with weights that are read when needed."""
