"""Maps between programs that write one function with other layouts of weights, and between programs with a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import leaves_from_tensors, tensors_from_leaves
from jax_transformer.matching import FoundMap, find_map
from jax_transformer.storage.tensors import PortingError

IDS = np.array([[1, 5, 3, 4, 7, 2]])
WIDTH, HEADS, HIDDEN, WORDS, EPSILON = 8, 2, 12, 11, 1e-5


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


# --- a decoder in PyTorch: one fused kernel for query, key and value, and a head that is the embedding


def halves_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Layer(nn.Module):
    def __init__(self, *, is_rotary: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.is_rotary = is_rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = (each.transpose(1, 2) for each in split.unbind(2))
        if self.is_rotary:
            size = q.shape[-1]
            angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
            cos, sin = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))
            q, k = (each * cos + halves_turned(each) * sin for each in (q, k))
        mask = torch.full((length, length), float("-inf")).triu(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask, -1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int = 2, *, is_rotary: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Layer(is_rotary=is_rotary) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH, EPSILON), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# --- the same in JAX: kernels by head, and sums in another order


def normed(x: Any, p: Mapping[str, Any], epsilon: float = EPSILON) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["offset"]


def pairs_turned(x: Any) -> Any:
    """Rotates neighbours, where the module rotates halves."""
    length, size = x.shape[1], x.shape[-1]
    angles = jnp.arange(length)[:, None] / 10000 ** (jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = x[..., ::2], x[..., 1::2]
    return jnp.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(x.shape)


def layer(x: Any, p: Mapping[str, Any], *, is_rotary: bool, fault: str = "") -> Any:
    y, length = normed(x, p["norm1"]), x.shape[1]
    if "qkv" in p:
        q, k, v = jnp.einsum("btd,dknh->kbtnh", y, p["qkv"]["kernel"]) + p["qkv"]["offset"][:, None, None]
    else:
        q, k, v = (jnp.einsum("btd,dnh->btnh", y, p[name]["kernel"]) + p[name]["offset"] for name in ("q", "k", "v"))
    if is_rotary:
        q, k = pairs_turned(q), pairs_turned(k)
    logits = jnp.einsum("bqnh,bknh->bnqk", q * q.shape[-1] ** -0.5, k)
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), logits, -1e30), -1)
    context = jnp.einsum("bnqk,bknh->bqnh", weights, v).reshape(x.shape)
    x = x + context @ (p["o"].T if fault == "turned" else p["o"])
    x = x if fault == "offset" else x + p["o_offset"]
    y = normed(x, p["norm2"], 1e-6 if fault == "epsilon" else EPSILON)
    return x + jax.nn.relu(y @ p["up"]["kernel"] + p["up"]["offset"]) @ p["down"]["kernel"] + p["down"]["offset"]


def ported(*, is_rotary: bool = False, fault: str = "") -> Callable[[Any, Any], Any]:
    """Returns the decoder, with a fault in its second layer."""

    def decoder(params: Any, inputs: Mapping[str, Any]) -> Any:
        ids = inputs["ids"]
        x = params["words"][ids] + params["places"][: ids.shape[1]]
        if isinstance(params["layers"], Mapping):
            x = jax.lax.scan(lambda x, p: (layer(x, p, is_rotary=is_rotary), None), x, params["layers"])[0]
        else:
            for number, p in enumerate(params["layers"]):
                x = layer(x, p, is_rotary=is_rotary, fault=fault if number == 1 else "")
        return normed(x, params["norm"]) @ params["words"].T

    return decoder


def weights(layers: int = 2, *, is_stacked: bool = False, is_fused: bool = False) -> dict[str, Any]:
    def norm() -> dict[str, np.ndarray]:
        return {"scale": zeros(WIDTH), "offset": zeros(WIDTH)}

    def dense(*shape: int, offset: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"kernel": zeros(*shape), "offset": zeros(*offset)}

    size = WIDTH // HEADS
    projections = (
        {"qkv": dense(WIDTH, 3, HEADS, size, offset=(3, HEADS, size))}
        if is_fused
        else {name: dense(WIDTH, HEADS, size, offset=(HEADS, size)) for name in ("q", "k", "v")}
    )
    one = {
        **projections,
        "norm1": norm(),
        "norm2": norm(),
        "o": zeros(WIDTH, WIDTH),
        "o_offset": zeros(WIDTH),
        "up": dense(WIDTH, HIDDEN, offset=(HIDDEN,)),
        "down": dense(HIDDEN, WIDTH, offset=(WIDTH,)),
    }
    every = jax.tree.map(lambda *leaves: np.stack(leaves), *[one] * layers) if is_stacked else [one] * layers
    return {"words": zeros(WORDS, WIDTH), "places": zeros(10, WIDTH), "layers": every, "norm": norm()}


def check_carried(found: FoundMap, module: nn.Module, program: Callable[[Any, Any], Any], params: Any) -> None:
    """Carries the module's weights over, by the map and by its file, and compares outputs and the way back."""
    tensors = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    leaves = found.to_candidate(tensors)
    flat, structure = jax.tree_util.tree_flatten(params)
    assert [leaf.shape for leaf in leaves.values()] == [leaf.shape for leaf in flat]
    ours = program(jax.tree_util.tree_unflatten(structure, list(leaves.values())), {"ids": IDS})
    with torch.no_grad():
        np.testing.assert_allclose(ours, module(torch.from_numpy(IDS)), atol=2e-5)
    back = found.to_reference(leaves)
    assert {*back} == {*tensors}
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    if found.map is None:
        return
    rules = NameMap.parse(found.map.text(), "map.yaml").rules()
    by_rules = leaves_from_tensors(rules, tensors, {name: leaf.shape for name, leaf in leaves.items()})
    assert all(np.array_equal(np.asarray(by_rules[name]), leaves[name]) for name in leaves)
    returned = tensors_from_leaves(rules, leaves, {name: leaf.shape for name, leaf in leaves.items()})
    assert all(np.array_equal(np.asarray(returned[name]), tensors[name]) for name in returned)


