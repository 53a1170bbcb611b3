"""Export of models for programs that run without this package."""
