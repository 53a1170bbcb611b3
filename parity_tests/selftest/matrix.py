"""The kill matrix: what becomes of every fault in every system."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import mechanisms
import numpy as np
from block_pairs import PAIRS, BlocksReference

from jax_transformer.comparison.findings import Fault
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.systems import SystemReference
from jax_transformer.parity.backends.torch_module import Reference, TorchSide
from jax_transformer.parity.oracle.graph import Kind
from jax_transformer.parity.problems import Problem, other_weights, own_problem
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.storage.model_directory import Model
from selftest.injections import Corruption, Injection, known_faults, unknown_faults
from selftest.subjects import MECHANISMS, make_block, make_model

Fate = Literal["found", "missed", "equivalent", "equivalent (noted)", "not applicable"]
"""equivalent: exactly no difference on any problem. equivalent (noted): masked logits of another value, which change
nothing else on any problem, and which the comparison notes and passes."""


@dataclass(frozen=True)
class Kill:
    """What became of one fault."""

    system: str
    fault: str
    known: bool
    node: str
    kind: Kind | str
    fate: Fate
    located: bool = False
    """The first node that was blamed is the one at fault, and no other was."""
    named: bool = False
    """Its name is among the causes given."""
    causes: tuple[str, ...] = ()
    """Those given at that node."""
    problem: str = ""
    """The first on which it was seen."""

    @property
    def wrongly_named(self) -> bool:
        return bool(self.causes) and not self.named

    @property
    def shortcomings(self) -> list[str]:
        """What it should have been and wasn't, in words."""
        if self.fate == "missed":
            return ["missed"]
        found = []
        if self.fate == "found":
            found += [] if self.located else ["not located"]
            found += ["not named"] if self.known and not self.named else []
        return found + ([f"called {', '.join(self.causes)}"] if self.wrongly_named else [])


@dataclass(frozen=True)
class Prepared:
    """A system with its problems, and what the model here makes of them."""

    name: str
    model: Model
    problems: tuple[Problem, ...]
    right: tuple[Arrays, ...]
    program: TorchSide

    @classmethod
    def of(cls, name: str, seed: int = 0) -> Prepared:
        model, reference = system_of(name, seed)
        problems = (own_problem(model.config, model.params, seed), *other_weights(model.config, model.params, seed))
        here = JaxSide("jax", model)
        return cls(
            name,
            model,
            problems,
            tuple(here.forward(problem, "float64") for problem in problems),
            TorchSide(name, model, reference),
        )


def system_of(name: str, seed: int, layers: tuple[int, int] | None = None) -> tuple[Model, Reference]:
    """Returns a system's model and its program.

    Args:
      layers: of encoder and decoder, where these may be any numbers; None: the usual ones.
    """
    if name in PAIRS:
        return make_block(name, seed), BlocksReference(name)
    if name in MECHANISMS:
        model = mechanisms.make_model(MECHANISMS[name], seed)
        return model, mechanisms.MechanismReference(model.config)
    model = make_model(name, seed, layers)
    dialect = (model.origin or {})["dialect"]
    return model, SystemReference(dialect, model.config, model.params.get("constants", {}))


def kills_of(system: Prepared, places: int, seed: int = 0) -> Iterator[Kill]:
    """Every fault, known and unknown, at some places of the system.

    Args:
      places: at how many nodes each fault is tried, of those where it makes sense.
    """
    rng, config = np.random.default_rng([seed, *system.name.encode()]), system.model.config
    for faults in (known_faults(config, rng), unknown_faults(config, rng)):
        for _, same in groupby(faults, key=lambda injection: injection.name):
            yield from _some(system, same, places)


FRUITLESS: tuple[Fate, ...] = ("equivalent (noted)", "equivalent", "not applicable")
"""The fates of faults that make no difference, the most telling first."""


def _some(system: Prepared, injections: Iterable[Injection], places: int) -> Iterator[Kill]:
    """The first that make sense and make a difference; of a fault that never does, one that says so."""
    left, fruitless = places, None
    for injection in injections:
        kill = try_injection(system, injection)
        if kill.fate in ("found", "missed"):
            yield kill
            left -= 1
        elif fruitless is None or FRUITLESS.index(kill.fate) < FRUITLESS.index(fruitless.fate):
            fruitless = kill
        if not left:
            return
    if left == places and fruitless is not None:
        yield fruitless


def try_injection(system: Prepared, injection: Injection) -> Kill:
    """Puts the fault into the program, and compares it with the model here on one problem after another until it makes
    a difference."""
    kill = Kill(
        system.name, injection.name, injection.known, injection.node.name, injection.node.kind, "not applicable"
    )
    for problem, right in zip(system.problems, system.right, strict=True):
        try:
            trace, changed = _faulty(system, injection, problem)
        except (LookupError, ValueError):
            continue
        if not changed:
            kill = dataclasses.replace(kill, fate="equivalent") if kill.fate == "not applicable" else kill
            continue
        result = compare_forward(system.model.config, problem, trace, right)
        if "diverged" in (result.masks.verdict, result.forward.verdict, result.truth.verdict):
            return _as_told(kill, injection, problem, [*result.faults, *result.notes], "found")
        if kill.fate != "equivalent (noted)":
            fate: Fate = "equivalent (noted)" if _of_candidate(result.notes) else "missed"
            kill = _as_told(kill, injection, problem, result.notes, fate)
    return kill


def _faulty(system: Prepared, injection: Injection, problem: Problem) -> tuple[Arrays, bool]:
    """What the faulty program gives, and whether the fault changes anything of its node. Raises LookupError or
    ValueError for a fault that can't occur there."""
    reference: Any = system.program.reference
    corruption = Corruption(injection, system.model.config, problem)
    system.program.reference = dataclasses.replace(reference, corrupt=corruption)
    try:
        return system.program.forward(problem, "float64"), corruption.changed
    except CannotRun as error:
        raise error.__cause__ or error from None
    finally:
        system.program.reference = reference


def _as_told(kill: Kill, injection: Injection, problem: Problem, faults: Sequence[Fault], fate: Fate) -> Kill:
    """Returns the kill with the comparison's verdict on it."""
    blamed = _of_candidate(faults)
    located = [fault.finding.node for fault in blamed] == [injection.node.name]
    causes = tuple(match.variant for fault in blamed for match in fault.finding.matches)
    return dataclasses.replace(
        kill, fate=fate, located=located, named=injection.name in causes, causes=causes, problem=problem.name
    )


def _of_candidate(faults: Sequence[Fault]) -> list[Fault]:
    return [fault for fault in faults if fault.side == "candidate"]


def false_alarms(name: str, seeds: Iterable[int], alarm: Callable[[str], None] = lambda what: None) -> int:
    """How many of these seeds, each with other weights, find a fault where there is none."""
    alarms = 0
    for seed in seeds:
        system = Prepared.of(name, seed)
        for problem, right in zip(system.problems, system.right, strict=True):
            result = compare_forward(
                system.model.config, problem, system.program.forward(problem, "float64"), right, look_at_reference=True
            )
            if result.faults or result.forward.verdict != "passed" or result.masks.verdict == "diverged":
                alarms += 1
                alarm(f"{name}, seed {seed}, {problem.name}")
                break
    return alarms
