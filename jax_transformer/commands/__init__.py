"""Holds one file for each subcommand of `jax-transformer`: its options, and its output."""
