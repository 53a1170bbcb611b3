"""Nested dicts and their paths."""

from __future__ import annotations

from jax_transformer.runtime.trees import flatten, unflatten


def test_flatten_and_unflatten() -> None:
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert flatten(tree) == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert unflatten(flatten(tree)) == tree
