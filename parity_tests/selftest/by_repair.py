"""Faults of the catalogue as changed JAX programs, whose cause the search for a proven repair has to find alone.

The self-test computes the faulty value of an activation in NumPy. Here the same formula runs on JAX's traced arrays, so
that the fault is part of a program. The model here, with that activation computed by it, is the candidate; the
system's PyTorch program is the reference. The search sees both programs, the porting table and the logits. It knows no
name of an activation, nor the catalogue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.precision import in_precision
from jax_transformer.matching.carrying import through
from jax_transformer.matching.finding import FoundMap
from jax_transformer.matching.programs import PureProgram
from jax_transformer.model import functional
from jax_transformer.model.trace import Tap
from jax_transformer.parity import faults
from jax_transformer.parity.backends import proof_jax
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.lowering import Lowered
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.faults import replay as replays
from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.oracle import graph
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Node
from jax_transformer.parity.problems import Problem, own_problem, with_keys_for_all
from jax_transformer.programs import sites
from jax_transformer.proof import Program, Task, UnknownOperation, decide, jax_programs, repair
from jax_transformer.proof.repair.words import Words
from jax_transformer.runtime.trees import flatten, unflatten
from selftest.injections import Injection
from selftest.matrix import Prepared, system_of, try_injection
from selftest.traced_numpy import TracedArray

ROWS, LENGTHS = 3, (8, 7)
"""Sentences, and source and target tokens, of the batch: no product is a width of the systems."""
PADS = ((), (-1,), (0, 2))
"""Columns of each row that are padding."""
LAYERS = (2, 1)
"""Layers of encoder and decoder, in systems that may have other numbers of both."""
LOGITS = "logits"
Fate = Literal["proven", "refuted", "unknown", "no program"]
"""no program: the fault reads numbers that depend on weights, so that it is none of a program's operations."""


@dataclass(frozen=True)
class Trial:
    """What the search made of one fault."""

    fault: str
    system: str
    node: str
    fate: Fate
    reason: str = ""
    """Why it is no program, or unknown."""
    repair: str = ""
    """In words; "": none was found."""
    kinds: tuple[str, ...] = ()
    """Kinds of its edits."""
    same_place: bool = False
    """Every edit is at the faulty activation, and nowhere else."""
    seconds: float = 0.0
    """Processor seconds of the proof and of the search, without lowering."""
    named: bool = False
    """Whether the catalogue names it, on the same batch."""
    seconds_of_catalogue: float = 0.0
    """Processor seconds of running the faulty program and comparing it."""


@dataclass(frozen=True)
class Made:
    """An edit of a repair, and where it is."""

    kind: str
    is_inside: bool
    """Whether it is at the faulty activation."""


