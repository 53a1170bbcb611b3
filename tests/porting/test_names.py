"""Maps of names: what they rename, how they are written, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jax_transformer.mapping.axes import Axes
from jax_transformer.mapping.maps import NameMap, ParameterName
from jax_transformer.storage.tensors import PortingError

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


@pytest.mark.parametrize("shape", [(12, 5, 2), (2, 5, 6), (10, 2, 6), (4, 5, 6)])
def test_shapes_that_differ_in_more_than_grouping_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PortingError, match=r"a \(.*\) is no b \(2, 5, 3, 4\): more than the grouping of axes differs"):
        NameMap({"a": ("b",)}).rename({"a": arange(*shape)}, {"b": (2, 5, 3, 4)})


@pytest.mark.parametrize("shape", [(2, 5, 12), (10, 3, 4), (120,), (1, 2, 5, 1, 3, 4)])
def test_axes_may_be_grouped_otherwise(shape: tuple[int, ...]) -> None:
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(*shape)}, {"b": (2, 5, 3, 4)})
    np.testing.assert_array_equal(arrays["b"], arange(2, 5, 3, 4))


def test_features_may_come_before_the_sequence() -> None:
    """As in programs that convolve, in [B, D, T]."""
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(2, 5, 12).swapaxes(1, 2)}, {"b": (2, 5, 3, 4)})
    np.testing.assert_array_equal(arrays["b"], arange(2, 5, 3, 4))


def test_the_sequence_may_come_first() -> None:
    """As in programs whose layers take [T, B, D]."""
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(2, 5, 12).swapaxes(0, 1)}, {"b": (2, 5, 3, 4)})
    np.testing.assert_array_equal(arrays["b"], arange(2, 5, 3, 4))


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (2, 3, 0, 1)])
@pytest.mark.parametrize("keys", [7, 5])
def test_heads_may_come_first_or_last(order: tuple[int, ...], keys: int) -> None:
    weights = arange(2, 3, 5, keys)
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": weights.transpose(order)}, {"b": weights.shape})
    assert np.array_equal(arrays["b"], weights)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [((2, 7, 12), (2, 5, 3, 4)), ((2, 7, 12), (2, 5, 12)), ((2, 3, 7, 7), (2, 3, 5, 6)), ((6, 7, 7), (2, 3, 5, 6))],
)
def test_of_a_program_that_pads_to_one_length_the_first_tokens_are_taken(
    theirs: tuple[int, ...], ours: tuple[int, ...]
) -> None:
    arrays, _ = NameMap({"a": ("b",)}).rename({"a": arange(*theirs)}, {"b": ours})
    whole = arange(*theirs).reshape(2, 7, *ours[2:]) if ours[1] == 5 else arange(*theirs).reshape(2, 3, 7, 7)
    assert np.array_equal(arrays["b"], whole[:, :5] if ours[1] == 5 else whole[:, :, :5, :6])


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
    with pytest.raises(PortingError, match=r"out: for head/kernel \(12, 7\) expected \(7, 12\); received \(12, 7\)"):
        names.rename_parameters(tensors | {"out": arange(12, 7)}, like)
    with pytest.raises(PortingError, match=r"out: D V are not the axes of head/kernel \(84,\)"):
        names.rename_parameters(tensors, like | {"head/kernel": (84,)})


def test_names_that_ours_has_not_are_refused_together() -> None:
    names = NameMap({"a.{i}": ("layers.{i}.x",), "b": ("logit",), "c.{i}": ("nothing.{i}",)})
    with pytest.raises(PortingError) as error:
        names.rename({"a.0": arange(1), "a.1": arange(1)}, {"layers.0.x": (1,), "logits": (1,)})
    assert str(error.value).splitlines() == [
        "names that don't fit:",
        "  - a.1: layers.1.x: ours has no such name (nearest: layers.0.x)",
        "  - b: logit: ours has no such name (nearest: logits)",
        "  - c.{i}: nothing.{i}: neither side has such names",
    ]
    with pytest.raises(PortingError, match=r"two entries for our layers.0.x: a.\{i\} and first"):
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
        ("- a", "line 1: expected the keys 'activations', 'parameters' and 'ignore'; received a list"),
        ("activation:\n  a: b", "line 1: expected 'activations', 'parameters' or 'ignore'; received 'activation'"),
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
        (
            'parameters:\n  a: {name: "{b,c}", axes: "3 B -> B"}',
            "line 2: expected as many names as the axes fuse, 3; received 2",
        ),
        (
            "parameters:\n  a: b\n  c: b",
            r"line 3: two entries for our b, .* \(list tied tensors together: \[first, second\]",
        ),
        ("parameters:\n  [a, c]: b\n  c: d", "line 3: two entries for c, the first in line 2"),
        ('parameters:\n  ["a.{i}", c]: "b[{i}]"', r"line 2: expected \{i\} on both sides or on neither; received c: b"),
        ("parameters:\n  a.{n}: b", r"line 2: expected \{n\} in names and axes, or in neither; received a.\{n\}: b"),
        (
            'parameters:\n  a: {name: b, axes: "{n} H -> {n} H"}',
            r"line 2: expected \{n\} in names and axes, or in neither; received a: b",
        ),
        (
            "activations:\n  a.{n}: logits",
            r"line 2: expected an activation of single heads with \{n\}; received logits",
        ),
        ("ignore: [a, b.*.c]", r"line 1: ignore: expected \* at the end of a name alone; received 'b.\*.c'"),
        ("ignore:\n  a: b", "line 2: expected a name; received a mapping"),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    with pytest.raises(PortingError, match=message) as error:
        NameMap.read(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(PortingError, match="expected a YAML file"):
        NameMap.read(tmp_path / "none.yaml")


MORE = """
activations:
  enc.{i}.heads.{n}.q: encoder.layers.{i}.self_attention.query
  enc.{i}.heads.{n}@weights: encoder.layers.{i}.self_attention.weights
