"""Programs of a mesh: collectives compute what JAX's do, and no program with a fault in them is proven. The meshes are
abstract, so that no devices are needed, but for one process that has four."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity import prove
from jax_transformer.proof import Program, Result, Task, UnknownOperation, decide, jax_programs

SHAPES = {"x": (4, 4), "up": (4, 4), "down": (4, 4), "bias": (4,)}
AUTO = AxisType.Auto
GRID = AbstractMesh((2, 2), ("data", "tensor"), axis_types=(AUTO, AUTO))
RING = AbstractMesh((4,), ("ring",), axis_types=(AUTO,))
NEXT = [(place, (place + 1) % 4) for place in range(4)]
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_collectives_equal_jaxs_and_a_wrong_one_is_caught() -> None:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    program = Path(__file__).with_name("mesh_cases.py")
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found.pop("compared") > 30
    assert found == {"different": {}, "without a case": [], "unread": [], "unseen": []}


def lowered(function: Function) -> Program:
    def named(w: Any) -> dict[str, Any]:
        found = function(w)
        return found if isinstance(found, dict) else {"output": found}

    return jax_programs.lower(named, {name: np.ones(shape) for name, shape in SHAPES.items()})


def compared(ours: Function, theirs: Function) -> Result:
    def draw(one: Any) -> Any:
        drawn = {name: one(shape) for name, shape in SHAPES.items()}
        return drawn, drawn

    return decide(Task(lowered(ours), lowered(theirs), draw))


def on_grid(body: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Callable[..., Any]:
    """Without JAX's own check, which would find some of the faults."""
    return jax.shard_map(body, mesh=GRID, in_specs=in_specs, out_specs=out_specs, **{"check_vma": False, **options})


def on_ring(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=RING, in_specs=in_specs, out_specs=out_specs, check_vma=False)


# --- the same function


def feed_forward(w: Any) -> Any:
    return jax.nn.relu(w["x"] @ w["up"]) @ w["down"] + w["bias"]


def divided(body: Callable[..., Any], up: Any = None) -> Function:
    """A feed-forward network, rows over `data` and units over `tensor`."""
    specs = P("data"), P(None, "tensor") if up is None else up, P("tensor"), P()
    return lambda w: on_grid(body, specs, P("data"))(w["x"], w["up"], w["down"], w["bias"])


def megatron(x: Any, up: Any, down: Any, bias: Any) -> Any:
    return lax.psum(jax.nn.relu(x @ up) @ down, "tensor") + bias


def summed_over(axes: Any, spec: Any) -> Function:
    return lambda w: on_grid(lambda x: lax.all_gather(x, axes, tiled=True), spec, P())(w["x"])


def mean_squares(weights: Any, x: Any) -> Any:
    return jnp.square(feed_forward({**weights, "x": x})).mean()


def over_rows(body: Callable[..., Any]) -> Function:
    """Gradients by a body that has the weights and its rows of x."""

    def gradients(w: Any) -> Any:
        weights = {name: w[name] for name in ("up", "down", "bias")}
        return on_ring(body, (P(), P("ring")), P())(weights, w["x"])

    return gradients


def whole_gradients(w: Any) -> Any:
    return jax.grad(mean_squares)({name: w[name] for name in ("up", "down", "bias")}, w["x"])


def attended(w: Any, *, in_turn: bool) -> Any:
    """All devices compute the attention of all queries; each begins with its own keys, which are passed on."""

    def body(query: Any, key: Any, value: Any) -> Any:
        largest, total, context = -1e30, 0.0, 0.0
        for _ in range(4):
            logits = query @ key.T
            new = jnp.maximum(largest, logits.max(-1, keepdims=True))
            weights, scale = jnp.exp(logits - new), jnp.exp(largest - new)
            total, context = total * scale + weights.sum(-1, keepdims=True), context * scale + weights @ value
            largest = new
            if in_turn:
                key, value = (lax.ppermute(each, "ring", NEXT) for each in (key, value))
        return context / total

    return on_ring(body, (P(), P("ring"), P("ring")), P())(w["x"], w["up"], w["down"])


