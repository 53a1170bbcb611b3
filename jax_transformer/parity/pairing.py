"""What `jax-transformer parity` compares: a model and its reference, found and put side by side."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from jax_transformer.commands.parity import ParityOptions
    from jax_transformer.parity.backends.modules import ModuleReference
    from jax_transformer.parity.run_results import Pair
    from jax_transformer.porting.dialects import Dialect
    from jax_transformer.storage.model_directory import Model


class Prepared(NamedTuple):
    """Both sides, and where they came from."""

    pair: Pair
    sha256: dict[str, str]
    notes: dict[str, str]


def prepare(options: ParityOptions) -> Prepared:
    """The pair that the options ask for.

    Raises:
      ValueError: a model or module that can't be had; no reference for it; a checkpoint of another dialect.
      ImportError: PyTorch, or transformers, isn't installed.
    """
    from jax_transformer.parity.backends.jax_model import JaxSide
    from jax_transformer.parity.run_results import Pair

    module = made_by(options.reference, "--reference") if options.reference else None
    if module is not None:
        check_module(module, options.reference)
    model = load(options, module)
    reference, visible = _reference(options, model, module)
    candidate: Any = JaxSide(options.model or "the model here", model)
    if options.candidate:
        from jax_transformer.parity.backends.jax_function import FunctionSide
        from jax_transformer.parity.problems import own_problem

        candidate = FunctionSide(options.candidate, made_by(options.candidate, "--candidate"), model)
        shown = frozenset(candidate.forward(own_problem(model.config, model.params), "float32"))
        visible = shown if visible is None else shown & visible
    notes = {"dialect": str((model.origin or {}).get("dialect", "none"))}
    if visible is not None:
        notes["reference shows"] = f"{len(visible)} activations"
    pair = Pair(model.config, model.params, candidate, reference, model.generation, visible)
    hashes = _hashes(options)
    if module is not None:
        hashes[f"{options.reference}, its state_dict"] = hash_weights(module)
    return Prepared(pair, hashes, notes)


def made_by(name: str, option: str) -> Any:
    """What a function of the user's returns, named as package.module:factory; modules are looked for in the current
    directory, too.

    Raises:
      ValueError: no such module or function; it raises.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{option}: expected package.module:factory; received {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module's code is the user's
        raise ValueError(
            f"{option} {name}: {module_name} can't be imported: {type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        there = "no such name" if factory is None else f"a {type(factory).__name__}"
        raise ValueError(f"{option} {name}: expected a function {attribute} in {module_name}; there is {there}")
    try:
        return factory()
    except Exception as error:
        raise ValueError(f"{option} {name}: {attribute}() raised {type(error).__name__}: {error}") from error


def check_module(module: Any, name: str | None) -> None:
    """Raises ValueError for what is no PyTorch module, or one in training mode."""
    from torch import nn

    if not isinstance(module, nn.Module):
        raise ValueError(f"--reference {name}: expected a torch.nn.Module; received {type(module).__name__}")
    training = next((path or "the module itself" for path, part in module.named_modules() if part.training), None)
    if training is not None:
        raise ValueError(
            f"--reference {name}: expected a module in evaluation mode; {training} is in training mode: call .eval() "
            "first"
        )


def load(options: ParityOptions, module: nn.Module | None) -> Model:
    """The model directory, the checkpoint, or what the reference's own weights are ported to."""
    from jax_transformer.porting.convert import import_checkpoint
    from jax_transformer.storage.model_directory import is_model_directory, load_model

    hints = options.checkpoint.hints()
    if (
        options.model
        and Path(options.model).is_dir()
        and (is_model_directory(options.model) or is_model_directory(f"{options.model}/model"))
    ):
        if hints:
            raise ValueError(
                f"{options.model} is a model directory, which says all of itself; expected no {', '.join(hints)}"
            )
        return load_model(options.model)
    if options.model:
        return import_checkpoint(options.model, options.dialect, **hints)
    if module is None:
        raise ValueError(
            "parity: expected a model directory or a checkpoint, --reference or --diff; received none of them"
        )
    return import_checkpoint(module.state_dict(), options.dialect, **hints)


def _reference(options: ParityOptions, model: Model, module: nn.Module | None) -> tuple[Any, frozenset[str] | None]:
    """The other side, and what of it can be seen; None: all."""
    from jax_transformer.parity.backends.systems import SystemReference, knows
    from jax_transformer.parity.backends.torch_module import TorchSide

    constants = {name: np.asarray(leaf) for name, leaf in model.params.get("constants", {}).items()}
    if module is not None:
        return _of_module(options, model, module, constants)
    dialect = options.dialect or (model.origin or {}).get("dialect") or _fitting(model)
    refusals = _dialect(dialect).refusals(model.config)
    if refusals:
        raise ValueError("\n  - ".join([f"--dialect {dialect}: its programs have no such model:", *refusals]))
    if knows(dialect):
        return TorchSide(f"torch_reference.{dialect}", model, SystemReference(dialect, model.config, constants)), None
    from jax_transformer.parity.backends.families import family_reference

    family = family_reference(model)
    return TorchSide(f"transformers, {dialect}", model, family), _frozen(family.visible())


def _of_module(
    options: ParityOptions, model: Model, module: nn.Module, constants: Mapping[str, np.ndarray]
) -> tuple[Any, frozenset[str] | None]:
    from jax_transformer.parity.backends.modules import ModuleReference, dialect_of_map, names_of, names_of_map, renamed
    from jax_transformer.parity.backends.torch_module import TorchSide
    from jax_transformer.parity.names.maps import NameMap

    names, theirs = NameMap.read(options.map) if options.map else None, dict[str, str]()
    if names is not None and names.parameters:
        dialect, theirs = dialect_of_map(names, constants), renamed(names, module.state_dict().keys())
    else:
        dialect = _dialect(options.dialect or (model.origin or {}).get("dialect") or _recognised(module))
    if names is None or not names.activations:
        names = names_of_map(names, model.config) if theirs and names else names_of(dialect, model.config)
    reference = ModuleReference(module, dialect, model.config, constants, names, theirs)
    _check_parameters(reference, f"--reference {options.reference}", options.map)
    return TorchSide(str(options.reference), model, reference), _frozen(reference.visible())


def _frozen(names: set[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _check_parameters(reference: ModuleReference, what: str, map_file: str | None) -> None:
    """Raises ValueError where the module's parameters are none that the model could be given."""
    from jax_transformer.storage.tensors import PortingError

    own, dialect = reference.own(), reference.dialect
    if map_file is None and not dialect.recognises(own.keys()):
        some = ", ".join(list(own)[:3])
        raise ValueError(
            f"{what}: its parameters ({some}, …) aren't called as those of dialect {dialect.name}: "
            "say by --map FILE what they are here; --draft-map FILE drafts such a map"
        )
    try:
        reference.leaves(own)
    except PortingError as error:
        shown, more = error.problems[:MOST_PROBLEMS], len(error.problems) - MOST_PROBLEMS
        named = f"dialect {dialect.name}" if map_file is None else map_file
        problems = [*shown, *([f"and {more} more"] if more > 0 else [])] or [str(error)]
        raise PortingError(f"{what}: its parameters aren't the model's, as {named} has them", problems) from None


MOST_PROBLEMS = 6
"""Of parameters, before "and 40 more"."""


def _dialect(name: str) -> Dialect:
    from jax_transformer.porting.dialects import get_dialect

    return get_dialect(name)


def _recognised(module: nn.Module) -> str:
    """The dialect of a module's names. Raises PortingError where there is none, or several."""
    from jax_transformer.porting.dialects import detect

    return detect(module.state_dict().keys()).name


def _fitting(model: Model) -> str:
    """The dialect whose programs have such a model, for one that comes from no checkpoint."""
    from jax_transformer.parity.backends.systems import knows
    from jax_transformer.porting.dialects import all_dialects

    able = [name for name, dialect in all_dialects().items() if knows(name) and not dialect.refusals(model.config)]
    if not able:
        raise ValueError(
            "this model comes from no checkpoint, and no published program computes what its config says: "
            "give --reference package.module:factory, a PyTorch module to compare it with"
        )
    return able[0]


def hash_weights(module: nn.Module) -> str:
    """SHA-256 of a module's parameters and buffers: names, shapes, dtypes and bytes, in their order."""
    from jax_transformer.storage.tensor_files import as_arrays

    digest = hashlib.sha256()
    for name, array in as_arrays(module.state_dict()).items():
        digest.update(f"{name} {array.dtype} {list(array.shape)}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _hashes(options: ParityOptions) -> dict[str, str]:
    """SHA-256 of the files of either side, by path."""
    from jax_transformer.data.text_files import hash_file

    paths = [path for path in (options.model, options.map) if path]
    files = [
        file for path in paths for file in (sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)])
    ]
    kept = [
        file
        for file in files
        if file.is_file() and file.suffix in (".safetensors", ".pt", ".pth", ".bin", ".json", ".yaml", ".yml")
    ]
    return {str(file): hash_file(str(file)) for file in kept if "checkpoints" not in file.parts}
