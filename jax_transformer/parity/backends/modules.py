"""Runs any PyTorch module as a reference: hooks capture its activations, and a dialect or map renames them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

import jax
import numpy as np

from jax_transformer.comparison.capture import call_unwatched, part_in_training, unfused_attention, watch
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.comparison.torch_tensors import distance, equal_tensor, may_differ, to_array
from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.maps import NameMap, regrouped
from jax_transformer.mapping.rules import matcher
from jax_transformer.model import functional
from jax_transformer.model.features import Features
from jax_transformer.parity.backends.calling import POSITIONAL, Calling, find_calling
from jax_transformer.parity.backends.masks import infer_masks
from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.parity.backends.torch_module import Pass, input_tensors
from jax_transformer.parity.backends.traces import copying_trace
from jax_transformer.parity.names.drafts import Names
from jax_transformer.parity.oracle.graph import known_nodes, shown_by
from jax_transformer.parity.problems import Problem, own_problem
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import Dialect, detect, get_dialect
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.names_of_dialects import dialect_of_map, map_of_origin
from jax_transformer.porting.state_dicts import params_from_state_dict, state_dict_from_params
from jax_transformer.programs.copies import converted, copied
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays
from jax_transformer.storage.tensors import PortingError

if TYPE_CHECKING:
    import torch
    from torch import nn


MOST_PROBLEMS = 6
"""Maximum number of problems with parameters that a message lists."""
LOGITS = "logits"
OWN_LOGITS = "logits#own"
"""The name of the logits among the activations of `outputs`, whatever a part of the module is called."""


class Naming(NamedTuple):
    """Holds the caller's relation of a module's names to a model's."""

    dialect: str | None
    names: NameMap | None
    """A map; None: none was given."""
    by: str = "the map of names"
    """How messages call the map."""


