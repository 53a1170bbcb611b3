"""The catalogue of training faults: wrong losses and optimizer steps known from real programs, each as a rule.

Changes that no input can show aren't faults: a log-softmax of a log-softmax is itself, and SGD without momentum decays
in the same way under both kinds of decay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

from jax_transformer.parity.oracle.losses import LossRule, MeanOver, Smoothing
from jax_transformer.parity.oracle.updates import UpdateRule

Rule = TypeVar("Rule", LossRule, UpdateRule)


class TrainingVariant(NamedTuple):
    """Describes one fault."""

    name: str
    """The fault in the report's words."""
    changes: Mapping[str, Any]
    """The fields of the rule that it changes."""
    shown_by: str
    """The inputs on which it differs from the rule and from the variants before it."""

    def of(self, rule: Rule) -> Rule:
        """Returns the rule with the fault."""
        return replace(rule, **self.changes)


def pairs(variants: Iterable[TrainingVariant]) -> Iterator[TrainingVariant]:
    """Yields pairs of faults that change different fields."""
    for one, other in combinations(variants, 2):
        if one.changes.keys().isdisjoint(other.changes):
            shown_by = " and ".join(dict.fromkeys((one.shown_by, other.shown_by)))
            yield TrainingVariant(f"{one.name}, and {other.name}", {**one.changes, **other.changes}, shown_by)


def _differing(rule: LossRule | UpdateRule, variants: Iterable[TrainingVariant]) -> list[TrainingVariant]:
    """Returns the variants that differ from the rule."""
    return [
        variant
        for variant in variants
        if any(getattr(rule, field) != value for field, value in variant.changes.items())
    ]


# --- losses


PADS = "labels with pads"
SMOOTHED: dict[Smoothing, str] = {
    "all": "ε/V on every entry",
    "others": "ε/(V − 1) on every other entry",
    "others_but_pad": "ε/(V − 2) on every other entry but the pad's",
    "all_but_pad": "ε/(V − 1) on every entry but the pad's",
    "others_by_all": "ε/V on every other entry",
    "others_by_two_less": "ε/(V − 2) on every other entry",
}
MEANS: dict[MeanOver, tuple[str, str]] = {
    "tokens": ("mean over tokens", "sentences of different lengths"),
    "sum": ("summed rather than averaged", "several tokens"),
    "sentences": ("mean over sentences", "sentences of different lengths"),
    "batch": ("sum divided by the number of sentences", "several sentences"),
    "positions": ("sum divided by all positions", "positions that don't count"),
    "elements": ("sum divided by all elements, the vocabulary's included", "several logits"),
}
USUAL_SMOOTHING = 0.1
SMOOTHING_AMOUNTS = (0.05, 0.1, 0.2)
SPECIAL_IDS = (0, 1, 2, 3)
"""Ids that a program may take for the pad's."""


def loss_variants(rule: LossRule) -> list[TrainingVariant]:
    """Returns every single fault that a loss under this rule can have."""
    return _differing(rule, _loss_variants(rule))


def _loss_variants(rule: LossRule) -> Iterator[TrainingVariant]:
    yield TrainingVariant(
        "pads not counted" if rule.counts_pads else "pads counted", {"counts_pads": not rule.counts_pads}, PADS
    )
    for mean_over, (name, shown_by) in MEANS.items():
        yield TrainingVariant(name, {"mean_over": mean_over}, shown_by)
    yield from _smoothings(rule)
    yield TrainingVariant(
        "softmax before the log-softmax", {"normalizer": "log_softmax_of_softmax"}, "logits that differ"
    )
    yield TrainingVariant("log-softmax missing", {"normalizer": "none"}, "logits that differ")
    yield TrainingVariant(
        "labels late by one: compared with the logits before", {"label_shift": 1}, "labels that differ"
    )
    yield TrainingVariant(
        "labels early by one: compared with the logits after", {"label_shift": -1}, "labels that differ"
    )
    for number in SPECIAL_IDS:
        if number != rule.pad_id:
            name = f"labels of {number} not counted" + (
                "" if rule.counts_pads else f", and those of {rule.pad_id}, the pad, counted"
            )
            shown_by = f"labels with {number} and with {rule.pad_id}"
            yield TrainingVariant(name, {"pad_id": number, "counts_pads": False}, shown_by)
    yield TrainingVariant("sign reversed", {"negated": not rule.negated}, "any loss")


