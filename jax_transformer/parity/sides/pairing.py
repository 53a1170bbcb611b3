"""Pair a model with its reference: load both, find the dialect, and check that their parameters correspond."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.capture import check_module
from jax_transformer.comparison.checksums import hash_arrays, hash_files
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.sides import name_of
from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity.rules import BUILT_IN, NO_PROGRAMS, Rules
from jax_transformer.parity.sides.loading import load, with_own_table
from jax_transformer.parity.sides.options import Options, Side, map_of

if TYPE_CHECKING:
    from jax_transformer.parallel.mesh import AnyMesh
    from jax_transformer.parity.backends.modules import ModuleReference
    from jax_transformer.parity.run_results import Pair
    from jax_transformer.storage.model_directory import Model

MOST_PROBLEMS = 6
"""The most problems with parameters that a message lists."""


@dataclass(frozen=True)
class Sides:
    """Holds two sides of models, and what is known of both."""

    candidate: Side
    """A Model, a path, a module or a function."""
    reference: Side
    """A module, a Model, a path, or None."""
    kinds: tuple[str, str | None]
    """Of both: "model", "module" or "function"."""
    options: Options = field(default_factory=Options)
    rules: Rules = BUILT_IN

    @property
    def names(self) -> NameMap | str | os.PathLike[str] | None:
        """The map of names, or its file. Raises ParityError for a mapping, which names weights in other proofs."""
        return map_of(self.options.names)

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

    def name_map(self) -> NameMap | None:
        """Returns the map of names, read from its file if need be."""
        names = self.names
        return names if names is None or isinstance(names, NameMap) else NameMap.read(names)


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
    of_tables = (f"{described(tables)}; both sides were given the table of the checkpoint",) if tables else ()
    return dataclasses.replace(
        report, environment=facts, sha256=_checksums(sides, pair), remarks=(*of_tables, *report.remarks)
    )


def pair_models(sides: Sides) -> tuple[Pair, dict[str, str]]:
    """Returns both sides, loaded, and notes for the report.

    Raises:
      see `compare_models`.
    """
    from jax_transformer.parity.backends.jax_model import JaxSide
    from jax_transformer.parity.run_results import Pair

    _check_kinds(sides)
    if sides.module is not None:
        check_module(sides.module, _reference_name(sides))
    model = load(sides.source, sides.options.dialect, sides.options.hints)
    model, table = with_own_table(model, sides.source, sides.options.dialect, sides.options.hints, sides.module)
    if sides.options.mesh is not None:
        from jax_transformer.parallel.rules import check_divides

        _check_axes(sides.options.mesh)
        check_divides(model.config, sides.options.mesh)
    reference, visible = _reference(sides, model)
    visible, unseen = _shown(reference, visible, model)
    ours = sides.rules, sides.candidate.programs
    candidate: Any = JaxSide(_candidate_name(sides), model, *ours, mesh=sides.options.mesh)
    if sides.kinds[0] == "function":
        from jax_transformer.parity.backends.jax_function import FunctionSide
        from jax_transformer.parity.problems import own_problem

        candidate = FunctionSide(_candidate_name(sides), sides.candidate.program, model, *ours)
        own = own_problem(model.config, model.params)
        candidate.check(own)
        shown = frozenset(candidate.forward(own, "float32"))
        visible = shown if visible is None else shown & visible
    notes = {"dialect": str((model.origin or {}).get("dialect", "none"))}
    notes |= {"position table": table} if table else {}
    if sides.options.mesh is not None:
        from jax_transformer.parallel.mesh import described

        notes["candidate's devices"] = described(sides.options.mesh)
    if visible is not None:
        notes["reference shows"] = f"{len(visible)} activations"
    if unseen:
        notes["reference doesn't show"] = f"{len(unseen)} masks, logits and weights of attentions"
    notes |= {
        f"{side}'s {name}": name_of(program)
        for side, programs in (("candidate", sides.candidate.programs), ("reference", sides.reference.programs))
        for name, program in vars(programs).items()
        if program is not None
    }
    kept = _kept(reference, model)
    pair = Pair(model.config, model.params, candidate, reference, model.generation, visible, sides.rules, kept=kept)
    return pair, notes


def _kept(reference: Any, model: Model) -> frozenset[str]:
    """Returns the paths of constants that no tensor of a module holds."""
    from jax_transformer.parity.backends.modules import ModuleReference
    from jax_transformer.parity.backends.torch_module import TorchSide

    if not (isinstance(reference, TorchSide) and isinstance(reference.reference, ModuleReference)):
        return frozenset()
    paths = (f"constants/{name}" for name in _constants(model))
    return frozenset(path for path in paths if not reference.reference.holds(path))


def _shown(
    reference: Any, visible: frozenset[str] | None, model: Model
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Returns the activations that a module can show, and those among them that it doesn't, having no such softmax; all
    and none if it can't be run, which the run will tell."""
    from jax_transformer.comparison.sides import CannotRun
    from jax_transformer.parity.problems import own_problem
    from jax_transformer.parity.sides.seen import unseen

    if visible is None:
        return None, frozenset()
    problem = own_problem(model.config, model.params)
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
        raise ParityError(f"model: only a function takes one beside it; the candidate is a {candidate}")
    if candidate == "function" and sides.source is None:
        raise ParityError("expected a model whose parameters the function receives, or a reference that has them")


