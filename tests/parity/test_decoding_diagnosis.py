"""Why a candidate decodes other tokens: every known fault is found and named, rounding is forgiven, and what is unknown
has no name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.tolerances import DECODED_OTHERWISE, DECODING_MARGIN_FLOORS
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.generation import generate
from jax_transformer.model.decoder_state import DecoderState
from jax_transformer.model.functional import abstract_params
from jax_transformer.model.stack import Stack
from jax_transformer.parity.diagnosis.decoding import explain_decoding
from jax_transformer.parity.faults.decoding import DecodingProblem, catalogue
from jax_transformer.parity.oracle.decoding import Decoded, DecodeRule, LogitsOf, decode, log_softmax, logits_of_model
from jax_transformer.parity.oracle.formulas import sinusoid_table
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

START, EOS, PAD, MOST = 4, 3, 2, 10
FLOOR = 1e-13
CONFIG = TransformerConfig(
    source_vocab_size=17,
    target_vocab_size=15,
    d_model=12,
    num_heads=3,
    d_ff=14,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=12,
    source_pad_id=1,
    target_pad_id=PAD,
    dropout_rate=0.0,
    norm_placement="pre",
    final_norm=True,
)
RELATIVE = dataclasses.replace(
    CONFIG,
    position_kind="relative_bias",
    relative_buckets=6,
    relative_max_distance=5,
    decoder_padding="none",
    decoding_cross_padding="none",
)
PROBLEMS: dict[str, tuple[TransformerConfig, dict[str, Any], tuple[int, ...]]] = {
    "greedy": (CONFIG, {}, (3, 9)),
    "beams": (CONFIG, {"beam_size": 4}, (3, 9)),
    "stopped early": (CONFIG, {"beam_size": 4, "early_stopping": True}, (3, 9)),
    "gnmt": (CONFIG, {"beam_size": 3, "early_stopping": "never", "semantics": "gnmt", "length_penalty": 2.0}, (10, 11)),
    "start is padding": (CONFIG, {"beam_size": 2, "decoder_start_id": PAD, "length_penalty": 2.0}, (3, 9)),
    "windows": (dataclasses.replace(CONFIG, window=2, full_every=2), {"beam_size": 2}, (3, 9)),
    "relative": (RELATIVE, {"beam_size": 2, "early_stopping": True, "decoder_start_id": PAD}, (4, 11)),
}
"""Config, fields of the rule, and seeds of weights with which sentences end at several places."""
TIES = "takes the last of equal logits"


def make_params(config: TransformerConfig, seed: int) -> dict[str, Any]:
    """Random weights whose tokens depend on the source and on the place, so that some sentences end early, with id 3,
    and some don't."""
    rng = np.random.default_rng(seed)
    leaves = {path: 0.4 * rng.standard_normal(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    for path, leaf in leaves.items():
        if path.endswith("scale"):
            leaf += 1.0
        elif path.endswith("bias"):
            leaf *= 0.25
        elif path.startswith("constants"):
            leaf[:] = sinusoid_table(config.encoder.positions, config.d_model, len(leaf))
        elif path.endswith("_embedding/embedding"):
            leaf *= 2.0
        elif path.startswith("decoder") and path.endswith("query/kernel"):
            leaf *= 5.0
    leaves["head/kernel"][:, EOS] *= 2.0
    leaves["head/bias"][EOS] = 0.0
    return unflatten(leaves)


def make_sources() -> np.ndarray:
    sources = np.random.default_rng(0).integers(3, 17, (8, 6))
    for row, length in zip(sources, (6, 5, 4, 3, 2, 1, 6, 3), strict=True):
        row[length:] = 1
    return sources


def rule_of(**options: Any) -> DecodeRule:
    return DecodeRule(**{"max_new_tokens": MOST, "decoder_start_id": START, "eos_id": EOS, "pad_id": PAD, **options})


@cache
def make_problem(name: str, seed: int) -> DecodingProblem:
    config, options, _ = PROBLEMS[name]
    return DecodingProblem.for_model(rule_of(**options), config, make_params(config, seed), make_sources())


def causes(problem: DecodingProblem, received: Decoded, *, scored: bool) -> list[str] | None:
    """The names that are given to what was received; None where nothing is found."""
    explanation = explain_decoding(problem, received.sequences, received.scores if scored else None, logit_floor=FLOOR)
    assert explanation.forgiven == ()
    return None if explanation.finding is None else [match.variant for match in explanation.finding.matches]


def decoded_otherwise(problem: DecodingProblem, decoded: Decoded) -> int:
    """How many sentences have other tokens."""
    pairs = zip(decoded.sequences.tolist(), problem.truth.sequences.tolist(), strict=True)
    return sum(
        "".join(map(chr, one)).rstrip(chr(PAD)) != "".join(map(chr, other)).rstrip(chr(PAD)) for one, other in pairs
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_fault_is_found_and_named(name: str) -> None:
    """By the scores; by the tokens alone if enough sentences differ."""
    for seed in PROBLEMS[name][2]:
        problem, named = make_problem(name, seed), 0
        for variant, decoded in problem.outcomes:
            sentences = decoded_otherwise(problem, decoded)
            are_scored_otherwise = not np.allclose(decoded.scores, problem.truth.scores, rtol=1e-5, atol=1e-5)
            with_scores, by_tokens = (causes(problem, decoded, scored=scored) for scored in (True, False))
            assert (with_scores is not None) == (sentences > 0 or are_scored_otherwise), variant.name
            assert (by_tokens is not None) == (sentences > 0), variant.name
            assert with_scores is None or variant.name in with_scores
            assert by_tokens is None or (
                variant.name in by_tokens or variant.changes_scores_alone
                if sentences >= DECODED_OTHERWISE
                else by_tokens == []
            )
            named += with_scores == [variant.name]
        assert named > 20


def test_every_fault_changes_tokens_somewhere() -> None:
    """But for that of ties, which these logits don't have; so that no test above is of nothing."""
    problems = [make_problem(name, seed) for name, (_, _, seeds) in PROBLEMS.items() for seed in seeds]
    names = {variant.name for problem in problems for variant in catalogue(problem)}
    seen = {
        variant.name
        for problem in problems
        for variant, decoded in problem.outcomes
        if decoded_otherwise(problem, decoded)
    }
    assert names - seen == {TIES}


def test_faults_visible_in_the_logits_alone() -> None:
    """Without a model, nothing of its cache and masks."""
    whole = make_problem("beams", 3)
    problem = DecodingProblem(whole.rule, whole.logits_of, whole.count)
    assert {outcome.variant.name for outcome in problem.outcomes} < {outcome.variant.name for outcome in whole.outcomes}
    faulty = problem.ruled(reorders_cache=False)
    assert causes(problem, faulty, scored=True) == ["cache not reordered with the beams"]


# --- rounding


def noisy(logits_of: LogitsOf, size: float, seed: int) -> LogitsOf:
    rng = np.random.default_rng(seed)

    def answer(prefixes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        logits = logits_of(prefixes, rows)
        return logits + size * rng.uniform(-1.0, 1.0, logits.shape)

    return answer


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_rounding_is_no_fault(name: str) -> None:
    config, options, _ = PROBLEMS[name]
    for seed in range(20):
        problem = DecodingProblem.for_model(rule_of(**options), config, make_params(config, seed), make_sources())
        received = decode(problem.rule, noisy(problem.logits_of, 1e-6, seed), problem.count)
        assert explain_decoding(problem, received.sequences, received.scores, logit_floor=1e-6).finding is None


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_choice_between_near_equals_is_forgiven_and_reported(beam_size: int) -> None:
    rule = DecodeRule(beam_size=beam_size, max_new_tokens=2, decoder_start_id=0, eos_id=3, pad_id=0)

    def logits_of(prefixes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        tied = np.where(rows[:, None] == 1, [0.0, 1.0, 1.0 - 1e-9, -9.0], [0.0, 2.0, 1.0, -9.0])
        return np.where(prefixes.shape[1] == 1, tied, [[-9.0, -8.0, -7.0, 9.0]])

    problem = DecodingProblem(rule, logits_of, 2)
    received, scores = np.array([[1, 3], [2, 3]]), problem.truth.scores
    explanation = explain_decoding(problem, received, scores, logit_floor=1e-9)
    assert explanation.finding is None
    (forgiven,) = explanation.forgiven
    assert (forgiven.sentence, forgiven.place, forgiven.allowed) == (1, 0, DECODING_MARGIN_FLOORS * 1e-9)
    assert forgiven.margin == pytest.approx(1e-9 / (1 if beam_size == 1 else 2), rel=1e-5)
    strict = explain_decoding(problem, received, scores, logit_floor=1e-10)
    assert strict.forgiven == ()
    assert strict.finding is not None
    assert strict.finding.cause == "unexplained"
    assert strict.finding.local_error == 0.5
    wrong = explain_decoding(problem, np.array([[2, 3], [2, 3]]), logit_floor=1e-9)
    assert [one.sentence for one in wrong.forgiven] == [1]
    assert wrong.finding is not None


def test_another_choice_among_equals_is_named() -> None:
    whole = make_problem("greedy", 3)
    problem = DecodingProblem(whole.rule, lambda prefixes, rows: np.round(whole.logits_of(prefixes, rows)), whole.count)
    received = problem.ruled(ties="last")
    explanation = explain_decoding(problem, received.sequences, received.scores, logit_floor=FLOOR)
    assert explanation.finding is None
    assert len(explanation.forgiven) > 4
    assert {forgiven.margin for forgiven in explanation.forgiven} == {0.0}
    assert explanation.forgiven_as == (TIES,)


# --- faults of no catalogue


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_unknown_fault_has_no_name(name: str) -> None:
    config, _, seeds = PROBLEMS[name]
    for seed in seeds:
        problem, params = make_problem(name, seed), make_params(config, seed)
        rng = np.random.default_rng(seed)
        params["head"]["kernel"] = params["head"]["kernel"] * (
            1.0 + 0.01 * rng.standard_normal(params["head"]["kernel"].shape)
        )
        received = decode(problem.rule, logits_of_model(config, params, make_sources()), problem.count)
        finding = explain_decoding(problem, received.sequences, received.scores, logit_floor=FLOOR).finding
        assert finding is not None
        assert finding.cause == "unexplained"
        if received.sequences.tolist() != problem.truth.sequences.tolist():
            blind = explain_decoding(problem, received.sequences, logit_floor=FLOOR).finding
            assert blind is not None
            assert blind.cause == "unexplained"


def test_the_nearest_variant_is_reported() -> None:
    problem = make_problem("beams", 3)
    received = problem.ruled(reorders_cache=False)
    received.sequences[0, -1] = 5 + (received.sequences[0, -1] == 5)
    finding = explain_decoding(problem, received.sequences, received.scores, logit_floor=FLOOR).finding
    assert finding is not None
    assert finding.cause == "unexplained"
    assert finding.runner_up is not None
    assert finding.runner_up.variant == "cache not reordered with the beams"
    assert 0.0 < finding.runner_up.residual < 0.05 < finding.local_error


def test_distinguishing_inputs_are_reported() -> None:
    problem = make_problem("greedy", 11)
    received = problem.ruled(eos_ends=False)
    finding = explain_decoding(problem, received.sequences, logit_floor=FLOOR).finding
    assert finding is not None
    assert [match.variant for match in finding.matches] == [
        "end token ignored",
        "sentences that have ended go on until all have",
    ]
    assert finding.told_apart_by == (
        "a batch in which every sentence ends early (end token ignored); sentences that end early (sentences that "
        "have ended go on until all have)"
    )


def test_few_sentences_name_a_cause_only_with_scores() -> None:
    problem = make_problem("greedy", 11)
    received = problem.ruled(max_new_tokens=MOST - 1)
    assert decoded_otherwise(problem, received) == 1
    finding = explain_decoding(problem, received.sequences, logit_floor=FLOOR).finding
    assert finding is not None
    assert finding.cause == "unexplained"
    assert finding.runner_up == ("one token fewer at most", 0.0)
    assert finding.told_apart_by.startswith("the scores of the hypotheses, which were not given, or more sentences")
    assert causes(problem, received, scored=True) == ["one token fewer at most"]


# --- a program with a cache


@pytest.fixture
def program(x64: None, quick_compilation: None) -> Iterator[Callable[..., Decoded]]:
    """The project's own, with whatever was patched in it compiled in."""

    def run(name: str, seed: int) -> Decoded:
        jax.clear_caches()
        config, options, _ = PROBLEMS[name]
        model = Model(
            config, make_params(config, seed), None, None, GenerationConfig(decoder_start_id=START, eos_id=EOS)
        )
        found = generate(model, make_sources(), DecodingConfig(max_new_tokens=MOST, **options))
        return Decoded(found.sequences[:, 0], found.scores[:, 0], np.zeros((0, 0)))

    yield run
    jax.clear_caches()


def test_a_cache_that_is_not_reordered(program: Callable[..., Decoded], monkeypatch: pytest.MonkeyPatch) -> None:
    assert causes(make_problem("beams", 3), program("beams", 3), scored=True) is None
    monkeypatch.setattr(DecoderState, "reordered", lambda state, parents: state)
    assert causes(make_problem("beams", 3), program("beams", 3), scored=True) == ["cache not reordered with the beams"]


@pytest.mark.parametrize(("by", "name"), [(1, "cache position one too far"), (-1, "cache position one too near")])
def test_a_cache_that_counts_wrong(
    program: Callable[..., Decoded], monkeypatch: pytest.MonkeyPatch, by: int, name: str
) -> None:
    embed = Stack.embed

    def shifted(stack: Stack, vectors: Any, table: Any, numbers: Any, *rest: Any) -> Any:
        return embed(
            stack, vectors, table, numbers + by * (numbers > 0) if stack.stack.self_attention.causal else numbers, *rest
        )

    monkeypatch.setattr(Stack, "embed", shifted)
    assert causes(make_problem("greedy", 3), program("greedy", 3), scored=True) == [name]


# --- what can't be judged


@pytest.mark.parametrize(
    ("received", "scores", "floor", "message"),
    [
        (
            np.zeros((8, 2)),
            None,
            0.0,
            r"decoded tokens: expected integers of shape \[8, T\].*; received float64 of shape \[8, 2\]",
        ),
        (np.zeros((7, 2), int), None, 0.0, r"received int64 of shape \[7, 2\]"),
        (
            np.zeros((8, 2), int),
            np.zeros((8, 1)),
            0.0,
            r"scores of .* of shape \[8\]; received float64 of shape \[8, 1\]",
        ),
        (np.zeros((8, 2), int), None, np.nan, "logit_floor: expected a finite number, at least 0; received nan"),
    ],
)
def test_unjudgeable_results_are_refused(
    received: np.ndarray, scores: np.ndarray | None, floor: float, message: str
) -> None:
    with pytest.raises(ParityError, match=message):
        explain_decoding(make_problem("greedy", 3), received, scores, logit_floor=floor)


def test_log_softmax() -> None:
    np.testing.assert_allclose(np.exp(log_softmax(np.array([[1e3, 1e3 + np.log(3.0)]]))), [[0.25, 0.75]], rtol=1e-12)
