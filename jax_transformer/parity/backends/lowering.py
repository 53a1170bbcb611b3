"""Lower both sides of a parity run to programs that can be proven equal: activations, loss and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.model import functional
from jax_transformer.parity.backends.jax_function import FunctionSide
from jax_transformer.parity.backends.jax_model import JaxSide, mean_loss
from jax_transformer.parity.backends.precision import in_precision
from jax_transformer.parity.backends.side import Arrays, CannotRun, layer_by_layer
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.problems import Problem
from jax_transformer.proof import Program, Task
from jax_transformer.runtime.trees import flatten, unflatten

GRADIENT = "gradient of "
"""Precedes the paths of parameters in the names of outputs."""


@dataclass(frozen=True)
class Lowered:
    """Holds both programs of a pair on one problem, and relates their weights by the porting table."""

    candidate: JaxSide | FunctionSide
    reference: TorchSide
    problem: Problem
    gradients: bool = True

    def task(self) -> Task:
        """Lowers both sides.

        Raises:
          UnknownOperation: an operation has no rule, or control flow depends on weights.
          CannotRun: a side can't be run, or traced.
        """
        from jax_transformer.proof.jax_programs import lower

        with in_precision("float64"):
            shapes = {path: np.shape(leaf) for path, leaf in flatten(self.problem.params).items()}
            drawn = {path: jax.ShapeDtypeStruct(shapes[path], np.float64) for path in self._drawn_paths}
            candidate = lower(self._outputs, drawn)
        return Task(candidate, self._lower_reference(), self.draw, self.align)

    def own_weights(self) -> tuple[Arrays, Arrays]:
        """Returns the problem's weights in float64, as both programs read them."""
        ours = {path: leaf for path, leaf in flatten(self.problem.params).items() if path in self._drawn_paths}
        return ours, self._given

    def draw(self, draw: Any) -> tuple[Arrays, Arrays]:
        """Draws the reference's tensors, tied ones once, and carries them through the porting table.

        The table moves elements only. It takes floats, which hold residues below 2⁵³ exactly.
        """
        drawn: dict[int, np.ndarray] = {}
        for array in self._given.values():
            if id(array) not in drawn:
                drawn[id(array)] = draw(array.shape).astype(np.float64)
        theirs = {name: drawn[id(array)] for name, array in self._given.items()}
        leaves = self.reference.reference.leaves(self._whole_state(theirs))
        return {path: leaves[path] for path in self._drawn_paths}, theirs

    def align(self, outputs: Arrays) -> Arrays:
        """Returns the reference's outputs with the gradients of its tensors as gradients of our leaves."""
        found = {name: array for name, array in outputs.items() if not name.startswith(GRADIENT)}
        gradients = {
            name: np.asarray(outputs.get(GRADIENT + name, np.zeros(array.shape)), np.float64)
            for name, array in self._given.items()
        }
        if not any(name.startswith(GRADIENT) for name in outputs):
            return found
        leaves = self.reference.reference.leaves(self._whole_state(gradients))
        trained = {path: np.asarray(leaf) for path, leaf in leaves.items() if not path.startswith("constants/")}
        return found | {GRADIENT + path: leaf for path, leaf in layer_by_layer(trained).items()}

    # --- within

    @cached_property
    def _kept(self) -> dict[str, np.ndarray]:
        """Returns the leaves that are constants of both sides."""
        leaves = flatten(self.problem.params)
        return {path: np.asarray(leaf, np.float64) for path, leaf in leaves.items() if path not in self._drawn_paths}

    @cached_property
    def _module(self) -> Any:
        return self.reference._given(self.problem.params, "float64")

    @cached_property
    def _given(self) -> dict[str, np.ndarray]:
        """Returns the reference's tensors that the porting table fills, by name; tied ones are one array."""
        names = self._module.state_dict().keys()
        return dict(self.reference.reference.state_dict(self.problem.params, names))

    def _whole_state(self, tensors: Arrays) -> Arrays:
        """Adds the tensors that the module keeps."""
        kept = {
            name: tensor.detach().numpy() for name, tensor in self._module.state_dict().items() if name not in tensors
        }
        return {**kept, **tensors}

    @cached_property
    def _drawn_paths(self) -> tuple[str, ...]:
        """Returns the leaves that follow from the reference's tensors; the others are constants of both sides."""
        probe = {name: np.broadcast_to(np.pi, array.shape) for name, array in self._given.items()}
        leaves = self.reference.reference.leaves(self._whole_state(probe))
        return tuple(path for path in flatten(self.problem.params) if np.all(np.asarray(leaves[path]) == np.pi))

    def _outputs(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Computes the candidate's outputs by name."""
        params = unflatten({**self._kept, **{path: jnp.asarray(leaf) for path, leaf in drawn.items()}})
        labels = jnp.asarray(self.problem.labels)
        side = self.candidate

        def loss(params: Any) -> tuple[Any, Mapping[str, Any]]:
            if isinstance(side, FunctionSide):
                logits, trace = side._call(params, self.problem, "float64")
                return side.mean_loss(logits, labels), {**trace, "logits": logits}
            logits, trace = functional.apply(side.config, params, *self.problem.ids, return_trace=True)
            return mean_loss(side.config, side.train_config, side.programs)(logits, labels), trace

        if not self.gradients:
            value, trace = loss(params)
            return {**trace, "loss": value}
        (value, trace), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        trained = {path: leaf for path, leaf in flatten(gradients).items() if not path.startswith("constants/")}
        named = {GRADIENT + path: leaf for path, leaf in layer_by_layer(trained).items()}
        return {**trace, "loss": value, **named}

    def _lower_reference(self) -> Program:
        import torch

        from jax_transformer.proof.torch_programs import lower

        side, module = self.reference, self._module
        held = module.state_dict(keep_vars=True)
        weights = {name: held[name] for name in self._given}

        def run() -> dict[str, torch.Tensor]:
            done = side._run(module, self.problem, "float64", watched=True, gradients=self.gradients)
            value = side._loss(done.logits, self.problem)
            outputs = {**done.activations(), "loss": value}
            if not self.gradients:
                return outputs
            trained = dict(module.named_parameters())
            found = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
            every = {id(one): gradient for one, gradient in zip(trained.values(), found, strict=True)}
            named = {name: every[id(one)] for name, one in held.items() if every.get(id(one)) is not None}
            return {**outputs, **{GRADIENT + name: gradient for name, gradient in named.items()}}

        return lower(run, weights)


def lowered(candidate: Any, reference: Any, problem: Problem, *, gradients: bool = True) -> Lowered:
    """Returns both sides on a problem. Raises CannotRun for sides that have no such programs."""
    if not isinstance(reference, TorchSide) or not isinstance(candidate, JaxSide | FunctionSide):
        raise CannotRun("proofs relate a JAX program with a PyTorch module")
    return Lowered(candidate, reference, replace(problem, params=problem.params), gradients)
