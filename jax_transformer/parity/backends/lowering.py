"""Lowers both sides of a parity run to programs for a proof, and relates their weights by the porting table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.copyable import check_apart, check_copyable, check_hooks
from jax_transformer.comparison.lowering import GRADIENT, is_masked
from jax_transformer.comparison.precision import in_precision
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.parity.backends import proof_jax, proof_torch
from jax_transformer.parity.backends.jax_sides import FunctionSide, JaxSide
from jax_transformer.parity.backends.learning_rates import learning_rates
from jax_transformer.parity.backends.proof_jax import LOSS, RATES, after
from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.problems import Problem
from jax_transformer.proof import Task
from jax_transformer.runtime.trees import flatten, unflatten

STEPS = (1, 3)
"""Numbers of optimizer steps after which parameters are compared."""
FIRST_RATES = np.array([1e-3, 2e-3, 3e-3])
"""Learning rates for evaluating steps in float64; proofs hold for all rates."""
VECTORS = "source_vectors"
"""Name of the input with a batch's feature vectors [B, S, F]: proofs hold for all of them."""


class _Given(NamedTuple):
    """Describes a tensor that the porting table fills."""

    shape: tuple[int, ...]
    first: str
    """The tensor's first name, if it is tied."""


@dataclass(frozen=True)
class Lowered:
    """Lowers a pair on one problem."""

    candidate: JaxSide | FunctionSide
    reference: TorchSide
    problem: Problem

    def forward(self, *, gradients: bool) -> Task:
        """Returns the task of activations, loss and gradients.

        Raises:
          UnknownOperation: an operation has no rule, or control flow depends on weights.
          CannotRun: a side can't be run, or traced.
        """

        vectors, tensors = self._vectors

        def ours(drawn: Mapping[str, Any]) -> dict[str, Any]:
            given = dict(drawn)
            problem = self._reading(given.pop(VECTORS, None))
            return proof_jax.outputs(self.candidate, self._params(given), problem, gradients=gradients)

        def theirs() -> Mapping[str, Any]:
            problem = self._reading(tensors.get(VECTORS))
            return self._summed(proof_torch.outputs(self.reference, self._module, problem, gradients=gradients))

        if gradients:
            self._check_tied()
        fixed = dict(self._module.named_parameters())
        return self._task(ours, theirs, vectors, tensors, (GRADIENT,) if gradients else (), fixed)

    def steps(self) -> Task:
        """Returns the task of optimizer steps: for all learning rates or, if the reference has its own optimizer, for
        those of the rule. The losses need only be defined for the same weights. Changes the reference's module."""
        import torch

        self._check_tied()
        has_own = self.reference.programs.optimizer is not None
        rule_rates = learning_rates(self.reference.rules.train, self.reference.config.d_model, max(STEPS))
        rates = np.array(rule_rates) if has_own else FIRST_RATES
        tensor = torch.from_numpy(rates)
        vectors, tensors = self._vectors

        def ours(drawn: Mapping[str, Any]) -> dict[str, Any]:
            given = dict(drawn)
            own, problem = given.pop(RATES, rates), self._reading(given.pop(VECTORS, None))
            return proof_jax.steps(self.candidate, self._params(given), jnp.asarray(own), problem, STEPS)

        def theirs() -> Mapping[str, Any]:
            problem = self._reading(tensors.get(VECTORS))
            return proof_torch.steps(self.reference, self._module, tensor, problem, STEPS)

        more: tuple[dict[str, Any], dict[str, Any]] = ({}, {}) if has_own else ({RATES: rates}, {RATES: tensor})
        task = self._task(ours, theirs, more[0] | vectors, more[1] | tensors, tuple(map(after, STEPS)))
        return replace(task, only_defined=frozenset((LOSS,)))

    def carried(self, leaves: Arrays) -> tuple[Arrays, Arrays]:
        """Returns both programs' inputs for weights by path: their weights, the rates of optimizer steps, and feature
        vectors, if there are any."""
        ours, more = {path: leaves[path] for path in self._drawn_paths}, {RATES: FIRST_RATES, **self._vectors[0]}
        return ours | more, self._tensors(self._with_kept(leaves)) | more

    def written(self, leaves: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Returns weights by path in the form that users load: all parameters of the candidate, the reference's whole
        state_dict, and the batch."""
        params = self._with_kept(leaves)
        held = {name: tensor.numpy() for name, tensor in self._module.state_dict().items()}
        return (
            {path: np.asarray(leaf) for path, leaf in flatten(params).items()},
            held | self._tensors(params),
            self.problem.batch,
        )

    # --- within

    @cached_property
    def _vectors(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Returns the batch's feature vectors as inputs of both programs; nothing for tokens."""
        import torch

        if self.problem.features is None:
            return {}, {}
        vectors = np.asarray(self.problem.features.vectors, np.float64)
        return {VECTORS: vectors}, {VECTORS: torch.from_numpy(vectors.copy())}

    def _reading(self, vectors: Any) -> Problem:
        """Returns the problem on a program's own feature vectors; None for tokens."""
        if vectors is None or self.problem.features is None:
            return self.problem
        return replace(self.problem, features=self.problem.features._replace(vectors=vectors))

    def _task(
        self,
        ours: Callable[[Mapping[str, Any]], dict[str, Any]],
        theirs: Callable[[], Mapping[str, Any]],
        more: Arrays,
        more_tensors: Mapping[str, Any],
        prefixes: tuple[str, ...],
        fixed: Mapping[str, Any] = MappingProxyType({}),
    ) -> Task:
        """Lowers both programs.

        Args:
          more, more_tensors: further inputs than the weights, for both sides.
          prefixes: prefixes of the reference's tensor names in its outputs.
          fixed: the reference's tensors that it may not change.
        """
        from jax_transformer.proof import jax_programs, torch_programs
        from jax_transformer.proof.torch_memory import Variable
        from jax_transformer.proof.torch_reruns import check_again

        with in_precision("float64"):
            leaves = {path: np.shape(leaf) for path, leaf in flatten(self.problem.params).items()}
            drawn = {path: jax.ShapeDtypeStruct(leaves[path], np.float64) for path in self._drawn_paths}
            candidate = jax_programs.lower(ours, drawn | dict(more))
        held = self._module.state_dict(keep_vars=True)
        own = getattr(self.reference.reference, "module", None)
        if own is not None:
            check_copyable(own)
            check_apart(own)
            check_hooks(own)
        read: dict[str, Any] = dict(more_tensors)
        for first in dict.fromkeys(given.first for given in self._given.values()):
            names = self._tied_apart.get(first, [first])
            read[first] = Variable(self._given[first].shape, tuple((held[name], None) for name in names))
        hidden = () if own is None else own.state_dict(keep_vars=True).values()
        reference = torch_programs.lower(theirs, read, hidden=hidden, fixed=fixed)
        check_again(reference, theirs, read)
        for error in (*candidate.unknown.values(), *reference.unknown.values()):
            raise error

        def draw(draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Arrays, Arrays]:
            shared = {name: draw(np.shape(array)) for name, array in more.items()}
            left, right = self._draw(draw)
            return {**left, **shared}, {**right, **shared}

        def align(outputs: Arrays) -> Arrays:
            return self._aligned(outputs, prefixes)

        weights = self.carried(self._own_leaves)
        return Task(candidate, reference, draw, align, is_masked, weights, reads_rounded=False)  # all in float64

    def _draw(self, draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Arrays, Arrays]:
        """Draws the reference's tensors, tied ones once, and converts them by the porting table.

        The table only moves elements. It takes floats, which represent residues below 2⁵³ exactly.
        """
        theirs: dict[str, np.ndarray] = {}
        for name, given in self._given.items():
            theirs[name] = draw(given.shape).astype(np.float64) if given.first == name else theirs[given.first]
        leaves = self._ported(theirs)
        return {path: leaves[path] for path in self._drawn_paths}, theirs

    def _aligned(self, outputs: Arrays, prefixes: tuple[str, ...]) -> Arrays:
        """Returns the reference's outputs; those of its tensors are named by the paths of our leaves. Of separate
        tensors that the candidate ties, the first is compared."""

        def first(name: str) -> str:
            group = self._given[name].first
            return self._tied_apart[group][0] if group in self._tied_apart else name

        own = {name: array for name, array in outputs.items() if not name.startswith(prefixes) and name != LOSS}
        shapes = [ids.shape for ids in self.problem.inputs]
        found = {**self.reference.reference.renamed(own, shapes), **({LOSS: outputs[LOSS]} if LOSS in outputs else {})}
        for prefix in prefixes:
            tensors = {
                name: _movable(outputs.get(prefix + first(name), np.zeros(given.shape)))
                for name, given in self._given.items()
            }
            leaves = self._ported(tensors)
            trained = {path: np.asarray(leaf) for path, leaf in leaves.items() if not path.startswith("constants/")}
            found |= {prefix + path: leaf for path, leaf in layer_by_layer(trained).items()}
        return found

    def _summed(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Sums the gradients of tensors that the porting table merges into one."""
        found = dict(found)
        for names in self._tied_apart.values():
            arrived = [found.pop(GRADIENT + name) for name in names if GRADIENT + name in found]
            if arrived:
                found[GRADIENT + names[0]] = sum(arrived[1:], arrived[0])
        return found

    @cached_property
    def _tied_apart(self) -> dict[str, list[str]]:
        """Groups the names of separate tensors of the module that the candidate ties, by the first name."""
        return self._groups(self._module.state_dict(keep_vars=True))

    @cached_property
    def _tied_here(self) -> dict[str, list[str]]:
        """Groups the names of tied tensors of the module that are several leaves of the candidate, by the first
        name."""
        return self._groups(self._tensors(self.problem.params))

    @property
    def conditions(self) -> tuple[str, ...]:
        """Describes the restrictions on the compared weights: those that one side ties are equal on the other side."""
        apart, here = (map(" and ".join, each.values()) for each in (self._tied_apart, self._tied_here))
        return (
            *(f"{names} of the reference are equal, as they are one in the candidate" for names in apart),
            *(f"the candidate's leaves for {names} are equal, as they are one in the reference" for names in here),
        )

    def _check_tied(self) -> None:
        """Raises CannotRun if the reference ties separate leaves of the candidate: its gradient is a sum of theirs."""
        for names in self._tied_here.values():
            raise CannotRun(
                f"{' and '.join(names)} are one tensor of the reference, and several leaves of the candidate: their "
                "gradients aren't compared"
            )

    def _ported(self, tensors: Arrays) -> Arrays:
        """Converts the reference's tensors, with those that its module keeps, by the porting table."""
        held = self._module.state_dict()
        kept = {name: tensor.numpy() for name, tensor in held.items() if name not in tensors}
        return self.reference.reference.leaves({**kept, **tensors})

    def _params(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the candidate's parameters: the program's inputs, and constants."""
        given = {path: jnp.asarray(drawn[path]) for path in self._drawn_paths}
        return unflatten({**self._kept, **given})

    @cached_property
    def _kept(self) -> dict[str, np.ndarray]:
        """Returns the leaves that are constants of both sides."""
        leaves = self._own_leaves
        return {path: np.asarray(leaf, np.float64) for path, leaf in leaves.items() if path not in self._drawn_paths}

    @property
    def _own_leaves(self) -> dict[str, Any]:
        return flatten(self.problem.params)

    @property
    def _module(self) -> Any:
        return self.reference._given(self.problem.params, "float64")

    def _tensors(self, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the reference's tensors that the porting table fills, by name; tied ones are one array."""
        return dict(self.reference.reference.state_dict(params, self._module.state_dict().keys()))

    def _with_kept(self, leaves: Arrays) -> dict[str, Any]:
        """Returns parameters with the problem's values for the constants of both sides."""
        return unflatten({**leaves, **{path: leaf for path, leaf in self._own_leaves.items() if path in self._kept}})

    @cached_property
    def _given(self) -> dict[str, _Given]:
        """Describes the tensors that the porting table fills. Tensors that either side ties count as one."""
        tensors, held = self._tensors(self.problem.params), self._module.state_dict(keep_vars=True)
        first = {name: name for name in tensors}
        for same in (tensors, held):
            known: dict[int, str] = {}
            for name in tensors:
                other = known.setdefault(id(same[name]), name)
                joined, added = first[other], first[name]
                if joined != added:
                    first = {each: joined if group == added else group for each, group in first.items()}
        return {name: _Given(array.shape, first[name]) for name, array in tensors.items()}

    def _groups(self, held: Mapping[str, Any]) -> dict[str, list[str]]:
        """Groups tensors that count as one but are several in a state_dict, by the first name; one name for each."""
        found: dict[str, dict[int, str]] = {}
        for name, given in self._given.items():
            found.setdefault(given.first, {}).setdefault(id(held[name]), name)
        return {first: list(names.values()) for first, names in found.items() if len(names) > 1}

    @cached_property
    def _drawn_paths(self) -> tuple[str, ...]:
        """Returns the paths of leaves that are converted from the reference's tensors; the rest are constants."""
        leaves = self._ported({name: np.broadcast_to(np.pi, given.shape) for name, given in self._given.items()})
        return tuple(path for path in flatten(self.problem.params) if np.all(np.asarray(leaves[path]) == np.pi))


def lowered(candidate: Any, reference: Any, problem: Problem) -> Lowered:
    """Returns both sides on a problem. Raises CannotRun unless they are a JAX program and a PyTorch module."""
    if not isinstance(reference, TorchSide) or not isinstance(candidate, JaxSide | FunctionSide):
        raise CannotRun("proofs relate a JAX program with a PyTorch module")
    return Lowered(candidate, reference, problem)


def _movable(array: np.ndarray) -> np.ndarray:
    """Converts numbers to floats for the porting table; exact numbers are unchanged."""
    return np.asarray(array, None if array.dtype == object else np.float64)
