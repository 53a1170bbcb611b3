"""Programs that hold weights of their own are proven through the map that is found between these."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.matching import find_map
from jax_transformer.matching.programs import with_one_output
from jax_transformer.parity import Certificate, Side

IDS = {"input_ids": np.array([[1, 5, 3, 2]])}
EPSILON = 1e-5


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class TorchModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = torch.nn.Embedding(11, 8), torch.nn.ModuleList([TorchBlock(), TorchBlock()])
        self.eval()

    def forward(self, input_ids: Any) -> dict[str, Any]:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": x @ self.words.weight.T, "hidden": x}


class NnxBlock(nnx.Module):
    def __init__(self, epsilon: float, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(8, epsilon=epsilon, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(8, 12, rngs=rngs), nnx.Linear(12, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.narrow(nnx.relu(self.wide(self.norm(x))))


class NnxModel(nnx.Module):
    def __init__(self, epsilon: float = EPSILON) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(epsilon, rngs) for _ in range(2)])

    def __call__(self, tokens: Any) -> tuple[Any, Any]:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x), x


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        embed = linen.Embed(11, 8)
        x = embed(tokens)
        for _ in range(2):
            y = linen.Dense(12)(linen.LayerNorm(epsilon=EPSILON)(x))
            x = x + linen.Dense(8)(linen.relu(y))
        return embed.attend(x)


class EquinoxModel(equinox.Module):
    words: jax.Array
    norms: list[equinox.nn.LayerNorm]
    linears: list[equinox.nn.Linear]
    activation: Any = equinox.field(static=True)

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), 4)
        self.words = jnp.zeros((11, 8))
        self.norms = [equinox.nn.LayerNorm(8, eps=EPSILON) for _ in range(2)]
        self.linears = [
            equinox.nn.Linear(*sizes, key=key) for sizes, key in zip([(8, 12), (12, 8)] * 2, keys, strict=True)
        ]
        self.activation = jax.nn.relu

    def __call__(self, input_ids: Any) -> Any:
        def each(function: Any, x: Any) -> Any:
            return jax.vmap(jax.vmap(function))(x)

        x = self.words[input_ids]
        for layer, norm in enumerate(self.norms):
            wide, narrow = self.linears[2 * layer : 2 * layer + 2]
            x = x + each(narrow, self.activation(each(wide, each(norm, x))))
        return x @ self.words.T


def linen_side() -> Side:
    return Side(LinenModel(), params=LinenModel().init(jax.random.key(0), IDS["input_ids"]))


def function_side(epsilon: float = EPSILON) -> Side:
    definition, params = nnx.split(NnxModel(epsilon))
    return Side(lambda weights, inputs: nnx.merge(definition, weights)(inputs["input_ids"])[0], params=params)


@pytest.mark.parametrize("make", [NnxModel, linen_side, EquinoxModel, function_side])
def test_ports_in_every_style_are_proven(make: Any) -> None:
    certificate = jt.assert_same(make(), TorchModel(), IDS)
    again = Certificate.from_json(certificate.to_json())
    assert again.map == certificate.map
    assert again.changes(certificate) == []
    assert dataclasses.replace(again, map={"found": ("2 of 3",)}).changes(certificate)
    assert [stage.name for stage in certificate.stages] == ["forward", "gradients"]
    ((found,), *rest) = certificate.map.values()
    count = found.split()[0]
    assert found.startswith(f"{count} of {count} weights")
    assert not rest


def test_either_side_may_be_the_port() -> None:
    jt.assert_same(TorchModel(), NnxModel(), IDS, stages=("forward",))
    jt.assert_same(linen_side(), NnxModel(), {"tokens": IDS["input_ids"]}, stages=("forward",))


def test_a_fault_fails_with_its_repair() -> None:
    with pytest.raises(AssertionError) as caught:
        jt.assert_same(NnxModel(1e-6), TorchModel(), IDS, stages=("forward",))
    text = str(caught.value)
    assert "with 1e-05, the two are proven the same" in text
    assert "blocks.0.norm" in text
    assert "by name alone: blocks/0/norm/scale" in text


class Normed(nnx.Module):
    """Norms by running statistics, in an order of products that no map is found behind."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
        self.last = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.norm(self.conv(x.transpose(0, 2, 3, 1)))).mean((1, 2)))


