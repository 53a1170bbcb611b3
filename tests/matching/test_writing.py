"""Equations of axes that found maps need: merged axes of leaves, and tensors in braces that make one leaf."""

from __future__ import annotations

import numpy as np
import pytest

from jax_transformer.mapping.axes import Axes
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import leaves_from_tensors, tensors_from_leaves
from jax_transformer.matching.pieces import digits_of, fit
from jax_transformer.storage.tensors import PortingError


@pytest.mark.parametrize(
    ("equation", "shape", "tensor"),
    [
        ("(N P=2 H=2) D -> D (N H P)", (6, 12), (12, 6)),
        ("{n}=3 H D -> D ({n} H)", (5, 12), (4, 5)),
        ("N=3 H D -> D (N H)", (5, 12), (3, 4, 5)),
        ("P D -> 1 P D", (1, 4, 5), (4, 5)),
        ("(3 N H) D -> D N H", (5, 2, 4), (24, 5)),
    ],
)
def test_axes_lead_both_ways(equation: str, shape: tuple[int, ...], tensor: tuple[int, ...]) -> None:
    axes = Axes.parse(equation)
    assert str(axes) == equation
    assert axes.torch_shape(shape) == tensor
    count = int(axes.fused or 1)
    leaves = np.arange(count * int(np.prod(shape))).reshape(count, *shape)
    tensors = [axes.merge(leaves, number) for number in range(axes.count(shape))]
    assert np.array_equal(axes.split(tensors, shape), leaves)


def test_merged_axes_need_sizes() -> None:
    with pytest.raises(ValueError, match="expected sizes of all axes but one that the leaf merges, as in 'N=2'"):
        Axes.parse("N H D -> D (N H)")


BRACES = """
parameters:
  layers.{i}.{q,k,v}.weight: {name: "layers/qkv[{i}]", axes: "{n} (N H) D -> D {n} N H"}
"""


def test_tensors_in_braces_make_one_leaf() -> None:
    rules = NameMap.parse(BRACES.replace("layers.{i}.{q,k,v}.weight", '"layers.{i}.{q,k,v}.weight"'), "map").rules()
    kernel = np.arange(2 * 5 * 3 * 2 * 4, dtype=np.float32).reshape(2, 5, 3, 2, 4)
    tensors = {
        f"layers.{layer}.{name}.weight": kernel[layer, :, number].reshape(5, 8).T.copy()
        for layer in range(2)
        for number, name in enumerate("qkv")
    }
    found = leaves_from_tensors(rules, tensors, {"layers/qkv": kernel.shape})
    assert np.array_equal(np.asarray(found["layers/qkv"]), kernel)
    back = tensors_from_leaves(rules, {"layers/qkv": kernel}, {"layers/qkv": kernel.shape})
    assert {*back} == {*tensors}
    assert all(np.array_equal(np.asarray(back[name]), tensors[name]) for name in tensors)


def test_a_number_of_tensors_in_braces_that_the_leaf_lacks_is_refused() -> None:
    rules = NameMap.parse('parameters:\n  "{q,k}.weight": {name: "qk", axes: "{n} H D -> D {n} H"}\n', "map").rules()
    tensors = {f"{name}.weight": np.zeros((4, 5), np.float32) for name in "qk"}
    with pytest.raises(PortingError, match=r"2 tensors are named, and \{n\} is 3"):
        leaves_from_tensors(rules, tensors, {"qk": (5, 3, 4)})


def test_digits_of_an_axis() -> None:
    assert digits_of(np.array([0, 4, 1, 5, 2, 6, 3, 7])) == ((4, 1), (2, 4))
    assert digits_of(np.array([0, 1, 3])) is None


def test_rows_that_are_not_read_follow_from_the_others() -> None:
    rows = np.full((5, 3), -1)
    rows[[1, 4]] = np.arange(15).reshape(5, 3)[[1, 4]]
    assert fit(rows, (5, 3)) == (0, (((5, 3),), ((3, 1),)))
    rows[4] = -1
    assert fit(rows, (5, 3)) == (0, (((5, 3),), ((3, 1),)))
    assert fit(rows, (7, 3)) is None
