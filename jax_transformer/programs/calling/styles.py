"""Chooses the masks of a call in one style, since a program's masks share their axes and polarity."""

from __future__ import annotations

from collections.abc import Iterator

from jax_transformer.programs.calling.forms import Assignment, Form
from jax_transformer.programs.calling.options import OMIT, Option
from jax_transformer.programs.calling.roles import Parameter

Slot = tuple[int, str]
"""(stage, parameter)"""

RANKS: dict[str, dict[str, tuple[str, ...]]] = {
    "3": {"source": ("[B, 1, S]",), "target": ("[B, T, T]", "[B, 1, T]"), "cross": ("[B, 1, S]",)},
    "4": {"source": ("[B, 1, 1, S]",), "target": ("[B, 1, T, T]", "[B, 1, 1, T]"), "cross": ("[B, 1, 1, S]",)},
    "2": {"source": ("[B, S]", "[S, S]"), "target": ("[T, T]", "[B, T]"), "cross": ("[B, S]", "[T, S]")},
    "2 padding": {"source": ("[B, S]",), "target": ("[B, T]",), "cross": ("[B, S]",)},
    "time first": {"source": ("[S, B]",), "target": ("[T, B]",), "cross": ("[S, B]",)},
    "time first 3": {"source": ("[1, S, B]",), "target": ("[T, T, B]",), "cross": ("[1, S, B]",)},
    "3 full": {"source": ("[B, S, S]",), "target": ("[B, T, T]", "[B, 1, T]"), "cross": ("[B, T, S]",)},
    "4 full": {"source": ("[B, 1, S, S]",), "target": ("[B, 1, T, T]", "[B, 1, 1, T]"), "cross": ("[B, 1, T, S]",)},
}
"""Axes of masks in one style → side → layouts of its only mask, and of a second mask for the same side."""
CAUSAL_RANKS = {"3": ("[1, T, T]",), "3 full": ("[1, T, T]",), "4": ("[1, 1, T, T]",), "4 full": ("[1, 1, T, T]",)}
CAUSAL_RANKS |= {"time first 3": ("[T, T, 1]",)}
"""The same for masks whose name says that they hide only later positions."""
KIND_ORDER = ("real", "hidden", "real_int", "added", "hidden_int", "real_float", "hidden_float")


def variants(slots: dict[Slot, list[Option]]) -> list[Assignment]:
    """Lists assignments without masks, or with None for required ones: one for each form of memory."""
    plain = {slot: options[0] for slot, options in slots.items()}
    memory = [slot for slot, options in slots.items() if options[0].text == "memory"]
    others = slots[memory[0]][1:] if memory else []
    return [plain, *(plain | dict.fromkeys(memory, option) for option in others)]


def styled(form: Form, slots: dict[Slot, list[Option]], variant: Assignment) -> Iterator[Assignment]:
    """Yields a variant with masks of each style."""
    masks = mask_slots(form)
    for kind in KIND_ORDER if masks else ():
        for rank in RANKS:
            yield {**variant, **{slot: _option(slot, form, slots[slot], rank, kind) for slot in masks}}


def mask_slots(form: Form) -> dict[Slot, Parameter]:
    """Returns the parameters that take masks."""
    return {
        (number, parameter.name): parameter
        for number, stage in enumerate(form.stages)
        for parameter in stage.parameters
        if parameter.is_mask
    }


def _option(slot: Slot, form: Form, options: list[Option], rank: str, kind: str) -> Option:
    """Returns the option of this style for a mask."""
    number, name = slot
    parameters = form.stages[number].parameters
    mask = next(one for one in parameters if one.name == name)
    side = {"target_mask": "target", "cross_mask": "cross"}.get(mask.role, "source")
    others = [one for one in parameters if one.role == mask.role and one.name != name]
    layouts = CAUSAL_RANKS.get(rank, ("[T, T]",)) if mask.is_plainly_causal else RANKS[rank][side]
    is_padding = mask.is_padding and not mask.is_causal
    has_second = any(one.is_padding != mask.is_padding for one in others)
    if side == "target":
        layout = layouts[-1] if is_padding and (has_second or rank == "2") else layouts[0]
    elif len(layouts) > 1 and has_second and not is_padding:
        layout = layouts[1]
    else:
        layout = layouts[0]
    fitting = [option for option in options if option.layout == layout and option.kind == kind]
    if layout in ("[S, S]", "[T, S]") and not mask.is_required:
        return OMIT
    return fitting[0] if fitting else options[0]