def test_the_map_of_a_batch_norm_is_found() -> None:
    pooled = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)
    convolved = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    inputs = {"input": np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)}
    reference = torch.nn.Sequential(*convolved, *pooled).eval()
    assert jt.prove(Normed(), reference, inputs=inputs, stages=("forward",)).verdict == "proven"


class Rescaled(nnx.Module):
    """Multiplies its kernel by a scale, so that no weight is one of the reference's."""

    def __init__(self) -> None:
        self.kernel, self.scale = nnx.Param(jnp.ones((3, 4))), nnx.Param(jnp.ones(4))

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(x @ (self.kernel * self.scale))


def test_a_map_that_is_not_found_refutes_nothing() -> None:
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.ReLU()).eval()
    inputs = {"input": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    certificate = jt.prove(Rescaled(), reference, inputs=inputs, stages=("forward",))
    assert certificate.verdict == "unknown"
    assert len(certificate.map["without a partner"]) > 1


def positions(base: float = 100.0) -> np.ndarray:
    """Returns sines and cosines [6, 8]."""
    angles = np.arange(6)[:, None] * base ** -(np.arange(4) / 4)
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


class TorchPositions(torch.nn.Module):
    """Keeps its positions as a tensor that it doesn't train."""

    def __init__(self, is_parameter: bool) -> None:
        super().__init__()
        self.words, self.last = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 8)
        table = torch.from_numpy(positions())
        if is_parameter:
            self.positions = torch.nn.Parameter(table, requires_grad=False)
        else:
            self.register_buffer("positions", table)
        self.eval()

    def forward(self, input_ids: Any) -> Any:
        return torch.tanh(self.last(self.words(input_ids) + self.positions[: input_ids.shape[1]]))


class NnxPositions(nnx.Module):
    def __init__(self, base: float = 100.0) -> None:
        rngs = nnx.Rngs(0)
        self.words, self.last, self.base = nnx.Embed(11, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs), base

    def __call__(self, tokens: Any) -> Any:
        return jnp.tanh(self.last(self.words(tokens) + jnp.asarray(positions(self.base))[: tokens.shape[1]]))


@pytest.mark.parametrize("is_parameter", [True, False])
def test_tables_that_a_module_does_not_train_are_constants(is_parameter: bool) -> None:
    certificate = jt.assert_same(NnxPositions(), TorchPositions(is_parameter), IDS)
    assert certificate.map["taken as constants, which aren't trained"] == ("positions",)


def test_another_table_of_positions_is_refuted() -> None:
    certificate = jt.prove(NnxPositions(101.0), TorchPositions(True), inputs=IDS, stages=("forward",))
    assert "reads another table [1, 4, 8]" in str(certificate.repair)
    assert "0.310237 for 0.310984" in str(certificate.repair)


