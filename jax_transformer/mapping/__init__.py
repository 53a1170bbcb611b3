"""Maps between the names and shapes of two programs' tensors: rules, how axes correspond, and maps in files."""
