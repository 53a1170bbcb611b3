"""The stages of the measurement; each function is the process of a part."""
