"""Decoding gives every hypothesis of transformers' `generate` with its score, and follows the same defaults of a
checkpoint."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES, LIKE_OTHERS, Case, decoded_tokens, make_case, ragged_sources

from jax_transformer.comparison.gates.tolerances import HYPOTHESIS_SCORE
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.generation import Generated, generate
from jax_transformer.parity.backends.families import CACHED
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import Model, load_model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

MOST = 16
ALONE = ("marian", "bart", "m2m_100", "t5")
"""Families with tests of their own."""
READING_IDS = [family for family in FAMILIES if family != "whisper"]
"""test_whisper.py decodes with the one that reads feature vectors."""
OF_TWO_MODELS = ("bert2bert", "roberta2roberta", "bert2roberta")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@dataclasses.dataclass(frozen=True)
class Search:
    """Holds a model of both libraries, an end token that comes up, and ragged sentences."""

    case: Case
    model: Model
    sources: np.ndarray
    common: list[int]
    """The tokens that it decodes most often, except the end."""

    def theirs(self, beams: int, prefix: list[int], **options: Any) -> tuple[np.ndarray, np.ndarray]:
        config, generation = self.case.config, self.model.generation
        reference = self.case.theirs
        ends = options.pop("eos_token_id", generation.eos_id)
        reference.generation_config = transformers.GenerationConfig()
        with torch.no_grad():
            found = reference.generate(
                torch.from_numpy(self.sources),
                attention_mask=torch.from_numpy(self.sources != config.source_pad_id),
                decoder_input_ids=torch.tensor([[generation.decoder_start_id, *prefix]] * len(self.sources)),
                decoder_start_token_id=generation.decoder_start_id,
                eos_token_id=ends,
                pad_token_id=config.target_pad_id,
                max_new_tokens=MOST,
                use_cache=reference.config.model_type in CACHED,
                num_beams=beams,
                num_return_sequences=beams,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        scores = found.sequences_scores if beams > 1 else torch.zeros(len(self.sources))
        sequences = self.padded(found.sequences[:, 1:].numpy().reshape(len(self.sources), beams, -1), ends)
        return sequences, scores.numpy().reshape(len(self.sources), beams)

    def padded(self, sequences: np.ndarray, ends: int | list[int]) -> np.ndarray:
        """Returns the sequences with pads after the end.

        If the pad id is 0, beam search of transformers repeats the end there.
        """
        is_end = np.isin(sequences, ends)
        return np.where(is_end.cumsum(axis=-1) - is_end > 0, self.case.config.target_pad_id, sequences)

    def ours(self, beams: int, prefix: list[int], **options: Any) -> Generated:
        decoding = DecodingConfig(beam_size=beams, num_return=beams, max_new_tokens=MOST, **options)
        return generate(self.model, self.sources, decoding, prefix_ids=[prefix] * len(self.sources))

    def assert_same(
        self, beams: int, theirs: dict[str, Any], ours: dict[str, Any], prefix: list[int] | None = None
    ) -> np.ndarray:
        """Asserts equal hypotheses, order and scores; returns the hypotheses."""
        sequences, scores = self.theirs(beams, prefix or [], **theirs)
        found = self.ours(beams, prefix or [], **ours)
        length = sequences.shape[2]
        np.testing.assert_array_equal(found.sequences[:, :, :length], sequences)
        assert (found.sequences[:, :, length:] == self.case.config.target_pad_id).all()
        if beams > 1:
            np.testing.assert_allclose(found.scores, scores, rtol=HYPOTHESIS_SCORE, atol=HYPOTHESIS_SCORE)
        return sequences


def make_search(family: str, folder: Path, *, wide: bool = False) -> Search:
    """Returns a family's search, in float64 if it is wide."""
    case = make_case(family, 0, folder)
    if wide:
        model = dataclasses.replace(case.model, params=cast(case.model.params, "float64"))
        case = case.with_models(copy.deepcopy(case.theirs).double(), model)
    search = Search(case, case.model, ragged_sources(case.config)[::2], [])
    bare = case.model.generation.without_decoding()  # the reference gets no settings of its own, either
    free = dataclasses.replace(bare, eos_id=case.config.target_vocab_size - 1)
    search = dataclasses.replace(search, model=dataclasses.replace(case.model, generation=free))
    tokens, counts = np.unique(search.ours(1, []).sequences, return_counts=True)
    never = {free.decoder_start_id, free.eos_id, case.config.target_pad_id}
    common = [int(token) for token in tokens[np.argsort(-counts)] if token not in never]
    generation = dataclasses.replace(free, eos_id=common[1])
    return dataclasses.replace(
        search, model=dataclasses.replace(case.model, generation=generation), common=common[:1] + common[2:]
    )