class Subject:
    """A system whose model gets faults."""

    def __init__(self, name: str, seed: int = 0) -> None:
        model, reference = system_of(name, seed, LAYERS)
        self.name, self.config = name, model.config
        self.side = side = JaxSide(
            "candidate", dataclasses.replace(model, config=model.config.replace(layer_loop="unrolled"))
        )
        self.problem = small_problem(model.config, model.params, seed)
        right, program = side.forward(self.problem, "float64"), TorchSide(name, model, reference)
        self.right = {**dict(zip(MODEL_INPUTS, self.problem.ids, strict=True)), **right}
        self.lowered = Lowered(side, program, self.problem)
        self.prepared = Prepared(name, model, (self.problem,), (right,), program)

    @cached_property
    def reference(self) -> Task:
        """Returns the task of both right programs, each with its own weights."""
        return self.lowered.forward(gradients=False)

    @cached_property
    def carried(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
        """Returns the candidate's parameters as a function of the reference's tensors, which only moves elements."""
        shapes = {name: given.shape for name, given in self.lowered._given.items() if given.first == name}
        numbers = np.arange(sum(map(math.prod, shapes.values())), dtype=np.float64)
        parts = np.split(numbers, np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1])
        numbered = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        ported = self.lowered._ported({name: numbered[given.first] for name, given in self.lowered._given.items()})
        paths = self.lowered._drawn_paths
        partners = {path: np.asarray(ported[path]).astype(np.int64) for path in paths}
        leaves = {path: np.zeros(partners[path].shape) for path in paths}
        found = FoundMap(map=None, partners=partners, tensors=shapes, verdict="not proven")
        kept = {path: jnp.asarray(leaf) for path, leaf in self.lowered._kept.items()}
        return through(PureProgram(lambda tree, _: unflatten({**kept, **flatten(tree)}), unflatten(leaves)), found)

    def lower(self, variant: Variant | None = None, node: Node | None = None) -> Task:
        """Returns the task whose candidate reads the reference's tensors by their names, with a fault if one is given.

        Raises:
          UnknownOperation: it is no program.
        """

        def ours(drawn: Mapping[str, Any]) -> dict[str, Any]:
            params = self.carried(drawn, {})
            with nullcontext() if variant is None or node is None else _with_fault(self, variant, node, params):
                return proof_jax.outputs(self.side, params, self.problem, gradients=False)

        right = self.reference
        shapes = {name: given.shape for name, given in self.lowered._given.items() if given.first == name}
        with in_precision("float64"):
            drawn = {name: jax.ShapeDtypeStruct(shape, np.float64) for name, shape in shapes.items()}
            candidate = jax_programs.lower(ours, drawn)

        def draw(draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Any, Any]:
            tensors = {name: draw(shape) for name, shape in shapes.items()}
            return tensors, tensors

        own = None if right.own is None else (right.own[1], right.own[1])
        return dataclasses.replace(right, candidate=candidate, draw=draw, own=own)

    def changes(self, injection: Injection) -> bool:
        """Returns whether a fault can occur at a node, and changes any number there."""
        variant, node = injection.value.variant, injection.node
        names = [*self.right]
        if node.name not in names:
            return False
        before = {name: self.right[name] for name in names[: names.index(node.name) + 1]}
        inputs = {argument: before[name] for argument, name in node.inputs.items() if name in before}
        try:
            parameters = {name: graph.parameter(self.problem.params, path) for name, path in node.parameters.items()}
            with np.errstate(all="ignore"):
                replay = Replay(self.config, node, inputs, parameters, before, self.problem.params)
                value, alike = variant.compute(replay), node.compute(self.config, inputs, parameters)
            shape = np.broadcast_shapes(value.shape, before[node.name].shape)
            value, alike = np.broadcast_to(value, shape), np.broadcast_to(alike, shape)
        except (LookupError, ValueError, TypeError):
            return False
        return not np.array_equal(value, alike, equal_nan=value.dtype != bool)

    def tried(self, injection: Injection) -> Trial:
        """Searches for the repair of a fault, and asks the catalogue."""
        variant, node, start = injection.value.variant, injection.node, time.process_time()
        named = try_injection(self.prepared, injection).named
        trial = Trial(variant.name, self.name, node.name, "no program", named=named)
        trial = dataclasses.replace(trial, seconds_of_catalogue=time.process_time() - start)
        try:
            whole = self.lower(variant, node)
        except (UnknownOperation, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            return dataclasses.replace(trial, reason=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        start = time.process_time()
        result = decide(outputs_alone(whole))
        trial = dataclasses.replace(trial, fate=result.verdict, reason=result.reason)
        found = None
        if result.verdict == "refuted" and result.difference and result.difference.task:
            found, made = repaired(result.difference.task, whole, node)
        trial = dataclasses.replace(trial, seconds=time.process_time() - start)
        if found is None:
            return trial
        kinds = tuple(cause.kind for cause in found.causes)
        inside = bool(made) and all(each.is_inside for each in made)
        return dataclasses.replace(trial, repair=str(found), kinds=kinds, same_place=inside)


def small_problem(config: Any, params: Any, seed: int) -> Problem:
    """Returns a small batch with padding on the right, on the left and inside, in which every query sees a key."""
    problem, rng = own_problem(config, params, seed), np.random.default_rng(seed)
    sides = zip(LENGTHS, (config.source, config.target), strict=True)
    ids = [_drawn_ids(rng, length, side.vocab_size, side.pad_id) for length, side in sides]
    labels = _drawn_ids(rng, LENGTHS[1], config.target.vocab_size, config.target.pad_id)
    small = dataclasses.replace(problem, source_ids=ids[0], decoder_input_ids=ids[1], labels=labels)
    return with_keys_for_all(config, small)


def _drawn_ids(rng: np.random.Generator, length: int, vocab_size: int, pad: int) -> np.ndarray:
    ids = rng.choice([token for token in range(vocab_size) if token != pad], (ROWS, length))
    for row, columns in enumerate(PADS):
        ids[row, list(columns)] = pad
    return ids


def outputs_alone(task: Task) -> Task:
    """Returns a task of the logits alone: no name of an activation is left, nor the loss."""
    align = task.align

    def aligned(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: array for name, array in align(outputs).items() if name == LOGITS}

    candidate, reference = (_output_alone(program) for program in (task.candidate, task.reference))
    return dataclasses.replace(task, candidate=candidate, reference=reference, align=aligned)


def _output_alone(program: Program) -> Program:
    assert program.tape is not None
    tape = dataclasses.replace(program.tape, outputs={LOGITS: program.tape.outputs[LOGITS]})
    return dataclasses.replace(program.restricted([LOGITS]), tape=tape)


def repaired(task: Task, whole: Task, node: Node) -> tuple[repair.Repair | None, list[Made]]:
    """Returns the repair of a task, and its edits.

    Args:
      whole: the task with all activations, which say what belongs to the faulty one.
    """
    made: list[Made] = []
    own = Words.at_callers

    def at_callers(words: Words, edits: Sequence[Any]) -> list[Any]:
        made[:] = [Made(cause.kind, _is_inside(words.bench, edit, whole, node)) for edit, cause in edits]
        return own(words, edits)

    with patch.object(Words, "at_callers", at_callers):
        return repair.find_repair(task), made


def _add_frameworks() -> None:
    """Makes lines of a formula its own, rather than those of the arrays that it runs on."""
    sites.FRAMEWORKS = (*sites.FRAMEWORKS, "selftest.traced_numpy")
    sites.is_of_framework.cache_clear()


_add_frameworks()


def _is_inside(bench: Any, edit: Any, whole: Task, node: Node) -> bool:
    """Returns whether an edit is in the operations of an activation, on both sides: it replaces what one computes
    there, or what is read of it, by what the reference computes there."""
    ours, theirs = (
        _of_node(side, program.tape, node) for side, program in zip(bench.sides, _programs(whole), strict=True)
    )
    if ours is None or theirs is None:
        return False
    own, end = ours
    reference, _ = theirs
    for place in edit.places:
        is_operand = hasattr(place, "number") and type(place).__name__ == "Operand"
        read = bench.candidate.entry(place.entry).operands[place.number] if is_operand else place
        if not (place.entry in own or read.entry in own or bench.candidate.node(read) == end):
            return False
    return edit.cost == 0 or edit.source.entry in reference


def _programs(task: Task) -> tuple[Any, Any]:
    return task.candidate, task.reference


def _of_node(side: Any, tape: Any, node: Node) -> tuple[set[int], int | None] | None:
    """Returns the entries that compute an activation from others, and the number of its value; None if the program
    has no such output."""
    outputs = tape.outputs
    if not hasattr(outputs.get(node.name), "entry"):
        return None
    end = outputs[node.name]
    before = [outputs[name].entry for name in node.inputs.values() if hasattr(outputs.get(name), "entry")]
    return side.above([end.entry]) - side.above(before), side.node(end)


# --- faults in a running model


@contextlib.contextmanager
def _with_fault(subject: Subject, variant: Variant, node: Node, params: Any) -> Iterator[None]:
    """Computes an activation, or a mask, of the model here by a fault."""
    own_tap, own_masks = Tap.__call__, functional.make_masks
    seen: dict[str, Any] = dict(zip(MODEL_INPUTS, subject.problem.ids, strict=True))
    seen |= {name: array for name, array in subject.right.items() if array.dtype.kind in "biu"}

    def value_of(right: Any) -> Any:
        captured = {**seen, node.name: _stood_for(right)}
        inputs = {argument: captured[name] for argument, name in node.inputs.items() if name in captured}
        with _parameters_of(params):
            parameters = {name: replays.parameter(params, path) for name, path in node.parameters.items()}
            value = variant.compute(_Faulty(subject.config, node, inputs, parameters, captured, params))
        value = value.array if isinstance(value, TracedArray) else jnp.asarray(value)
        return jnp.broadcast_to(value, np.broadcast_shapes(value.shape, right.shape)).astype(right.dtype)

    def tap(self: Tap, name: str, value: Any) -> Any:
        full = self._prefix + name
        value = own_tap(self, name, value_of(value) if full == node.name else value)
        seen[full] = _stood_for(value)
        return value

    def make_masks(*args: Any, **options: Any) -> Any:
        masks = own_masks(*args, **options)
        field = node.name.removeprefix("mask.")
        if node.kind != "mask" or field not in masks._fields:
            return masks
        return masks._replace(**{field: value_of(subject.right[node.name])})

    traced_anew = functional.apply.__wrapped__  # type: ignore[attr-defined]  # a compiled one keeps what it traced
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(functional, "apply", traced_anew))
        stack.enter_context(patch.object(functional, "make_masks", make_masks))
        stack.enter_context(patch.object(Tap, "__call__", tap))
        yield


def _stood_for(array: Any) -> Any:
    """Returns floats as arrays that NumPy takes, and others as they are."""
    return TracedArray(array) if np.dtype(array.dtype).kind == "f" else array


class _Faulty(Replay):
    """A node that is right but for the fault."""

    is_right = True

    @property
    def received(self) -> Any:  # type: ignore[override]
        return self.own


@contextlib.contextmanager
def _parameters_of(params: Any) -> Iterator[None]:
    """Makes variants read parameters that are traced."""

    def parameter(_: Any, path: str) -> Any:
        names, _, index = path.removesuffix("]").partition("[")
        leaf = params
        try:
            for name in names.split("/"):
                leaf = leaf[name]
        except KeyError:
            raise ValueError(f"{path} is not among the parameters") from None
        return TracedArray(leaf[int(index)] if index else leaf)

    with contextlib.ExitStack() as stack:
        for module in _readers():
            stack.enter_context(patch.object(module, "parameter", parameter))
        yield


def _readers() -> list[Any]:
    """Returns the modules that read parameters by `graph.parameter`."""
    loaded = [*sys.modules.items()]
    return [
        module
        for name, module in loaded
        if name.startswith(faults.__name__) and getattr(module, "parameter", None) is graph.parameter
    ]
