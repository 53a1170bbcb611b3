"""Explains why no call of a module was found, and drafts an adapter for the user to complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.programs.calling import adapters
from jax_transformer.programs.calling.forms import signature
from jax_transformer.programs.calling.options import setup
from jax_transformer.programs.calling.outputs import describe
from jax_transformer.programs.calling.search import Candidate
from jax_transformer.programs.calling.trials import Runner, first_line, place

if TYPE_CHECKING:
    from torch import nn

FAULTS = {
    "is finite": "expected finite logits; every call that runs gives NaN or infinity: check the module's weights",
    "repeats": "expected deterministic logits in evaluation mode; the module draws random numbers: switch that off",
}
"""Property → the message for a module that lacks it."""


class CallError(ValueError):
    """Raised when no way to call a module is found. The message lists the attempts and the next step.

    Attributes:
      adapter: the text of an adapter to complete.
    """

    def __init__(self, message: str, adapter: str = "") -> None:
        super().__init__(message)
        self.adapter = adapter


def reason(name: str, runner: Runner, closest: Candidate | None) -> str:
    """Explains in one line why no call was found.

    Args:
      closest: the call that gets furthest; None if there was none.
    """
    function = f"forward{signature(runner.module.forward)}"
    if closest is None:
        return (
            f"{name}: expected parameters for source and target ids; received {function}, whose call with ids alone "
            "doesn't run: write an adapter if it reads both"
        )
    if closest.runs:
        return (
            f"{name}: expected logits [B, T, V] from {function}; received {describe(closest.outcome.value)}: "
            "complete the drafted adapter so that it returns logits"
        )
    error = closest.outcome.error
    assert error is not None
    if any(word in str(error) for word in ("CUDA", "cuda", "NVIDIA")):
        return (
            f"{name}: the module moves tensors to CUDA at {place(error)} ({first_line(error)}): "
            "use the device of its inputs there"
        )
    return (
        f"{name}: none of {runner.trials} ways to call {function} runs; the one that gets furthest fails at "
        f"{place(error) or 'its call'} ({first_line(error)}): complete the drafted adapter"
    )


def draft(name: str, container: str, module: nn.Module, closest: Candidate | None, pads: tuple[int, int]) -> str:
    """Writes an adapter to complete: the call that gets furthest, and the values that its arguments may take."""
    notes = [f"The module's own: forward{signature(module.forward)}"]
    lines = ["return self.module(source_ids, decoder_input_ids)"]
    if closest is not None:
        lines = list(closest.lines) or closest.form.write(closest.chosen, pads)
        error = closest.outcome.error
        if error is not None:
            notes.append(f"Of all calls tried, this one gets furthest. It fails at {place(error)}:")
            notes.append(first_line(error))
        elif not closest.lines:
            notes.append(f"This call runs, and returns {describe(closest.outcome.value)}.")
            notes.append(
                "`outputs_of` and `softmax_inputs` of jax_transformer.programs.modes take logits out of a module that "
                "keeps them to itself."
            )
    notes.append("The first lines of forward define the parts of masks and lengths; True = may attend.")
    missing = [line for line in setup(*pads) if line not in lines]
    return adapters.file_text([*missing, *lines], name, notes, holder=container, is_draft=True)