PENALTIES = (1.0, 0.0, 2.0, -0.5)


@pytest.mark.parametrize(("stopping", "beams"), [*itertools.product([False, True, "never"], [1, 2, 4, 5, 8])])
def test_beams_of_marian(beams: int, stopping: Any, folder: Path) -> None:
    """Every size and stopping rule, with length penalties that are 0, usual, large and negative."""
    if beams == 1 and stopping:
        return
    search = make_search("marian", folder)
    ended = set()
    for penalty in PENALTIES if beams > 1 else (1.0,):
        options = {"length_penalty": penalty, "early_stopping": stopping}
        sequences = search.assert_same(beams, options, options)
        ended.add(float((sequences == search.model.generation.eos_id).any(axis=-1).mean()))
    assert 0 < max(ended) < 1, "some hypotheses should end, and some be cut off"


@pytest.mark.parametrize(("family", "beams", "stopping"), [("bart", 8, True), ("m2m_100", 5, "never"), ("t5", 2, True)])
def test_beams_of_the_other_families(family: str, beams: int, stopping: Any, folder: Path) -> None:
    """One size and stopping rule each, and greedily. (The test of Marian has every pair of them.)"""
    search, options = make_search(family, folder), {"early_stopping": stopping}
    search.assert_same(1, {}, {})
    search.assert_same(beams, options, options)


@pytest.mark.parametrize("family", [family for family in READING_IDS if family not in ALONE])
def test_beams_of_their_relatives(family: str, folder: Path) -> None:
    """In float32 the sharp attention of these models of BERT and RoBERTa moves scores by more than is allowed."""
    make_search(family, folder, wide=family in OF_TWO_MODELS).assert_same(4, {}, {})


@pytest.mark.parametrize("beams", [1, 4])
def test_rules_of_allowed_and_forced_tokens_are_transformers(beams: int, folder: Path) -> None:
    search = make_search("bart", folder)
    first, second, third = search.common[:3]
    eos_id = search.model.generation.eos_id
    words = ((first,), (second, third), (third, first, second))
    ruled = [
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram": 2}),
        ({"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram": 1}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"repetition_penalty": 0.9, "renormalize_logits": True}, {"repetition_penalty": 0.9, "renormalize": True}),
        ({"bad_words_ids": [list(word) for word in words]}, {"bad_words": words}),
        ({"bad_words_ids": [[first]], "renormalize_logits": True}, {"bad_words": ((first,),), "renormalize": True}),
        ({"min_length": 6}, {"min_new_tokens": 5}),
        (
            {"forced_bos_token_id": first, "forced_eos_token_id": eos_id},
            {"forced_bos_id": first, "forced_eos_id": eos_id},
        ),
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
@pytest.mark.parametrize("family", ["bart", "t5gemma"])
def test_several_end_tokens_are_transformers(family: str, beams: int, folder: Path) -> None:
    search = make_search(family, folder)
    more = tuple(search.common[:2])
    theirs = {"eos_token_id": [search.model.generation.eos_id, *more]}
    for rule, ours in (({}, {}), ({"min_new_tokens": 3}, {"min_new_tokens": 3})):
        sequences = search.assert_same(beams, theirs | rule, {"more_eos_ids": more} | ours)
        ended = [(sequences == end).any() for end in theirs["eos_token_id"]]
        assert sum(ended) > 1, "sentences should end with several of them"


