"""The tape of a program builds the same program once more, and an edited one. It knows where everything is from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jax_transformer.proof import Program, Task, UnknownOperation, decide, jax_programs, torch_programs
from jax_transformer.proof.building import Builder
from jax_transformer.proof.tape import Operand, Stale, Tape
from proof import same_activations, same_attention, same_gradients, same_norms, subtle_faults
from proof.pairs import Pair, in_jax, in_torch

MODULES = (same_activations, same_attention, same_gradients, same_norms, subtle_faults)
EPSILON = 1e-5


def pairs() -> Iterator[Pair]:
    for module in MODULES:
        for held in vars(module).values():
            yield from (each for each in (held if isinstance(held, list | tuple) else [held]) if isinstance(each, Pair))


def programs() -> Iterator[tuple[str, Program]]:
    for pair in pairs():
        for side in (pair.candidate, pair.reference):
            try:
                yield f"{pair.name} in {side.framework}", side.lower(pair.weights())
            except UnknownOperation:
                continue


def written(program: Program) -> tuple[Any, ...]:
    """Returns all that a proof reads of a program, and the lines."""
    lines = [(one.line, one.site.module, one.site.steps) for one in program.operations]
    return program.sha256(), program.axioms, program.narrowing, program.read, program.requirements.keys(), lines


def test_replaying_builds_the_same_program() -> None:
    count = 0
    with jax.enable_x64(True):
        for name, program in programs():
            again = program.tape.replay(Builder())
            assert written(again) == written(program), name
            assert len(again.tape.entries) == len(program.tape.entries), name
            count += 1
    assert count > 100


# --- edits


def norm(w: Mapping[str, Any], epsilon: float = EPSILON) -> Any:
    x = w["x"] @ w["kernel"]
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * w["scale"]


SHAPES = {"x": (2, 3), "kernel": (3, 3), "scale": (3,), "unread": (4,)}


def lowered(function: Callable[..., Any]) -> Program:
    with jax.enable_x64(True):
        return in_jax(function).lower(Pair("", SHAPES, in_jax(function), in_jax(function)).weights())


def entry_of(tape: Tape, name: str, **options: Any) -> int:
    """Returns the first call of a name, or of a constant."""
    for number, entry in enumerate(tape.entries):
        if entry.name == name and all(np.array_equal(entry.args[0], each) for each in options.values()):
            return number
    raise AssertionError(name)


def is_proven(ours: Program, theirs: Program) -> bool:
    drawn = {**ours.inputs, **theirs.inputs}

    def draw(one: Callable[..., Any]) -> Any:
        weights = {name: one(shape) for name, shape in drawn.items()}
        return weights, weights

    return decide(Task(ours, theirs, draw)).verdict == "proven"


def test_a_constant_is_replaced() -> None:
    program, other = lowered(norm), lowered(lambda w: norm(w, 1e-6))
    assert not is_proven(program, other)
    constant = entry_of(program.tape, "constant", array=EPSILON)
    edited = program.tape.replay(Builder(), {Ref(constant): lambda b, read: b.constant(1e-6)})
    assert edited.sha256() == other.sha256()
    assert is_proven(edited, other)


def Ref(entry: int) -> Any:
    from jax_transformer.proof.programs import Ref as Reference

    return Reference(entry, 0)


def test_an_operand_is_replaced_where_another_reading_of_it_stays() -> None:
    def twice(w: Any) -> Any:
        return w["kernel"] @ w["kernel"]

    program, other = lowered(twice), lowered(lambda w: w["kernel"] @ w["kernel"].T)
    number = entry_of(program.tape, "matmul")
    left, right = program.tape.entries[number].operands
    edits = {Operand(number, 1): lambda b, read: b.transpose(read(right), (0, 2, 1))}
    assert is_proven(program.tape.replay(Builder(), edits), other)
    assert left != right


def test_an_edited_program_is_edited_again() -> None:
    program, other = lowered(norm), lowered(lambda w: norm({**w, "scale": w["scale"] * 2}, 1e-6))
    constant = entry_of(program.tape, "constant", array=EPSILON)
    once = program.tape.replay(Builder(), {Ref(constant): lambda b, read: b.constant(1e-6)})
    scale = once.tape.weights["scale"]
    twice = once.tape.replay(Builder(), {scale: lambda b, read: b.multiply(b.input("scale", (3,)), b.constant(2.0))})
    assert is_proven(twice, other)


def test_an_edit_of_what_a_table_was_computed_from_is_refused() -> None:
    def program(w: Any) -> Any:
        table = jnp.floor(jnp.arange(3.0) * 1.5)  # computed as JAX does
        return w["x"] * table

    found = lowered(program)
    number = entry_of(found.tape, "constant", array=1.5)
    with pytest.raises(Stale):
        found.tape.replay(Builder(), {Ref(number): lambda b, read: b.constant(2.5)})


def guarded(w: Mapping[str, Any], epsilon: float = EPSILON) -> Any:
    """Norms x + bias after another norm, with a guard against the root of zero."""
    square = jnp.square(norm(w, epsilon) + w["scale"]).mean(-1, keepdims=True) + 1.0
    is_positive = square > 0
    return norm(w, epsilon) / jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, square, 1.0)), 0.0)


def test_a_decision_that_an_edit_does_not_change_stays() -> None:
    program, wrong = lowered(guarded), lowered(lambda w: guarded(w, 1e-6))
    right = {
        Ref(number): lambda builder, read: builder.constant(np.float64(EPSILON))
        for number, entry in enumerate(wrong.tape.entries)
        if entry.name == "constant" and np.array_equal(entry.args[0], 1e-6)
    }
    assert any(entry.name == "greater" for entry in wrong.tape.entries)
    assert is_proven(wrong.tape.replay(Builder(), right), program)


def test_a_decision_that_an_edit_changes_is_refused() -> None:
    program = lowered(lambda w: jnp.where(jnp.square(w["x"]) + EPSILON > 0, w["x"], 0.0))
    number = entry_of(program.tape, "constant", value=EPSILON)
    with pytest.raises(Stale, match="another kind of value"):
        program.tape.replay(Builder(), {Ref(number): lambda builder, read: builder.constant(np.float64(-1.0))})


def test_an_edit_cannot_read_what_follows_from_it() -> None:
    found = lowered(norm)
    last = found.tape.outputs["output"]
    with pytest.raises(Stale, match="follows from it"):
        found.tape.replay(Builder(), {found.tape.weights["x"]: lambda b, read: read(last)})


def test_weights_that_nothing_reads_are_kept() -> None:
    program = lowered(norm)
    assert "unread" not in program.inputs
    assert "unread" in program.tape.weights


# --- places


def own(program: Program, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the modules, and the steps of loops, of operations of a name."""
    return [(one.site.module, one.site.steps) for one in program.operations if one.name == name]


