"""Maps of names: what they rename, how they are written, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.names.maps import NameMap, ParameterName
from jax_transformer.porting.rules import Axes

TEXT = """
activations:
  enc.{i}.attn.wq: encoder.layers.{i}.self_attention.query
  enc.{i}.attn@logits: encoder.layers.{i}.self_attention.logits
  enc.{i}.norm2: ["encoder.layers.{i}.feed_forward_norm", "encoder.layers.{i}.output"]
  head: logits
parameters:            # gradients have the same names
  enc.{i}.attn.wq.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "(N H) D -> D N H"}
  enc.{i}.norm1.gamma: "encoder/layers/self_attention_norm/scale[{i}]"
  enc.{i}.in_proj: {name: "encoder/layers/cross_attention/{query,key,value}/kernel[{i}]", axes: "(3 N H) D -> D N H"}
  out: {name: head/kernel, axes: V D -> D V}
"""


@pytest.fixture
def names(tmp_path: Path) -> NameMap:
    (tmp_path / "names.yaml").write_text(TEXT)
    return NameMap.read(tmp_path / "names.yaml")


def arange(*shape: int) -> np.ndarray:
    return np.arange(float(np.prod(shape))).reshape(shape)


LIKE = {
    **{f"encoder.layers.{i}.self_attention.logits": (2, 3, 5, 5) for i in range(2)},
    **{f"encoder.layers.{i}.self_attention.query": (2, 5, 3, 4) for i in range(2)},
    **{f"encoder.layers.{i}.feed_forward_norm": (2, 5, 12) for i in range(2)},
    **{f"encoder.layers.{i}.output": (2, 5, 12) for i in range(2)},
    "decoder.output": (2, 6, 12),
    "logits": (2, 6, 7),
}
CAPTURED = {
    "head": arange(2, 6, 7),
    "enc.0.attn.wq": arange(2, 5, 12),
    "enc.1.attn.wq": -arange(2, 5, 12),
    "enc.0.attn@logits": arange(6, 5, 5),
    "enc.1.attn.core.softmax@logits": -arange(2, 3, 5, 5),
    "enc.1.norm2": arange(2, 5, 12),
    "enc.1.something.else": arange(3),
}


def test_activations_come_under_our_names_in_our_shapes_and_order(names: NameMap) -> None:
    arrays, missing = names.rename(CAPTURED, LIKE)
    assert list(arrays) == [name for name in LIKE if name not in missing and name != "decoder.output"]
    assert {name: array.shape for name, array in arrays.items()} == {name: LIKE[name] for name in arrays}
    assert missing == {"encoder.layers.0.feed_forward_norm": "enc.0.norm2", "encoder.layers.0.output": "enc.0.norm2"}
    np.testing.assert_array_equal(arrays["encoder.layers.1.self_attention.query"], -arange(2, 5, 3, 4))
    np.testing.assert_array_equal(arrays["encoder.layers.0.self_attention.logits"], arange(2, 3, 5, 5))
    np.testing.assert_array_equal(arrays["encoder.layers.1.self_attention.logits"], -arange(2, 3, 5, 5))
    np.testing.assert_array_equal(arrays["encoder.layers.1.output"], arange(2, 5, 12))


@pytest.mark.parametrize("shape", [(2, 12, 5), (2, 5, 6), (10, 2, 6), (4, 5, 6)])
def test_shapes_that_differ_in_more_than_grouping_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ParityError, match=r"a \(.*\) is no b \(2, 5, 3, 4\): more than the grouping of axes differs"):
        NameMap({"a": ("b",)}).rename({"a": arange(*shape)}, {"b": (2, 5, 3, 4)})


@pytest.mark.parametrize("shape", [(2, 5, 12), (10, 3, 4), (120,), (1, 2, 5, 1, 3, 4)])
def test_axes_may_be_grouped_otherwise(shape: tuple[int, ...]) -> None:
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(*shape)}, {"b": (2, 5, 3, 4)})
    np.testing.assert_array_equal(arrays["b"], arange(2, 5, 3, 4))


def test_the_sequence_may_come_first() -> None:
    """As in programs whose layers take [T, B, D]."""
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(2, 5, 12).swapaxes(0, 1)}, {"b": (2, 5, 3, 4)})
    np.testing.assert_array_equal(arrays["b"], arange(2, 5, 3, 4))


def test_several_softmaxes_within_a_module_are_none_of_its_own() -> None:
    captured = {"attn.a.softmax@weights": arange(2), "attn.b.softmax@weights": arange(2)}
    assert NameMap({"attn@weights": ("w",)}).rename(captured, {"w": (2,)}).missing == {"w": "attn@weights"}


def test_parameters_come_in_our_axes(names: NameMap) -> None:
    parts = [f"encoder/layers/cross_attention/{part}/kernel[0]" for part in ("query", "key", "value")]
    like = {
        "head/kernel": (12, 7),
        "encoder/layers/self_attention/query/kernel[0]": (12, 3, 4),
        **dict.fromkeys(parts, (12, 3, 4)),
        "encoder/layers/self_attention_norm/scale[0]": (12,),
    }
    tensors = {"out": arange(7, 12), "enc.0.attn.wq.weight": arange(12, 12), "enc.0.in_proj": arange(36, 12)}
    arrays, missing = names.rename_parameters(tensors, like)
    assert list(arrays) == list(like)[:-1]
    assert missing == {"encoder/layers/self_attention_norm/scale[0]": "enc.0.norm1.gamma"}
    np.testing.assert_array_equal(arrays["head/kernel"], arange(7, 12).T)
    np.testing.assert_array_equal(
        arrays["encoder/layers/self_attention/query/kernel[0]"], arange(12, 12).T.reshape(12, 3, 4)
    )
    np.testing.assert_array_equal(arrays[parts[2]], arange(36, 12)[24:].T.reshape(12, 3, 4))
    with pytest.raises(ParityError, match=r"out: for head/kernel \(12, 7\) expected \(7, 12\); received \(12, 7\)"):
        names.rename_parameters(tensors | {"out": arange(12, 7)}, like)
    with pytest.raises(ParityError, match=r"out: D V are not the axes of head/kernel \(84,\)"):
        names.rename_parameters(tensors, like | {"head/kernel": (84,)})


def test_names_that_ours_has_not_are_refused_together() -> None:
    names = NameMap({"a.{i}": ("layers.{i}.x",), "b": ("logit",), "c.{i}": ("nothing.{i}",)})
    with pytest.raises(ParityError) as error:
        names.rename({"a.0": arange(1), "a.1": arange(1)}, {"layers.0.x": (1,), "logits": (1,)})
    assert str(error.value).splitlines() == [
        "names that don't fit:",
        "  - a.1: layers.1.x: ours has no such name (nearest: layers.0.x)",
        "  - b: logit: ours has no such name (nearest: logits)",
        "  - c.{i}: nothing.{i}: neither side has such names",
    ]
    with pytest.raises(ParityError, match=r"two entries for our layers.0.x: a.\{i\} and first"):
        NameMap({"a.{i}": ("layers.{i}.x",), "first": ("layers.0.x",)}).rename({}, {"layers.0.x": (1,)})


def test_what_is_written_is_read_again(names: NameMap, tmp_path: Path) -> None:
    names.write(tmp_path / "again.yaml")
    assert NameMap.read(tmp_path / "again.yaml") == names
    odd = NameMap(
        {"- a: 'b' #": ("x: y",), "*": ("null",), "@": ("[0]", "é")},
        {"k w": ParameterName("p", Axes.parse("1 (N H) D -> D N H"))},
    )
    odd.write(tmp_path / "odd.yaml")
    assert NameMap.read(tmp_path / "odd.yaml") == odd
    (tmp_path / "empty.yaml").write_text("activations:\n# none yet\nparameters:\n")
    assert NameMap.read(tmp_path / "empty.yaml") == NameMap()


def test_layers_that_are_called_alike_are_written_in_one_line() -> None:
    """Only where {i} would stand for all of them, and for nothing else."""
    layers = {f"enc.{i}.linears.0": (f"encoder.layers.{i}.self_attention.query",) for i in range(2)}
    shifted = {"enc.1.norm@input": ("encoder.layers.0.output",), "norm@input": ("encoder.layers.1.output",)}
    partly = {f"dec.{i}.out": (f"decoder.layers.{i}.output",) for i in range(2)} | {
        "last": ("decoder.layers.2.output", "decoder.output")
    }
    kernels = {f"enc.{i}.w": ParameterName(f"encoder/k[{i}]", Axes.parse("O I -> I O")) for i in range(2)}
    text = NameMap(layers | shifted | partly, kernels).text()
    assert text.splitlines() == [
        "activations:",
        "  enc.{i}.linears.0: encoder.layers.{i}.self_attention.query",
        "  enc.1.norm@input: encoder.layers.0.output",
        "  norm@input: encoder.layers.1.output",
        "  dec.0.out: decoder.layers.0.output",
        "  dec.1.out: decoder.layers.1.output",
        '  last: ["decoder.layers.2.output", "decoder.output"]',
        "parameters:",
        '  enc.{i}.w: {name: "encoder/k[{i}]", axes: "O I -> I O"}',
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "activations:\n  a.{i}: [b.{i}]",
            r"expected YAML \(between brackets, names in quotes\); while parsing .* line 2",
        ),
        ("- a", "line 1: expected the keys 'activations' and 'parameters'; received a list"),
        ("activation:\n  a: b", "line 1: expected 'activations' or 'parameters'; received 'activation'"),
        ("activations: a", "line 1: expected entries 'their name: our name'; received 'a'"),
        ("activations:\n  a: b\n  c: {x: y}", "line 3: expected a name; received a mapping"),
        ("activations:\n  a:", "line 2: expected a name; received nothing"),
        ("activations:\n  a: b\n  a: c", "line 3: two entries for a, the first in line 2"),
        ("activations:\n  a: b\n  c: [d, b]", "line 3: two entries for our b, the first in line 2"),
        ("activations:\n  a.{i}: b", r"line 2: expected \{i\} on both sides or on neither; received a.\{i\}: b"),
        ("parameters:\n  a: {nam: b}", "line 2: expected 'name' and, if they differ, 'axes'; received nam"),
        ("parameters:\n  a: {name: b, axes: A B -> B}", "line 2: axes: expected an equation such as"),
        (
            "parameters:\n  a: {name: b, axes: 3 B -> B}",
            "line 2: expected as many names as the axes fuse, 3; received 1: b",
        ),
        ('parameters:\n  a: "{b,c}/kernel"', "line 2: expected as many names as the axes fuse, 1; received 2"),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    with pytest.raises(ParityError, match=message) as error:
        NameMap.read(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(ParityError, match="expected a YAML file"):
        NameMap.read(tmp_path / "none.yaml")
