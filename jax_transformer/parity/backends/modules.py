"""Any PyTorch module as a reference: hooks capture what it computes, and a dialect or a map of names renames it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.backends.capture import OWN, observe, part_in_training
from jax_transformer.parity.backends.masks import infer_masks
from jax_transformer.parity.backends.side import Arrays, CannotRun, layer_by_layer
from jax_transformer.parity.backends.torch_module import Pass, to_array, traced
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.names.drafts import Names
from jax_transformer.parity.problems import own_problem
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import Dialect
from jax_transformer.porting.fit import matcher
from jax_transformer.porting.names.maps import NameMap
from jax_transformer.porting.state_dicts import params_from_state_dict, state_dict_from_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_mappings import as_arrays

if TYPE_CHECKING:
    import torch
    from torch import nn


LOGITS = "logits"


@dataclass(frozen=True)
class ModuleReference:
    """Runs a user's module with its weights."""

    module: nn.Module
    dialect: Dialect
    """The dialect whose rules map its parameters to ours."""
    config: TransformerConfig
    constants: Mapping[str, np.ndarray]
    """The model's constants by name. Constants that the dialect's checkpoints lack are left to the module."""
    names: NameMap

    def __post_init__(self) -> None:
        training = part_in_training(self.module)
        if training is not None:
            raise ParityError(
                f"expected a module in evaluation mode; {training} is in training mode: call .eval() first"
            )

    def own(self) -> Mapping[str, np.ndarray]:
        return as_arrays(self.module.state_dict())

    def build(self, dtype: torch.dtype) -> nn.Module:
        return copy.deepcopy(self.module).to(dtype)

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        return state_dict_from_params(self.config, params, self.dialect, names)

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the state_dict as leaves by path. Raises PortingError if its parameters aren't the model's."""
        table = self.constants["encoder_positions"] if self.dialect.leaves_out_positions(self.config) else None
        held = {name: array for name, array in state_dict.items() if name not in self._own_tensors}
        return flatten(params_from_state_dict(self.config, held, self.dialect, table))

    @cached_property
    def _own_tensors(self) -> frozenset[str]:
        """Returns the tensors that the module keeps: buffers that no rule names, such as a stored mask, and what a map
        ignores."""
        known = matcher(name for rule in self.dialect.rules(self.config) for name in rule.all_names)
        buffers = [name for name, _ in self.module.named_buffers(remove_duplicate=False)]
        ignored = [*buffers, *self.dialect.ignores(as_arrays(self.module.state_dict()))]
        return frozenset(name for name in ignored if not known.fullmatch(name))

    @property
    def names_its_own(self) -> bool:
        """Whether its forward fills a trace with our names, as the programs of torch_reference do."""
        return "trace" in inspect.signature(self.module.forward).parameters

    def visible(self) -> set[str] | None:
        """Returns our activations that the module shows, and the masks that follow from them; None: all."""
        if self.names_its_own:
            return None
        ids = (2, 3)
        shapes = _shapes(self.config, ids, ids)
        pairs = self.names.rename({}, shapes).missing
        promised = set(pairs)
        masks = {f"mask.{kind}" for kind, logits in MASKED.items() if logits in promised}
        return {name for name in shapes if name in promised | masks | {LOGITS}}

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        if self.names_its_own:
            return traced(module, source_ids, decoder_input_ids, watched=watched, gradients=gradients)
        inputs = inputs_of(module, self.config, source_ids, decoder_input_ids)
        if not watched:
            return Pass(_logits(module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)), dict, dict)
        found = observe(module, inputs, keep_gradients=gradients)
        shapes = _shapes(self.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))
        logits = found.get("output.logits", found.get(f"{OWN}.0", found.get(OWN)))
        if logits is None:
            raise ParityError(f"expected a module that returns logits; {type(self.module).__name__} returned no tensor")
        return Pass(
            logits, partial(self._named, found, logits, shapes), partial(self._named_gradients, found, logits, shapes)
        )

    def _named(
        self, found: Mapping[str, torch.Tensor], logits: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Any]:
        """Returns activations under our names, the logits in any case."""
        import torch

        arrays = {LOGITS: to_array(logits)} | self.names.rename(
            {name: to_array(tensor) for name, tensor in found.items()}, shapes
        ).arrays
        masks = infer_masks(arrays, self.config)
        ordered = {name: (masks | arrays)[name] for name in shapes if name in masks or name in arrays}
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in ordered.items()}

    def _named_gradients(
        self, found: Mapping[str, torch.Tensor], logits: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Any]:
        import torch

        gradients = {
            name: tensor.grad
            for name, tensor in found.items()
            if tensor.is_floating_point() and tensor.grad is not None
        }
        arrays = dict(
            self.names.rename({name: to_array(gradient) for name, gradient in gradients.items()}, shapes).arrays
        )
        if logits.grad is not None:
            arrays.setdefault(LOGITS, to_array(logits.grad))
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor:
        """Decodes greedily without a cache: the module runs on the whole prefix for each token."""
        import torch

        prefix = source_ids.new_full((len(source_ids), 1), start_id)
        finished = torch.zeros(len(source_ids), dtype=torch.bool)
        for _ in range(most):
            inputs = inputs_of(module, self.config, source_ids, prefix)
            logits = _logits(module(**inputs) if isinstance(inputs, Mapping) else module(*inputs))
            likeliest = logits[:, -1].argmax(dim=-1).masked_fill(finished, self.config.target_pad_id)
            prefix = torch.cat([prefix, likeliest[:, None]], dim=1)
            finished |= likeliest == eos_id
            if finished.all():
                break
        return prefix[:, 1:]

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        raise CannotRun("a module has no beam search of its own")


MASKED = {
    "encoder_self": "encoder.layers.0.self_attention.logits",
    "decoder_self": "decoder.layers.0.self_attention.logits",
    "cross": "decoder.layers.0.cross_attention.logits",
}
"""Mask → the logits that it is read from."""


def inputs_of(
    module: nn.Module, config: TransformerConfig, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
) -> Any:
    """Returns the module's arguments: (source_ids, decoder_input_ids), or those of transformers' models if it takes
    their names."""
    taken = inspect.signature(module.forward).parameters
    if {"input_ids", "decoder_input_ids"} <= taken.keys():
        named = {
            "input_ids": source_ids,
            "attention_mask": source_ids != config.source_pad_id,
            "decoder_input_ids": decoder_input_ids,
            "use_cache": False,
        }
        return {name: value for name, value in named.items() if name in taken}
    return (source_ids, decoder_input_ids)


def _logits(output: Any) -> torch.Tensor:
    """Returns the output's attribute `logits`, or its first part, or the output itself."""
    found = getattr(output, "logits", output)
    tensor: torch.Tensor = found[0] if isinstance(found, (tuple, list)) else found
    return tensor


