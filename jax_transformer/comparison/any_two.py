"""Compares any JAX function with any PyTorch module, without a model of this project.

The function receives the module's own parameters, by the names of its state_dict, and the same inputs. Its outputs and
trace are compared with the module's output and its submodules' activations, and its gradients with the module's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison import run as comparison
from jax_transformer.comparison.capture import OWN, check_module, tensors_in, unfused_attention, watch
from jax_transformer.comparison.checksums import hash_files
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError, named_arrays
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.rounding import (
    allow_for_rounding,
    excuse_rounding,
    loss_factor,
    nudged,
    without_cancelled,
)
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.precision import in_precision, on_device, wide
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.run import FORWARD, Order, Results, Work
from jax_transformer.comparison.sides import DTYPES, Arrays, CannotRun, Dtype, Path, name_of, selected
from jax_transformer.comparison.torch_tensors import distance, to_array
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.mapping.maps import NameMap
from jax_transformer.programs.copies import converted, copied
from jax_transformer.programs.torch_precision import deterministic

if TYPE_CHECKING:
    import torch
    from torch import nn

STAGES = ("inputs", "forward", "gradients")


@dataclass(frozen=True)
class AnyPair:
    """Holds a function, a module and the inputs of both."""

    candidate_name: str
    function: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]
    """(params, inputs) → (outputs, trace): one array of outputs, and activations by name."""
    reference_name: str
    module: nn.Module
    inputs: Arrays
    """By argument of the module's forward."""
    names: NameMap = field(default_factory=NameMap)
    """The module's names → the trace's, where they differ."""

    def copies(self) -> dict[str, np.ndarray]:
        """Copies the inputs."""
        return {name: np.array(array) for name, array in self.inputs.items()}


def compare_on_inputs(
    function: Callable[..., Any],
    module: Any,
    inputs: Mapping[str, Any] | Path,
    names: NameMap | None,
    stages: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    candidate_name: str | None,
    reference_name: str | None,
) -> Report:
    """Compares a JAX function with a PyTorch module on the same inputs. Raises ParityError for unknown inputs, stages
    or dtypes."""
    pair = AnyPair(
        candidate_name or name_of(function),
        function,
        reference_name or name_of(module),
        module,
        dict(named_arrays(inputs, "inputs").arrays),
        names or NameMap(),
    )
    check_module(module, pair.reference_name)
    report = run(pair, stages=selected(stages, STAGES, "stages"), dtypes=selected(dtypes, DTYPES, "dtypes"))
    return replace(report, sha256=hash_files(inputs))


def run(pair: AnyPair, *, stages: Sequence[str] = STAGES, dtypes: Sequence[Dtype] = ("float64", "float32")) -> Report:
    """Compares the two and reports the first difference, without a cause: the intended function is unknown.

    Args:
      stages: a selection of STAGES.
      dtypes: float64 decides; lower precision is judged by its distance from it.

    Raises:
      ParityError: the function or the module can't be run on these inputs.
    """
    results = Results()
    order = Order(("inputs", *map(_title, dtypes), "gradients"))
    works = _works(pair, stages, dtypes, results)
    return comparison.run((pair.candidate_name, pair.reference_name), works, results, order, stages, inputs=pair.copies)


def _works(pair: AnyPair, stages: Sequence[str], dtypes: Sequence[Dtype], results: Results) -> Iterator[Work]:
    """Runs both sides in all dtypes, and yields the work of comparing them."""
    runs = {dtype: _attempt(pair, dtype) for dtype in dtypes}
    of_float64 = runs.get("float64")
    if isinstance(of_float64, _Runs):
        results.doubts |= dict.fromkeys(of_float64.doubts + _repeats(pair, of_float64))
    if "forward" in stages:
        for dtype, found in runs.items():
            yield Work("", _title(dtype), "", partial(_compare_forward, pair, dtype, found, results))
    if "gradients" in stages and "float64" in dtypes:
        yield Work("", "gradients", "", partial(_compare_gradients, pair, of_float64, results))