def test_equal_values_keep_all_their_lines() -> None:
    def program(w: Any) -> Any:
        first = jnp.tanh(w["x"])
        second = jnp.tanh(w["x"])
        return first + second

    found = lowered(program)
    (tanh,) = (one for one in found.operations if one.name == "tanh")
    start = inspect.getsourcelines(program)[1]
    lines = [int(site.line.rpartition(":")[2]) - start for site in found.tape.sites(tanh.refs)]
    assert lines == [1, 2]


def test_a_shared_function_has_the_stack_of_each_of_its_calls() -> None:
    shared = jax.jit(lambda x: jnp.tanh(x) * x)

    def program(w: Any) -> Any:
        x = shared(w["x"])
        return shared(x)

    found = lowered(program)
    start = inspect.getsourcelines(program)[1]
    callers = [one.site.frames()[1] for one in found.operations if one.name == "tanh"]
    assert [frame.line - start for frame in callers] == [1, 2]


def test_steps_of_scans_and_named_scopes_are_told() -> None:
    def program(w: Any) -> Any:
        def body(x: Any, step: Any) -> Any:
            with jax.named_scope("attention"):
                return jnp.tanh(x @ w["kernel"]), None

        with jax.named_scope("layers"):
            return jax.lax.scan(body, w["x"], jnp.arange(2))[0]

    assert own(lowered(program), "tanh") == [("layers.attention", (0,)), ("layers.attention", (1,))]


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.project = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.project(x))