def test_factories_of_the_command_return_sides(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = type(sys)("of_the_command")
    vars(module).update(linen=linen_side, nnx=NnxModel, torch=TorchModel)
    monkeypatch.setitem(sys.modules, "of_the_command", module)
    np.savez(tmp_path / "inputs.npz", **IDS)
    inputs = ["--inputs", str(tmp_path / "inputs.npz"), "--prove", "--stages", "forward"]
    for ours, theirs in (("linen", "torch"), ("nnx", "torch"), ("torch", "nnx"), ("linen", "nnx")):
        both = ["--candidate", f"of_the_command:{ours}", "--reference", f"of_the_command:{theirs}"]
        assert main(["parity", *both, *inputs]) == 0
        assert f"proven: of_the_command:{ours} against of_the_command:{theirs}" in capsys.readouterr().out
    assert main(["parity", "--reference", "of_the_command:nnx", "--prove"]) == 2
    assert "inputs: expected the arguments of both programs by name" in capsys.readouterr().err


class Turned(NnxModel):
    """Multiplies by the transposed square kernel in one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)])

    def __call__(self, tokens: Any) -> Any:
        first, second = self.blocks
        x = jnp.tanh(first(self.embed(tokens)))
        return jnp.tanh(x @ second.kernel[...].T + second.bias[...])


def test_a_layer_unlike_its_siblings_fails() -> None:
    linears = (torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh())
    reference = torch.nn.Sequential(torch.nn.Embedding(11, 8), *linears).eval()
    with pytest.raises(AssertionError, match=r"irregular: blocks/1/kernel"):
        jt.assert_same(Turned(), reference, {"input": IDS["input_ids"]}, stages=("forward",))


class Scaled(NnxModel):
    """Scales its last hidden state by a weight that the reference lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nnx.Param(jnp.ones(8))

    def __call__(self, tokens: Any) -> Any:
        return super().__call__(tokens)[1] * self.scale[...] @ self.embed.embedding[...].T


def test_a_weight_that_the_reference_lacks_is_left_out_by_the_repair() -> None:
    certificate = jt.prove(Scaled(), TorchModel(), inputs=IDS, stages=("forward",))
    assert certificate.verdict == "refuted"
    assert "applies mul, and the reference doesn't; without it" in str(certificate.repair)


def test_guesses_by_name_refute_nothing_without_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_transformer.proof.certificate.find_repair", lambda task: None)
    certificate = jt.prove(NnxModel(1e-6), TorchModel(), inputs=IDS, stages=("forward",))
    assert certificate.verdict == "unknown"
    assert (
        "matched by name alone, or have no partner, and with another map they may be the same"
        in certificate.stages[0].reason
    )


def converted(tensors: dict[str, np.ndarray]) -> Any:
    """Loads the weights of the PyTorch model into the state of the NNX model."""
    params = nnx.split(NnxModel())[1]
    params["embed"]["embedding"] = tensors["words.weight"]
    for layer in range(2):
        block = params["blocks"][layer]
        block["norm"]["scale"], block["norm"]["bias"] = (
            tensors[f"layers.{layer}.norm.{name}"] for name in ("weight", "bias")
        )
        for ours, theirs in (("wide", "up"), ("narrow", "down")):
            block[ours]["kernel"] = tensors[f"layers.{layer}.{theirs}.weight"].T
            block[ours]["bias"] = tensors[f"layers.{layer}.{theirs}.bias"]
    return params


def test_the_converter_of_a_port_gives_the_map() -> None:
    certificate = jt.assert_same(NnxModel(), TorchModel(), IDS, stages=("forward",), names=converted)
    assert certificate.map == {"given": ("13 of 13 weights of NnxModel have a partner",)}
    assert jt.prove(NnxModel(1e-6), TorchModel(), inputs=IDS, stages=("forward",), names=converted).repair is not None


def test_a_wrong_converter_is_refuted() -> None:
    def swapped(tensors: dict[str, np.ndarray]) -> Any:
        return converted({**tensors, "layers.1.norm.weight": tensors["layers.1.norm.bias"]})

    certificate = jt.prove(NnxModel(), TorchModel(), inputs=IDS, stages=("forward",), names=swapped)
    assert certificate.verdict == "refuted"
    assert certificate.repair is not None
    assert certificate.repair.causes[0].modules == ("blocks.1.norm",)


def test_a_map_that_was_found_may_be_given(tmp_path: Any) -> None:
    side, file = function_side(), tmp_path / "map.yaml"
    found = find_map(side.program, with_one_output(TorchModel(), "model"), IDS, candidate_params=side.params)
    assert found.map is not None
    found.map.write(file)
    for names in (file, found.map):
        certificate = jt.assert_same(side, TorchModel(), IDS, stages=("forward",), names=names)
        assert [*certificate.map] == ["given"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given: converted(given | {"words.weight": given["words.weight"] + 1}), "computes words|computes embed"),
        (lambda given: converted({n: jnp.asarray(w, jnp.bfloat16) for n, w in given.items()}), "or narrows it"),
        (lambda tensors: converted({n: np.abs(w) for n, w in tensors.items()}), "the converter computes"),
        (lambda tensors: converted({n: w.clip(-1e3, 1e3) for n, w in tensors.items()}), "the converter computes"),
        (lambda tensors: converted({n: np.floor(w) for n, w in tensors.items()}), "the converter computes"),
        (lambda tensors: {}, "the converter: expected .* received nothing"),
        (lambda tensors: tensors["absent"], "the converter raised KeyError: 'absent'"),
        (
            lambda tensors: converted({**tensors, "words.weight": tensors["words.weight"] - 0.5}),
            "the converter computes",
        ),
        (
            lambda tensors: converted({**tensors, "words.weight": np.ones((3, 8))}),
            r"embed.embedding \[11, 8\]; .* \[3, 8\]",
        ),
    ],
)
def test_a_converter_that_does_not_fit_is_refused(change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        jt.prove(NnxModel(), TorchModel(), inputs=IDS, names=change)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: jt.prove(LinenModel(), TorchModel(), inputs=IDS), r"its variables, in Side\(module, params=...\)"),
        (lambda: jt.prove(Side(NnxModel(), params={}), TorchModel(), inputs=IDS), "no params: the module has its own"),
        (lambda: jt.prove(NnxModel(), TorchModel()), "inputs: expected the arguments of both programs by name"),
        (
            lambda: jt.compare(NnxModel(), TorchModel()),
            "expected two programs, and inputs: the arguments of both by name",
        ),
        (
            lambda: jt.prove(NnxModel(), TorchModel(), inputs={**IDS, "mask": IDS["input_ids"]}),
            "NnxModel: expected inputs for its arguments tokens; received input_ids, mask",
        ),
        (lambda: jt.prove(NnxModel(), lambda p, i: p, inputs=IDS), r"its weights, a tree, in Side\(program, params="),
        (lambda: jt.prove(NnxModel(), inputs=IDS), "expected two programs; received one"),
        (
            lambda: jt.prove(NnxModel(), TorchModel(), inputs=IDS, names={"a": "b"}),
            "names: expected a NameMap, its file, or a function",
        ),
        (lambda: jt.prove(NnxModel(), TorchModel().train(), inputs=IDS), "call .eval"),
    ],
)
def test_wrong_calls_end_in_one_line(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


class Head(torch.nn.Module):
    """Reads one table as embedding and head, or two."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11, bias=False)
        if is_tied:
            self.head.weight = self.words.weight
        self.eval()

    def forward(self, input_ids: Any) -> Any:
        return self.head(torch.tanh(self.words(input_ids)))


def untied_head(params: Any, inputs: Any) -> Any:
    return jnp.tanh(params["words"][inputs["input_ids"]]) @ params["head"]


UNTIED = {"words": np.zeros((11, 8), np.float32), "head": np.zeros((8, 11), np.float32)}


@pytest.mark.parametrize("is_port_first", [True, False])
def test_weights_that_one_side_has_apart_are_a_condition(is_port_first: bool) -> None:
    sides = Side(untied_head, params=UNTIED), Head(is_tied=True)
    certificate = jt.prove(*sides[:: 1 if is_port_first else -1], inputs=IDS, stages=("forward",))
    assert certificate.verdict == "proven"
    side, other = ("candidate", "reference") if is_port_first else ("reference", "candidate")
    assert certificate.conditions == (f"head and words of the {side} are equal, as they are one in the {other}",)
    assert "for all weights" not in str(certificate)


def test_weights_that_both_sides_have_apart_are_no_condition() -> None:
    assert (
        jt.assert_same(Side(untied_head, params=UNTIED), Head(is_tied=False), IDS, stages=("forward",)).conditions == ()
    )


def test_a_converter_that_ties_weights_is_a_condition() -> None:
    def both(tensors: dict[str, np.ndarray]) -> Any:
        return {"words": tensors["words.weight"], "head": tensors["words.weight"].T}

    certificate = jt.prove(
        Side(untied_head, params=UNTIED), Head(is_tied=True), inputs=IDS, stages=("forward",), names=both
    )
    assert certificate.verdict == "proven"
    assert len(certificate.conditions) == 1


@pytest.mark.parametrize("places", ["10 - ids", "2 * ids"])
def test_rows_that_other_ids_read_follow_from_none(places: str) -> None:
    program = eval(f"lambda p, i: (lambda ids: p['words'][{places}] * p['scale'])(i['input_ids'])")
    params = {"words": np.zeros((11, 8), np.float32), "scale": np.zeros(8, np.float32)}
    plain = Side(lambda p, i: p["words"][i["input_ids"]] * p["scale"], params=params)
    assert jt.prove(Side(program, params=params), plain, inputs=IDS, stages=("forward",)).verdict == "unknown"
    assert jt.prove(plain, plain, inputs=IDS, stages=("forward",)).verdict == "proven"


def test_a_reversed_weight_is_named() -> None:
    params = {"kernel": np.zeros((4, 4), np.float32)}
    reversed_rows, plain = (
        Side(lambda p, i, step=step: i["x"] @ p["kernel"][::step], params=params) for step in (-1, 1)
    )
    certificate = jt.prove(reversed_rows, plain, inputs={"x": np.ones((3, 4), np.float32)}, stages=("forward",))
    assert certificate.verdict == "proven"
    assert certificate.map["in an order that no axes give"] == ("kernel",)


def test_lines_typed_at_a_prompt_are_the_program_s_own() -> None:
    text = "def program(p, i):\n    return i['x'] / (p['w'] ** 2 + 1e-5)\n"
    found: dict[str, Any] = {}
    exec(compile(text, "<stdin>", "exec"), found)
    exec(compile(text.replace("1e-5", "1e-6").replace("program", "other"), "<stdin-1>", "exec"), found)
    sides = (Side(found[name], params={"w": np.zeros(3, np.float32)}) for name in ("program", "other"))
    certificate = jt.prove(*sides, inputs={"x": np.ones(3, np.float32)}, stages=("forward",))
    assert str(certificate.repair).startswith("<stdin>:2 has 1e-05, <stdin-1>:2 has 1e-06")
    assert "with the map that was found" in str(certificate)


BOTH = {"a": np.zeros((4, 4), np.float32), "b": np.zeros((4, 4), np.float32)}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [  # with a for b, these are the same
        (
            lambda p, i: (i["x"] @ p["a"]) ** 3 - (i["x"] @ p["b"]) ** 3,
            lambda p, i: (lambda a, b: (b - a) * (a * a + a * b + b * b))(i["x"] @ p["a"], i["x"] @ p["b"]),
        ),
        (
            lambda p, i: jnp.where(i["x"] > 0, i["x"] @ p["a"], i["x"] @ p["b"]),
            lambda p, i: (i["x"] <= 0) * (i["x"] @ p["a"]) + (i["x"] > 0) * (i["x"] @ p["b"]),
        ),
        (
            lambda p, i: 2 * jnp.exp(i["x"] @ p["a"]) - 3 * jnp.exp(i["x"] @ p["b"]),
            lambda p, i: 2 * jnp.exp(i["x"] @ p["b"]) - 3 * jnp.exp(i["x"] @ p["a"]),
        ),
    ],
)
def test_what_another_map_makes_the_same_is_not_refuted(ours: Any, theirs: Any) -> None:
    sides = (Side(program, params=BOTH) for program in (ours, theirs))
    certificate = jt.prove(*sides, inputs={"x": np.ones((3, 4), np.float32)}, stages=("forward",))
    assert certificate.verdict != "refuted", str(certificate)


def test_a_weight_that_the_candidate_lacks_is_refuted_by_any_map() -> None:
    ours = Side(lambda p, i: jnp.tanh(i["x"] @ p["a"]) @ p["a"], params={"a": BOTH["a"]})
    theirs = Side(lambda p, i: jnp.tanh(i["x"] @ p["a"]) @ p["b"], params=BOTH)
    certificate = jt.prove(ours, theirs, inputs={"x": np.ones((3, 4), np.float32)}, stages=("forward",))
    assert certificate.verdict == "refuted"
    assert certificate.repair is not None
    assert certificate.repair.causes[0].kind == "weight"


@pytest.mark.parametrize("leaves_out", ["mean", "var"])
def test_statistics_at_their_start_are_weights(leaves_out: str) -> None:
    def normed(p: Any, i: Any) -> Any:
        mean, var = (p.get(name, start) for name, start in (("mean", 0.0), ("var", 1.0)))
        return (i["input"] - mean) / jnp.sqrt(var + 1e-5) * p["scale"] + p["bias"]

    params = {name: np.zeros(4, np.float32) for name in ("mean", "var", "scale", "bias") if name != leaves_out}
    inputs = {"input": np.ones((2, 4), np.float32)}
    certificate = jt.prove(
        Side(normed, params=params), torch.nn.BatchNorm1d(4).eval(), inputs=inputs, stages=("forward",)
    )
    assert certificate.verdict != "proven"
    assert "taken as constants, which aren't trained" not in certificate.map


@pytest.mark.parametrize(("dtype", "verdict"), [("float16", "proven"), ("bfloat16", "refuted"), ("float32", "refuted")])
def test_a_program_reads_weights_in_its_own_types(dtype: str, verdict: str) -> None:
    def ours(p: Any, i: Any) -> Any:
        return i["x"] / (1 + jnp.finfo(p["scale"].dtype).eps) * p["scale"].astype(jnp.float32)

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: Any) -> Any:
            return x / (1 + torch.finfo(torch.float16).eps) * self.scale

    side = Side(ours, params={"scale": jnp.zeros(4, dtype)})
    certificate = jt.prove(side, Theirs().eval(), inputs={"x": np.ones((3, 4), np.float32)}, stages=("forward",))
    assert certificate.verdict == verdict


def test_parts_of_a_fused_kernel_may_be_stacked_in_any_order() -> None:
    def ours(p: Any, i: Any) -> Any:
        query, key, value = (i["input"] @ p["kernels"][number] for number in (2, 0, 1))
        return jax.nn.softmax(query @ key.T, -1) @ value

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = torch.nn.Linear(4, 12, bias=False)

        def forward(self, input: Any) -> Any:
            query, key, value = self.fused(input).chunk(3, -1)
            return torch.softmax(query @ key.T, -1) @ value

    side = Side(ours, params={"kernels": np.zeros((3, 4, 4), np.float32)})
    jt.assert_same(side, Theirs().eval(), {"input": np.ones((3, 4), np.float32)}, stages=("forward",))


class FixedPositions(torch.nn.Module):
    """Adds a table that isn't trained, as modules with sinusoidal positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.output = torch.nn.Linear(4, 4, bias=False)
        self.table = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4) / 8, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x + self.table)


def test_a_table_that_is_not_trained_is_a_constant_under_a_given_map_too() -> None:
    """It used to be a weight of one side alone, and equal programs were refuted."""
    side = Side(
        lambda params, inputs: (inputs["x"] + np.arange(12.0, dtype=np.float32).reshape(3, 4) / 8) @ params["kernel"],
        params={"kernel": np.zeros((4, 4), np.float32)},
    )
    inputs = {"x": np.ones((2, 3, 4), np.float32)}

    def converted(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"kernel": tensors["output.weight"].T}

    certificate = jt.prove(side, FixedPositions().eval(), inputs=inputs, stages=("forward",), names=converted)
    assert certificate.verdict == "proven"
    assert "table" in str(certificate)
    other = FixedPositions().eval()
    other.table.data[1, 2] += 1
    assert jt.prove(side, other, inputs=inputs, stages=("forward",), names=converted).verdict == "refuted"
