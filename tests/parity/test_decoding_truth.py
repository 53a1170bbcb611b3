"""Decoding in NumPy: the same tokens and scores as the project's own programs have, which decode with a cache, in
JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from jax_transformer.comparison.gates.tolerances import HYPOTHESIS_SCORE
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.generation import generate
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.oracle import forward
from jax_transformer.parity.oracle.decoding import DecodeRule, decode, log_softmax, logits_of_model
from jax_transformer.parity.oracle.formulas import sinusoid_table
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

START, EOS, PAD, MOST = 4, 3, 2, 10
SEEDS = (3, 10, 11)
LENGTH_PENALTIES = (1.0, 0.0, 2.0)
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
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "2 beams": {"beam_size": 2, "early_stopping": True},
    "2 beams, gnmt": {"beam_size": 2, "early_stopping": "never", "semantics": "gnmt"},
    "4 beams": {"beam_size": 4},
    "4 beams, stopped early": {"beam_size": 4, "early_stopping": True},
    "4 beams, never stopped": {"beam_size": 4, "early_stopping": "never"},
    "4 beams, gnmt": {"beam_size": 4, "semantics": "gnmt"},
}


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


@cache
def project(seed: int) -> Model:
    return Model(CONFIG, make_params(CONFIG, seed), None, None, GenerationConfig(decoder_start_id=START, eos_id=EOS))


def rule_of(**options: Any) -> DecodeRule:
    return DecodeRule(**{"max_new_tokens": MOST, "decoder_start_id": START, "eos_id": EOS, "pad_id": PAD, **options})


@pytest.mark.parametrize("search", SEARCHES)
def test_tokens_and_scores_are_the_project_s(search: str) -> None:
    sources, lengths = make_sources(), []
    for seed in SEEDS:
        logits_of = logits_of_model(CONFIG, project(seed).params, sources)
        for length_penalty in LENGTH_PENALTIES:
            options = {**SEARCHES[search], "length_penalty": length_penalty}
            decoded = decode(rule_of(**options), logits_of, len(sources))
            received = generate(project(seed), sources, DecodingConfig(max_new_tokens=MOST, **options))
            assert decoded.margins.min() > 1e-5, "the project's scores are float32: another seed"
            width = decoded.sequences.shape[1]
            np.testing.assert_array_equal(decoded.sequences, received.sequences[:, 0, :width])
            assert (received.sequences[:, 0, width:] == PAD).all()
            np.testing.assert_allclose(
                decoded.scores, received.scores[:, 0], rtol=HYPOTHESIS_SCORE, atol=HYPOTHESIS_SCORE
            )
            lengths += (decoded.sequences != PAD).sum(axis=1).tolist()
    assert len(set(lengths)) > 5, "sentences should end at several places"


def test_the_searches_differ_on_these_sentences() -> None:
    models = [logits_of_model(CONFIG, project(seed).params, make_sources()) for seed in SEEDS]
    found = set()
    for options in SEARCHES.values():
        rules = [rule_of(**options, length_penalty=length_penalty) for length_penalty in LENGTH_PENALTIES]
        decoded = [decode(rule, logits_of, 8) for rule in rules for logits_of in models]
        found.add(tuple(one.sequences.tobytes() for one in decoded))
    assert len(found) == len(SEARCHES)


CONFIGS: dict[str, dict[str, Any]] = {
    "columns": {},
    "batch rows": {"position_index": "batch_row"},
    "real tokens": {"position_index": "non_pad_count", "position_offset": 1},
    "relative": {"position_kind": "relative_bias", "relative_buckets": 6, "relative_max_distance": 5},
    "rotary": {"position_kind": "rotary", "rotary_dim": 2, "rotary_cross_attention": True},
    "other masks while decoding": {
        "decoder_padding": "none",
        "decoding_decoder_padding": "keys",
        "decoding_cross_padding": "none",
    },
    "queries": {"decoder_padding": "queries", "cross_padding": "both"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_whole_model(name: str) -> None:
    config = dataclasses.replace(CONFIG, **CONFIGS[name])
    params, sources = make_params(config, 0), make_sources()
    rows = np.array([6, 2, 2, 0, 7])
    prefixes = np.random.default_rng(1).integers(2, 15, (5, 4))
    prefixes[0, 2] = prefixes[3, 0] = PAD
    logits = logits_of_model(config, params, sources)(prefixes, rows)
    targets = np.full((8, 4), 5)
    for row, prefix, received in zip(rows, prefixes, logits, strict=True):
        targets[row] = prefix
        expected = forward(config.while_decoding(), params, sources, targets)["logits"][row, -1]
        np.testing.assert_allclose(received, expected, rtol=1e-12, atol=1e-12)


def test_replaced_nodes_must_exist() -> None:
    replace = {"decoder.position": lambda captured: captured["decoder_input_ids"]}
    with pytest.raises(
        ValueError, match=r"replace: expected names of this model's decoder; received decoder\.position"
    ):
        logits_of_model(CONFIG, make_params(CONFIG, 0), make_sources(), replace=replace)


def table_logits(table: Mapping[tuple[int, ...], list[float]]) -> Any:
    """Logits by what stands behind the start token; what isn't in the table has equal ones."""
    size = len(next(iter(table.values())))
    return lambda prefixes, rows: np.array([table.get(tuple(prefix[1:]), size * [0.0]) for prefix in prefixes.tolist()])


