"""Two programs of any architecture are compared by numbers, in their own dtypes and in float64, layer by layer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import jax_transformer as jt
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import ParityError, Side

IDS = {"input_ids": np.array([[1, 5, 3, 2, 9]])}
LAYERS = 3
EPSILONS = (1e-5,) * LAYERS


@pytest.fixture(autouse=True)
def narrow() -> Any:
    """Programs run as their users run them: without 64 bits."""
    with jax.enable_x64(False):
        yield


class TorchBlock(torch.nn.Module):
    """A block that pins float32 inside."""

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)
        self.scale, self.epsilon = torch.nn.Parameter(torch.randn(8)), epsilon

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        normed = self.scale * normed.to(x.dtype)
        return x + self.down(torch.nn.functional.silu(self.up(normed))) * factor


class TorchModel(torch.nn.Module):
    def __init__(self, epsilons: tuple[float, ...] = EPSILONS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([TorchBlock(each) for each in epsilons])
        self.eval()

    def forward(self, input_ids: Any) -> dict[str, Any]:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, factor=0.5)
        return {"logits": x @ self.words.weight.T}


def block(params: Mapping[str, Any], x: Any, epsilon: float = 1e-5) -> Any:
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + epsilon)
    normed = params["scale"] * normed.astype(x.dtype)
    hidden = jax.nn.silu(normed @ params["up"] + params["up_bias"])
    return x + (hidden @ params["down"] + params["down_bias"]) * 0.5


def function(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    x = jnp.take(params["words"], inputs["input_ids"], axis=0)
    for layer in params["layers"]:
        x = block(layer, x)
    return x @ params["words"].T


@jax.jit
def scanned(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """The same with stacked weights, compiled."""
    x, _ = jax.lax.scan(
        lambda x, layer: (block(layer, x), None), params["words"][inputs["input_ids"]], params["layers"]
    )
    return x @ params["words"].T


class NnxBlock(nnx.Module):
    def __init__(self, epsilon: float, dtype: Any) -> None:
        self.params = nnx.Dict({
            name: nnx.Param(jnp.ones(shape, dtype))
            for name, shape in (("scale", 8), ("up", (8, 12)), ("up_bias", 12), ("down", (12, 8)), ("down_bias", 8))
        })  # fmt: skip
        self.epsilon = epsilon

    def __call__(self, x: Any) -> Any:
        return block(self.params, x, self.epsilon)


class NnxModel(nnx.Module):
    def __init__(self, epsilons: tuple[float, ...] = EPSILONS, dtype: Any = jnp.float32) -> None:
        self.words = nnx.Param(jnp.ones((11, 8), dtype))
        self.layers = nnx.List([NnxBlock(each, dtype) for each in epsilons])

    def __call__(self, tokens: Any) -> Any:
        x = jnp.take(self.words, tokens, axis=0)
        for layer in self.layers:
            x = layer(x)
        return x @ self.words.T


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        shapes = {"scale": (8,), "up": (8, 12), "up_bias": (12,), "down": (12, 8), "down_bias": (8,)}
        return block({name: self.param(name, linen.initializers.ones, shape) for name, shape in shapes.items()}, x)


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        words = self.param("words", linen.initializers.ones, (11, 8))
        x = words[tokens]
        for number in range(LAYERS):
            x = LinenBlock(name=f"layers_{number}")(x)
        return x @ words.T


class EquinoxBlock(equinox.Module):
    params: dict[str, Any]

    def __call__(self, x: Any) -> Any:
        return block(self.params, x)


class EquinoxModel(equinox.Module):
    words: Any
    layers: list[EquinoxBlock]

    def __call__(self, tokens: Any) -> Any:
        x = self.words[tokens]
        for layer in self.layers:
            x = layer(x)
        return x @ self.words.T


OF_TENSOR = {"scale": "scale", "up.weight": "up", "up.bias": "up_bias", "down.weight": "down", "down.bias": "down_bias"}


def tree(module: torch.nn.Module) -> dict[str, Any]:
    """Loads the module's tensors as the function's weights."""

    def array(name: str) -> Any:
        tensor = module.state_dict()[name]
        turned = tensor.T if name.startswith("layers") and tensor.ndim == 2 else tensor
        dtype = jnp.bfloat16 if tensor.dtype == torch.bfloat16 else jnp.float32
        return jnp.asarray(turned.float().numpy(), dtype)

    layers = [
        {own: array(f"layers.{number}.{name}") for name, own in OF_TENSOR.items()}
        for number in range(len(module.layers))  # type: ignore[arg-type]
    ]
    return {"words": array("words.weight"), "layers": layers}


def nnx_model(module: torch.nn.Module, epsilons: tuple[float, ...] = EPSILONS) -> NnxModel:
    weights = tree(module)
    model = NnxModel(epsilons, weights["words"].dtype)
    model.words[...] = weights["words"]
    for layer, given in zip(model.layers, weights["layers"], strict=True):
        for name, array in given.items():
            layer.params[name][...] = array
    return model


def candidate(kind: str, module: torch.nn.Module) -> tuple[Any, Any]:
    """Returns a port with the module's weights, and which layers it has."""
    weights = tree(module)
    if kind == "nnx":
        return nnx_model(module), None
    if kind == "function":
        return Side(function, params=weights), {"layers.{}": block}
    if kind == "scanned":
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *weights["layers"])
        return Side(scanned, params={**weights, "layers": stacked}), {"layers.{}": block}
    if kind == "linen":
        variables = {"words": weights["words"], **{f"layers_{i}": each for i, each in enumerate(weights["layers"])}}
        return Side(LinenModel(), params={"params": variables}), {"layers.{}": "layers_{}"}
    return EquinoxModel(weights["words"], [EquinoxBlock(each) for each in weights["layers"]]), None


