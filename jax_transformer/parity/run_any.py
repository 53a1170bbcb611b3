"""Compare any JAX function with any PyTorch module, without a model of this project.

The function receives the module's own parameters, by the names of its state_dict, and the same inputs. Its outputs and
trace are compared with the module's output and its submodules' activations, and its gradients with the module's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.parity.backends.capture import OWN, observe
from jax_transformer.parity.backends.precision import in_precision, wide
from jax_transformer.parity.backends.side import Arrays, Dtype
from jax_transformer.parity.backends.torch_module import deterministic, to_array
from jax_transformer.parity.diagnosis.findings import Fault, Finding
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.gates.rounding import allow_for_rounding, nudged
from jax_transformer.parity.gates.stages import Stage, compare_stage
from jax_transformer.parity.report.report import Report, depth_of
from jax_transformer.porting.names.maps import NameMap

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


def run(pair: AnyPair, *, stages: Sequence[str] = STAGES, dtypes: Sequence[Dtype] = ("float64", "float32")) -> Report:
    """Compares the two and reports the first difference, unnamed: nothing says what should be computed.

    Args:
      stages: a selection of STAGES.
      dtypes: float64 decides; lower precision is judged by its distance from it.

    Raises:
      ParityError: the function or the module can't be run on these inputs.
    """
    inputs_before = {name: np.array(array) for name, array in pair.inputs.items()}
    traces: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    results: list[Stage] = []
    doubts: list[str] = []
    for dtype in dtypes:
        traces["candidate", dtype], traces["reference", dtype] = _candidate(pair, dtype), _reference(pair, dtype)
    if "float64" in dtypes:
        doubts += [
            f"the {side} differs from itself when it is run again: does it draw random numbers?"
            for side, again in (("candidate", _candidate), ("reference", _reference))
            if not _same(again(pair, "float64"), traces[side, "float64"])
        ]
    if "inputs" in stages:
        results.append(compare_stage("inputs", pair.inputs, inputs_before, tolerance=0.0))
    if "forward" in stages:
        for dtype in dtypes:
            title = "forward" if dtype == "float64" else f"forward {dtype}"
            truth = (
                None
                if dtype == "float64"
                else _renamed(pair, traces["candidate", dtype], _reference(pair, "float64", rounded=dtype))
            )
            theirs = _renamed(pair, traces["candidate", dtype], traces["reference", dtype])
            results.append(
                compare_stage(
                    title, traces["candidate", dtype], theirs, truth=truth, dtypes=dict.fromkeys(theirs, dtype)
                )
            )
    if "gradients" in stages and "float64" in dtypes:
        results.append(_compare_gradients(pair))
    first = next((stage for stage in results if stage.verdict == "diverged"), None)
    depth = depth_of(results[1]) if len(results) > 1 and results[1].name == "forward" else ()
    return Report(
        pair.candidate_name,
        pair.reference_name,
        tuple(results),
        faults=_unexplained(first),
        doubts=tuple(doubts),
        depth=depth,
    )


def _unexplained(stage: Stage | None) -> tuple[Fault, ...]:
    row = None if stage is None else stage.first_divergence
    if stage is None or row is None:
        return ()
    error = row.error.relative_rms if row.error is not None else np.nan
    return (Fault("candidate", stage.name, Finding(row.name, stage.name, error, (), None), error),)


def _same(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(first[name], second.get(name), equal_nan=True) for name in first)  # type: ignore[arg-type]


def _candidate(pair: AnyPair, dtype: Dtype) -> dict[str, np.ndarray]:
    with in_precision(dtype):
        outputs, trace = _call(pair, _parameters(pair, dtype), dtype)
        return {name: wide(jnp.asarray(value)) for name, value in {**trace, OWN: outputs}.items()}


def _call(pair: AnyPair, params: Mapping[str, Any], dtype: Dtype) -> tuple[Any, Mapping[str, Any]]:
    inputs = {
        name: jnp.asarray(array, dtype if array.dtype.kind == "f" else None) for name, array in pair.inputs.items()
    }
    try:
        result = pair.function(params, inputs)
    except Exception as error:  # it is the user's
        raise ParityError(f"candidate {pair.candidate_name}: raised {type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        kind = type(result).__name__
        raise ParityError(
            f"candidate {pair.candidate_name}: expected (outputs, trace), the trace a mapping; received {kind}"
        )
    return result


def _parameters(pair: AnyPair, dtype: Dtype) -> dict[str, Any]:
    """Returns the module's parameters and buffers, by the names of its state_dict."""
    held = {name: to_array(tensor) for name, tensor in pair.module.state_dict().items()}
    return {name: jnp.asarray(array, dtype if array.dtype.kind == "f" else None) for name, array in held.items()}