@pytest.mark.parametrize("beams", [1, 4])
def test_a_function_allows_the_same_tokens_as_transformers(beams: int, folder: Path) -> None:
    """Allowed are the tokens of a sentence's own half of the vocabulary, but not the last one again."""
    search = make_search("marian", folder)
    size, eos_id = search.case.config.target_vocab_size, search.model.generation.eos_id

    def allowed(number: int, ids: list[int]) -> list[int]:
        return [token for token in range(number % 2, size, 2) if token not in ids[-1:]] + [eos_id]

    rule = {"prefix_allowed_tokens_fn": lambda number, ids: allowed(number, ids.tolist()[1:])}
    theirs, scores = search.theirs(beams, [], **rule)
    decoding = DecodingConfig(beam_size=beams, num_return=beams, max_new_tokens=MOST)
    found = generate(search.model, search.sources, decoding, allowed=allowed)
    np.testing.assert_array_equal(found.sequences[:, :, : theirs.shape[2]], theirs)
    if beams > 1:
        np.testing.assert_allclose(found.scores, scores, rtol=HYPOTHESIS_SCORE)
    assert (theirs != search.theirs(beams, [])[0][:, :, : theirs.shape[2]]).any()


@pytest.mark.parametrize("beams", [1, 4])
def test_a_prompt_counts_neither_in_the_length_nor_in_the_score(beams: int, folder: Path) -> None:
    """Its n-grams aren't repeated."""
    search = make_search("marian", folder)
    first, second = search.common[:2]
    search.assert_same(beams, {}, {}, [first, second])
    search.assert_same(beams, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram": 2}, [first, second, first])


# --- without options: the defaults of generation_config.json


OF_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "opus_mt": {
        "num_beams": 6,
        "bad_words_ids": [["pad"]],
        "max_length": 17,
        "forced_eos_token_id": "eos",
        "renormalize_logits": True,
    },
    "bart_large_cnn": {
        "num_beams": 4,
        "length_penalty": 2.0,
        "max_length": 18,
        "min_length": 7,
        "early_stopping": True,
        "no_repeat_ngram_size": 3,
        "forced_bos_token_id": "first",
        "forced_eos_token_id": "eos",
    },
    "nllb": {"max_length": 20},
    "t5": {},
    "several": {
        "num_beams": 4,
        "length_penalty": 0.8,
        "early_stopping": "never",
        "no_repeat_ngram_size": 2,
        "forced_eos_token_id": ["eos"],
        "bad_words_ids": [["pad"], ["second"], ["eos"], ["third", "first"]],
        "min_new_tokens": 5,
        "min_length": 9,
        "max_new_tokens": 14,
        "max_length": 3,
        "renormalize_logits": True,
        "temperature": 0.3,
        "top_p": 0.9,
    },
}
"""The defaults of the named checkpoints, with other ids and shorter sentences, and one with many at once."""