@pytest.mark.parametrize("layout", ["by head", "stacked", "fused"])
def test_maps_are_found_in_each_layout(layout: str) -> None:
    module, params = Decoder().eval(), weights(is_stacked=layout == "stacked", is_fused=layout == "fused")
    found = find_map(ported(), module, {"ids": IDS}, candidate_params=params)
    assert found.is_right, str(found)
    assert found.map is not None
    check_carried(found, module, ported(), params)


def test_rotary_rows_in_another_order_are_found() -> None:
    module, params = Decoder(is_rotary=True).eval(), weights()
    program = ported(is_rotary=True)
    found = find_map(program, module, {"ids": IDS}, candidate_params=params)
    assert found.is_right, str(found)
    check_carried(found, module, program, params)
    assert found.map is None
    assert found.unwritten == "layers.0.qkv.weight is fused of parts of several sizes or orders, or some have no leaf"


def test_a_map_leads_from_a_function_to_a_module_too() -> None:
    found = find_map(Decoder().eval(), ported(), {"ids": IDS}, reference_params=weights())
    assert found.is_right, str(found)
    assert found.map is not None
    assert found.map.parameters["layers/0/{q,k,v}/kernel"].name == "layers.0.qkv.weight"


@pytest.mark.parametrize("fault", ["epsilon", "offset"])
def test_a_fault_leaves_a_map_unproven(fault: str) -> None:
    found = find_map(ported(fault=fault), Decoder().eval(), {"ids": IDS}, candidate_params=weights())
    assert found.verdict == "refuted"
    assert not found.is_right
    assert any("layers/1/norm2/scale: mul" in each for each in found.by_name)
    is_missing = any("layers.1.proj.bias" in each for each in found.unmapped)
    assert is_missing == (fault == "offset")
    if fault == "epsilon":
        whole = find_map(ported(), Decoder().eval(), {"ids": IDS}, candidate_params=weights(), proves=False)
        assert found.map == whole.map


def test_a_kernel_that_is_turned_in_one_layer_is_irregular() -> None:
    found = find_map(ported(fault="turned"), Decoder(3).eval(), {"ids": IDS}, candidate_params=weights(3))
    assert found.verdict == "proven"
    assert not found.is_right
    assert found.irregular == (
        "layers/1/o: layers.#.proj.weight, A B -> A B; its siblings: layers.#.proj.weight, A B -> B A",
    )