def _reference(pair: AnyPair, dtype: Dtype, rounded: Dtype | None = None) -> dict[str, np.ndarray]:
    """Returns what the module computes, after rounding its parameters to a lower precision if one is given."""
    import torch

    module = copy.deepcopy(pair.module)
    if rounded is not None:
        module = module.to(getattr(torch, rounded))
    module = module.to(getattr(torch, dtype))
    with deterministic():
        found = _observed(pair, module, dtype, keep_gradients=False, rounded=rounded)
    return {name: to_array(tensor) for name, tensor in found.items()}


def _observed(
    pair: AnyPair, module: nn.Module, dtype: Dtype, *, keep_gradients: bool, rounded: Dtype | None = None
) -> dict[str, torch.Tensor]:
    import torch

    def as_given(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.array(array))
        if not tensor.is_floating_point():
            return tensor
        return (tensor if rounded is None else tensor.to(getattr(torch, rounded))).to(getattr(torch, dtype))

    try:
        return observe(
            module, {name: as_given(array) for name, array in pair.inputs.items()}, keep_gradients=keep_gradients
        )
    except Exception as error:  # it is the user's
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in pair.inputs.items())
        raise ParityError(
            f"reference {pair.reference_name}: can't be run on {shapes}: {type(error).__name__}: {error}"
        ) from error


def _renamed(pair: AnyPair, candidate: Arrays, reference: Arrays) -> dict[str, np.ndarray]:
    """Returns the module's output and the activations that the candidate traces, under the candidate's names."""
    renamed = pair.names.rename(reference, {name: array.shape for name, array in candidate.items()}).arrays
    same = {name: reference[name] for name in reference if name in candidate and name not in renamed}
    order = {name: number for number, name in enumerate(reference)}
    ours = {
        alias: order.get(theirs, len(order)) for theirs, aliases in pair.names.activations.items() for alias in aliases
    }
    return dict(sorted((same | renamed).items(), key=lambda item: ours.get(item[0], order.get(item[0], len(order)))))


def _compare_gradients(pair: AnyPair) -> Stage:
    both = _gradients(pair)

    def from_itself(side: int) -> Stage:
        return compare_stage("gradients", _gradients(_nudged(pair))[side], both[side])

    return allow_for_rounding(compare_stage("gradients", *both), [partial(from_itself, side) for side in range(2)])


def _nudged(pair: AnyPair) -> AnyPair:
    """Returns the pair with parameters changed in the last bit of float64."""
    import torch

    module = copy.deepcopy(pair.module).double()
    parameters = dict(module.named_parameters())
    moved = nudged({name: to_array(parameter) for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(moved[name]))
    return replace(pair, module=module)


def _gradients(pair: AnyPair) -> tuple[Arrays, Arrays]:
    """Returns both sides' gradients of the sum of the output times fixed random numbers, by parameter."""
    import torch

    module = copy.deepcopy(pair.module).double()
    module.zero_grad(set_to_none=True)
    with deterministic():
        output = _observed(pair, module, "float64", keep_gradients=True)[OWN]
        weights = np.random.default_rng(0).standard_normal(tuple(output.shape))
        (output * torch.from_numpy(weights)).sum().backward()
    reference = {
        name: to_array(parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None
    }

    def product(trained: Mapping[str, Any], others: Mapping[str, Any]) -> jax.Array:
        return jnp.sum(_call(pair, {**trained, **others}, "float64")[0] * weights)

    with in_precision("float64"):
        held = _parameters(pair, "float64")
        trained = {name: held[name] for name in reference}
        others = {name: array for name, array in held.items() if name not in reference}
        candidate = {name: np.asarray(leaf) for name, leaf in jax.grad(product)(trained, others).items()}
    return candidate, reference
