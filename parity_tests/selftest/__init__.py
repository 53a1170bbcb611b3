"""The parity check checked: faults are put into a model that is right, and must be found where they are."""