def test_of_equals_the_lowest_id_and_the_first_beam_come_first() -> None:
    rule = DecodeRule(max_new_tokens=2, decoder_start_id=0, eos_id=3, pad_id=4)
    logits_of = table_logits({(): [0.0, 1.0, 1.0, 0.0, 0.0]})
    greedy = decode(rule, logits_of, 1)
    assert greedy.sequences.tolist() == [[1, 0]]
    assert greedy.margins.tolist() == [[0.0, 0.0]]
    assert decode(dataclasses.replace(rule, ties="last"), logits_of, 1).sequences.tolist() == [[2, 4]]
    beams = dataclasses.replace(rule, beam_size=2)
    assert decode(beams, logits_of, 1).sequences.tolist() == [[1, 0]]
    assert decode(dataclasses.replace(beams, ties="last"), logits_of, 1).sequences.tolist() == [[1, 4]]


def test_a_search_by_hand() -> None:
    """Two beams, of which the second is the better one in the end: by its score alone, or by its length, too."""
    first, second = log_softmax(np.array([0.0, 2.0, 1.9, -9.0])), log_softmax(np.array([0.0, 0.0, 0.0, 5.0]))
    logits_of = table_logits({(): first.tolist(), (2,): second.tolist()})
    rule = DecodeRule(beam_size=2, max_new_tokens=3, decoder_start_id=0, eos_id=3, pad_id=0)
    decoded = decode(rule, logits_of, 1)
    assert decoded.sequences.tolist() == [[2, 3]]
    np.testing.assert_allclose(decoded.scores, [(first[2] + second[3]) / 2], rtol=1e-15)
    np.testing.assert_allclose(decoded.margins[0, 0], first[2] - first[0], rtol=1e-12)  # the second beam, not the third
    gnmt = decode(dataclasses.replace(rule, semantics="gnmt", length_penalty=0.5), logits_of, 1)
    np.testing.assert_allclose(gnmt.scores, [(first[2] + second[3]) / np.sqrt(7 / 6)], rtol=1e-15)


def test_nothing_to_decode() -> None:
    decoded = decode(rule_of(), table_logits({(): [0.0]}), 0)
    assert (decoded.sequences.shape, decoded.scores.shape) == ((0, 0), (0,))


def test_undecodable_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="beam_size must be at least 1; received 0"):
        rule_of(beam_size=0)
    with pytest.raises(ValueError, match="logits after 1 tokens: expected numbers; received NaN"):
        decode(rule_of(), table_logits({(): [0.0, np.nan]}), 1)