@dataclass(frozen=True)
class ModuleReference:
    """Runs a user's module with its weights."""

    module: nn.Module
    dialect: Dialect
    """The dialect whose rules map its parameters to ours."""
    config: TransformerConfig
    constants: Mapping[str, np.ndarray]
    """The model's constants by name. The module keeps its own values of constants that the dialect's checkpoints
    lack."""
    names: NameMap
    prefix: str = ""
    """Prefix of the dialect's names, for a module that contains the dialect's program."""
    layers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Captured names of the inputs and outputs of whole layers → ours. They take precedence over `names`, which are
    derived from the layers' parts."""
    calling: Calling = POSITIONAL
    """The way to call it."""
    traces: bool = False
    """Whether its forward fills a trace with our names, as the programs of torch_reference do."""
    notes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Notes for the report on how the module is run."""

    def __post_init__(self) -> None:
        training = part_in_training(self.module)
        if training is not None:
            raise ParityError(
                f"expected a module in evaluation mode; {training} is in training mode: call .eval() first"
            )

    def own(self) -> Mapping[str, np.ndarray]:
        return as_arrays(self.module.state_dict())

    def build(self, dtype: torch.dtype) -> nn.Module:
        return converted(copied(self.module), dtype)

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        theirs = {self._bare(name): name for name in names}
        tensors = state_dict_from_params(self.config, params, self.dialect, theirs)
        given = {theirs.get(name, name): tensor for name, tensor in tensors.items()}
        return given | {spare: given[name] for spare, name in self._spare.items() if spare in names}

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        """Converts the state_dict to leaves by path. Raises PortingError if its parameters don't fit the model."""
        table = None
        if self.dialect.leaves_out_positions(self.config):
            table = max((self.constants[f"{stack}_positions"] for stack in ("encoder", "decoder")), key=len)
        held = {
            self._bare(name): array
            for name, array in state_dict.items()
            if name not in self._own_tensors and name not in self._spare
        }
        return flatten(params_from_state_dict(self.config, held, self.dialect, table))

    def holds(self, path: str) -> bool:
        """Checks whether a tensor of the module holds the leaf at this path."""
        own = {self._bare(name) for name in self.own()}
        rules = (rule for rule in self.dialect.rules(self.config) if path in rule.paths)
        return any(name in own for rule in rules for name in rule.all_names)

    def _bare(self, name: str) -> str:
        """Returns the dialect's name of a tensor."""
        return name.removeprefix(self.prefix)

    @cached_property
    def _unnamed(self) -> frozenset[str]:
        """Returns the names of tensors without a rule."""
        known = matcher(name for rule in self.dialect.rules(self.config) for name in rule.all_names)
        return frozenset(name for name in self.module.state_dict() if not known.fullmatch(self._bare(name)))

    @cached_property
    def _own_tensors(self) -> frozenset[str]:
        """Returns the names of tensors that keep the module's values: buffers without a rule, such as a stored mask,
        and tensors that the dialect or a map ignores."""
        buffers = {name for name, _ in self.module.named_buffers(remove_duplicate=False)}
        bare = {self._bare(name): name for name in self._unnamed}
        ignored = self.dialect.ignores({self._bare(name): tensor for name, tensor in self.own().items()})
        return self._unnamed & (buffers | {bare[name] for name in ignored if name in bare})

    @cached_property
    def _spare(self) -> Mapping[str, str]:
        """Maps each parameter without a rule to an equal one with a rule: the state_dict lists tied tensors again.
        (A map names them itself.)"""
        if self.dialect.name == MAP:
            return {}
        held = self.module.state_dict()
        named = [name for name in held if name not in self._unnamed]
        return {
            spare: twin
            for spare in held
            if spare in self._unnamed - self._own_tensors and (twin := equal_tensor(held, spare, named)) is not None
        }

    def tried(self, name: str, problem: Problem, *, only_called: bool = False) -> Self:
        """Returns the reference with the way to call and watch the module, after trial calls.

        Args:
          name: the module's name in messages.
          problem: the model's own weights, on ids with sizes that identify each axis.
          only_called: leave out the names of modules that the call doesn't run.

        Raises:
          ParityError: the module can't be called; see `find_calling`.
        """
        import torch

        module = self.module
        kept = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
        ids = input_tensors(problem, str(kept).removeprefix("torch."))
        try:
            calling = find_calling(module, name, self.config, *ids)
        except ParityError:  # it may need ids on another device, or have parameters and tables of different dtypes
            with contextlib.suppress(*RAISED):
                module, ids = self.build(torch.float64), input_tensors(problem)
                calling = find_calling(module, name, self.config, *ids)
                return self._with_calling(calling, module, name, ids, only_called)
            raise
        return self._with_calling(calling, module, name, ids, only_called)

    def _with_calling(
        self, calling: Calling, module: nn.Module, name: str, ids: Sequence[torch.Tensor], only_called: bool
    ) -> Self:
        """Returns the reference with this way to call the module, and with a way to watch it."""
        known = dataclasses.replace(self, calling=calling)
        known._check_head(module, name, *ids)
        if only_called:
            known = dataclasses.replace(known, names=known._called_names(module, ids))
        return dataclasses.replace(known, **known._watching(module, *ids))

    def _check_head(
        self, module: nn.Module, name: str, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> None:
        """Raises ParityError if the module returns probabilities whose logits can't be captured."""
        import torch

        arguments = self.calling.arguments(source_ids, decoder_input_ids)
        with torch.no_grad():
            output, last_softmax = call_unwatched(module, *arguments)
            try:
                self.calling.unnormalised(output, last_softmax, len(source_ids))
            except LookupError:
                raise ParityError(
                    f"reference {name}: expected logits; it returns {self.calling.head.replace('_', '-')} that no "
                    "softmax of PyTorch's computes last, so that the logits can't be seen: write an adapter that "
                    "returns the logits"
                ) from None

    def _watching(self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> dict[str, Any]:
        """Returns the fields that say how to watch the module: that it fills a trace, or why hooks are used instead."""
        import torch

        try:
            if "trace" not in inspect.signature(module.forward).parameters:
                return {}
            with torch.no_grad():
                done = self._traced(module, source_ids, decoder_input_ids, gradients=False)
                plain = self._unwatched(module, source_ids, decoder_input_ids)
        except RAISED as error:
            return _watched_by_hooks(f"with a trace it raised {in_short(error)}")
        trace = done.activations()
        known = shapes_of_trace(self.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))
        if LOGITS not in trace or not set(trace) <= set(known):
            return _watched_by_hooks("it fills no trace with this library's names")
        apart = distance(done.logits, plain, may_differ(plain))
        if apart:
            return _watched_by_hooks(f"with a trace its logits are others, off by a relative RMS of {apart:.1e}")
        return {"traces": True}

    def _called_names(self, module: nn.Module, ids: Sequence[torch.Tensor]) -> NameMap:
        """Returns the names without those of modules that a call doesn't run: some programs only pass a module's
        parameters to a function, as fairseq's attention does."""
        seen = watch(module, *self.calling.arguments(*ids)).tensors
        captured = {name: to_array(tensor) for name, tensor in seen.items()}
        missing = self.names.rename(captured, shapes_of_trace(self.config, *(tuple(one.shape) for one in ids))).missing
        kept = {
            theirs: tuple(name for name in ours if name not in missing)
            for theirs, ours in self.names.activations.items()
        }
        return dataclasses.replace(self.names, activations={theirs: ours for theirs, ours in kept.items() if ours})

    def visible(self) -> set[str] | None:
        """Returns our names of the activations that the module shows, and of the masks that these imply. None: all."""
        if self.traces:
            return None
        stem = self.config.stem
        source = (2, 3) if stem is None else (2, 3 * stem.stride, stem.features)
        shapes = shapes_of_trace(self.config, source, (2, 3))
        named = set(self.names.rename({}, shapes).missing)
        masks = {mask for mask, logits in shown_by(known_nodes(self.config)).items() if logits in named}
        return {name for name in shapes if name in named | masks | {LOGITS}}

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        import torch

        if not watched:
            return Pass(self._unwatched(module, source_ids, decoder_input_ids), dict, dict)
        run = self._traced if self.traces else self._observed
        done = run(module, source_ids, decoder_input_ids, gradients=gradients)
        apart = self._apart(done.logits, module, source_ids, decoder_input_ids)
        if gradients and not apart:
            with torch.no_grad():
                plain = self._unwatched(module, source_ids, decoder_input_ids)
            apart = distance(done.logits, plain, may_differ(plain))
        return done._replace(apart=apart)

    def _apart(
        self, watched: torch.Tensor, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> float:
        """Returns the distance between the logits of a watched and an unwatched call; 0 if it is legitimate.

        A module may sum in another order to fill a trace. PyTorch itself may do so while softmaxes are intercepted:
        then a call that intercepts them, but has no hooks, must give the same bits.
        """
        plain = self._unwatched(module, source_ids, decoder_input_ids)
        apart = distance(watched, plain, 0.0)
        if not apart or (self.traces and apart <= may_differ(plain)):
            return 0.0
        if distance(plain, self._unwatched(module, source_ids, decoder_input_ids), 0.0):
            return 0.0  # the module isn't deterministic, which is reported elsewhere
        if apart > may_differ(plain):
            return apart
        output, _ = call_unwatched(module, *self.calling.arguments(source_ids, decoder_input_ids))
        return distance(watched, self.calling.logits(output, len(source_ids)), 0.0)

    def _unwatched(self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits of a call without hooks or trace, or their log-softmax if the module returns it."""
        arguments, batch = self.calling.arguments(source_ids, decoder_input_ids), len(source_ids)
        if self.calling.head == "probabilities":
            return self.calling.unnormalised(*call_unwatched(module, *arguments), batch)
        with unfused_attention():
            return self.calling.logits(module(*arguments.positional, **arguments.named), batch)

    def _traced(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor, *, gradients: bool
    ) -> Pass:
        """Runs a module that fills a trace itself."""
        trace = copying_trace(keep_gradients=gradients)
        positional, named = self.calling.arguments(source_ids, decoder_input_ids)
        with unfused_attention():
            output = module(*positional, **named, trace=trace)
        return Pass(self.calling.logits(output, len(source_ids)), lambda: trace, trace.gradients)

    def _observed(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor, *, gradients: bool
    ) -> Pass:
        """Runs a module under hooks."""
        positional, named = self.calling.arguments(source_ids, decoder_input_ids)
        apart = {*self.names.activations, *self.layers}
        watched = watch(module, positional, named, keep_gradients=gradients, apart=apart)
        logits = self.calling.unnormalised(watched.output, watched.last_softmax, len(source_ids))
        is_log = self.calling.head == "log_probabilities"
        returned = self.calling.logits(watched.output, len(source_ids)) if is_log else logits
        to_logits: dict[str, torch.Tensor] = {}
        if logits.requires_grad:
            logits.register_hook(partial(to_logits.__setitem__, LOGITS))
        shapes = shapes_of_trace(self.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))

        def activations() -> Mapping[str, torch.Tensor]:
            return self._named(watched.tensors, {LOGITS: logits}, shapes, with_masks=True)

        def their_gradients() -> Mapping[str, torch.Tensor]:
            return self._named(watched.gradients, to_logits, shapes)

        return Pass(returned, activations, their_gradients)

    def outputs(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        import torch

        if self.traces:
            done = self._traced(module, source_ids, decoder_input_ids, gradients=False)
            return done.logits, done.activations()
        positional, named = self.calling.arguments(source_ids, decoder_input_ids)
        watched = watch(module, positional, named, enable_gradients=torch.is_grad_enabled())
        logits = self.calling.unnormalised(watched.output, watched.last_softmax, len(source_ids))
        is_log = self.calling.head == "log_probabilities"
        returned = self.calling.logits(watched.output, len(source_ids)) if is_log else logits
        return returned, {**watched.tensors, OWN_LOGITS: logits}

    def renamed(self, arrays: Arrays, ids: Sequence[tuple[int, ...]]) -> Arrays:
        if self.traces:
            return arrays
        shapes = shapes_of_trace(self.config, *ids)
        own = {LOGITS: arrays[OWN_LOGITS]} if OWN_LOGITS in arrays else {}
        return self._ours({name: array for name, array in arrays.items() if name != OWN_LOGITS}, own, shapes)

    def _named(
        self,
        found: Mapping[str, torch.Tensor],
        own: Mapping[str, torch.Tensor],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        with_masks: bool = False,
    ) -> dict[str, Any]:
        """Returns activations, or their gradients, under our names and in our order.

        Args:
          own: the logits that the module returns, which replace the output of any part named as its head.
          with_masks: also infer the masks from attention logits.
        """
        import torch

        captured, logits = ({name: to_array(one) for name, one in tensors.items()} for tensors in (found, own))
        arrays = self._ours(captured, logits, shapes)
        arrays |= infer_masks(arrays, self.config) if with_masks else {}
        return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in shapes if name in arrays}

    def _ours(self, captured: Arrays, own: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Returns captured arrays under our names, and the logits."""
        arrays = dict(self.names.rename(captured, shapes).arrays)
        for theirs, name in self.layers.items():
            if theirs in captured and (array := regrouped(captured[theirs], shapes[name])) is not None:
                arrays[name] = array
        return arrays | dict(own)

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor:
        """Decodes greedily without a cache: the module runs on the whole prefix for each token."""
        import torch

        prefix = torch.full((len(source_ids), 1), start_id)
        finished = torch.zeros(len(source_ids), dtype=torch.bool)
        for _ in range(most):
            logits = self.calling.logits(self.calling.call(module, source_ids, prefix), len(prefix))
            chosen = logits[:, -1].argmax(dim=-1).masked_fill(finished, self.config.target.pad_id)
            prefix = torch.cat([prefix, chosen[:, None]], dim=1)
            finished |= chosen == eos_id
            if finished.all():
                break
        return prefix[:, 1:]

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        raise CannotRun("a module has no beam search of its own")


Made = TypeVar("Made", bound=ModuleReference)


def _watched_by_hooks(why: str) -> dict[str, Any]:
    return {"notes": {"watching": f"by hooks: {why}"}}


@lru_cache(maxsize=32)
def shapes_of_trace(
    config: TransformerConfig, source: tuple[int, ...], target: tuple[int, ...]
) -> Mapping[str, tuple[int, ...]]:
    """Returns the shapes of our trace by name, in execution order, for ids [B, S] or feature vectors [B, S, F] and
    decoder_input_ids [B, T]."""
    ids = [jax.ShapeDtypeStruct(shape, np.int32 if len(shape) == 2 else np.float32) for shape in (source, target)]
    given: Any = ids[0] if config.stem is None else Features(cast(Any, ids[0]))
    _, trace = jax.eval_shape(
        partial(functional.apply, config, return_trace=True), functional.abstract_params(config), given, ids[1]
    )
    return MappingProxyType({name: value.shape for name, value in trace.items()})


# --- the names of a module, related to ours by a dialect or a map


def names_of(dialect: Dialect, config: TransformerConfig, prefix: str = "") -> NameMap:
    """Returns the names of the activations of a dialect's program that modules compute. Returns none if a tensor holds
    all layers, as a map may say, since layers then have no modules.

    Args:
      prefix: prefix of all names, for a module that contains the program.
    """
    rules = dialect.rules(config)
    if any("/layers/" in path and not rule.stacked for rule in rules for path in rule.paths):
        return NameMap()
    return NameMap({prefix + theirs: ours for theirs, ours in activation_names(config, rules).items()})


def layers_of(dialect: Dialect, config: TransformerConfig, prefix: str = "") -> dict[str, str]:
    """Returns the captured names of the inputs and outputs of a known dialect's layers → our names."""
    found: dict[str, str] = {}
    for stack, layers in (("encoder", config.encoder.num_layers), ("decoder", config.decoder.num_layers)):
        names = [
            rule.names[0]
            for rule in dialect.rules(config)
            if rule.paths[0].startswith(f"{stack}/layers/") and "{i}" in rule.names[0]
        ]
        paths = {name[: name.index("{i}") + 3] for name in names}
        if len(paths) == 1:
            (path,) = paths
            found[f"{prefix}{path.replace('{i}', '0')}@input"] = f"{stack}.embedding"
            found |= {f"{prefix}{path.replace('{i}', str(i))}": f"{stack}.layers.{i}.output" for i in range(layers)}
    return found


def prefix_of(dialect: Dialect, tensors: Collection[str]) -> str:
    """Returns the prefix of all names of a dialect among these tensors; "" for none, or for a different dialect."""
    prefixes = {name[: dot.end()] for name in tensors for dot in re.finditer(r"\.", name)}
    for prefix in ("", *sorted(prefixes, key=len)):
        if dialect.recognises([name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]):
            return prefix
    return ""


def module_reference(
    kind: type[Made], name: str, module: nn.Module, model: Model, how: Naming, problem: Problem
) -> Made:
    """Wraps a user's module as a reference, after trial calls.

    Args:
      kind: the class of the reference.
      name: the module's name in messages.
      how: how the caller relates them; without a dialect and a map, by the dialect or the map of the model's origin.
      problem: see `ModuleReference.tried`.

    Raises:
      ParityError: its parameters don't have the dialect's names; it can't be called.
      PortingError: its parameters don't fit the model.
    """
    constants, names, prefix = constants_of(model), how.names, ""
    if names is None and how.dialect is None:
        names = map_of_origin(model.origin)
    if names is not None and names.parameters:
        paths = [path for path, _ in module.named_modules()]
        names = names.under(names.prefix_in(module.state_dict().keys()), paths)
        rules, computed = names.rules(), {f"constants/{name}": leaf for name, leaf in constants.items()}
        dialect = dialect_of_map(names, rules, lambda config: computed)
    else:
        known = how.dialect or (model.origin or {}).get("dialect") or detect(module.state_dict().keys()).name
        dialect = get_dialect(known)
        prefix = prefix_of(dialect, module.state_dict())
    reference = kind(module, dialect, model.config, constants, names or NameMap(), prefix)
    _check_parameters(reference, name, how)
    if not reference.names.activations:
        reference = dataclasses.replace(reference, names=names_of(dialect, model.config, prefix))
    if names is None:
        reference = dataclasses.replace(reference, layers=layers_of(dialect, model.config, prefix))
    follow = names is not None and bool(names.parameters) and not names.activations
    return reference.tried(name, problem, only_called=follow)


def _check_parameters(reference: ModuleReference, name: str, how: Naming) -> None:
    """Raises ValueError unless the module's parameters correspond to the model's."""
    own, dialect, side = reference.own(), reference.dialect, f"reference {name}"
    if how.names is None and not dialect.recognises([one.removeprefix(reference.prefix) for one in own]):
        some = ", ".join(list(own)[:3])
        raise ParityError(
            f"{side}: its parameters ({some}, …) don't have the names of dialect {dialect.name}: map them with names "
            "(--map FILE); draft_map (--draft-map FILE) drafts such a map"
        )
    try:
        reference.leaves(own)
    except PortingError as error:
        shown, more = error.problems[:MOST_PROBLEMS], len(error.problems) - MOST_PROBLEMS
        by = f"dialect {dialect.name}" if how.names is None else how.by
        problems = [*shown, *([f"and {more} more"] if more > 0 else [])] or [str(error)]
        raise PortingError(f"{side}: its parameters aren't the model's by {by}", problems) from None


def constants_of(model: Model) -> dict[str, np.ndarray]:
    """Returns a model's constants by name."""
    return {name: np.asarray(leaf) for name, leaf in model.params.get("constants", {}).items()}


def names_for_draft(module: nn.Module, name: str, model: Model) -> tuple[Names, Names]:
    """Returns the shapes of a module's activations and parameters on one batch, and those of ours.

    Args:
      name: the module's name in messages.

    Raises:
      ParityError: the module can't be run on it.
    """

    problem = own_problem(model.config, model.params)
    source_ids, decoder_input_ids = input_tensors(problem, "float32")
    calling = find_calling(module, name, model.config, source_ids, decoder_input_ids)
    seen = watch(module, *calling.arguments(source_ids, decoder_input_ids)).tensors
    theirs = Names(
        {name: tuple(tensor.shape) for name, tensor in seen.items()},
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()},
    )
    parameters = layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(model.params).items()})
    activations = shapes_of_trace(model.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))
    return theirs, Names(activations, {path: leaf.shape for path, leaf in parameters.items()})


