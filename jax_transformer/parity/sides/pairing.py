"""Pair a model with its reference: load both, find the dialect, and check that their parameters correspond."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.capture import check_module
from jax_transformer.comparison.checksums import hash_arrays, hash_files
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.sides import name_of
from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity.rules import BUILT_IN, NO_PROGRAMS, Rules, make_rules
from jax_transformer.parity.sides.options import Kinds, Options, Side, read_names

if TYPE_CHECKING:
    from jax_transformer.parity.problems import Problem
    from jax_transformer.parity.run_results import Pair
    from jax_transformer.storage.model_directory import Model


@dataclass(frozen=True)
class Sides:
    """Holds two sides of models, and what is known of both."""

    candidate: Side
    """A Model, a path, a module or a function."""
    reference: Side
    """A module, a Model, a path, or None."""
    kinds: Kinds
    """The kind of each side: "model", "module" or "function"."""
    options: Options = field(default_factory=Options)
    rules: Rules = BUILT_IN
    names: NameMap | None = None
    """The map from the names of the module among the sides to the model's."""

    @classmethod
    def of(cls, ours: Side, theirs: Side, kinds: Kinds, asked: Options) -> Sides:
        """Returns the sides of these kinds, with what the options' files say.

        Raises:
          ParityError, ConfigError, PortingError: see `make_rules` and `read_names`.
        """
        rules = make_rules(ours.program, asked.train, asked.decoding, ours.programs, theirs.programs)
        return cls(ours, theirs, kinds, asked, rules, read_names(asked.names))

    @property
    def module(self) -> Any:
        """Returns the PyTorch module among the sides, if there is one."""
        both = zip((self.candidate, self.reference), self.kinds, strict=True)
        return next((side.program for side, kind in both if kind == "module"), None)

    @property
    def source(self) -> Any:
        """Returns the source of the JAX model."""
        if self.kinds[0] != "function":
            return self.candidate.program
        return self.reference.program if self.options.model is None else self.options.model


def compare_models(
    sides: Sides,
    *,
    stages: Sequence[str],
    dtypes: Sequence[Any],
    allow: Sequence[str],
) -> Report:
    """Pairs the sides, runs the stages, and adds checksums and environment to the report.

    Raises:
      ParityError: the sides don't go together; a module or function can't be run.
      PortingError: a checkpoint can't be read; the module's parameters aren't the model's.
      ImportError: PyTorch or transformers isn't installed.
    """
    from jax_transformer.parity.run import run
    from jax_transformer.parity.run_results import LIBRARIES
    from jax_transformer.porting.position_tables import described, other_tables
    from jax_transformer.runtime.allocator import give_back_freed_memory, trim
    from jax_transformer.runtime.environment import environment

    options, (pair, notes) = sides.options, pair_models(sides)
    pair = dataclasses.replace(pair, allow=frozenset(allow))
    notes |= {"allowed": ", ".join(allow)} if allow else {}

    def trimming(work: str) -> None:
        gc.collect()  # the graphs of PyTorch's gradients have cycles
        trim()
        options.progress(work)

    if pair.is_large:
        give_back_freed_memory()
    progress = trimming if pair.is_large else options.progress
    report = run(pair, stages=stages, dtypes=dtypes, seed=options.seed, progress=progress, node=options.node)
    facts = environment(LIBRARIES) | dict(report.environment) | notes
    tables = other_tables(pair.config, pair.params)
    table_remarks = (f"{described(tables)}; both sides were given the table of the checkpoint",) if tables else ()
    return dataclasses.replace(
        report, environment=facts, sha256=_checksums(sides, pair), remarks=(*table_remarks, *report.remarks)
    )


def pair_models(sides: Sides) -> tuple[Pair, dict[str, str]]:
    """Returns both sides, loaded, and notes for the report.

    Raises:
      see `compare_models`.
    """
    from jax_transformer.parity.problems import own_problem
    from jax_transformer.parity.run_results import Pair

    _check_kinds(sides)
    ours, theirs = _names(sides)
    if sides.module is not None:
        check_module(sides.module, theirs)
    model, table = _load(sides)
    if sides.options.mesh is not None:
        from jax_transformer.parallel.rules import check_divides

        check_divides(model.config, sides.options.mesh)
    problem = own_problem(model.config, model.params)
    reference, visible = _reference(sides, model, theirs, problem)
    visible, unseen = _shown(reference, visible, model, problem)
    candidate, shown = _candidate(sides, model, ours, problem)
    if shown is not None:
        visible = shown if visible is None else shown & visible
    notes = _notes(sides, model, table, visible, unseen)
    kept = _kept(reference, model)
    pair = Pair(model.config, model.params, candidate, reference, model.generation, visible, sides.rules, kept=kept)
    return pair, notes


