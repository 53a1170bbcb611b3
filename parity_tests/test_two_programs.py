"""Two programs of any architecture are compared by numbers, in their own dtypes and in float64, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
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
from jax_transformer.parity import Side

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
