"""Checkpoints between frameworks: `convert` is the door, `rules` the machine, `dialects` the tables, `files` what touches the disk."""