def _title(dtype: Dtype) -> str:
    """Returns the name of the stage that compares activations in a dtype."""
    return FORWARD if dtype == "float64" else f"{FORWARD} {dtype}"


@dataclass(frozen=True)
class _Runs:
    """Holds both sides' activations and outputs in one dtype."""

    candidate: Arrays
    reference: Arrays
    doubts: list[str]
    """Signs that watching a side changes its result."""


def _attempt(pair: AnyPair, dtype: Dtype) -> _Runs | CannotRun:
    """Runs both sides in a dtype. If they can't run, raises ParityError in float64, and else returns the error."""
    try:
        candidate, of_candidate = _candidate(pair, dtype)
        reference, of_reference = _reference(pair, dtype)
    except CannotRun as reason:
        if dtype == "float64":
            raise ParityError(str(reason)) from reason
        return reason
    return _Runs(candidate, reference, of_candidate + of_reference)


def _repeats(pair: AnyPair, first: _Runs) -> list[str]:
    """Returns doubts about sides that differ from themselves in a second run."""
    again = {"candidate": _candidate(pair, "float64")[0], "reference": _reference(pair, "float64")[0]}
    return [
        f"the {side} differs from itself when it is run again: does it draw random numbers?"
        for side, arrays in again.items()
        if not _same(arrays, getattr(first, side))
    ]


def _compare_forward(pair: AnyPair, dtype: Dtype, found: _Runs | CannotRun, results: Results) -> Stage:
    """Compares outputs and activations in one dtype. Raises CannotRun if a side can't run in it."""
    if isinstance(found, CannotRun):
        raise found
    theirs, truth = _renamed(pair, found.candidate, found.reference), None
    if dtype != "float64":
        truth = _renamed(pair, found.candidate, _reference(pair, "float64", rounded=dtype)[0])
    stage = compare_stage(_title(dtype), found.candidate, theirs, truth=truth, dtypes=dict.fromkeys(theirs, dtype))
    return stage if dtype == "float64" or results.have_diverged else _excused(pair, dtype, found, stage)


def _excused(pair: AnyPair, dtype: Dtype, found: _Runs, stage: Stage) -> Stage:
    """Marks the diverged rows of a stage in lower precision as inconclusive if rounding alone explains them."""
    theirs = _renamed(pair, found.candidate, found.reference)

    def candidate_stage(draw: int) -> Stage:
        again = _candidate(_nudged(pair, dtype, draw), dtype)[0]
        return compare_stage(stage.name, again, found.candidate, tolerance=tolerances.MOST_FOR_ROUNDING)

    def reference_stage(draw: int) -> Stage:
        again = _renamed(pair, found.candidate, _reference(_nudged(pair, dtype, draw), dtype)[0])
        return compare_stage(stage.name, again, theirs, tolerance=tolerances.MOST_FOR_ROUNDING)

    return excuse_rounding(stage, dtype, {"candidate": candidate_stage, "reference": reference_stage})


def _same(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(first[name], second.get(name), equal_nan=True) for name in first)  # type: ignore[arg-type]


def _candidate(pair: AnyPair, dtype: Dtype) -> tuple[dict[str, np.ndarray], list[str]]:
    """Computes the function's arrays, and a doubt if its trace shows another output."""
    with in_precision(dtype):
        outputs, trace = _call(pair, _parameters(pair, dtype), dtype)
        found = {name: _as_array(pair, name, value) for name, value in {**trace, OWN: outputs}.items()}
        shown = _as_array(pair, OWN, trace[OWN]) if OWN in trace else found[OWN]
    doubts = [f"the candidate's trace shows another {OWN} than it returns, in {dtype}"]
    return found, [] if np.array_equal(shown, found[OWN], equal_nan=True) else doubts


def _as_array(pair: AnyPair, name: str, value: Any) -> np.ndarray:
    """Converts a value that the function returns to an array. Raises ParityError for anything else."""
    try:
        return wide(jnp.asarray(value))
    except (TypeError, ValueError) as error:
        raise ParityError(
            f"candidate {pair.candidate_name}: expected arrays; {name} is a {type(value).__name__}"
        ) from error