def rows(report: Report, stage: str) -> dict[str, Any]:
    return {row.name: row for each in report.stages if each.name == stage for row in each.rows}


ALL = ["layers.0", "layers.1", "layers.2"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["nnx", "function", "scanned", "linen", "equinox"])
def test_a_port_passes_in_its_own_dtype_and_in_a_wide_replay(kind: str, dtype: str) -> None:
    module = TorchModel().to(getattr(torch, dtype))
    port, layers = candidate(kind, module)
    report = jt.compare(port, module, inputs=IDS, weights="own", layers=layers)
    assert report.verdict == "passed", str(report)
    assert [stage.name for stage in report.stages] == ["layers", "forward", f"layers {dtype}", f"forward {dtype}"]
    assert [*rows(report, "layers")] == ALL == [*rows(report, f"layers {dtype}")]
    assert rows(report, "forward")["output"].error.relative_rms <= 1e-12
    assert "move the output" in report.remarks[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_epsilon_is_found_in_its_layer_alone_though_both_sides_pin_low_precision(dtype: str) -> None:
    module = TorchModel().to(getattr(torch, dtype))
    port = nnx_model(module, (1e-5, 1e-6, 1e-5))
    report = jt.compare(port, module, inputs=IDS, weights="own")
    assert report.verdict == "diverged"
    assert [name for name, row in rows(report, "layers").items() if row.verdict == "diverged"] == ["layers.1"]
    assert report.faults[0].finding.node == "layers.1"


def test_another_epsilon_in_all_layers_passes_in_bfloat16_and_says_so_and_diverges_in_float32() -> None:
    module = TorchModel().to(torch.bfloat16)
    report = jt.compare(nnx_model(module, (1e-6,) * LAYERS), module, inputs=IDS, weights="own")
    assert report.verdict == "passed"
    assert any("a comparison in float32 tells" in remark for remark in report.remarks)
    wide = TorchModel()
    report = jt.compare(nnx_model(wide, (1e-6,) * LAYERS), wide, inputs=IDS, weights="own")
    assert report.verdict == "diverged"


def test_weights_are_carried_over_by_the_map_that_is_found() -> None:
    report = jt.compare(Side(function, params=tree(TorchModel())), TorchModel(), inputs=IDS)
    assert report.verdict == "passed", str(report)
    assert report.remarks[0] == "weights: those of TorchModel, carried over by the map that was found"
    other = jax.tree.map(jnp.ones_like, tree(TorchModel()))
    assert jt.compare(Side(function, params=other), TorchModel(), inputs=IDS).verdict == "passed"
    assert jt.compare(Side(function, params=other), TorchModel(), inputs=IDS, weights="own").verdict == "diverged"


def test_two_modules_and_two_functions_are_compared() -> None:
    assert jt.compare(TorchModel(), TorchModel(), inputs=IDS).verdict == "passed"
    wrong = jt.compare(TorchModel((1e-5, 1e-5, 1e-6)), TorchModel(), inputs=IDS)
    assert (wrong.verdict, wrong.faults[0].finding.node) == ("diverged", "layers.2")
    side = Side(function, params=tree(TorchModel()))
    assert jt.compare(side, side, inputs=IDS, weights="own").verdict == "passed"


def abstract(dtype: Any) -> NnxModel:
    return nnx.eval_shape(lambda: NnxModel(dtype=dtype))  # type: ignore[no-any-return]


def bare() -> TorchModel:
    with torch.device("meta"):
        return TorchModel()


def read_from(path: Path) -> Any:
    from jax_transformer.storage.tensor_files import read_tensors

    tensors = read_tensors(path)
    own = {ours: theirs for theirs, ours in OF_TENSOR.items()}

    def read(leaf: str) -> np.ndarray:
        if leaf == "words":
            return np.asarray(tensors["words.weight"])
        _, number, _, name = leaf.split("/")
        array = tensors[f"layers.{number}.{own[name]}"]
        return np.asarray(array.T)

    return read


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_stay_on_the_disk(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    module = TorchModel().to(getattr(torch, dtype))
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)
    reference = bare().to(getattr(torch, dtype))
    report = jt.compare(
        Side(abstract(getattr(jnp, dtype)), checkpoint=read_from(path)),
        Side(reference, checkpoint=tmp_path),
        inputs=IDS,
        kl=1e-3,
        top_k="3:0.9",
    )
    assert report.verdict == "passed", str(report)
    assert all(parameter.is_meta for parameter in reference.parameters())
    assert "own" in report.remarks[0]


def test_gates_are_judged_and_print_what_was_measured() -> None:
    module = TorchModel()
    port = nnx_model(module)
    port.words[...] = port.words[...] * 1.05
    report = jt.compare(port, module, inputs=IDS, weights="own", kl=1e-9, top_k="2:0.5")
    found = rows(report, "gates")
    assert (found["KL divergence"].verdict, found["top-2 agreement"].verdict) == ("diverged", "passed")
    assert "nats on average" in str(report)
    assert "(gate ≥ 0.5)" in str(report)


def test_each_side_has_a_device() -> None:
    module = TorchModel()
    devices = jax.devices("cpu")
    report = jt.compare(
        Side(nnx_model(module), device=f"cpu:{len(devices) - 1}"), Side(module, device="cpu"), inputs=IDS, weights="own"
    )
    assert report.verdict == "passed", str(report)


class Printing(TorchModel):
    def forward(self, input_ids: Any) -> dict[str, Any]:
        print("hello")
        return super().forward(input_ids)


class Drawing(TorchModel):
    def forward(self, input_ids: Any) -> dict[str, Any]:
        return {"logits": super().forward(input_ids)["logits"] + torch.rand(1)}


class Counting(TorchModel):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: Any) -> dict[str, Any]:
        self.calls += 1
        return {"logits": super().forward(input_ids)["logits"] + self.calls}