def _smoothings(rule: LossRule) -> Iterator[TrainingVariant]:
    """Yields wrong amounts of smoothing."""
    if not rule.label_smoothing:
        for smoothing, name in SMOOTHED.items():
            changes = {"label_smoothing": USUAL_SMOOTHING, "smoothing": smoothing}
            yield TrainingVariant(f"smoothed by {USUAL_SMOOTHING:g}: {name}", changes, "logits that differ")
        return
    is_divergence = rule.smoothing == "others_but_pad" if rule.subtracts_entropy is None else rule.subtracts_entropy
    yield TrainingVariant("smoothing missing", {"label_smoothing": 0.0}, "logits that differ")
    for amount in SMOOTHING_AMOUNTS:
        yield TrainingVariant(f"smoothed by {amount:g}", {"label_smoothing": amount}, "logits that differ")
    for smoothing, name in SMOOTHED.items():
        if smoothing != rule.smoothing:
            changes = {"smoothing": smoothing, "subtracts_entropy": is_divergence}
            yield TrainingVariant(f"smoothing: {name}", changes, "logits that differ")
            measure = "cross-entropy" if is_divergence else "divergence"
            other = {"smoothing": smoothing, "subtracts_entropy": not is_divergence}
            yield TrainingVariant(f"smoothing: {name}, by {measure}", other, "logits that differ")
    name = (
        "entropy of the smoothed labels not subtracted"
        if is_divergence
        else "entropy of the smoothed labels subtracted"
    )
    yield TrainingVariant(name, {"subtracts_entropy": not is_divergence}, "logits that differ")


# --- updates


SMALL = "gradients about as small as ε"
SECOND = "a second step, along other gradients"
LARGE = "parameters far larger than their gradients"
CHANGING = "rates that change from step to step"
EPSILONS = (1e-5, 1e-6, 1e-7, 1e-8, 5e-9, 1e-9)
SECOND_DECAYS = (0.9, 0.95, 0.98, 0.99, 0.999)
USUAL_CLIP, USUAL_DECAY = 1.0, 0.01


def update_variants(rule: UpdateRule) -> list[TrainingVariant]:
    """Returns every single fault that a step under this rule can have."""
    return _differing(rule, _update_variants(rule))


def _update_variants(rule: UpdateRule) -> Iterator[TrainingVariant]:
    yield from _clips(rule)
    yield from _adams(rule) if rule.optimizer == "adam" else _momenta(rule)
    yield from _decays(rule)
    yield from _schedules()
    yield from _pads(rule)
    yield TrainingVariant(
        "maximises: the step has the other sign", {"ascends": not rule.ascends}, "gradients other than zero"
    )


def _clips(rule: UpdateRule) -> Iterator[TrainingVariant]:
    exceeds = "gradients whose norm exceeds the clip"
    if not rule.clip_norm:
        yield TrainingVariant(
            f"clipped to norm {USUAL_CLIP:g}", {"clip_norm": USUAL_CLIP}, f"gradients whose norm exceeds {USUAL_CLIP:g}"
        )
        return
    yield TrainingVariant("clipping missing", {"clip_norm": 0.0}, exceeds)
    shown_by = f"{exceeds}, by another factor in each step"
    yield TrainingVariant("clipped by norm + 1e-6", {"clip_epsilon": 1e-6}, shown_by)
    yield TrainingVariant("clipped by the norm, without + 1e-6", {"clip_epsilon": 0.0}, shown_by)
    yield TrainingVariant(
        "clipped parameter by parameter", {"clip_kind": "each"}, "parameters whose own gradients' norms exceed the clip"
    )
    yield TrainingVariant("clipped value by value", {"clip_kind": "values"}, "gradients with values above the clip")


