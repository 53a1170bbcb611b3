"""Models for programs that run without this package, a file for each target: CTranslate2, transformers, and JAX
alone (StableHLO)."""
