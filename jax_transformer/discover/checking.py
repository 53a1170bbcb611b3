"""Compare a discovered model with its module on new sentences, on long ones, and with larger weights."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jax_transformer.comparison.gates.rounding import nudged
from jax_transformer.comparison.gates.tolerances import FACTOR_ROUNDING, FLOAT64_RELATIVE_RMS, MOST_FOR_ROUNDING
from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover.graph import distance
from jax_transformer.discover.inputs import Batch, checks, long_checks
from jax_transformer.discover.problems import CannotRun, DiscoverError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.model import functional
from jax_transformer.porting.exporting import export_by_map
from jax_transformer.porting.importing import read_checkpoint
from jax_transformer.programs.calling import Call
from jax_transformer.programs.calling.trials import first_line, place
from jax_transformer.programs.copies import copied
from jax_transformer.programs.modes import wide
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.programs.torch_precision import deterministic
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays, read_tensors

if TYPE_CHECKING:
    from torch import nn

LARGER = 4.0
"""Multiplies a module's trained parameters for one check, so that activations reach clamps, caps and thresholds that
the module's own weights never reach."""


@dataclass(frozen=True)
class Check:
    """Holds how far the model's logits are from the module's, in units of their RMS, on one batch in float64."""

    lengths: tuple[int, int]
    padding: str
    residual: float
    weights: str = "its own"
    """Weights of the module: its own, or larger ones."""
    gate: float = FLOAT64_RELATIVE_RMS
    """The largest residual that counts as equal."""
    seconds: float = 0.0
    """Duration of the runs."""
    ran_before: bool = False
    """Whether only a module that had already run on other batches failed. Each batch runs on a fresh copy and on a used
    one, and the larger residual counts: a module may keep state."""

    @property
    def passed(self) -> bool:
        return self.residual <= self.gate

    def __str__(self) -> str:
        own = "" if self.weights == "its own" else f", with {self.weights} weights"
        before = ", after it ran on other batches" if self.ran_before else ""
        return f"sentences of {self.lengths[0]} and {self.lengths[1]} tokens{own}{before}"


@dataclass(frozen=True)
class Candidate:
    """Holds a proposed config and map of a module, before any check."""

    config: TransformerConfig
    names: NameMap
    tables: Mapping[str, np.ndarray]
    """Values of constants by name."""
    is_normalised: bool
    """Whether the module returns log-probabilities."""

    def model(self, module: nn.Module) -> Model:
        """Returns the model with a module's weights."""
        model = read_checkpoint(as_arrays(module.state_dict()), None, {}, names=self.names, config=self.config)
        return replace(model, params=_with_tables(jax.tree.map(np.asarray, model.params), self.tables))