def _call(pair: AnyPair, params: Mapping[str, Any], dtype: Dtype) -> tuple[Any, Mapping[str, Any]]:
    inputs = {name: on_device(array, dtype if array.dtype.kind == "f" else None) for name, array in pair.inputs.items()}
    with cannot_run(f"candidate {pair.candidate_name}:", f"{shapes_of(pair.inputs)} in {dtype}"):
        result = pair.function(params, inputs)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        kind = type(result).__name__
        raise ParityError(
            f"candidate {pair.candidate_name}: expected (outputs, trace), the trace a mapping; received {kind}"
        )
    return result


def _parameters(pair: AnyPair, dtype: Dtype) -> dict[str, Any]:
    """Returns the module's parameters and buffers, by the names of its state_dict."""
    held = {name: to_array(tensor) for name, tensor in pair.module.state_dict().items()}
    return {name: on_device(array, dtype if array.dtype.kind == "f" else None) for name, array in held.items()}


def _reference(pair: AnyPair, dtype: Dtype, rounded: Dtype | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Computes the module's arrays, after rounding its parameters to a lower precision if one is given, and a doubt if
    watching changes its result."""
    import torch

    module = _copy(pair, dtype, rounded)
    with torch.no_grad(), deterministic(), _running(pair, module, dtype):
        found = watch(module, (), _inputs(pair, dtype, rounded))
        with unfused_attention():
            plain = module(**_inputs(pair, dtype, rounded))
    doubts = [
        f"the reference computes something else when it is watched: its {name} ({shapes_of(pair.inputs)}) is off by a "
        f"relative RMS of {apart:.1e}"
        for name, apart in _apart(found.output, plain).items()
        if apart
    ]
    return {name: to_array(tensor) for name, tensor in found.tensors.items()}, doubts


def _apart(watched: Any, plain: Any) -> dict[str, float]:
    """Measures the distance between the tensors of two outputs, by name."""
    both = [{".".join(map(str, (OWN, *path))): tensor for path, tensor in tensors_in(one)} for one in (watched, plain)]
    return {
        name: distance(both[0][name], both[1][name], 0.0) if name in both[0] and name in both[1] else np.inf
        for name in both[0] | both[1]
    }


def _copy(pair: AnyPair, dtype: Dtype, rounded: Dtype | None = None) -> nn.Module:
    """Copies the module in a dtype. Raises CannotRun if it can't be copied."""
    import torch

    with cannot_run(f"reference {pair.reference_name}:", f"a copy of it in {dtype}"):
        module = copied(pair.module)
        if rounded is not None:
            module = converted(module, getattr(torch, rounded))
        return converted(module, getattr(torch, dtype))


def _inputs(pair: AnyPair, dtype: Dtype, rounded: Dtype | None = None) -> dict[str, torch.Tensor]:
    """Returns copies of the inputs, floating-point ones in the dtype."""
    import torch

    def as_given(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.array(array))
        if not tensor.is_floating_point():
            return tensor
        return (tensor if rounded is None else tensor.to(getattr(torch, rounded))).to(getattr(torch, dtype))

    return {name: as_given(array) for name, array in pair.inputs.items()}


def _running(pair: AnyPair, module: nn.Module, dtype: Dtype) -> AbstractContextManager[None]:
    """Returns a context that turns the module's errors into CannotRun."""
    what = f"{shapes_of(pair.inputs)} in {dtype}"
    return cannot_run(f"reference {pair.reference_name}:", what, module, lambda: module(**_inputs(pair, dtype)))


def _renamed(pair: AnyPair, candidate: Arrays, reference: Arrays) -> dict[str, np.ndarray]:
    """Returns the module's output and the activations that the candidate traces, under the candidate's names."""
    renamed = pair.names.rename(reference, {name: array.shape for name, array in candidate.items()}).arrays
    same = {name: reference[name] for name in reference if name in candidate and name not in renamed}
    order = {name: number for number, name in enumerate(reference)}
    ours = {
        alias: order.get(theirs, len(order)) for theirs, aliases in pair.names.activations.items() for alias in aliases
    }
    return dict(sorted((same | renamed).items(), key=lambda item: ours.get(item[0], order.get(item[0], len(order)))))


def _compare_gradients(pair: AnyPair, forward: _Runs | CannotRun | None, results: Results) -> Stage:
    """Compares gradients; doubts a side whose output changes while gradients are computed.

    Raises:
      CannotRun: a side has none.
    """
    both = _gradients(pair)
    plain = (getattr(forward, "candidate", {}).get(OWN), getattr(forward, "reference", {}).get(OWN))
    results.doubts |= {
        f"the {side} computes something else while gradients are computed: its {OWN} is off by a relative RMS of "
        f"{relative_rms(one.output, expected):.1e}": None
        for side, one, expected in zip(("candidate", "reference"), both, plain, strict=True)
        if expected is not None
        and one.output.shape == expected.shape
        and not relative_rms(one.output, expected) <= tolerances.FLOAT64_RELATIVE_RMS
    }

    @cache
    def rounded_otherwise(draw: int) -> tuple[_Gradients, _Gradients]:
        return _gradients(_nudged(pair, draw=draw), loss_factor(draw))

    def from_itself(side: int, draw: int) -> Stage:
        return compare_stage("gradients", rounded_otherwise(draw)[side].parameters, both[side].parameters)

    sides = {name: partial(from_itself, side) for side, name in enumerate(("candidate", "reference"))}
    stage = compare_stage("gradients", *(one.parameters for one in both))
    stage = allow_for_rounding(stage, [partial(side, 0) for side in sides.values()])
    stage = without_cancelled(stage, *(one.parameters for one in both))
    return excuse_rounding(stage, "float64", sides)


def _nudged(pair: AnyPair, dtype: Dtype = "float64", draw: int = 0) -> AnyPair:
    """Copies the pair with parameters changed in the last bit of a dtype, and the module in float64."""
    import torch

    module = _copy(pair, "float64", None if dtype == "float64" else dtype)
    parameters = dict(module.named_parameters())
    moved = nudged({name: to_array(parameter) for name, parameter in parameters.items()}, dtype, draw)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(moved[name]))
    return replace(pair, module=module)