def _adams(rule: UpdateRule) -> Iterator[TrainingVariant]:
    yield TrainingVariant("ε inside the root", {"eps_inside_root": True}, SMALL)
    yield TrainingVariant("ε outside the root", {"eps_inside_root": False}, SMALL)
    yield TrainingVariant(
        "ε added before the bias is corrected", {"eps_uncorrected": True}, f"the first steps, {SMALL}"
    )
    for eps in EPSILONS:
        yield TrainingVariant(f"ε = {eps:g}", {"eps": eps}, SMALL)
    yield TrainingVariant("no bias correction", {"bias_correction": False}, "the first steps")
    yield TrainingVariant("bias correction a step ahead", {"correction_offset": 1}, "the first steps")
    yield TrainingVariant("β₁ and β₂ swapped", {"b1": rule.b2, "b2": rule.b1}, SECOND)
    for b2 in SECOND_DECAYS:
        yield TrainingVariant(f"β₂ = {b2:g}", {"b2": b2}, SECOND)
    yield TrainingVariant("SGD rather than Adam", {"optimizer": "sgd"}, "gradients other than zero")


def _momenta(rule: UpdateRule) -> Iterator[TrainingVariant]:
    if rule.momentum:
        yield TrainingVariant("momentum missing", {"momentum": 0.0}, SECOND)
        yield TrainingVariant(
            "momentum takes 1 − momentum of each gradient", {"momentum_averages": True}, "gradients other than zero"
        )
        yield TrainingVariant("Nesterov's momentum", {"nesterov": True}, "gradients other than zero")
    else:
        yield TrainingVariant("momentum 0.9", {"momentum": 0.9}, SECOND)
    yield TrainingVariant("Adam rather than SGD", {"optimizer": "adam"}, "gradients other than zero")


def _decays(rule: UpdateRule) -> Iterator[TrainingVariant]:
    if not rule.weight_decay:
        for kind, name in (("decoupled", "decoupled"), ("l2", "L2")):
            if kind == "decoupled" or _kinds_differ(rule):
                changes = {"weight_decay": USUAL_DECAY, "weight_decay_kind": kind}
                yield TrainingVariant(
                    f"{name} decay of {USUAL_DECAY:g}", changes, SECOND if rule.optimizer == "sgd" else LARGE
                )
        return
    yield TrainingVariant("decay missing", {"weight_decay": 0.0}, LARGE)
    if _kinds_differ(rule):
        shown_by = SECOND if rule.optimizer == "sgd" else LARGE
        yield TrainingVariant("decoupled decay for L2", {"weight_decay_kind": "decoupled"}, shown_by)
        yield TrainingVariant("L2 decay for decoupled", {"weight_decay_kind": "l2"}, shown_by)
    unscaled = {"weight_decay_kind": "decoupled", "decay_takes_rate": False}
    yield TrainingVariant("decoupled decay, without the learning rate", unscaled, LARGE)
    if rule.clip_norm:
        clipped = {"weight_decay_kind": "l2", "decay_is_clipped": True}
        yield TrainingVariant("L2 decay added before clipping", clipped, "gradients whose norm exceeds the clip")
    yield TrainingVariant(
        "biases and scales not decayed", {"decays_vectors": False}, "biases and scales other than zero"
    )
    yield TrainingVariant(
        "biases and scales decayed as well", {"decays_vectors": True}, "biases and scales other than zero"
    )


def _kinds_differ(rule: UpdateRule) -> bool:
    return rule.optimizer == "adam" or rule.momentum > 0


def _schedules() -> Iterator[TrainingVariant]:
    yield TrainingVariant("schedule a step early", {"rate_offset": 1}, CHANGING)
    yield TrainingVariant("schedule a step late: the first rate twice", {"rate_offset": -1}, CHANGING)
    late = {"rate_offset": -1, "rate_before_first": "zero"}
    yield TrainingVariant("schedule a step late: the first rate is 0", late, "the first step")


def _pads(rule: UpdateRule) -> Iterator[TrainingVariant]:
    if rule.pad_rows:
        shown_by = "gradients of pads other than zero"
        yield TrainingVariant("pad row updated", {"pad_rows_move": "as_others"}, shown_by)
        if rule.weight_decay:
            yield TrainingVariant("pad row updated by its decay only", {"pad_rows_move": "by_decay"}, shown_by)
        yield TrainingVariant("pad row not updated", {"pad_rows_move": "never"}, f"{shown_by}, or decay")
