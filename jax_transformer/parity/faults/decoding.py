"""The catalogue of decoding faults: wrong searches, and wrong tokens, positions and masks fed to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.parity.faults.cache_positions import at_other_positions
from jax_transformer.parity.oracle.decoding import Captured, Decoded, DecodeRule, LogitsOf, decode, logits_of_model
from jax_transformer.parity.oracle.graph import Node, Source, model_inputs, nodes

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


class DecodedModel(NamedTuple):
    """Holds a model to decode, as for `logits_of_model`."""

    config: TransformerConfig
    params: Mapping[str, Any]
    source_ids: Source


@dataclass(frozen=True)
class DecodingProblem:
    """Holds sentences to decode, correctly and with every fault; each result is computed once."""

    rule: DecodeRule
    logits_of: LogitsOf
    count: int
    """The number of sentences."""
    model: DecodedModel | None = None
    """None: only the logits are known, so no fault of positions, masks or padding is tried."""

    @classmethod
    def for_model(
        cls, rule: DecodeRule, config: TransformerConfig, params: Mapping[str, Any], source_ids: Source
    ) -> DecodingProblem:
        """Returns the problem of decoding with a model. Raises ValueError as `logits_of_model` does."""
        logits_of = remembered(logits_of_model(config, params, source_ids))
        rows = len(model_inputs(config, source_ids)["source_ids"])
        return cls(rule, logits_of, rows, DecodedModel(config, params, source_ids))

    @cached_property
    def truth(self) -> Decoded:
        return decode(self.rule, self.logits_of, self.count)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns the outcome of each fault that this problem can have."""
        return tuple(_outcomes(self))

    def ruled(self, **changes: Any) -> Decoded:
        """Decodes under the rule with some fields changed."""
        return decode(dataclasses.replace(self.rule, **changes), self.logits_of, self.count)

    def fed(self, change: Callable[[np.ndarray], np.ndarray]) -> Decoded:
        """Decodes while the model reads changed prefixes [N, T] instead of the decoded ones."""
        return decode(self.rule, lambda prefixes, rows: self.logits_of(change(prefixes), rows), self.count)

    def under(self, **changes: Any) -> Decoded:
        """Decodes with changed options, by short names."""
        config, params, source_ids = self.known_model
        return decode(self.rule, logits_of_model(config.replace(**changes), params, source_ids), self.count)

    def replacing(self, replace: Mapping[str, Callable[[Captured], np.ndarray]]) -> Decoded:
        """Decodes with changed activations or masks. Raises ValueError if the model lacks them."""
        return decode(self.rule, logits_of_model(*self.known_model, replace=replace), self.count)

    @property
    def known_model(self) -> DecodedModel:
        """Returns the model. Raises LookupError if only its logits are known."""
        if self.model is None:
            raise LookupError("no model")
        return self.model


class Variant(NamedTuple):
    """Describes one fault."""

    name: str
    """The fault in the report's words."""
    shows_on: str
    """The inputs on which it changes the result."""
    decode: Callable[[DecodingProblem], Decoded]
    """Decodes with the fault. Raises LookupError or ValueError if it doesn't apply."""
    changes_scores_alone: bool = False
    """Whether the fault changes only scores: the previous variant decodes the same tokens."""


class Outcome(NamedTuple):
    """Holds the result of a problem decoded with a fault."""

    variant: Variant
    decoded: Decoded


MOST_REMEMBERED = 1 << 24
"""Maximum number of cached logits (128 MiB)."""


