"""A program for one process with four CPU devices: it compares the rules of collectives with what JAX computes on a
mesh, changes each rule to see that it shows, and prints what it finds as JSON. test_jax_meshes.py runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from rule_checks import differs_exactly, is_arithmetic

from jax_transformer.proof import Program, UnknownOperation, jax_programs
from jax_transformer.proof.building import Builder
from jax_transformer.proof.domains import Disagreement, Reals
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.grids import Shares
from jax_transformer.proof.jax_collectives import CASTS, COLLECTIVES

GROUPS = [[0, 3], [2, 1]]
FOUR = "a", "b"
"""Both axes of the mesh."""


class Case(NamedTuple):
    """What each device computes of its part of x."""

    body: Callable[..., Any]
    shape: tuple[int, ...] = (8, 4)
    in_specs: Any = P(FOUR)
    out_specs: Any = P(FOUR)
    check_vma: bool = False
    axis_names: frozenset[str] = frozenset()
    """The axes that it divides; none: all."""


def axis_index(x: jax.Array) -> jax.Array:
    return x * (1 + lax.axis_index("a")) + 10 * lax.axis_index("b") + lax.axis_index(("b", "a"))


def in_scan(x: jax.Array) -> jax.Array:
    def add(carry: jax.Array, number: Any) -> Any:
        carry = lax.ppermute(carry, "a", [(0, 1), (1, 0)]) + number
        return carry, (lax.psum(carry, "b"), number)

    carry, (sums, numbers) = lax.scan(add, x, jnp.array([1.0, 10.0, 100.0]), reverse=True)
    none, (nothing, _) = lax.scan(add, x, jnp.zeros(0))
    return carry + 2 * sums[0] - 3 * sums[2] + numbers[1] + none + nothing.sum(0)


def in_while(x: jax.Array) -> jax.Array:
    def goes_on(state: Any) -> Any:
        return lax.pmax(state[0], "a") < 3

    return lax.while_loop(goes_on, lambda state: (state[0] + 1, lax.psum(state[1], "a") + state[0]), (0, x))[1]


def in_cond(x: jax.Array) -> jax.Array:
    same = lax.cond(lax.psum(1, "a") == 2, lambda y: lax.psum(y, "a"), lambda y: y, x)
    return lax.cond(lax.axis_index("b") == 1, lambda y: y[::-1], lambda y: 2 * y, same)  # each goes its own way


def in_calls(x: jax.Array) -> jax.Array:
    @jax.custom_vjp
    def summed(y: jax.Array) -> jax.Array:
        return lax.psum(y, "b")

    summed.defvjp(lambda y: (summed(y), None), lambda _, ct: (3 * ct,))

    def loss(y: jax.Array) -> jax.Array:
        y = jax.checkpoint(lambda z: jnp.square(lax.psum(z, "a")))(summed(jax.jit(partial(lax.psum, axis_name="a"))(y)))
        return y.sum()

    return jax.grad(loss)(x)


def nested(x: jax.Array) -> jax.Array:
    inner = jax.shard_map(
        lambda y: lax.psum(y * (1 + lax.axis_index("a")), "b") + lax.axis_index("b"),
        in_specs=P(None, "b"),
        out_specs=P("b"),
        axis_names={"b"},
        check_vma=False,
    )
    return inner(x) + lax.psum(x.sum(), "a")


def gathered_as_reduced(w: jax.Array) -> jax.Array:
    """As in fully sharded data parallelism, whose gradients are scattered."""
    x = jnp.arange(1.0, 5.0)[None] * (1 + lax.axis_index("a"))
    return jnp.ones((w.shape[0], 1)) * (x @ lax.all_gather(w, "a", tiled=True, to="reduced"))


def with_ids(x: jax.Array) -> jax.Array:
    """Integers go through collectives as they are."""
    ids = jnp.arange(4, dtype=jnp.int32) + 4 * lax.axis_index("a") - 3 * lax.axis_index("b")
    moved = lax.ppermute(ids, "a", [(1, 0)]) + lax.psum(ids, "b") + lax.pmax(ids, "b") - lax.pmin(ids, FOUR)
    found = lax.all_gather(moved, "a", tiled=True)[:4] + lax.psum_scatter(jnp.stack([ids, ids]), "a")
    return x * found + (lax.all_to_all(ids, "b", 0, 0, tiled=True) % 3 == 1)


CASES: dict[str, list[Case]] = {
    "psum": [
        Case(lambda x: lax.psum(x, "a")),
        Case(lambda x: lax.psum(x, FOUR), out_specs=P()),
        Case(lambda x: lax.psum(x, FOUR, axis_index_groups=GROUPS)),
        Case(jax.vmap(lambda x: lax.psum(x, ("a", "rows")), axis_name="rows"), in_specs=P("b", "a")),
        Case(lambda x: lax.pmean(x, "b"), out_specs=P("a"), in_specs=P(("b", "a"))),
    ],
    "psum_invariant": [Case(lambda x: lax.psum(x, "b"), out_specs=P("a"), check_vma=True)],
    "pmax": [Case(lambda x: lax.pmax(x, "a")), Case(lambda x: lax.pmax(x, FOUR, axis_index_groups=GROUPS))],
    "pmin": [Case(lambda x: lax.pmin(x, "b")), Case(lambda x: lax.pmin(x, FOUR), out_specs=P())],
    "pvary": [Case(lambda x: lax.pcast(x, "b", to="varying"), in_specs=P("a"), check_vma=True)],
    "axis_index": [Case(axis_index)],
    "all_gather": [
        Case(lambda x: lax.all_gather(x, "a"), out_specs=P("b", None, "a")),
        Case(lambda x: lax.all_gather(x, ("b", "a"), axis=1, tiled=True)),
        Case(lambda x: lax.all_gather(x, FOUR, axis=2, axis_index_groups=GROUPS)),
    ],
    "all_gather_invariant": [
        Case(
            lambda x: lax.all_gather(x, "a", axis=1, tiled=True, to="invarying"),
            in_specs=P("b", "a"), out_specs=P("b"), check_vma=True,
        )
    ],
    "all_gather_reduced": [
        Case(gathered_as_reduced, (4, 8), in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=True)
    ],
    "unreduced_reduce_scatter": [
        Case(
            jax.grad(lambda w: gathered_as_reduced(w).sum()), (4, 8), in_specs=P("a", "b"), out_specs=P("a", "b"),
            check_vma=True,
        )
    ],
    "reduce_scatter": [
        Case(lambda x: lax.psum_scatter(x, "a")),
        Case(lambda x: lax.psum_scatter(x, ("b", "a"), scatter_dimension=1, tiled=True)),
        Case(lambda x: lax.psum_scatter(x, FOUR, axis_index_groups=GROUPS, scatter_dimension=1, tiled=True)),
    ],
    "ppermute": [
        Case(lambda x: lax.ppermute(x, "a", [(0, 1)])),
        Case(lambda x: lax.ppermute(x, FOUR, [(0, 1), (1, 3), (3, 0)])),
    ],
    "all_to_all": [
        Case(lambda x: lax.all_to_all(x, "b", 0, 1)),
        Case(lambda x: lax.all_to_all(x, ("b", "a"), 1, 0, tiled=True)),
        Case(lambda x: lax.all_to_all(x, FOUR, 1, 1, tiled=True, axis_index_groups=GROUPS)),
    ],
    "scan": [Case(in_scan)],
    "while": [Case(in_while)],
    "cond": [Case(in_cond)],
    "calls": [Case(in_calls)],
    "shard_map": [
        Case(lambda x: 2 * x, in_specs=P("b", "a"), out_specs=P("b", "a")),
        Case(lambda x: x.sum(0), in_specs=P(("b", "a")), out_specs=P(FOUR)),
        Case(nested, axis_names=frozenset("a"), in_specs=P("a"), out_specs=P("a")),
    ],
    "integers": [Case(with_ids)],
}  # fmt: skip
"""A primitive, or a subject → programs."""


def changed(name: str) -> Iterator[tuple[str, Callable[..., Shares]]]:
    """Yields wrong versions of a rule."""
    rule = COLLECTIVES[name]
    yield "each has what the next has", lambda *x, **kw: (lambda found: found[1:] + found[:1])(rule(*x, **kw))
    yield "all have what the first has", lambda b, grid, *x, **kw: rule(b, grid, *x, **kw)[:1] * grid.count
    yield "negated", lambda b, *x, **kw: tuple(negated(b, each) for each in rule(b, *x, **kw))


def negated(b: Builder, x: Any) -> Any:
    return b.constant(1 - x.known) if x.kind == "int" else b.negate(x)


class Checked:
    """A case with what JAX computes."""

    def __init__(self, case: Case, mesh: Mesh) -> None:
        rng = np.random.default_rng(0)
        x = rng.permutation(np.arange(1.0, 1 + np.prod(case.shape))).reshape(case.shape)
        self.arrays = {"x": x * rng.choice([-1.0, 1.0], case.shape)}
        options = {"axis_names": case.axis_names} if case.axis_names else {}
        self.function = jax.shard_map(
            case.body, mesh=mesh, in_specs=case.in_specs, out_specs=case.out_specs, check_vma=case.check_vma, **options
        )
        self.expected = np.asarray(jax.jit(self.function)(self.arrays["x"]))

    def program(self) -> Program:
        return jax_programs.lower(lambda w: {"output": self.function(w["x"])}, self.arrays)

    def differs(self) -> str:
        """Describes the difference of the rules' result from JAX's; "" if there is none."""
        program = self.program()
        found = evaluate(program, Reals(), self.arrays)["output"]
        if found.shape != self.expected.shape:
            return f"shape {found.shape} for {self.expected.shape}"
        if not np.allclose(found, self.expected, rtol=1e-12, atol=0):
            return f"{found} for {self.expected}"
        return differs_exactly(program, self.arrays, [self.expected]) if is_arithmetic(program) else ""

    def shows(self) -> bool:
        try:
            return bool(self.differs())
        except (UnknownOperation, Disagreement):
            return True


def main() -> dict[str, Any]:
    mesh = jax.make_mesh((2, 2), FOUR, axis_types=(AxisType.Auto,) * 2)
    checked = {name: [Checked(case, mesh) for case in cases] for name, cases in CASES.items()}
    different = {f"{name} {k}": case.differs() for name, cases in checked.items() for k, case in enumerate(cases)}
    unread = [
        f"{name} {k}"
        for name in COLLECTIVES
        for k, case in enumerate(checked.get(name, ()))
        if not case.program().read.get(name)
    ]
    unseen = []
    for name in [each for each in COLLECTIVES if each in checked]:
        for change, wrong in changed(name):
            right, COLLECTIVES[name] = COLLECTIVES[name], wrong
            if not any(case.shows() for case in checked[name]):
                unseen.append(f"{name}: {change}")
            COLLECTIVES[name] = right
    return {
        "different": {name: how for name, how in different.items() if how},
        "without a case": sorted({*COLLECTIVES} - {*checked} - {*CASTS[1:]}),  # which belong to other cases
        "unread": unread,
        "unseen": unseen,
        "compared": len(different),
    }


if __name__ == "__main__":
    assert jax.device_count() == 4
    with jax.enable_x64(True):
        print(json.dumps(main()))