class Stacked(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([Block(rngs), Block(rngs)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_of_nnx_are_named() -> None:
    graph, state = nnx.split(Stacked(nnx.Rngs(0)))
    leaves, tree = jax.tree.flatten(state)
    weights = {str(number): np.asarray(leaf, np.float64) for number, leaf in enumerate(leaves)}

    def program(w: Any) -> Any:
        return {"output": nnx.merge(graph, jax.tree.unflatten(tree, [*w.values()]))(jnp.ones((2, 3)))}

    found = jax_programs.lower(program, weights)
    assert own(found, "tanh") == [("layers.0", ()), ("layers.1", ())]
    assert own(found, "matmul") == [("layers.0.project", ()), ("layers.1.project", ())]
    lines = {one.site.line for one in found.operations if one.name == "matmul"}
    assert lines == {f"{__file__}:{inspect.getsourcelines(Block.__call__)[1] + 1}"}, "not Flax's own"


def test_modules_of_linen_are_named() -> None:
    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(3, name="project")(x)

    params = Dense().init(jax.random.key(0), jnp.ones((2, 3)))["params"]["project"]
    weights = {name: np.asarray(leaf) for name, leaf in params.items()}
    found = jax_programs.lower(
        lambda w: {"output": Dense().apply({"params": {"project": w}}, jnp.ones((2, 3)))}, weights
    )
    assert [module for module, _ in own(found, "matmul")] == ["Dense.project"]


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.project(x))


def test_modules_of_pytorch_are_named_in_backward_passes_too() -> None:
    module = torch.nn.Sequential(TorchBlock(), TorchBlock())
    weights = dict(module.named_parameters())

    def program() -> dict[str, torch.Tensor]:
        output = module(torch.ones(2, 3))
        output.sum().backward()
        gradient = weights["0.project.weight"].grad
        assert gradient is not None
        return {"output": output, "gradient": gradient}

    found = torch_programs.lower(program, weights)
    assert own(found, "tanh") == [("0", ()), ("1", ())]
    assert {module for module, _ in own(found, "matmul")} == {"0.project", "1.project"}
    lines = {one.site.line for one in found.operations if one.name == "tanh"}
    assert lines == {f"{__file__}:{inspect.getsourcelines(TorchBlock.forward)[1] + 1}"}


def test_a_verdict_names_the_module() -> None:
    def ours(w: Any) -> Any:
        with jax.named_scope("layers.1.norm"):
            return norm(w, 1e-6)

    def theirs(w: Any) -> Any:
        x = w["x"] @ w["kernel"]
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON) * w["scale"]

    with jax.enable_x64(True):
        result = decide(Pair("", SHAPES, in_jax(ours), in_torch(theirs)).task())
    assert result.difference is not None
    place = result.difference.candidate
    assert place is not None
    assert place.module == "layers.1.norm"
    assert "in layers.1.norm" in str(place)
    assert place.stack[0].startswith(f"{__file__}:")


def test_a_table_is_from_where_it_was_made() -> None:
    def program(w: Any) -> Any:
        positions = torch.arange(3)
        x = w["x"] * 2
        return x * positions

    with jax.enable_x64(True):
        found = in_torch(program).lower(Pair("", SHAPES, in_torch(program), in_torch(program)).weights())
    number = entry_of(found.tape, "constant", array=np.arange(3))
    line = inspect.getsourcelines(program)[1] + 1
    assert found.tape.entries[number].site.line == f"{__file__}:{line}"
    assert found.tape.entries[number].site.operation == "arange"