def with_ids(value: Any, ids: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [with_ids(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def write_options(search: Search, options: dict[str, Any], path: Path, *, legacy: bool = False) -> Path:
    """Writes the model's directory with these options in generation_config.json, or in config.json as old ones had
    them."""
    generation, pad_id = search.model.generation, search.case.config.target_pad_id
    named = dict(zip(("first", "second", "third"), search.common[:3], strict=True)) | {
        "eos": generation.eos_id,
        "pad": pad_id,
    }
    content = {
        "decoder_start_token_id": generation.decoder_start_id,
        "eos_token_id": generation.eos_id,
        "pad_token_id": pad_id,
    }
    content |= {key: with_ids(value, named) for key, value in options.items()}
    content["use_cache"] = search.case.theirs.config.model_type == "fsmt"  # see FamilyReference
    shutil.copytree(search.case.directory, path)
    if legacy:
        (path / "generation_config.json").unlink()
        content = json.loads((path / "config.json").read_text()) | content
    name = "config.json" if legacy else "generation_config.json"
    (path / name).write_text(json.dumps(content, indent=1) + "\n\n")  # as no program would write it
    return path


def assert_decodes_as(search: Search, directory: Path, model: Model) -> np.ndarray:
    """Asserts that the model decodes without options as `from_pretrained` of the directory does; returns the
    hypotheses."""
    reference = type(search.case.theirs).from_pretrained(directory, attn_implementation="eager").eval()
    sources = torch.from_numpy(search.sources)
    with torch.no_grad():
        expected = reference.generate(sources, attention_mask=sources != search.case.config.source_pad_id)
    expected = search.padded(expected[:, 1:].numpy(), search.model.generation.eos_id)
    received = generate(model, search.sources).sequences[:, 0]
    np.testing.assert_array_equal(received[:, : expected.shape[1]], expected)
    if (
        reference.generation_config.max_length or reference.generation_config.max_new_tokens
    ):  # or else transformers stops after 20
        assert (received[:, expected.shape[1] :] == search.case.config.target_pad_id).all()
    return received


def assert_has_the_defaults(search: Search, options: dict[str, Any], tmp_path: Path, *, legacy: bool = False) -> None:
    """Asserts the same defaults after import, save and load, and the same file after export."""
    there = write_options(search, options, tmp_path / "there", legacy=legacy)
    save_model(import_checkpoint(there), tmp_path / "model")
    model = load_model(tmp_path / "model")
    found = assert_decodes_as(search, there, model)
    plain = search.ours(1, []).sequences[:, 0]
    assert (found[:, : plain.shape[1]] != plain[:, : found.shape[1]]).any() == ("num_beams" in options), (
        "the options should matter"
    )
    export_checkpoint(model, tmp_path / "back")
    if legacy:
        assert_decodes_as(search, tmp_path / "back", model)
        assert not (tmp_path / "back" / "generation_config.json").exists()
    else:
        assert (tmp_path / "back" / "generation_config.json").read_bytes() == (
            there / "generation_config.json"
        ).read_bytes()


@pytest.mark.parametrize("family", [family for family in READING_IDS if family not in LIKE_OTHERS])
def test_a_checkpoint_with_many_defaults_decodes_by_them(family: str, folder: Path, tmp_path: Path) -> None:
    assert_has_the_defaults(make_search(family, folder), OF_CHECKPOINTS["several"], tmp_path)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize(
    ("family", "name"), [("marian", "opus_mt"), ("bart", "bart_large_cnn"), ("m2m_100", "nllb"), ("t5", "t5")]
)
def test_defaults_of_common_checkpoints_are_followed(family: str, name: str, folder: Path, tmp_path: Path) -> None:
    """T5's has none; transformers then stops after 20 tokens, which isn't a property of the model."""
    assert_has_the_defaults(make_search(family, folder), OF_CHECKPOINTS[name], tmp_path)


def test_defaults_of_an_old_config_json_are_followed(folder: Path, tmp_path: Path) -> None:
    options = OF_CHECKPOINTS["bart_large_cnn"] | {"force_bos_token_to_be_generated": True, "bos_token_id": "second"}
    assert_has_the_defaults(make_search("bart", folder), options, tmp_path, legacy=True)


@pytest.mark.parametrize("legacy", [False, True])
def test_changed_defaults_are_exported(legacy: bool, folder: Path, tmp_path: Path) -> None:
    """They replace the old ones in the same file; the rest of a config.json stays."""
    search = make_search("bart", folder)
    model = import_checkpoint(
        write_options(search, OF_CHECKPOINTS["bart_large_cnn"], tmp_path / "there", legacy=legacy)
    )
    generation = dataclasses.replace(
        model.generation, max_new_tokens=13, min_new_tokens=None, length_penalty=-0.5, forced_bos_id=None
    )
    model = dataclasses.replace(model, generation=generation)
    export_checkpoint(model, tmp_path / "back")
    assert_decodes_as(search, tmp_path / "back", model)
    assert import_checkpoint(tmp_path / "back").generation == generation


def test_generate_of_the_reference_pads_after_an_end_of_beams(folder: Path) -> None:
    """Where pads are 0, transformers fills with ends instead, which are no tokens of the hypothesis."""
    case = make_case("t5", 0, folder)
    assert case.config.target_pad_id == 0
    ours, theirs, eos_id = decoded_tokens(case, 8, beams=4)
    np.testing.assert_array_equal(ours, theirs)
    assert len({int(np.argmax(row == eos_id)) for row in theirs if (row == eos_id).any()}) > 1
