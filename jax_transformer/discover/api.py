"""`discover`: from a PyTorch module to a config, a map, and a model that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.capture import part_in_training
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.discover.checking import (
    Candidate,
    Check,
    bfloat16_problem,
    check_all,
    check_return,
    failure,
    without_gradient,
)
from jax_transformer.discover.conclusions import Conclusion, conclusion_lines
from jax_transformer.discover.config import make_config
from jax_transformer.discover.findings import Structure, with_conclusions
from jax_transformer.discover.inputs import Batch, longer, probes
from jax_transformer.discover.mapping import name_map
from jax_transformer.discover.problems import CannotRun, Differs, DiscoverError, TooLarge
from jax_transformer.discover.reach import coverage, reach
from jax_transformer.discover.small_scores import with_small_scores
from jax_transformer.discover.structure import read_structure
from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity.problems import FIRST_TOKEN, FULLY_MASKED, INNER_PADDING
from jax_transformer.programs.calling import Call, as_module, find_call
from jax_transformer.programs.calling.limits import LONGEST
from jax_transformer.programs.copies import copied
from jax_transformer.programs.exact import exact_constants, tables_among
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.programs.recorder import RecordingTooLarge, record
from jax_transformer.programs.trace import Recording
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    import torch
    from torch import nn

PREFIX = "module."
"""Precedes the names of a module's tensors inside its adapter."""
BYTES_PER_PARAMETER = 64
"""The least memory that a discovery takes: a module in float32 and its copies in float64, recorded and followed."""
JITTER = 0.05
"""Standard deviation of the noise added to trained parameters while a module is read, so that no scale is 1 and no bias
0."""


