"""Parity of a model here and a model in PyTorch: both are run on the same problems, stage by stage, and what differs is
diagnosed.

`parity` has the numbers: gates, truth, catalogue, report; in NumPy alone. Here are the two frameworks: a side for each,
  problems on which
mistakes show, and the run over both.
"""