def remembered(logits_of: LogitsOf) -> LogitsOf:
    """Returns the function with a cache: most variants need the logits of the same prefixes."""
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def answer(prefixes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if sum(array.size for array in kept.values()) > MOST_REMEMBERED:
            kept.clear()
        keys = [(row, *prefix) for row, prefix in zip(rows.tolist(), prefixes.tolist(), strict=True)]
        if new := [key for key in dict.fromkeys(keys) if key not in kept]:
            found = logits_of(np.array([key[1:] for key in new]), np.array([key[0] for key in new]))
            kept.update(zip(new, found, strict=True))
        return np.stack([kept[key] for key in keys])

    return answer


def _outcomes(problem: DecodingProblem) -> Iterator[Outcome]:
    for variant in catalogue(problem):
        try:
            with np.errstate(all="ignore"):
                yield Outcome(variant, variant.decode(problem))
        except (ValueError, LookupError):
            continue


def catalogue(problem: DecodingProblem) -> Iterator[Variant]:
    """Yields every fault that decoding by this rule can have."""
    yield from _scores(problem.rule)
    yield from _searches(problem.rule)
    yield from _ends(problem.rule)
    yield from _prefixes(problem.rule)
    if problem.model is not None:
        yield from _caches(problem.model.config)
        yield from _padding(problem.model.config)


# --- comparison of hypotheses

LENGTHS = "sentences whose best hypotheses have several lengths, and the scores"
POWERS = (0.0, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
PENALTIES = {"huggingface": "n^p (huggingface)", "gnmt": "((5 + n) / 6)^p (gnmt)"}


def _ruled(name: str, shows_on: str, **changes: Any) -> Variant:
    return Variant(name, shows_on, partial(DecodingProblem.ruled, **changes))


def _scores(rule: DecodeRule) -> Iterator[Variant]:
    cut_off = "sentences that are cut off, and the scores"
    if rule.length_penalty:
        yield _ruled("end token not counted in the length", LENGTHS, counts_end=False)
        yield _ruled("start token counted in the length", LENGTHS, counts_start=True)
        yield _ruled(
            "start token counted in the length, the end token not", cut_off, counts_start=True, counts_end=False
        )
        yield _ruled("length penalty multiplied by", LENGTHS, length_penalty=-rule.length_penalty)
        (other,) = PENALTIES.keys() - {rule.semantics}
        yield _ruled(f"length penalty {PENALTIES[other]}", LENGTHS, semantics=other)
    for power in POWERS:
        if power != rule.length_penalty:
            yield _ruled(
                f"length penalty p = {power:g}" if power else "length penalty not applied",
                LENGTHS,
                length_penalty=power,
            )
    yield _ruled("scores without log-softmax", "several beams, and the scores", normalizes=False)


# --- search

STOPS: dict[Any, str] = {
    True: "stops with as many ended hypotheses as beams",
    False: "stops when the best open hypothesis has no better score",
    "never": "stops when no open hypothesis can reach a better score",
}


def _searches(rule: DecodeRule) -> Iterator[Variant]:
    yield _ruled("takes the last of equal logits", "logits that are equal", ties="last")
    if rule.beam_size == 1:
        return
    for early_stopping, name in STOPS.items():
        if early_stopping != rule.early_stopping:
            yield _ruled(
                name,
                "hypotheses that end early, while open ones become better",
                early_stopping=early_stopping,
            )
    ends = "hypotheses that end next to more probable ones that go on"
    yield _ruled("considers as many candidates as beams, not twice as many", ends, candidates=1)
    yield _ruled("hypotheses end outside the best candidates", ends, any_rank_ends=True)
    yield _ruled("ended hypotheses go on", "hypotheses that end before better ones", keeps_ended=True)
    yield _ruled("cache not reordered with the beams", "beams that change order", reorders_cache=False)
    yield _ruled("sources tiled, not repeated, for the beams", "several sentences", tiles_sources=True)


# --- beginnings and ends of targets


def _ends(rule: DecodeRule) -> Iterator[Variant]:
    early = "sentences that end early"
    yield _ruled("end token ignored", "a batch in which every sentence ends early", eos_ends=False)
    if rule.beam_size == 1:
        yield Variant("sentences that have ended go on until all have", early, _until_all_have_ended)
        yield Variant(
            "sentences that have ended go on until all have, not in the scores",
            early,
            _until_all_have_ended_but_for_scores,
            changes_scores_alone=True,
        )
    yield _ruled("one token more at most", "sentences that are cut off", max_new_tokens=rule.max_new_tokens + 1)
    yield _ruled("one token fewer at most", "sentences that are cut off", max_new_tokens=rule.max_new_tokens - 1)


def _until_all_have_ended(problem: DecodingProblem) -> Decoded:
    return problem.ruled(eos_ends=False, max_new_tokens=problem.truth.sequences.shape[1])


def _until_all_have_ended_but_for_scores(problem: DecodingProblem) -> Decoded:
    return _until_all_have_ended(problem)._replace(scores=problem.truth.scores)


def _prefixes(rule: DecodeRule) -> Iterator[Variant]:
    starts: dict[int, str] = {rule.pad_id: "padding", rule.eos_id: "the end token"}
    for index in dict.fromkeys((rule.pad_id, rule.eos_id, 0, 1, 2, 3)):
        if index != rule.decoder_start_id:
            yield _ruled(f"starts with {starts.get(index, f'id {index}')}", "any sentences", decoder_start_id=index)
    longer = "targets of several tokens"
    seen = f"{longer} after a start token that is not hidden as padding"
    yield Variant("start token missing after the first step", seen, partial(DecodingProblem.fed, change=_without_start))
    yield Variant("start token fed twice", "any sentences", partial(DecodingProblem.fed, change=_with_start_twice))
    yield Variant("newest token not fed", longer, partial(DecodingProblem.fed, change=_without_newest))


def _without_start(prefixes: np.ndarray) -> np.ndarray:
    return prefixes[:, 1:] if prefixes.shape[1] > 1 else prefixes


def _with_start_twice(prefixes: np.ndarray) -> np.ndarray:
    return np.concatenate([prefixes[:, :1], prefixes], axis=1)


def _without_newest(prefixes: np.ndarray) -> np.ndarray:
    return prefixes[:, :-1] if prefixes.shape[1] > 1 else prefixes


# --- the cache


def _caches(config: TransformerConfig) -> Iterator[Variant]:
    longer = "targets of several tokens"
    positions = config.decoder.positions
    if positions is not None and getattr(positions, "index", "column") != "batch_row":
        for by, name in ((1, "far"), (-1, "near")):
            yield Variant(f"cache position one too {name}", longer, partial(_at_other_positions, by=by))
    for name, sees in SEES.items():
        yield Variant(name, longer, partial(_seeing, sees=sees))
    if config.decoder.self_attention.window is not None:
        yield Variant("window missing while decoding", "targets longer than the window", _without_window)


SEES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "newest cache entry not visible": lambda query, key: (key != query) | (query == 0),
    "oldest cache entry not visible": lambda query, key: (key != 0) | (query == 0),
    "cache empty at every step": lambda query, key: key == query,
}
"""The keys that a query sees, among the correct ones; the first token always sees itself."""


def _seeing(problem: DecodingProblem, sees: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Decoded:
    config = problem.known_model.config.while_decoding()

    def mask(captured: Captured, node: Node) -> np.ndarray:
        inputs = {argument: captured[name] for argument, name in node.inputs.items()}
        numbers = np.arange(captured["decoder_input_ids"].shape[1])
        return node.compute(config, inputs, {}) & sees(numbers[:, None], numbers)

    masks = [one for one in nodes(config) if one.kind == "mask" and "source_ids" not in one.inputs.values()]
    if not masks:
        raise LookupError("no mask")
    return problem.replacing({node.name: partial(mask, node=node) for node in masks})


def _without_window(problem: DecodingProblem) -> Decoded:
    """Decodes over all of the cache in every layer."""
    config = problem.known_model.config.while_decoding()
    (node,) = (one for one in nodes(config) if one.name == "mask.decoder_window")
    parts = node.parts_of(config)
    parts |= {"spec": dataclasses.replace(parts["spec"], window=None)}

    def mask(captured: Captured) -> np.ndarray:
        return node.formula(**parts, **{argument: captured[name] for argument, name in node.inputs.items()})

    return problem.replacing({node.name: mask})


def _at_other_positions(problem: DecodingProblem, by: int) -> Decoded:
    """Decodes with every token but the first one position off, as a cache index that is incremented too early or too
    late does."""
    config, params, _ = problem.known_model
    return problem.replacing(at_other_positions(config, params, by))


# --- padding


def _padding(config: TransformerConfig) -> Iterator[Variant]:
    decoding = config.while_decoding()
    _, self_attention, cross_attention = decoding.attentions
    padded, hidden = "sources with padding", "a start token that is padding, or targets with padding inside"
    if cross_attention.padding != "none":
        yield _masked(
            "source's padding visible while decoding", padded, cross_padding="none", decoding_cross_padding=None
        )
    if self_attention.padding == "none":
        yield _masked(
            "target's padding hidden while decoding", hidden, decoder_padding="keys", decoding_decoder_padding=None
        )
    else:
        yield _masked(
            "target's padding visible while decoding", hidden, decoder_padding="none", decoding_decoder_padding=None
        )
    if decoding != config:
        yield _masked(
            "masks of training while decoding",
            f"{padded}; {hidden}",
            decoding_decoder_padding=None,
            decoding_cross_padding=None,
        )


def _masked(name: str, shows_on: str, **changes: Any) -> Variant:
    return Variant(name, shows_on, partial(DecodingProblem.under, **changes))