def check_all(
    module: nn.Module,
    call: Call,
    candidate: Candidate,
    model: Model,
    padding: str,
    rounding: float,
    longest: tuple[int, int],
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Checks a model with the module's own weights on every batch, on a fresh module and on a used one, and with larger
    weights on one batch. Stops at the first failure; returns the checks, and notes of skipped ones.

    Args:
      rounding: error of the module's lower-precision computations. Larger weights would amplify it until a check proves
        nothing, so a rounded module isn't checked with them.
      longest: the most tokens of a source and of a target.

    Raises:
      CannotRun: the module fails on one of the usual batches.
    """
    batches, notes = checks(call, padding), list[str]()
    gate = max(FLOAT64_RELATIVE_RMS, 100 * rounding)
    used = call.wrap(copied(module).double())
    found = [_check(module, used, call, candidate, model, batch, gate) for batch in batches]
    is_trained = any(parameter.requires_grad for parameter in module.parameters())
    if not is_trained:
        notes.append("it trains no parameter, so larger weights aren't compared")
    elif rounding <= FLOAT64_RELATIVE_RMS and all(one.passed for one in found):
        check = _larger_check(module, call, candidate, batches[0])
        found += [] if check is None else [check]
        notes += [] if check is not None else ["it overflows with larger weights, which aren't compared"]
    for batch in long_checks(call, padding, longest) if all(one.passed for one in found) else []:
        try:
            found.append(_check(module, used, call, candidate, model, batch, gate))
        except CannotRun as error:
            notes.append(str(error))
        if not found[-1].passed:
            return tuple(found), tuple(notes)
    again = (_check(module, used, call, candidate, model, batch, gate) for batch in batches[:2])
    return (*found, *(one for one in again if not one.passed)), tuple(notes)


def _larger_check(module: nn.Module, call: Call, candidate: Candidate, batch: Batch) -> Check | None:
    """Checks a model with larger weights; returns None if the module's logits are NaN or infinite then."""
    large = _larger(module)
    theirs = _logits(call.wrap(large), batch)
    if not np.isfinite(theirs).all():
        return None
    residual = _residual(theirs, _models(candidate, candidate.model(large), batch), call, batch)
    check = Check(batch.lengths, batch.padding, residual, "larger")
    return check if check.passed else replace(check, gate=_rounding_gate(large, call, batch))


def _larger(module: nn.Module) -> nn.Module:
    """Returns a copy in float64 with larger trained parameters."""
    import torch

    large = copied(module).double()
    with torch.no_grad():
        for parameter in large.parameters():
            if parameter.requires_grad:
                parameter.mul_(LARGER)
    return large


def _rounding_gate(module: nn.Module, call: Call, batch: Batch) -> float:
    """Returns the residual that rounding alone may explain: a multiple of the movement of the logits, in units of their
    RMS, when parameters change in the last bit."""
    import torch

    moved = copied(module)
    weights = nudged({name: parameter.detach().numpy() for name, parameter in moved.named_parameters()})
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    real = batch.target_ids != call.target_pad_id
    floor = distance(_logits(call.wrap(moved), batch)[real], _logits(call.wrap(module), batch)[real])
    return min(FACTOR_ROUNDING * floor, MOST_FOR_ROUNDING)


def _check(
    module: nn.Module, used: nn.Module, call: Call, candidate: Candidate, model: Model, batch: Batch, gate: float
) -> Check:
    """Compares logits (or log-probabilities, if the module returns them) of real tokens in float64.

    Args:
      used: the module in float64 in its adapter, which ran on the batches before.
    """
    start = time.perf_counter()
    ours = _models(candidate, model, batch)
    fresh = _residual(_logits(call.wrap(copied(module).double()), batch), ours, call, batch)
    later = _residual(_logits(used, batch), ours, call, batch)
    check = Check(
        batch.lengths, batch.padding, max(fresh, later), gate=gate, ran_before=later > gate >= fresh,
        seconds=time.perf_counter() - start,
    )  # fmt: skip
    if check.passed or check.residual > MOST_FOR_ROUNDING:
        return check
    return replace(check, gate=max(gate, _rounding_gate(copied(module).double(), call, batch)))


def _models(candidate: Candidate, model: Model, batch: Batch) -> np.ndarray:
    """Returns the model's logits in float64, normalized if the module's are."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.params)
        logits = np.asarray(functional.apply(model.config, params, batch.source_ids, batch.target_ids))
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True) if candidate.is_normalised else logits


def _residual(theirs: np.ndarray, ours: np.ndarray, call: Call, batch: Batch) -> float:
    """Returns the distance between the model's and the module's logits of real tokens; infinite if a token has no
    finite logit."""
    real = batch.target_ids != call.target_pad_id
    if not np.isfinite(theirs[real]).any(axis=-1).all():
        return float("inf")
    return distance(ours[real], theirs[real])


def check_return(module: nn.Module, model: Model) -> None:
    """Raises DiscoverError unless exporting a model by its map restores the module's tensors bit for bit."""
    own = as_arrays(module.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "weights.safetensors")
        export_by_map(model, file)
        back = read_tensors(file)
        same = (name for name in own if name in back and back[name].tobytes() == own[name].tobytes())
        wrong = [*(own.keys() - set(same)), *(back.keys() - own.keys())]
    if wrong:
        raise DiscoverError(f"export by the map doesn't restore the module's tensors: {', '.join(sorted(wrong)[:5])}")


def bfloat16_problem(module: nn.Module, call: Call, padding: str) -> str:
    """Returns the module's error in bfloat16, such as a product with a table kept in float32; "" if it runs."""
    import torch

    (batch,) = checks(call, padding, count=1)
    try:
        with torch.no_grad():
            call.wrap(copied(module).to(torch.bfloat16))(*map(torch.from_numpy, (batch.source_ids, batch.target_ids)))
    except RAISED as error:
        return in_short(error)
    return ""


def without_gradient(module: nn.Module, call: Call, padding: str) -> list[str]:
    """Returns the names of trained parameters that no gradient of the logits reaches, for example because a program
    writes to `weights.data`. The gradient of a key's bias is zero only up to rounding, so it isn't listed."""
    import torch

    (batch,) = checks(call, padding, count=1)
    adapter = call.wrap(copied(module).double())
    with torch.enable_grad():
        logits = adapter(*map(torch.from_numpy, (batch.source_ids, batch.target_ids)))
        if logits.requires_grad:
            logits[torch.from_numpy(batch.target_ids != call.target_pad_id)].square().sum().backward()
    trained = {name: one.grad for name, one in adapter.named_parameters() if one.requires_grad}
    return [name for name, gradient in trained.items() if gradient is None or not gradient.any()]


def _logits(adapter: nn.Module, batch: Batch) -> np.ndarray:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with torch.no_grad(), deterministic(), sdpa_kernel(SDPBackend.MATH), wide(adapter):
            logits = adapter(torch.from_numpy(batch.source_ids), torch.from_numpy(batch.target_ids))
    except Exception as error:  # the user's own code may raise anything
        raise failure(adapter, batch, error) from error
    if tuple(logits.shape[:2]) != batch.target_ids.shape:
        raise CannotRun(f"it returns {[*logits.shape]} on ids of shapes {_shapes(batch)}")
    return np.asarray(logits.double().numpy())


def failure(adapter: nn.Module, batch: Batch, error: Exception) -> CannotRun:
    """Explains a module that raised in float64: the float64 error if the module runs in float32, its float32 error
    otherwise.

    Args:
      adapter: the module in float64, in its adapter.
      batch: the ids on which it raised.
    """
    import torch

    if "allocate memory" in str(error):
        return CannotRun(f"it runs out of memory on ids of shapes {_shapes(batch)}")
    try:
        with torch.no_grad():
            copied(adapter).float()(torch.from_numpy(batch.source_ids), torch.from_numpy(batch.target_ids))
    except Exception as other:  # the user's own code may raise anything
        padded = ", padding among them," if len(batch.source_ids) > 1 else ""
        return CannotRun(f"it fails on ids of shapes {_shapes(batch)}{padded} at {place(other)} ({first_line(other)})")
    return CannotRun(
        f"expected a module that runs in float64 too; it fails at {place(error)} ({first_line(error)}): "
        "let it compute in the dtype of its parameters"
    )


def _shapes(batch: Batch) -> str:
    return f"{[*batch.source_ids.shape]} and {[*batch.target_ids.shape]}"


def _with_tables(params: Any, tables: Mapping[str, np.ndarray]) -> Any:
    """Replaces the parameters' position tables by the module's own, row by row as far as both go."""
    constants = dict(params.get("constants", {}))
    for name, table in tables.items():
        if name in constants:
            own = constants[name].dtype
            loses = not np.array_equal(table.astype(own), table)
            rows = np.array(constants[name], dtype=np.result_type(own, table.dtype) if loses else own)
            rows[: len(table)] = table[: len(rows)]
            constants[name] = rows
    return {**params, "constants": constants} if constants else params