def test_a_map_that_was_not_proven_says_so() -> None:
    def candidate(params: Any, inputs: Mapping[str, Any]) -> Any:
        return jnp.tanh(inputs["input"] @ params["kernel"])

    module = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Tanh())
    inputs = {"input": np.ones((1, 3), np.float32)}
    found = find_map(candidate, module, inputs, candidate_params={"kernel": zeros(3, 2)}, proves=False)
    assert found.verdict == "not proven"
    assert not found.is_right
    assert "not proven" in str(found)


class Looked(nn.Module):
    """Looks up a table of words and one of positions, and multiplies by a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(IDS.shape[1], WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.out(torch.relu(self.words(ids) + self.places(torch.arange(ids.shape[1])))))


def looked_up_by_products(params: Any, inputs: Mapping[str, Any], shift: int = 0, factor: float = 1.0) -> jax.Array:
    words = factor * jax.nn.one_hot(inputs["ids"] + shift, WORDS) @ params["words"]
    x = words + jnp.einsum("dp,pq->qd", params["places"], jnp.eye(IDS.shape[1]))
    return jnp.tanh(jax.nn.relu(x) @ params["kernel"] + params["bias"])


def found_of_products(**changes: Any) -> FoundMap:
    params = {"words": zeros(WORDS, WIDTH), "places": zeros(WIDTH, IDS.shape[1]), "kernel": zeros(WIDTH, 3)}

    def candidate(params: Any, inputs: Mapping[str, Any]) -> jax.Array:
        return looked_up_by_products(params, inputs, **changes)

    return find_map(candidate, Looked().eval(), {"ids": IDS}, candidate_params={**params, "bias": zeros(3)})


def test_tables_that_are_read_by_products_with_one_hot_rows_are_found() -> None:
    assert found_of_products().is_right


@pytest.mark.parametrize("change", [{"factor": 1.0 + 2.0**-20}, {"factor": 2.0}])
def test_scaled_one_hot_rows_are_no_look_up(change: Mapping[str, Any]) -> None:
    assert found_of_products(**change).verdict != "proven"


# --- weights that a program multiplies with each other first


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def normed_by_statistics(params: Any, inputs: Mapping[str, Any], epsilon: float = 1e-5) -> jax.Array:
    def norm(x: jax.Array, name: str) -> jax.Array:
        mean, variance, scale, offset = params[name]
        return (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + offset

    return norm(jnp.tanh(norm(inputs["x"] @ params["kernel"] + params["bias"], "norm")), "last")


def found_of_norms(**changes: Any) -> FoundMap:
    params = {name: tuple(zeros(4) for _ in range(4)) for name in ("norm", "last")}

    def candidate(params: Any, inputs: Mapping[str, Any]) -> jax.Array:
        return normed_by_statistics(params, inputs, **changes)

    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    return find_map(
        candidate, Normed().eval(), {"x": x}, candidate_params={**params, "kernel": zeros(3, 4), "bias": zeros(4)}
    )


def test_scales_that_meet_the_root_of_a_variance_first_are_found() -> None:
    found = found_of_norms()
    assert found.is_right
    tensors = {"norm.running_var": np.arange(4.0), "last.weight": -np.arange(4.0)}
    others = {name: np.zeros(shape) for name, shape in found.tensors.items()}
    leaves = found.to_candidate({**others, **tensors})
    np.testing.assert_array_equal(leaves["norm/1"], tensors["norm.running_var"])
    np.testing.assert_array_equal(leaves["last/2"], tensors["last.weight"])


def test_another_epsilon_of_a_batch_norm_is_not_proven() -> None:
    assert found_of_norms(epsilon=1e-6).verdict != "proven"


def test_a_search_that_needs_more_memory_than_there_is_is_refused_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_TRANSFORMER_MAX_MEMORY_BYTES", "1000")
    with pytest.raises(PortingError, match="search of a map to Normed's weights: expected to fit into"):
        found_of_norms()


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.one(x) + self.other)


def test_a_leaf_that_may_be_either_of_two_tensors_is_listed_with_both() -> None:
    def candidate(params: Any, inputs: Mapping[str, Any]) -> jax.Array:
        return jnp.tanh(inputs["x"] @ params["kernel"] + params["a"] + params["b"])

    params = {"kernel": zeros(3, 4), "a": zeros(4), "b": zeros(4)}
    found = find_map(candidate, Sum().eval(), {"x": np.ones((2, 3), np.float32)}, candidate_params=params)
    assert found.is_right
    assert found.alternatives == ("a: one.bias, or other",)
    assert "either of two: a: one.bias, or other" in str(found)