def _shapes(config: TransformerConfig, source: tuple[int, ...], target: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of our trace by name, in execution order."""
    ids = [jax.ShapeDtypeStruct(shape, np.int32) for shape in (source, target)]
    _, trace = jax.eval_shape(
        partial(functional.apply, config, return_trace=True), functional.abstract_params(config), *ids
    )
    return {name: value.shape for name, value in trace.items()}


# --- names of parameters and activations


def names_of(dialect: Dialect, config: TransformerConfig) -> NameMap:
    """Returns the activations of a dialect's programs that a module computes; none where a tensor holds all layers, as
    a map may say, so that layers have no modules."""
    rules = dialect.rules(config)
    if any("/layers/" in path and not rule.stacked for rule in rules for path in rule.paths):
        return NameMap()
    return NameMap(activation_names(config, rules))


def names_for_draft(module: nn.Module, model: Model) -> tuple[Names, Names]:
    """Returns the shapes of a module's activations and parameters on one batch, and those of ours.

    Raises:
      ParityError: the module can't be run on it.
    """
    import torch

    problem = own_problem(model.config, model.params)
    source_ids, decoder_input_ids = (torch.from_numpy(ids.astype(np.int64)) for ids in problem.ids)
    inputs = inputs_of(module, model.config, source_ids, decoder_input_ids)
    try:
        seen = observe(module, inputs)
    except Exception as error:  # the module is the user's
        raise ParityError(
            f"the module can't be run on source_ids {list(source_ids.shape)} and decoder_input_ids "
            f"{list(decoder_input_ids.shape)}: {type(error).__name__}: {error}"
        ) from error
    theirs = Names(
        {name: tuple(tensor.shape) for name, tensor in seen.items()},
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()},
    )
    parameters = layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(model.params).items()})
    activations = _shapes(model.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))
    return theirs, Names(activations, {path: leaf.shape for path, leaf in parameters.items()})