def _check_axes(mesh: AnyMesh) -> None:
    """Raises ParityError unless a mesh is one of those that models are laid out on."""
    from jax.sharding import AxisType

    from jax_transformer.config.parallel import AXES

    if tuple(mesh.axis_names) != AXES or any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ParityError(
            f"mesh: expected one of make_mesh or make_abstract_mesh, with axes {', '.join(AXES)}; received {mesh}"
        )


def _candidate_name(sides: Sides) -> str:
    return sides.candidate.name or (
        f"{_reference_name(sides)} in JAX" if sides.kinds[0] == "module" else name_of(sides.candidate.program)
    )


def _reference_name(sides: Sides) -> str:
    program = sides.reference.program
    return sides.reference.name or name_of(sides.candidate.program if program is None else program)


# --- the reference


def _reference(sides: Sides, model: Model) -> tuple[Any, frozenset[str] | None]:
    """Returns the other side, and the activations that it can show; None: all."""
    if sides.module is not None:
        return _module_side(sides, model)
    if sides.reference.program is not None:
        return _model_side(sides, model), None
    from jax_transformer.parity.backends.systems import SystemReference, knows
    from jax_transformer.parity.backends.torch_module import TorchSide
    from jax_transformer.porting.dialects import get_dialect
    from jax_transformer.porting.names_of_dialects import NAME as MAP

    dialect = sides.options.dialect or (model.origin or {}).get("dialect") or _fitting_dialect(model)
    if dialect == MAP:
        raise ParityError(
            "this model was imported by a map of names, and its program isn't known: give a reference, the PyTorch "
            "module to compare it with (--reference package.module:factory)"
        )
    refusals = get_dialect(dialect).refusals(model.config)
    if refusals:
        raise ParityError("\n  - ".join([f"dialect {dialect}: its programs have no such model:", *refusals]))
    name, theirs = sides.reference.name, (sides.rules, sides.reference.programs)
    if knows(dialect):
        program = SystemReference(dialect, model.config, _constants(model))
        return TorchSide(name or f"torch_reference.{dialect}", model, program, *theirs), None
    from jax_transformer.parity.backends.families import family_reference

    family = family_reference(model)
    return TorchSide(name or f"transformers, {dialect}", model, family, *theirs), _frozen(family.visible())


def _model_side(sides: Sides, model: Model) -> Any:
    """Returns another model as the reference. Raises ParityError for one of other parameters."""
    from jax_transformer.parity.backends.jax_model import JaxSide
    from jax_transformer.runtime.trees import flatten

    program, options = sides.reference.program, sides.options
    other = model if program is sides.source else load(program, options.dialect, options.hints)
    shapes = [{path: np.shape(leaf) for path, leaf in flatten(one.params).items()} for one in (model, other)]
    different = [path for path in shapes[0] | shapes[1] if shapes[0].get(path) != shapes[1].get(path)]
    if different:
        received, expected = (side.get(different[0], "none") for side in shapes)
        raise ParityError(
            f"reference {_reference_name(sides)}: expected a model with the candidate's parameters; {different[0]} is "
            f"{expected} here and {received} there ({len(different)} differ)"
        )
    return JaxSide(_reference_name(sides), other)