def _notes(
    sides: Sides, model: Model, table: str, visible: frozenset[str] | None, unseen: frozenset[str]
) -> dict[str, str]:
    """Returns notes for the report on how both sides were paired."""
    notes = {"dialect": str((model.origin or {}).get("dialect", "none"))}
    notes |= {"position table": table} if table else {}
    if sides.options.mesh is not None:
        from jax_transformer.parallel.mesh import described

        notes["candidate's devices"] = described(sides.options.mesh)
    if visible is not None:
        notes["reference shows"] = f"{len(visible)} activations"
    if unseen:
        notes["reference doesn't show"] = f"{len(unseen)} masks, logits and weights of attentions"
    return notes | {
        f"{side}'s {name}": name_of(program)
        for side, programs in (("candidate", sides.candidate.programs), ("reference", sides.reference.programs))
        for name, program in vars(programs).items()
        if program is not None
    }


def _candidate(sides: Sides, model: Model, name: str, problem: Problem) -> tuple[Any, frozenset[str] | None]:
    """Returns the candidate, and the activations that a function shows; None: all.

    Raises:
      ParityError: a function can't be run.
    """
    from jax_transformer.parity.backends.jax_sides import FunctionSide, JaxSide

    ours = sides.rules, sides.candidate.programs
    if sides.kinds[0] != "function":
        return JaxSide(name, model, *ours, mesh=sides.options.mesh), None
    side = FunctionSide(name, sides.candidate.program, model, *ours)
    side.check(problem)
    return side, frozenset(side.forward(problem, "float32"))


def _kept(reference: Any, model: Model) -> frozenset[str]:
    """Returns the paths of constants that no tensor of a module holds."""
    from jax_transformer.parity.backends.modules import ModuleReference, constants_of
    from jax_transformer.parity.backends.torch_module import TorchSide

    if not (isinstance(reference, TorchSide) and isinstance(reference.reference, ModuleReference)):
        return frozenset()
    paths = (f"constants/{name}" for name in constants_of(model))
    return frozenset(path for path in paths if not reference.reference.holds(path))


