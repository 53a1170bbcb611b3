"""One file for each word that follows `jax-transformer`: its options, and what it prints."""