parameters:
  enc.{i}.heads.{n}.q.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "{n} H D -> D {n} H"}
  ["dec.embed", "dec.project", "tgt: 'x'"]: target_embedding/embedding
  pe: {name: "constants/{encoder,decoder}_positions", axes: "1 P D -> P D"}
  enc.{i}.norm: encoder/layers/norm/scale[{i}]
ignore: ["mask.{i}", "criterion.*", pe_again]
"""


def test_more_than_one_tensor_of_a_parameter(tmp_path: Path) -> None:
    names = NameMap.parse(MORE, "names.yaml")
    assert NameMap.parse(names.text(), "again") == names
    assert names.parameters["dec.embed"].copies == ("dec.project", "tgt: 'x'")
    like = {
        **{f"encoder/layers/self_attention/query/kernel[{i}]": (6, 3, 2) for i in range(2)},
        "constants/encoder_positions": (7, 6),
        "constants/decoder_positions": (7, 6),
        **{f"encoder/layers/norm/scale[{i}]": (6,) for i in range(2)},
        "target_embedding/embedding": (9, 6),
    }
    tensors = {f"enc.{i}.heads.{n}.q.weight": arange(2, 6) + 100 * i + 20 * n for i in range(2) for n in range(3)}
    tensors |= {"pe": arange(1, 7, 6), "enc.0.norm": -arange(6), "enc.1.norm": arange(6) + 1}
    del tensors["enc.1.heads.2.q.weight"]
    found, missing = names.rename_parameters(tensors, like)
    assert missing == {
        "encoder/layers/self_attention/query/kernel[1]": "enc.1.heads.2.q.weight",
        "target_embedding/embedding": "dec.embed",
    }
    query = found["encoder/layers/self_attention/query/kernel[0]"]
    np.testing.assert_array_equal(query[:, 2], tensors["enc.0.heads.2.q.weight"].T)
    np.testing.assert_array_equal(found["constants/decoder_positions"], tensors["pe"][0])
    tensors["enc.0.heads.1.q.weight"] = arange(6, 2)
    with pytest.raises(PortingError, match=r"enc.0.heads.1.q.weight: for .* expected \(2, 6\); received \(6, 2\)"):
        names.rename_parameters(tensors, like)


def test_heads_are_stacked() -> None:
    names = NameMap.parse(MORE, "names.yaml")
    captured = {f"enc.0.heads.{n}.q": arange(2, 5, 4) + 50 * n for n in range(3)}
    captured |= {f"enc.0.heads.{n}.softmax@weights": arange(2, 1, 5, 5) + 50 * n for n in range(3)}
    of_layer = "encoder.layers.0.self_attention."
    like = {f"{of_layer}query": (2, 5, 3, 4), f"{of_layer}weights": (2, 3, 5, 5)}
    found, missing = names.rename(captured, like)
    assert missing == {}
    np.testing.assert_array_equal(found[f"{of_layer}query"][:, :, 2], captured["enc.0.heads.2.q"])
    np.testing.assert_array_equal(found[f"{of_layer}weights"][:, 1], arange(2, 5, 5) + 50)
    with pytest.raises(PortingError, match=r"enc.0.heads.1.q \(2, 5, 5\) is no encoder.layers.0.self_attention.query"):
        names.rename(captured | {"enc.0.heads.1.q": arange(2, 5, 5)}, like)
    assert names.rename({}, like).missing[f"{of_layer}weights"] == "enc.0.heads.0@weights"


def test_ignored_names() -> None:
    names = NameMap.parse(MORE, "names.yaml")
    tensors = ["mask.0", "mask.12", "mask.a", "mask.0.b", "criterion.weight", "criterion", "pe_again", "pe_again2"]
    assert names.ignores(tensors) == ["mask.0", "mask.12", "criterion.weight", "pe_again"]
    assert names.under("module.").ignores(["module.pe_again", "criterion.w", "x.pe_again"]) == [
        "module.pe_again",
        "criterion.w",
    ]


def test_a_prefix_before_all_names() -> None:
    names = NameMap.parse(MORE, "names.yaml")
    tensors = ["dec.embed", "dec.project", "tgt: 'x'", "pe", "enc.0.norm", "enc.0.heads.1.q.weight"]
    assert names.prefix_in(tensors) == ""
    wrapped = [f"_orig_mod.module.{name}" for name in tensors]
    assert names.prefix_in([*wrapped, "criterion.weight", "dec.embed"]) == "_orig_mod.module."
    assert names.knows(wrapped)
    assert not names.knows(["dec.embed", "a.b.c"])
    placed = names.under("module.")
    assert placed.parameters["module.dec.embed"].copies == ("module.dec.project", "module.tgt: 'x'")
    assert placed.prefix_in([f"module.{name}" for name in tensors]) == ""
    activations = NameMap({"output.logits": ("logits",), "enc": ("encoder.output",), "output_norm@input": ("x",)})
    assert list(activations.under("m.").activations) == ["output.logits", "m.enc", "m.output_norm@input"]
    assert next(iter(activations.under("m.", ["m.output"]).activations)) == "m.output.logits"


def test_rules_of_a_map() -> None:
    text = MORE.replace("ignore:", "  last.norm: encoder/layers/norm/scale[2]\n  a.w: k[1]\n  b.w: k[0]\nignore:")
    rules = NameMap.parse(text, "names.yaml").rules()
    assert [str(rule) for rule in rules] == [
        "enc.{i}.heads.{n}.q.weight ↔ encoder/layers/self_attention/query/kernel",
        "dec.embed = dec.project = tgt: 'x' ↔ target_embedding/embedding",
        "pe ↔ constants/encoder_positions, constants/decoder_positions",
        "enc.{i}.norm ↔ encoder/layers/norm/scale",
        "a.w ↔ k",
    ]
    assert [place.names[0] for place in rules[3].places({"encoder/layers/norm/scale": (3, 6)})] == [
        "enc.0.norm",
        "enc.1.norm",
        "last.norm",
    ]
    assert [place.names[0] for place in rules[4].places({"k": (2, 6)})] == ["b.w", "a.w"]