@dataclass(frozen=True)
class Discovery:
    """Holds the model equivalent to a module, and the evidence for it."""

    model: Model
    """The model with the module's own weights."""
    names: NameMap
    call: Call
    conclusions: tuple[Conclusion, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    """Warnings for the user, such as masks that the caller builds."""
    bfloat16_problem: str = ""
    """The module's error in bfloat16; "" if it runs."""
    reach: str = ""
    """Which lengths of sentences were checked, and which weren't."""
    rounding: float = 0.0
    """Error of the module's constants and angles that it computes in a lower precision than float64."""

    def conclusion_lines(self, *, every_layer: bool) -> list[str]:
        """Returns one line per conclusion; unless `every_layer`, merges those that all layers share."""
        return conclusion_lines(self.conclusions, every_layer=every_layer)

    @property
    def allow(self) -> tuple[str, ...]:
        """Returns the differences that a parity run has to allow: fully masked rows; padding before a token, where the
        conclusions don't cover it; first target tokens that the module doesn't read."""
        allowed = [FULLY_MASKED]
        allowed += [INNER_PADDING] if any(check.padding != "inside" for check in self.checks) else []
        return (*allowed, FIRST_TOKEN) if self.call.start_id is not None else tuple(allowed)

    @property
    def worst(self) -> float:
        """Returns the largest residual of the checks with the module's own weights."""
        return max(check.residual for check in self.checks if check.weights == "its own")


@np.errstate(all="ignore")
def discover(
    module: Any,
    name: str = "my_model:build",
    *,
    source_pad_id: int | None = None,
    target_pad_id: int | None = None,
    decoder_start_id: int | None = None,
    eos_id: int | None = None,
    rebuild: Callable[[], Any] | None = None,
    longest: int | None = None,
) -> Discovery:
    """Finds a config and weights that reproduce an encoder-decoder in PyTorch.

    Runs the module on ids made for it, reads every operation as part of a Transformer, chooses each option of
    TransformerConfig whose result equals the module's in float64, ports the weights by the map that follows, and
    compares logits on other ids.

    Args:
      module: a torch.nn.Module in evaluation mode, or several in a mapping or sequence, such as an encoder and a
        decoder. It isn't changed.
      name: its factory, in messages and in the adapter.
      source_pad_id, target_pad_id: the ids of padding, if the module has no attribute for them.
      decoder_start_id, eos_id: the ids that begin and end sentences, for the model to translate.
      rebuild: builds the module again, to recover the exact values of constants that its constructor rounds to a lower
        precision. Without it, logits may differ by that rounding.
      longest: the length, in tokens, of the longest sentences to check. None: the longest that both model and module
        accept (1024 if neither has a limit), within about a gigabyte of memory and a minute.

    Raises:
      CallError: its signature isn't understood; the error has the draft of an adapter.
      DiscoverError: no TransformerConfig expresses a part of it; names the operation, its line and layer. Also raised
        if it is in training mode, or fails in float64 (CannotRun).
      ValueError: it overrides torch.nn.Module.state_dict; it can't be copied; several copies don't fit into memory; it
        replaces the first target token by an id other than decoder_start_id.

    Example:
      >>> from jax_transformer.discover import discover
      >>> from torch_reference.pytorch import PytorchTransformer
      >>> module = PytorchTransformer(source_vocab_size=29, target_vocab_size=31, d_model=8, num_heads=2, d_ff=12,
      ...     num_encoder_layers=1, num_decoder_layers=1, max_length=40, source_pad_id=0, target_pad_id=0).eval()
      >>> found = discover(module)
      >>> found.model.config.norm_placement, found.model.config.activation, found.worst < 1e-12
      ('post', 'relu', True)
    """
    training = part_in_training(as_module(module))
    if training:
        raise DiscoverError(f"expected a module in evaluation mode; {training} is in training mode: call .eval() first")
    _check_state(as_module(module), name)
    _check_copy(as_module(module), name)
    count = sum(parameter.numel() for parameter in as_module(module).parameters())
    check_fits(BYTES_PER_PARAMETER * count, f"{name}, with {count:,} parameters")
    call = find_call(module, name, source_pad_id=source_pad_id, target_pad_id=target_pad_id)
    if call.start_id is not None and decoder_start_id not in (None, call.start_id):
        raise ValueError(
            f"{name}: expected --decoder-start-id {call.start_id}, which the module puts in the place of a target's "
            f"first token; received {decoder_start_id}"
        )
    module = as_module(module)
    try:
        return _as_called(module, call, rebuild, longest, decoder_start_id, eos_id)
    except DiscoverError as error:
        error.call = call
        raise


def _as_called(
    module: nn.Module,
    call: Call,
    rebuild: Callable[[], Any] | None,
    longest: int | None,
    decoder_start_id: int | None,
    eos_id: int | None,
) -> Discovery:
    """Discovers a module under a known call, with exact constants if the rounded ones hide its function."""
    try:
        found = _first(module, call, longest)
    except TooLarge:
        raise
    except DiscoverError:
        closer = _more_exact(module, call, rebuild, longest) if _rounds(module, call) else None
        if closer is None:
            raise
        found = closer
    if found.rounding > FLOAT64_RELATIVE_RMS:
        found = _more_exact(module, call, rebuild, longest) or found
    return _completed(found, module, call.start_id if decoder_start_id is None else decoder_start_id, eos_id)


def _check_state(module: nn.Module, name: str) -> None:
    """Raises ValueError unless the module's state_dict is that of nn.Module, also as a part of another module."""
    import torch

    try:
        state = torch.nn.ModuleList([module]).state_dict()
        names = {one.removeprefix("0.") for one, tensor in state.items() if isinstance(tensor, torch.Tensor)}
        missing = [one for one, _ in module.named_parameters(remove_duplicate=False) if one not in names]
        problem = f"{missing[0]} is missing in it" if missing else ""
    except RAISED as error:
        problem = in_short(error)
    if problem:
        kind = type(module).__name__
        raise ValueError(
            f"{name}: expected the state_dict of torch.nn.Module; received a different one ({problem}): in an adapter, "
            f"set {kind}.state_dict = torch.nn.Module.state_dict, and load_state_dict likewise"
        )


def _check_copy(module: nn.Module, name: str) -> None:
    """Raises ValueError unless the module can be copied: copies run with modified weights."""
    try:
        copied(module)
    except RAISED as error:
        raise ValueError(f"{name}: expected a module that copy.deepcopy copies; it raises {in_short(error)}") from error


def _first(module: nn.Module, call: Call, longest: int | None) -> Discovery:
    """Discovers a module on the first batch that works.

    Raises:
      DiscoverError: none does; the first problem, preferably of a batch on which the module ran.
    """
    problems: list[DiscoverError] = []
    for batch in probes(call):
        try:
            return _discovered(module, call, batch, longest)
        except TooLarge:
            raise
        except DiscoverError as error:
            problems.append(error)
        except (ValueError, LookupError, ArithmeticError) as error:
            what = f"{type(error).__name__}: {error}"
            problems.append(DiscoverError(f"its operations can't be read as a Transformer ({what})"))
    raise next((one for one in problems if not isinstance(one, CannotRun)), problems[0])


def _rounds(module: nn.Module, call: Call) -> bool:
    """Returns whether a module in float64 computes fractions in a lower precision, or fails in float64."""
    try:
        recording = _recorded(call.wrap(_jittered(module)), next(iter(probes(call))))
    except DiscoverError:
        return True
    return any(value.has_low_fractions for value in recording.values)


def _more_exact(
    module: nn.Module, call: Call, rebuild: Callable[[], Any] | None, longest: int | None
) -> Discovery | None:
    """Discovers the module with its lower-precision computations in float64; None if that is no more exact."""
    try:
        found = _first(module, _exactly(call, {} if rebuild is None else exact_constants(rebuild)), longest)
    except RAISED:  # the user's own code may raise anything in a precision that it doesn't expect
        return None
    return found if found.rounding <= FLOAT64_RELATIVE_RMS else None


def _discovered(module: nn.Module, call: Call, batch: Batch, longest: int | None) -> Discovery:
    """Reads the module on one batch.

    Raises:
      DiscoverError: it can't be expressed; the model's logits differ from the module's.
    """
    graph = with_small_scores(lambda: call.wrap(_jittered(module)), lambda adapter: _recorded(adapter, batch))
    recording = graph.recording
    structure = read_structure(graph, call.source_pad_id, call.target_pad_id)
    tables = tables_among(call.constants or {}, structure.tables.values())
    if tables:
        return _discovered(module, _without(call, tables), batch, longest)
    if recording.narrowed:
        lines = ", ".join(recording.narrowed)
        return _discovered(module, _kept_wide(call, lines), batch, longest)
    undecided = [one for one in structure.distances.values() if len(one) > 1]
    if undecided:
        farther = longer(call, batch)
        if farther is not None:
            return _discovered(module, call, farther, longest)
        fits = ", ".join(map(str, sorted(undecided[0])))
        structure.notes.append(
            f"relative_max_distance may be any of {fits}: the module's sentences are too short to distinguish them"
        )
    with with_conclusions(structure):
        return _ported(module, call, batch, recording, structure, longest)


def _recorded(adapter: nn.Module, batch: Batch) -> Recording:
    """Runs a module in float64 and records it.

    Raises:
      CannotRun: it fails.
    """
    import torch

    try:
        return record(adapter, torch.from_numpy(batch.source_ids), torch.from_numpy(batch.target_ids))
    except RecordingTooLarge as error:
        raise TooLarge(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise failure(adapter, batch, error) from error


def _ported(
    module: nn.Module, call: Call, batch: Batch, recording: Recording, structure: Structure, longest: int | None
) -> Discovery:
    """Makes the config, the map and the model, and compares logits on other batches.

    Raises:
      DiscoverError: the model's logits differ from the module's.
    """
    config = make_config(structure, (call.max_source_length, call.max_target_length))
    names = name_map(recording, structure.leaves, PREFIX)
    candidate = Candidate(config, names, structure.tables, structure.is_normalised)
    model = candidate.model(module)
    within = _within_tables(call, structure)
    notes = [*within.notes, *structure.notes]
    if batch.padding != "inside":
        notes.append(f"the conclusions hold only for padding {batch.padding} of sentences")
    lengths = reach(config, within, sum(one.numel() for one in module.parameters()), longest)
    found, unchecked = check_all(module, within, candidate, model, batch.padding, structure.rounding, lengths.longest)
    notes += unchecked
    if structure.rounding > FLOAT64_RELATIVE_RMS:
        notes.append(
            f"its angles are rounded to lower precision than float64 (by {structure.rounding:.1e}): so do logits"
        )
    failed = [check for check in found if not check.passed]
    if failed:
        worst = max(failed, key=lambda check: check.residual)
        raise Differs(f"the conclusions miss part of the function: logits differ by {worst.residual:.1e} on {worst}")
    return Discovery(
        model, names, call, tuple(structure.conclusions), found, tuple(notes),
        reach=coverage(lengths, found), rounding=structure.rounding,
    )  # fmt: skip


def _within_tables(call: Call, structure: Structure) -> Call:
    """Limits the call to the rows of the module's position tables, with a note of each limit."""
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        field, rows = f"max_{side}_length", structure.rows.get(stack)
        if (
            rows is None
            or rows >= (getattr(call, field) or LONGEST)
            or structure.fields[f"{stack}.positions.index"] == "batch_row"
        ):
            continue
        note = f"its position table has {rows} rows: longer {side}s are unknown"
        limit: dict[str, Any] = {field: rows}
        call = replace(call, **limit, notes=(*call.notes, note))
    return call


def _completed(found: Discovery, module: nn.Module, decoder_start_id: int | None, eos_id: int | None) -> Discovery:
    """Adds the call for any sentence length, the module's bfloat16 behaviour, and the ids that begin and end
    sentences."""
    check_return(module, found.model)
    padded = found.call.padded()
    notes = found.notes if padded is found.call else (*found.notes, padded.notes[-1])
    padding = found.checks[0].padding
    problem = bfloat16_problem(module, found.call, padding)
    if problem:
        notes = (*notes, f"it doesn't run in bfloat16 ({problem}), so bfloat16 isn't compared")
    names = [one.removeprefix(PREFIX) for one in without_gradient(module, found.call, padding)]
    untrained = [one for one in names if not found.names.ignores([one])]
    if untrained:
        more = f" and {len(untrained) - 1} more" if len(untrained) > 1 else ""
        notes = (*notes, f"no gradient reaches {untrained[0]}{more}; the model trains them")
    generation = replace(found.model.generation, decoder_start_id=decoder_start_id, eos_id=eos_id)
    model = replace(found.model, generation=generation)
    return replace(found, model=model, call=padded, notes=notes, bfloat16_problem=problem)


def _kept_wide(call: Call, places: str) -> Call:
    """Returns the call within `wide`, with a note of the places where the module computes in lower precision."""
    lines = ("from jax_transformer.programs.modes import wide", "", "with wide(self.module):")
    note = f"in float64, casts to lower precision are skipped at {places}"
    return replace(call, lines=(*lines, *(f"    {line}" for line in call.lines)), notes=(*call.notes, note))


def _exactly(call: Call, constants: Mapping[str, torch.Tensor]) -> Call:
    """Returns the call within `exact`, with a note of the constants."""
    lines = ("from jax_transformer.programs.exact import exact", "", "with exact(self.module, self.constants):")
    names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in constants))
    note = "its computations in lower precision are compared in float64"
    return replace(
        call,
        lines=(*lines, *(f"    {line}" for line in call.lines)),
        notes=(*call.notes, f"{note}, with exact values of {names}" if names else note),
        constants=constants,
    )


def _without(call: Call, names: Collection[str]) -> Call:
    """Returns the call without these exact constants."""
    constants = {name: tensor for name, tensor in (call.constants or {}).items() if name not in names}
    return replace(call, constants=constants, rounded=(*call.rounded, *names))


def _jittered(module: nn.Module) -> nn.Module:
    """Returns a copy in float64 whose trained parameters have no special value left from initialization."""
    import torch

    wide = copied(module).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in wide.parameters():
            if parameter.requires_grad:
                parameter.add_(JITTER * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return wide