class Needy(TorchModel):
    def forward(self, input_ids: Any, mask: Any) -> dict[str, Any]:  # type: ignore[override]
        return super().forward(input_ids)


def test_a_module_that_prints_is_compared_and_prints_nothing_into_the_report(capsys: Any) -> None:
    module = Printing()
    assert jt.compare(nnx_model(module), module, inputs=IDS, weights="own").verdict == "passed"
    assert "hello" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", [Drawing, Counting])
def test_a_module_that_draws_or_changes_itself_is_inconclusive(kind: type[TorchModel]) -> None:
    module = kind()
    report = jt.compare(nnx_model(module), module, inputs=IDS, weights="own")
    assert report.verdict == "inconclusive"
    assert "the reference differs from itself when it is run again" in report.doubts[0]


class Quantised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
        self.eval()

    def forward(self, x: Any) -> Any:
        return x @ self.weight.float()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: jt.compare(Quantised(), Quantised(), inputs={"x": np.ones((1, 8), np.float32)}),
            "Quantised: weight is int8: quantised weights aren't supported",
        ),
        (
            lambda: jt.compare(
                Side(lambda p, i: i["x"] @ p["w"], params={"w": jnp.ones((8, 8), jnp.int8)}, name="ours"),
                torch.nn.Linear(8, 8).eval(),
                inputs={"x": np.ones((1, 8), np.float32)},
                weights="own",
            ),
            "ours: w is int8: quantised weights aren't supported",
        ),
        (lambda: jt.compare(NnxModel(), Needy(), inputs=IDS, weights="own"), "missing 1 required positional argument"),
        (lambda: jt.compare(NnxModel(), bare(), inputs=IDS, weights="own"), "words.weight has no numbers"),
        (
            lambda: jt.compare(NnxModel(), TorchModel(), inputs=IDS, weights="own", memory_limit=1e-9),
            "would take about .* more than .* memory_limit",
        ),
        (
            lambda: jt.compare(NnxModel(), TorchModel(), inputs=IDS, weights="own", time_limit=0),
            r"more than 0 s \(time_limit\)",
        ),
        (
            lambda: jt.compare(NnxModel(), TorchModel(), inputs=IDS, weights="own", layers={"blocks.{}": "layers.{}"}),
            "layers: TorchModel has no layer blocks",
        ),
        (lambda: jt.compare(NnxModel(), TorchModel(), inputs=IDS, weights="own", top_k="5"), "top_k: expected k"),
        (
            lambda: jt.compare(Side(NnxModel(), device="moon:3"), TorchModel(), inputs=IDS, weights="own"),
            "device: expected one of cpu:0",
        ),
        (
            lambda: jt.prove(Side(NnxModel(), device="cpu"), TorchModel(), inputs=IDS),
            "device doesn't apply to two programs on inputs",
        ),
    ],
)
def test_mistakes_end_in_one_line(call: Any, said: str) -> None:
    with pytest.raises(ParityError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_sharded_weights_are_gathered() -> None:
    devices = np.array(jax.devices("cpu"))
    mesh = jax.sharding.Mesh(devices, ("all",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None))
    module = TorchModel()
    params = jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree(module))
    assert jt.compare(Side(function, params=params), module, inputs=IDS, weights="own").verdict == "passed"


def factory() -> Side:
    return Side(nnx_model(TorchModel()))


def test_the_command_compares_two_programs(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    from jax_transformer.cli import main

    monkeypatch.setitem(sys.modules, "my_port", sys.modules[__name__])
    np.savez(tmp_path / "inputs.npz", **IDS)
    words = ["parity", "--candidate", "my_port:factory", "--reference", "my_port:TorchModel", "--own-weights"]
    words += ["--inputs", str(tmp_path / "inputs.npz"), "--kl", "1e-3", "--top-k", "5:0.999"]
    assert main([*words, "--layers", "layers.{}=layers.{}", "--reference-device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "KL divergence" in out
    assert main([*words, "--layers", "layers.{}"]) == 2
    assert main([*words, "--prove"]) == 2