def _module_side(sides: Sides, model: Model) -> tuple[Any, frozenset[str] | None]:
    from jax_transformer.parity.backends.families import FamilyReference, is_of_transformers
    from jax_transformer.parity.backends.module_names import layers_of, names_of, prefix_of
    from jax_transformer.parity.backends.modules import ModuleReference
    from jax_transformer.parity.backends.torch_module import TorchSide
    from jax_transformer.parity.problems import own_problem
    from jax_transformer.porting.dialects import detect, get_dialect
    from jax_transformer.porting.names_of_dialects import dialect_of_map, map_of_origin

    module, constants, names, prefix = sides.module, _constants(model), sides.name_map(), ""
    if names is None and sides.options.dialect is None:
        names = map_of_origin(model.origin)
    if names is not None and names.parameters:
        paths = [path for path, _ in module.named_modules()]
        names = names.under(names.prefix_in(module.state_dict().keys()), paths)
        dialect = dialect_of_map(
            names, names.rules(), lambda config: {f"constants/{name}": leaf for name, leaf in constants.items()}
        )
    else:
        known = sides.options.dialect or (model.origin or {}).get("dialect") or detect(module.state_dict().keys()).name
        dialect = get_dialect(known)
        prefix = prefix_of(dialect, module.state_dict())
    kind = FamilyReference if is_of_transformers(module) else ModuleReference
    reference = kind(module, dialect, model.config, constants, names or NameMap(), prefix)
    _check_parameters(reference, sides)
    if not reference.names.activations:
        reference = dataclasses.replace(reference, names=names_of(dialect, model.config, prefix))
    if names is None:
        reference = dataclasses.replace(reference, layers=layers_of(dialect, model.config, prefix))
    follow = names is not None and bool(names.parameters) and not names.activations
    problem = own_problem(model.config, model.params)
    reference = reference.tried(_reference_name(sides), problem, only_called=follow)
    side = TorchSide(_reference_name(sides), model, reference, sides.rules, sides.reference.programs)
    return side, _frozen(reference.visible())


def _check_parameters(reference: ModuleReference, sides: Sides) -> None:
    """Raises ValueError unless the module's parameters correspond to the model's."""
    from jax_transformer.storage.tensors import PortingError

    own, dialect, side = reference.own(), reference.dialect, f"reference {_reference_name(sides)}"
    if sides.names is None and not dialect.recognises([name.removeprefix(reference.prefix) for name in own]):
        some = ", ".join(list(own)[:3])
        raise ParityError(
            f"{side}: its parameters ({some}, …) don't have the names of dialect {dialect.name}: map them with names "
            "(--map FILE); draft_map (--draft-map FILE) drafts such a map"
        )
    try:
        reference.leaves(own)
    except PortingError as error:
        shown, more = error.problems[:MOST_PROBLEMS], len(error.problems) - MOST_PROBLEMS
        by = f"dialect {dialect.name}" if sides.names is None else "the map of names"
        by = os.fspath(sides.names) if isinstance(sides.names, str | os.PathLike) else by
        problems = [*shown, *([f"and {more} more"] if more > 0 else [])] or [str(error)]
        raise PortingError(f"{side}: its parameters aren't the model's by {by}", problems) from None


def _constants(model: Model) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in model.params.get("constants", {}).items()}


def _frozen(names: set[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


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

    parts = (sides.candidate.program, sides.reference.program, sides.options.model, sides.names)
    sums = {
        path: digest
        for part in parts
        if isinstance(part, str | os.PathLike)
        for path, digest in hash_files(part).items()
    }
    if sides.module is not None:
        sums[f"{_reference_name(sides)}, its state_dict"] = hash_arrays(as_arrays(sides.module.state_dict()))
    if not sums:
        arrays = {path: np.asarray(leaf) for path, leaf in flatten(pair.params).items()}
        sums[f"{pair.candidate.name}, its parameters"] = hash_arrays(arrays)
    return sums
