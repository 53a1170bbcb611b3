"""The parity check checked: known and unknown faults put into every published system, and sides that agree; what is
found, as a matrix."""