def _shown(
    reference: Any, visible: frozenset[str] | None, model: Model, problem: Problem
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Returns the activations that a module can show, and those among them that it doesn't, having no such softmax; all
    and none if it can't be run, which the run will tell."""
    from jax_transformer.comparison.sides import CannotRun
    from jax_transformer.parity.stages.forward import unseen

    if visible is None:
        return None, frozenset()
    try:
        trace = reference.forward(problem, "float64")
    except CannotRun:
        return visible, frozenset()
    hidden = unseen(model.config, problem, trace) & visible
    return visible - hidden, hidden


def _check_kinds(sides: Sides) -> None:
    """Raises ParityError for sides that don't go together."""
    candidate, reference = sides.kinds
    if reference == "function":
        raise ParityError("reference: expected a torch.nn.Module or a model; received a function")
    if candidate == "module" and reference is not None:
        raise ParityError(
            "candidate: a torch.nn.Module is compared with its own port, without a reference; to compare two modules, "
            "compare what capture() returns of each"
        )
    if sides.reference.programs != NO_PROGRAMS and reference in ("model", "function"):
        raise ParityError(
            "loss, optimizer, decode: expected a PyTorch reference, whose programs they are; received a model"
        )
    if sides.options.mesh is not None and candidate == "function":
        raise ParityError("mesh: expected a model, which computes on it; received a function")
    if sides.options.model is not None and candidate != "function":
        raise ParityError(f"model: only a function takes one; the candidate is a {candidate}")
    if candidate == "function" and sides.source is None:
        raise ParityError("expected a model whose parameters the function receives, or a reference that has them")


def _names(sides: Sides) -> tuple[str, str]:
    """Returns the names of both sides."""
    ours, theirs = sides.candidate, sides.reference
    reference = theirs.name or (ours if theirs.program is None else theirs).label
    ported = ours.name or f"{reference} in JAX"
    return ported if sides.kinds[0] == "module" else ours.label, reference


# --- the model


def _load(sides: Sides) -> tuple[Model, str]:
    """Returns the model. Of a checkpoint that lacks the position table which a module holds, it has the module's; the
    text is a note of it, or ""."""
    from jax_transformer.parity.backends.modules import own_table

    source, dialect, hints = sides.source, sides.options.dialect, sides.options.hints
    given = _given_model(source, hints)
    model = _import(source, dialect, hints) if given is None else given
    if given is not None or sides.module is None or {"position_table", "max_length"} & {*hints}:
        return model, ""
    table = own_table(sides.module, model)
    if table is None:
        return model, ""
    own = _import(source, dialect, {**hints, "position_table": table})
    return own, f"the reference's own, {list(table.shape)} in {table.dtype}"


def load(source: Any, dialect: str | None, hints: Mapping[str, Any]) -> Model:
    """Returns the Model itself, reads a model directory or a checkpoint, or ports a module's weights.

    Raises:
      ParityError: hints for a model that needs none.
      ModelError, PortingError: it can't be read.
    """
    given = _given_model(source, hints)
    return _import(source, dialect, hints) if given is None else given


def _given_model(source: Any, hints: Mapping[str, Any]) -> Model | None:
    """Returns the Model itself, or reads that of a model directory; None for a checkpoint or a module. Raises as
    `load` does."""
    from jax_transformer.storage.hub import model_at
    from jax_transformer.storage.model_directory import Model, load_directory

    directory = model_at(source) if isinstance(source, str | os.PathLike) else None
    if directory is None and not isinstance(source, Model):
        return None
    if hints:
        raise ParityError(f"{name_of(source)} is a model and has its config; expected no {', '.join(hints)}")
    return source if directory is None else load_directory(directory)


def _import(source: Any, dialect: str | None, hints: Mapping[str, Any]) -> Model:
    """Imports a checkpoint, or ports a module's weights."""
    from jax_transformer.porting.importing import import_checkpoint

    is_path = isinstance(source, str | os.PathLike)
    return import_checkpoint(source, dialect, **hints) if is_path else _import_module(source, dialect, hints)


def _import_module(module: Any, dialect: str | None, hints: Mapping[str, Any]) -> Model:
    """Ports a module's weights, without the buffers and the second copies of tied tensors that the dialect lacks; the
    module keeps these itself. A model of transformers has a config that tells what hints don't."""
    from jax_transformer.comparison.torch_tensors import equal_tensor
    from jax_transformer.porting.hugging_face import read_configs
    from jax_transformer.porting.importing import import_checkpoint
    from jax_transformer.storage.tensors import PortingError

    held = module.state_dict()
    if dialect is None and _is_of_transformers(module):
        configs = module.config, getattr(module, "generation_config", None)
        dialect, read = read_configs(*({} if one is None else one.to_dict() for one in configs))
        hints = {**read, **hints}
    try:
        return import_checkpoint(held, dialect, **hints)
    except PortingError as error:
        unexpected = [re.match(r"unexpected tensor (\S+) ", problem) for problem in error.problems]
        ends = tuple(match[1] for match in unexpected if match)  # without the prefix of all names, if there is one
        others = [name for name in held if ends and name.endswith(ends)]
        named, buffers = held.keys() - {*others}, dict(module.named_buffers(remove_duplicate=False))
        spare = {name for name in others if name in buffers or equal_tensor(held, name, named) is not None}
        if not spare:
            raise
    return import_checkpoint({name: tensor for name, tensor in held.items() if name not in spare}, dialect, **hints)


def _is_of_transformers(module: Any) -> bool:
    """Returns whether a module is a model of transformers, or of a subclass of one."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


# --- the reference


def _reference(sides: Sides, model: Model, name: str, problem: Problem) -> tuple[Any, frozenset[str] | None]:
    """Returns the other side, and the activations that it can show; None: all.

    Args:
      name: its name, unless it is the program of the model's dialect.
      problem: the model's own weights and ids.
    """
    if sides.module is None and sides.reference.program is not None:
        return _model_side(sides, model, name), None
    from jax_transformer.parity.backends.families import FamilyReference
    from jax_transformer.parity.backends.modules import ModuleReference, Naming, module_reference
    from jax_transformer.parity.backends.systems import SystemReference
    from jax_transformer.parity.backends.torch_module import TorchSide

    program = sides.module
    if program is None:
        title, program = _published(sides, model)
        name = sides.reference.name or title
    if not isinstance(program, SystemReference):
        kind = FamilyReference if _is_of_transformers(program) else ModuleReference
        file = sides.options.names
        by = os.fspath(file) if isinstance(file, str | os.PathLike) else "the map of names"
        program = module_reference(kind, name, program, model, Naming(sides.options.dialect, sides.names, by), problem)
    shown = program.visible()
    side = TorchSide(name, model, program, sides.rules, sides.reference.programs)
    return side, None if shown is None else frozenset(shown)


def _published(sides: Sides, model: Model) -> tuple[str, Any]:
    """Returns the published program of the model's dialect, a module if it is one of transformers, and its name."""
    from jax_transformer.parity.backends.families import exported_module
    from jax_transformer.parity.backends.modules import constants_of
    from jax_transformer.parity.backends.systems import SystemReference, knows
    from jax_transformer.porting.dialects import get_dialect
    from jax_transformer.porting.names_of_dialects import NAME as MAP

    dialect = sides.options.dialect or (model.origin or {}).get("dialect") or _fitting_dialect(model)
    if dialect == MAP:
        raise ParityError(
            "this model was imported by a map of names, and its program isn't known: give a reference, the PyTorch "
            "module to compare it with (--reference package.module:factory)"
        )
    table = get_dialect(dialect)
    refusals = table.refusals(model.config)
    if refusals:
        raise ParityError("\n  - ".join([f"dialect {dialect}: its programs have no such model:", *refusals]))
    if knows(dialect):
        return f"torch_reference.{dialect}", SystemReference(dialect, model.config, constants_of(model))
    return f"transformers, {dialect}", exported_module(model, table)


def _model_side(sides: Sides, model: Model, name: str) -> Any:
    """Returns another model as the reference. Raises ParityError for one of other parameters."""
    from jax_transformer.parity.backends.jax_sides import JaxSide
    from jax_transformer.runtime.trees import flatten

    program, options = sides.reference.program, sides.options
    other = model if program is sides.source else load(program, options.dialect, options.hints)
    shapes = [{path: np.shape(leaf) for path, leaf in flatten(one.params).items()} for one in (model, other)]
    different = [path for path in shapes[0] | shapes[1] if shapes[0].get(path) != shapes[1].get(path)]
    if different:
        received, expected = (side.get(different[0], "none") for side in shapes)
        raise ParityError(
            f"reference {name}: expected a model with the candidate's parameters; {different[0]} is {expected} here "
            f"and {received} there ({len(different)} differ)"
        )
    return JaxSide(name, other)


def _fitting_dialect(model: Model) -> str:
    """Returns the first dialect whose program computes what the config says. Raises ParityError if there is none."""
    from jax_transformer.parity.backends.systems import knows
    from jax_transformer.porting.dialects import all_dialects

    for name, dialect in all_dialects().items():
        if knows(name) and not dialect.refusals(model.config):
            return name
    raise ParityError(
        "this model comes from no checkpoint, and no published program computes what its config says: give a "
        "reference, a PyTorch module to compare it with (--reference package.module:factory)"
    )


def _checksums(sides: Sides, pair: Pair) -> dict[str, str]:
    """Returns the SHA-256 of the files and weights of both sides, by path or name."""
    from jax_transformer.runtime.trees import flatten
    from jax_transformer.storage.tensor_files import as_arrays

    parts = (sides.candidate.program, sides.reference.program, sides.options.model, sides.options.names)
    sums = {
        path: digest
        for part in parts
        if isinstance(part, str | os.PathLike)
        for path, digest in hash_files(part).items()
    }
    if sides.module is not None:
        sums[f"{_names(sides)[1]}, its state_dict"] = hash_arrays(as_arrays(sides.module.state_dict()))
    if not sums:
        arrays = {path: np.asarray(leaf) for path, leaf in flatten(pair.params).items()}
        sums[f"{pair.candidate.name}, its parameters"] = hash_arrays(arrays)
    return sums
