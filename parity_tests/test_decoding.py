"""Beam search against transformers' `generate`: the same tokens and scores, of every hypothesis that is returned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES, Case, make_case, ragged_sources

from jax_transformer.decoding.decoding_config import DecodingConfig
from jax_transformer.decoding.generate import Generated, generate
from jax_transformer.model_directory import Model
from jax_transformer.parity.tolerances import HYPOTHESIS_SCORE

MOST = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@dataclasses.dataclass(frozen=True)
class Search:
    """A model there and here, with an end that fires, and ragged sentences."""

    case: Case
    model: Model
    sources: np.ndarray
    common: list[int]
    """The tokens that it decodes most often, but for the end."""

    def theirs(self, beams: int, prefix: list[int], **options: Any) -> tuple[np.ndarray, np.ndarray]:
        config, generation = self.case.config, self.model.generation
        reference = self.case.torch32
        reference.generation_config = transformers.GenerationConfig()
        with torch.no_grad():
            found = reference.generate(
                torch.from_numpy(self.sources),
                attention_mask=torch.from_numpy(self.sources != config.source_pad_id),
                decoder_input_ids=torch.tensor([[generation.decoder_start_id, *prefix]] * len(self.sources)),
                decoder_start_token_id=generation.decoder_start_id, eos_token_id=generation.eos_id, pad_token_id=config.target_pad_id,
                max_new_tokens=MOST, use_cache=False, num_beams=beams,
                num_return_sequences=beams, do_sample=False, return_dict_in_generate=True, output_scores=True, **options,
            )  # fmt: skip
        scores = found.sequences_scores if beams > 1 else torch.zeros(len(self.sources))
        sequences = found.sequences[:, 1:].numpy().reshape(len(self.sources), beams, -1)
        is_end = sequences == generation.eos_id  # where the padding's id is 0, beam search fills up with ends
        sequences = np.where(is_end.cumsum(axis=-1) - is_end > 0, config.target_pad_id, sequences)
        return sequences, scores.numpy().reshape(len(self.sources), beams)

    def ours(self, beams: int, prefix: list[int], **options: Any) -> Generated:
        decoding = DecodingConfig(beam_size=beams, num_return=beams, max_new_tokens=MOST, **options)
        return generate(self.model, self.sources, decoding, prefix_ids=[prefix] * len(self.sources))

    def assert_same(self, beams: int, theirs: dict[str, Any], ours: dict[str, Any], prefix: list[int] | None = None) -> np.ndarray:
        """The same hypotheses, in the same order, and scores; returns the hypotheses."""
        sequences, scores = self.theirs(beams, prefix or [], **theirs)
        found = self.ours(beams, prefix or [], **ours)
        length = sequences.shape[2]
        np.testing.assert_array_equal(found.sequences[:, :, :length], sequences)
        assert (found.sequences[:, :, length:] == self.case.config.target_pad_id).all()
        if beams > 1:
            np.testing.assert_allclose(found.scores, scores, rtol=HYPOTHESIS_SCORE, atol=HYPOTHESIS_SCORE)
        return sequences


def make_search(family: str, folder: Path) -> Search:
    case = make_case(family, 0, folder)
    search = Search(case, case.model, ragged_sources(case.config)[::2], [])
    free = dataclasses.replace(case.model.generation, eos_id=case.config.target_vocab_size - 1)
    search = dataclasses.replace(search, model=dataclasses.replace(case.model, generation=free))
    tokens, counts = np.unique(search.ours(1, []).sequences, return_counts=True)
    never = {free.decoder_start_id, free.eos_id, case.config.target_pad_id}
    common = [int(token) for token in tokens[np.argsort(-counts)] if token not in never]
    generation = dataclasses.replace(free, eos_id=common[1])
    return dataclasses.replace(search, model=dataclasses.replace(case.model, generation=generation), common=common[:1] + common[2:])


@pytest.fixture(params=["marian", "bart", "m2m_100", "t5"])
def search(request: Any, folder: Path) -> Search:
    return make_search(request.param, folder)


PENALTIES = (1.0, 0.0, 2.0, -0.5)


@pytest.mark.parametrize("beams", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("stopping", [False, True, "never"])
def test_beams_of_marian(beams: int, stopping: Any, folder: Path) -> None:
    """All sizes, with every rule of when to stop, and rewards of length that are none, usual, large and negative."""
    if beams == 1 and stopping:
        return
    search = make_search("marian", folder)
    ended = set()
    for penalty in PENALTIES if beams > 1 else (1.0,):
        options = {"length_penalty": penalty, "early_stopping": stopping}
        sequences = search.assert_same(beams, options, options)
        ended.add(float((sequences == search.model.generation.eos_id).any(axis=-1).mean()))
    assert 0 < max(ended) < 1, "some hypotheses should end, and some be cut off"


@pytest.mark.parametrize("stopping", [False, True, "never"])
def test_beams_of_the_other_families(search: Search, stopping: Any) -> None:
    options = {"early_stopping": stopping}
    search.assert_same(4, options, options)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("marian", "bart", "m2m_100", "t5")])
def test_beams_of_their_relatives(family: str, folder: Path) -> None:
    make_search(family, folder).assert_same(4, {}, {})


@pytest.mark.parametrize("beams", [1, 4])
def test_what_may_and_must_be_decoded(beams: int, folder: Path) -> None:
    search = make_search("bart", folder)
    first, second, third = search.common[:3]
    eos_id = search.model.generation.eos_id
    words = ((first,), (second, third), (third, first, second))
    ruled = [
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram": 2}),
        ({"bad_words_ids": [list(word) for word in words]}, {"bad_words": words}),
        ({"min_length": 6}, {"min_new_tokens": 5}),
        ({"forced_bos_token_id": first, "forced_eos_token_id": eos_id}, {"forced_bos_id": first, "forced_eos_id": eos_id}),
        (
            {"no_repeat_ngram_size": 3, "bad_words_ids": [[third]], "min_new_tokens": 3, "forced_eos_token_id": eos_id},
            {"no_repeat_ngram": 3, "bad_words": ((third,),), "min_new_tokens": 3, "forced_eos_id": eos_id},
        ),
    ]
    plain = search.assert_same(beams, {}, {})
    for theirs, ours in ruled:
        sequences = search.assert_same(beams, theirs, ours)
        assert sequences.shape != plain.shape or (sequences != plain).any(), "the rule should matter"


@pytest.mark.parametrize("beams", [1, 4])
def test_a_prompt(beams: int, folder: Path) -> None:
    """It counts neither as long nor in the score, and its sequences aren't repeated."""
    search = make_search("marian", folder)
    first, second = search.common[:2]
    search.assert_same(beams, {}, {}, [first, second])
    search.assert_same(beams, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram": 2}, [first, second, first])