SAME: dict[str, tuple[Function, Function]] = {
    "units divided": (divided(megatron), feed_forward),
    "units divided, as JAX checks it": (
        lambda w: on_grid(megatron, (P("data"), P(None, "tensor"), P("tensor"), P()), P("data"), check_vma=True)(
            *(w[name] for name in SHAPES)
        ),
        feed_forward,
    ),
    "gathered along both axes, in either order": (
        summed_over(("tensor", "data"), P(("tensor", "data"))),
        summed_over(("data", "tensor"), P(("data", "tensor"))),
    ),
    "a maximum of maxima": (
        lambda w: on_ring(lambda x: lax.pmax(x.max(keepdims=True), "ring"), P("ring"), P())(w["x"]),
        lambda w: w["x"].max(keepdims=True),
    ),
    "a minimum of minima": (
        lambda w: on_ring(lambda x: lax.pmin(x.min((0, 1)), "ring"), P(None, "ring"), P())(w["x"]),
        lambda w: w["x"].min(),
    ),
    "an axis of one device": (
        lambda w: jax.shard_map(
            lambda x: lax.psum(x, "one") + lax.axis_index("one"),
            mesh=AbstractMesh((1, 2), ("one", "two"), axis_types=(AUTO, AUTO)),
            in_specs=P("one", "two"), out_specs=P("one", "two"),
        )(w["x"]),
        lambda w: w["x"],
    ),
    "each device on its own branch": (
        lambda w: on_ring(
            lambda x: lax.switch(lax.axis_index("ring"), [jnp.sin, jnp.cos, jnp.exp, jnp.copy], x), P("ring"), P("ring")
        )(w["x"]),
        lambda w: jnp.stack([jnp.sin(w["x"][0]), jnp.cos(w["x"][1]), jnp.exp(w["x"][2]), w["x"][3]]),
    ),
    "attention around a ring, on each device in another order": (
        lambda w: attended(w, in_turn=True), lambda w: jax.nn.softmax(w["x"] @ w["up"].T) @ w["down"],
    ),
    "annotations": (
        lambda w: jax.jit(
            lambda x: lax.with_sharding_constraint(x, jax.NamedSharding(GRID, P("data"))) * 2,
            out_shardings=jax.NamedSharding(GRID, P("tensor")),
        )(w["x"]),
        lambda w: w["x"] + w["x"],
    ),
    "a shard_map that is recomputed, and differentiated": (
        lambda w: jax.grad(lambda x: jax.checkpoint(divided(megatron))({**w, "x": x}).sum())(w["x"]),
        lambda w: jax.grad(lambda x: feed_forward({**w, "x": x}).sum())(w["x"]),
    ),
    "a mapped shard_map": (
        lambda w: jax.vmap(lambda x: on_ring(lambda y: lax.psum(y, "ring"), P("ring"), P())(x))(w["x"]),
        lambda w: w["x"].sum(1, keepdims=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SAME))
def test_programs_on_a_mesh_are_proven(name: str) -> None:
    result = compared(*SAME[name])
    assert result.verdict == "proven", (result.reason, result.difference)


# --- faults


def passed_on(perm: Any) -> Function:
    """Each device collects what it receives."""

    def body(x: Any) -> Any:
        blocks = [x]
        for _ in range(3):
            blocks.append(lax.ppermute(blocks[-1], "ring", perm))
        return jnp.concatenate(blocks)

    return lambda w: on_ring(body, P("ring"), P(None, "ring"))(w["x"])


def mean_of_means(w: Any) -> Any:
    """Devices have 1, 1, 2 and 4 entries that count."""
    counts = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]], float)

    def body(x: Any, counts: Any) -> Any:
        return lax.pmean((x * counts).sum() / counts.sum(), "ring")

    return on_ring(body, (P("ring"), P("ring")), P())(w["x"], jnp.asarray(counts))


def one_mean(w: Any) -> Any:
    counts = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]], float)
    return (w["x"] * counts).sum() / counts.sum()