# --- the position table that a module computes and keeps outside its state_dict


def own_table(module: nn.Module, model: Model) -> np.ndarray | None:
    """Returns the position table [rows, D] of a module whose state_dict lacks it, if it differs from the ported model's
    in rounding or number of rows; None if it is equal, or differs by more than rounding, which the comparison reports.

    Programs compute the table in float32 or float64, with any rounding and number of rows.
    """
    dialect = (model.origin or {}).get("dialect")
    if dialect is None or not get_dialect(dialect).leaves_out_positions(model.config):
        return None
    computed = np.asarray(model.params["constants"]["encoder_positions"])
    for table in _tables(module, computed.shape[1]):
        rows = min(len(table), len(computed))
        apart = relative_rms(table[:rows].astype(np.float64), computed[:rows].astype(np.float64))
        if rows > 1 and apart <= tolerances.COMPUTED_IN["float32"]:
            return None if apart == 0.0 and len(table) == len(computed) else table
    return None


def _tables(module: nn.Module, width: int) -> Iterator[np.ndarray]:
    """Yields all tables of this width that modules hold as buffers or plain attributes."""
    import torch

    for part in module.modules():
        for value in (*part.buffers(recurse=False), *vars(part).values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                table = value.detach().reshape([size for size in value.shape if size != 1] or [1])
                if table.ndim == 2 and table.shape[1] == width:
                    yield to_array(table).copy()