class _Gradients(NamedTuple):
    """Holds one side's gradients by parameter, and the output that was differentiated."""

    parameters: Arrays
    output: np.ndarray


def _gradients(pair: AnyPair, factor: float = 1.0) -> tuple[_Gradients, _Gradients]:
    """Computes both sides' gradients of the sum of the output times fixed random numbers.

    Args:
      factor: of that sum; the gradients are divided by it. Another number changes their rounding alone.

    Raises:
      CannotRun: the module doesn't return one tensor that depends on a parameter; a side raises.
    """
    import torch

    module = _copy(pair, "float64")
    module.zero_grad(set_to_none=True)
    with deterministic(), _running(pair, module, "float64"), unfused_attention():
        output = module(**_inputs(pair, "float64"))
        if not (isinstance(output, torch.Tensor) and output.requires_grad):
            kind = "a tensor without gradients" if isinstance(output, torch.Tensor) else type(output).__name__
            raise CannotRun(
                f"reference {pair.reference_name}: expected one tensor that depends on the parameters; it returns "
                f"{kind}: write an adapter, a module that holds it and returns that tensor"
            )
        weights = factor * np.random.default_rng(0).standard_normal(tuple(output.shape))
        (output * torch.from_numpy(weights)).sum().backward()
    reference = {
        name: to_array(parameter.grad) / factor
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }

    def product(trained: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
        outputs = _call(pair, {**trained, **others}, "float64")[0]
        return jnp.sum(outputs * weights), outputs

    with in_precision("float64"):
        held = _parameters(pair, "float64")
        trained = {name: held[name] for name in reference}
        others = {name: array for name, array in held.items() if name not in reference}
        with cannot_run(f"candidate {pair.candidate_name}:", "its own output, backwards"):
            found, outputs = jax.grad(product, has_aux=True)(trained, others)
        candidate = {name: np.asarray(leaf) / factor for name, leaf in found.items()}
        return _Gradients(candidate, np.asarray(outputs)), _Gradients(reference, to_array(output))