FAULTS: dict[str, tuple[Function, Function, str]] = {
    "psum forgotten": (
        divided(lambda x, up, down, bias: jax.nn.relu(x @ up) @ down + bias), feed_forward, "unknown",
    ),
    "psum over the wrong axis": (
        divided(lambda x, up, down, bias: lax.psum(jax.nn.relu(x @ up) @ down, "data") + bias), feed_forward, "unknown",
    ),
    "pmean for psum": (
        divided(
            lambda x, up, down, bias: lax.pmean(jax.nn.relu(x @ up) @ down, "tensor") + bias
        ),
        feed_forward,
        "refuted",
    ),
    "psum twice": (
        divided(lambda x, up, down, bias: lax.psum(megatron(x, up, down, 0), "tensor") + bias),
        feed_forward,
        "refuted",
    ),
    "a bias on each device": (
        divided(lambda x, up, down, bias: lax.psum(jax.nn.relu(x @ up) @ down + bias, "tensor")),
        feed_forward,
        "refuted",
    ),
    "a weight divided along the other dimension": (
        divided(lambda x, up, down, bias: megatron(x, up.T, down, bias), up=P("tensor")), feed_forward, "refuted",
    ),
    "blocks in the order of other axes": (
        summed_over(("tensor", "data"), P(("data", "tensor"))), lambda w: w["x"], "refuted",
    ),
    "a sum over half of the devices": (
        lambda w: on_ring(
            lambda x: lax.psum(x, "ring", axis_index_groups=[[0, 1], [2, 3]]), P("ring"), P()
        )(w["x"]),
        lambda w: w["x"].sum(0, keepdims=True),
        "unknown",
    ),
    "passed on in the other direction": (
        passed_on([(to, by) for by, to in NEXT]),
        passed_on(NEXT),
        "refuted",
    ),
    "passed on to all but the first": (
        lambda w: on_ring(
            lambda x: x + lax.ppermute(x, "ring", NEXT[:3]), P("ring"), P("ring")
        )(w["x"]),
        lambda w: w["x"] + jnp.roll(w["x"], 1, 0),
        "refuted",
    ),
    "one for all that isn't": (
        lambda w: on_ring(lambda x: 2 * x, P("ring"), P())(w["x"]), lambda w: 2 * w["x"][:1], "unknown",
    ),
    "one for all that isn't, on both sides": (
        *(lambda w: on_ring(lambda x: 2 * x, P("ring"), P())(w["x"]),) * 2, "unknown",
    ),
    "numbers of devices as one for all": (
        lambda w: w["x"] * on_ring(lambda: lax.axis_index("ring"), (), P())(), lambda w: 0 * w["x"], "unknown",
    ),
    "gradients that aren't averaged": (over_rows(jax.grad(mean_squares)), whole_gradients, "unknown"),
    "gradients that are summed": (
        over_rows(lambda *given: lax.psum(jax.grad(mean_squares)(*given), "ring")), whole_gradients, "refuted",
    ),
    "gradients of a sum over devices, which each of them takes again": (
        over_rows(
            lambda *given: lax.pmean(jax.grad(lambda *of: lax.psum(mean_squares(*of), "ring"))(*given), "ring")
        ),
        whole_gradients,
        "refuted",
    ),
    "a mean of means": (mean_of_means, one_mean, "refuted"),
    "attention to a device's own keys alone": (
        partial(attended, in_turn=False), lambda w: jax.nn.softmax(w["x"] @ w["up"].T) @ w["down"], "unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_is_not_proven(name: str) -> None:
    """It is found at its line, if the line says so; a program without a value at its shard_map."""
    ours, theirs, verdict = FAULTS[name]
    try:
        result = compared(ours, theirs)
    except UnknownOperation as error:
        result = Result("unknown", reason=str(error))
    assert result.verdict == verdict, (result.reason, result.difference)
    if verdict == "unknown":
        assert "devices of the mesh hold different values of what out_specs says is one" in result.reason
        assert f"of shard_map, {__file__}:" in result.reason
    elif name in LOCATED:
        assert result.difference is not None
        assert LOCATED[name] in line_of(result.difference.candidate)


LOCATED = {
    "pmean for psum": "pmean", "psum twice": "psum(megatron", "a bias on each device": "@ down + bias",
    "blocks in the order of other axes": "all_gather", "a mean of means": "counts.sum()",
    "gradients of a sum over devices, which each of them takes again": "lax.pmean",
}  # fmt: skip
"""Faults → what the line has where they are found."""


def line_of(place: Any) -> str:
    path, _, number = place.line.split(", ")[-1].rpartition(":")
    return linecache.getline(path, int(number))


# --- what isn't known


def waiting(x: Any) -> Any:
    return lax.cond(lax.axis_index("ring") == 0, lambda y: lax.psum(y, "ring"), lambda y: y, x)


def loops_of_different_lengths(x: Any) -> Any:
    return lax.fori_loop(0, lax.axis_index("ring"), lambda k, y: lax.ppermute(y, "ring", NEXT), x)


UNKNOWN: dict[str, tuple[Callable[..., Any], str]] = {
    "branches that wait": (waiting, "cond: devices take different ways"),
    "loops that wait": (loops_of_different_lengths, "while: devices take different ways"),
    "a branch on weights": (
        lambda x: lax.cond(x[0, 0] > 0, lambda y: lax.psum(y, "ring"), lambda y: y, x),
        "int32 of numbers that depend on weights",
    ),
    "a pair of no device": (lambda x: lax.ppermute(x, "ring", [(3, 4)]), "no 4 devices have the pairs"),
    "two that send to one": (lambda x: lax.ppermute(x, "ring", [(0, 1), (2, 1)]), "no 4 devices have the pairs"),
    "a collective without a rule": (lambda x: lax.pbroadcast(x, ("ring",), 0), "pbroadcast: no rule covers it"),
    "random numbers": (
        lambda x: x * jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("ring"))), "random",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_unknown_operations_are_named_with_their_line(name: str) -> None:
    body, reason = UNKNOWN[name]
    with pytest.raises(UnknownOperation, match=reason) as error:
        lowered(lambda w: on_ring(body, P("ring"), P("ring"))(w["x"]))
    assert __file__ in str(error.value)


def test_permuting_along_axes_in_another_order_than_the_mesh_is_unknown() -> None:
    body = partial(lax.ppermute, axis_name=("tensor", "data"), perm=NEXT)
    with pytest.raises(UnknownOperation, match="aren't in the order of the mesh"):
        lowered(lambda w: on_grid(body, P("data"), P("data"))(w["x"]))


# --- as a user proves


def on_a_mesh(params: Any, inputs: Any) -> Any:
    return divided(megatron)({**params, **inputs})


def on_one_device(params: Any, inputs: Any) -> Any:
    return feed_forward({**params, **inputs})


GIVEN = {
    "inputs": {"x": np.ones((4, 4), np.float32)},
    "weights": {name: np.ones(shape, np.float32) for name, shape in SHAPES.items() if name != "x"},
}


def test_a_users_function_on_a_mesh_is_proven() -> None:
    certificate = prove(on_a_mesh, on_one_device, **GIVEN)
    assert certificate.verdict == "proven", str(certificate)
    assert [len(stage.equal) for stage in certificate.stages] == [1, 3]


def test_a_mesh_in_the_context_will_do() -> None:
    def contextual(params: Any, inputs: Any) -> Any:
        specs = P("data"), P(None, "tensor"), P("tensor"), P()
        body = jax.shard_map(megatron, in_specs=specs, out_specs=P("data"))
        return body(inputs["x"], *(params[name] for name in ("up", "down", "bias")))

    with jax.sharding.use_abstract_mesh(GRID):
        certificate = prove(contextual, on_one_device, **GIVEN)
    assert certificate.verdict == "proven", str(certificate)


def test_explicit_axes_are_proven() -> None:
    def explicit(params: Any, inputs: Any) -> Any:
        x, up, down = (
            jax.reshard(array, spec)
            for array, spec in (
                (inputs["x"], P("data", None)), (params["up"], P(None, "tensor")), (params["down"], P("tensor", None)),
            )
        )  # fmt: skip
        hidden = jax.nn.relu(x @ up)
        return jnp.einsum("bf,fd->bd", hidden, down, out_sharding=P("data", None)) + params["bias"]

    mesh = AbstractMesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    with jax.sharding.use_abstract_mesh(mesh):
        certificate = prove(explicit, on_one_device, **GIVEN)
    assert certificate.verdict == "proven", str(certificate)


def test_integers_on_explicit_axes_are_what_they_are() -> None:
    def explicit(w: Any) -> Any:
        rows = P("data", None)
        ids = jax.reshard(jnp.asarray(np.array([0, 2, 1, 3])), P("data"))
        is_own = ids == jnp.arange(4, out_sharding=P("data"))
        taken = w["x"].at[ids].get(out_sharding=rows)
        numbers = jnp.einsum("a,b->ab", ids, jnp.arange(4), out_sharding=rows)
        return jnp.where(is_own[:, None], jax.reshard(w["x"], rows), 0) + taken * numbers

    def plain(w: Any) -> Any:
        ids = np.array([0, 2, 1, 3])
        return w["x"] * (ids == np.arange(4))[:, None] + w["x"][ids] * np.outer(ids, np.arange(4))

    mesh = AbstractMesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    with jax.sharding.use_abstract_mesh(mesh):
        program = lowered(explicit)
    result = decide(Task(program, lowered(plain), lambda one: ({n: one(s) for n, s in SHAPES.items()},) * 2))
    assert result.verdict == "proven", (result.reason, result.difference)


def test_functions_with_a_mesh_take_no_other() -> None:
    with pytest.raises(ParityError, match="mesh doesn't apply to two programs on inputs; expected only inputs"):
        prove(on_a_mesh, on_one_device, mesh=GRID, **GIVEN)
