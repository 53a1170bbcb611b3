"""Transcripts of a Whisper with random weights, here and by `generate` of the installed transformers."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from whispers import drawn

import jax_transformer as jt
from jax_transformer.config.speech import SpeechTokens
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.timestamps import TimestampRules
from jax_transformer.speech.alignment import _smoothed, path, words_of
from jax_transformer.speech.spectra import log_mel
from jax_transformer.speech.text import previous_ids, read_tokenizer
from jax_transformer.speech.transcription import Options, Thresholds, WindowDecoder, detect_language, prompt_ids
from jax_transformer.speech.windows import run
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

END, START, EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = 50, 51, 52, 53, 54, 55, 57, 59
FIRST = NO_TIMES + 1
WINDOW = 60
"""Frames of a window."""
GENERATION = {
    "decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": END, "bos_token_id": END,
    "no_timestamps_token_id": NO_TIMES, "is_multilingual": True, "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE}, "prev_sot_token_id": PREVIOUS,
    "max_initial_timestamp_index": 5, "suppress_tokens": [1, 2, 7, START, TRANSLATE, TRANSCRIBE, 56, PREVIOUS, 58],
    "begin_suppress_tokens": [3, END], "max_length": 40, "return_timestamps": False,
}  # fmt: skip


@cache
def make(seed: int, folder: Path) -> tuple[Any, jt.Model]:
    rng = np.random.default_rng(seed)
    config = transformers.WhisperConfig(
        vocab_size=FIRST + WINDOW // 2 + 1, num_mel_bins=6, d_model=24, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=32, decoder_ffn_dim=40,
        max_source_positions=WINDOW // 2, max_target_positions=40, pad_token_id=END, bos_token_id=END,
        eos_token_id=END, decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    theirs = drawn(config, rng, embedding=0.35, matrix=1.4)
    path = folder / str(seed)
    theirs.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    return transformers.WhisperForConditionalGeneration.from_pretrained(path).eval(), jt.import_checkpoint(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transcription")


def spectrum(seed: int, frames: int) -> np.ndarray:
    return np.random.default_rng([seed, 9]).standard_normal((frames, 6)).astype(np.float32)


THEIR_RULES = Thresholds(log_prob=None, compression_ratio=None)
"""Those of `generate` without fallback."""


def segments(model: jt.Model, features: np.ndarray, **options: Any) -> list[jt.speech.Segment]:
    """Returns the segments of a spectrum, whatever its length."""
    language, task = options.pop("language", "de"), options.pop("task", "transcribe")
    prompt = prompt_of(model, language, task, timestamps=options.get("timestamps", True))
    made = decoder(model, **options)
    return run(prepare(model), made.segments(features, prompt, language))


def prompt_of(model: jt.Model, language: str, task: Any, *, timestamps: bool = True) -> list[int]:
    assert model.generation.speech is not None
    return prompt_ids(model.generation.speech, language, task, timestamps=timestamps)


def decoder(model: jt.Model, **options: Any) -> WindowDecoder:
    given = {"temperatures": (0.0,), "thresholds": THEIR_RULES, "condition_on_previous_text": False}
    return WindowDecoder(prepare(model), Options(**given | options))


def theirs_of(theirs: Any, features: np.ndarray, **options: Any) -> dict[str, Any]:
    given = {"language": "de", "task": "transcribe", "return_timestamps": True, "return_segments": True}
    with torch.no_grad():
        found: dict[str, Any] = theirs.generate(torch.from_numpy(features.T[None].copy()), **given | options)
    return found


def test_ids_of_speech_are_read_and_written(folder: Path, tmp_path: Path) -> None:
    _, model = make(0, folder)
    assert model.generation.speech == SpeechTokens(
        no_timestamps_id=NO_TIMES, languages={"en": EN, "de": DE}, transcribe_id=TRANSCRIBE, translate_id=TRANSLATE,
        previous_id=PREVIOUS, max_initial_timestamp=5,
    )  # fmt: skip
    jt.save_model(model, tmp_path / "model")
    assert jt.load_model(tmp_path / "model").generation == model.generation
    jt.export_checkpoint(model, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "generation_config.json").read_text()) == GENERATION
    jt.export_checkpoint(dataclasses.replace(model, origin=None), tmp_path / "own", "whisper")
    again = jt.import_checkpoint(tmp_path / "own")
    assert again.generation.speech == model.generation.speech


@pytest.mark.parametrize("frames", [WINDOW, 100, 151, 260])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_and_times_are_those_of_generate(folder: Path, seed: int, frames: int) -> None:
    theirs, model = make(seed, folder)
    features = spectrum(seed, frames)
    expected = theirs_of(theirs, features)["segments"][0]
    received = segments(model, features)
    assert [segment.tokens for segment in received] == [one["tokens"].tolist() for one in expected]
    times = [(float(one["start"]), float(one["end"])) for one in expected]
    np.testing.assert_allclose([(one.start, one.end) for one in received], times, atol=1e-9)


@pytest.mark.parametrize(
    ("ours", "their"),
    [
        ({"max_new_tokens": 9}, {"max_new_tokens": 9}),
        ({"beam_size": 3, "max_new_tokens": 12}, {"num_beams": 3, "max_new_tokens": 12}),
        ({"language": "en", "task": "translate"}, {"language": "en", "task": "translate"}),
        ({"condition_on_previous_text": True}, {"condition_on_prev_tokens": True, "temperature": 0.0}),
        (
            {"condition_on_previous_text": True, "max_new_tokens": 8},
            {"condition_on_prev_tokens": True, "max_new_tokens": 8, "temperature": 0.0},
        ),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_options_are_those_of_generate(folder: Path, seed: int, ours: dict[str, Any], their: dict[str, Any]) -> None:
    theirs, model = make(seed, folder)
    features = spectrum(seed, 170)
    expected = theirs_of(theirs, features, **their)["segments"][0]
    received = segments(model, features, **ours)
    assert [segment.tokens for segment in received] == [one["tokens"].tolist() for one in expected]


@pytest.mark.parametrize("seed", range(2))
def test_a_prompt_is_that_of_generate(folder: Path, seed: int) -> None:
    """More of it than there is room for."""
    theirs, model = make(seed, folder)
    features, prompt = spectrum(seed, 170), np.random.default_rng(seed).integers(0, END, 23).tolist()
    expected = theirs_of(
        theirs, features, prompt_ids=torch.tensor([PREVIOUS, *prompt]), condition_on_prev_tokens=True, temperature=0.0
    )["segments"][0]
    made = decoder(model, condition_on_previous_text=True)
    made._previous = list(prompt)
    received = run(prepare(model), made.segments(features, prompt_of(model, "de", "transcribe"), "de"))
    assert [segment.tokens for segment in received] == [one["tokens"].tolist() for one in expected]


def test_ids_of_a_prompt_are_those_of_their_tokenizer(folder: Path, tmp_path: Path) -> None:
    letters = {chr(letter): number for number, letter in enumerate(range(ord("a"), ord("z") + 1))}
    vocabulary = letters | {"Ġ": 26, "Ġa": 27, "ab": 28, "Ã": 29, "¤": 30, "Ġab": 31, ".": 32, "<|startofprev|>": 33}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ a\na b\nĠ ab\n")
    theirs = transformers.WhisperTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(["<|startofprev|>"], special_tokens=True)
    files = {name: (tmp_path / name).read_bytes() for name in ("vocab.json", "merges.txt")}
    model = dataclasses.replace(make(0, folder)[1], tokenizer_files=files)
    assert model.generation.speech is not None
    for text in ("abba", " ab ab.cab", "ä a  ä"):
        (_, *expected) = theirs.get_prompt_ids(text).tolist()
        assert previous_ids(read_tokenizer(model), model.generation.speech, text) == expected


HEADS = [[0, 1], [1, 0], [1, 2]]


@pytest.mark.parametrize("frames", [WINDOW, 151])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 7}], ids=["to the end", "cut off"])
def test_times_of_tokens_are_those_of_transformers(
    folder: Path, seed: int, frames: int, options: dict[str, Any]
) -> None:
    theirs, model = make(seed, folder)
    features = spectrum(seed, frames)
    theirs.generation_config.alignment_heads = HEADS
    expected = theirs_of(
        theirs,
        features,
        return_token_timestamps=True,
        attention_mask=torch.ones(1, frames, dtype=torch.long),
        **options,
    )["segments"][0]
    received = segments(aligned(model), features, words=True, **options)
    assert [segment.tokens for segment in received] == [one["tokens"].tolist() for one in expected]
    for ours, segment in zip(received, expected, strict=True):
        np.testing.assert_allclose(ours.token_times, segment["token_timestamps"], atol=1e-6)
    assert len({time for segment in received for time in segment.token_times or ()}) > 1


def aligned(model: jt.Model) -> jt.Model:
    assert model.generation.speech is not None
    speech = dataclasses.replace(model.generation.speech, alignment_heads=tuple(map(tuple, HEADS)))
    return dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=speech))


def test_alignment_heads_are_read_and_written(folder: Path, tmp_path: Path) -> None:
    made, model = make(0, folder)
    made.save_pretrained(tmp_path / "there")
    content = json.dumps(GENERATION | {"alignment_heads": HEADS})
    (tmp_path / "there" / "generation_config.json").write_text(content)
    read = jt.import_checkpoint(tmp_path / "there")
    assert read.generation.speech == aligned(model).generation.speech
    jt.save_model(read, tmp_path / "model")
    assert jt.load_model(tmp_path / "model").generation == read.generation
    jt.export_checkpoint(dataclasses.replace(read, origin=None), tmp_path / "own", "whisper")
    assert jt.import_checkpoint(tmp_path / "own").generation.speech == read.generation.speech


@pytest.mark.parametrize(
    ("heads", "message"),
    [(None, "names alignment_heads"), (((2, 0),), "layers from 0 to 1 and heads from 0 to 2; received \\[2, 0\\]")],
)
def test_words_need_heads_of_the_model(folder: Path, heads: Any, message: str) -> None:
    _, model = make(0, folder)
    assert model.generation.speech is not None
    speech = dataclasses.replace(model.generation.speech, alignment_heads=heads)
    other = dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=speech))
    with pytest.raises(ValueError, match=message):
        jt.transcribe(other, np.zeros(1600, np.float32), words=True)


def test_paths_and_medians_are_those_of_transformers() -> None:
    module = transformers.models.whisper.generation_whisper
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 5), (5, 1), (2, 2), (6, 17), (17, 6), (30, 200)):
        cost = rng.integers(-3, 3, (rows, columns)) / 2.0  # many ties
        for one in (cost, rng.standard_normal((rows, columns))):
            for received, expected in zip(path(one), module._dynamic_time_warping(one), strict=True):
                np.testing.assert_array_equal(received, expected)
        x = rng.standard_normal((3, rows, columns))
        np.testing.assert_array_equal(_smoothed(x), module._median_filter(torch.from_numpy(x), 7).numpy())


class Pieces:
    """Stands for a tokenizer: token 8 is the first byte of a character, and 9 the second."""

    eos_token_id = 50
    pieces = (b" I", b" am", b"pha", b",", b" (", b")", b".", b' "', b"\xc3", b"\xa4", b"-", b" ", b"n't")

    def decode(self, tokens: list[int], *, decode_with_timestamps: bool = True) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize(("language", "name"), [("en", "english"), ("zh", "chinese")])
def test_words_are_those_of_transformers(language: str, name: str) -> None:
    split = transformers.models.whisper.tokenization_whisper._combine_tokens_into_words
    rng, pieces = np.random.default_rng(0), Pieces()
    for _ in range(200):
        tokens = [
            one for token in rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12], rng.integers(1, 12))
            for one in ([8, 9] if token == 8 else [int(token)])
        ]  # fmt: skip
        times = np.arange(len(tokens) + 1.0)
        words, _, indices = split(pieces, tokens, name)
        received = words_of(tokens, times.tolist(), len(tokens), pieces.decode, lambda token: token < 50, language)
        assert [word.text for word in received] == words
        assert [(word.start, word.end) for word in received] == [(own[0], own[-1] + 1.0) for own in indices]


@pytest.mark.parametrize("seed", range(3))
def test_text_alone_is_that_of_generate(folder: Path, seed: int) -> None:
    theirs, model = make(seed, folder)
    features = spectrum(seed, WINDOW)
    expected = theirs_of(theirs, features, return_timestamps=False, return_segments=False)[0].tolist()
    received = segments(model, features, timestamps=False)
    assert [token for segment in received for token in segment.tokens] == [token for token in expected if token != END]


@pytest.mark.parametrize("seed", range(4))
def test_language_is_the_one_that_generate_detects(folder: Path, seed: int) -> None:
    theirs, model = make(seed, folder)
    features = spectrum(seed, 100)
    with torch.no_grad():
        (expected,) = theirs.detect_language(torch.from_numpy(features.T[None, :, :WINDOW].copy())).tolist()
    assert {"en": EN, "de": DE}[detect_language(model, features)] == expected


DEFAULTS: dict[str, dict[str, Any]] = {
    "a language": {"language": "de", "task": "transcribe"},
    "its name, and a task": {"language": "German", "task": "translate"},
    "its tag": {"language": "<|en|>"},
    "forced ids": {"forced_decoder_ids": [[1, DE], [2, TRANSLATE]]},
    "a forced task": {"forced_decoder_ids": [[1, None], [2, TRANSLATE]]},
    "forced ids that a task overrules": {"forced_decoder_ids": [[1, EN], [2, TRANSLATE]], "task": "transcribe"},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_settings_of_the_model_are_obeyed_as_generate_does(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model"
    make(1, folder)[0].save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps(GENERATION | DEFAULTS[name]))
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(path).eval()
    samples = 0.1 * np.random.default_rng(3).standard_normal(WINDOW * 160).astype(np.float32)
    features = torch.from_numpy(log_mel(samples, 6).T[None].astype(np.float32).copy())
    with torch.no_grad():
        expected = theirs.generate(features, return_timestamps=True, return_segments=True)["segments"][0]
    received = jt.transcribe(
        jt.import_checkpoint(path),
        samples,
        temperatures=0.0,
        thresholds=Thresholds(log_prob=None, no_speech=None),
        condition_on_previous_text=False,
    )
    assert [segment.tokens for segment in received.segments] == [one["tokens"].tolist() for one in expected]


def test_an_argument_prevails_over_the_settings_of_the_model(folder: Path) -> None:
    model = make(1, folder)[1]
    assert model.generation.speech is not None
    settings = dataclasses.replace(model.generation.speech, language="en", task="translate")
    own = dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=settings))
    samples = 0.1 * np.random.default_rng(3).standard_normal(WINDOW * 160).astype(np.float32)
    found = [
        jt.transcribe(one, samples, temperatures=0.0, language="german", task="transcribe") for one in (own, model)
    ]
    assert found[0] == found[1]
    assert found[0].language == "de"
    assert jt.transcribe(own, samples, temperatures=0.0) != found[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language": ["de"]}, "language must be a code or a name; received \\['de'\\]"),
        ({"task": "sing"}, "task must be 'transcribe' or 'translate'; received 'sing'"),
        ({"forced_decoder_ids": 3}, "ids of speech"),
    ],
)
def test_settings_that_are_none_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    make(1, folder)[0].save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION | changes))
    with pytest.raises(PortingError, match=message):
        jt.import_checkpoint(tmp_path)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_mean_log_probabilities_are_those_of_transformers(folder: Path, temperature: float) -> None:
    """Their processors' scores of the same tokens, divided by the temperature and multiplied by it again."""
    theirs, model = make(1, folder)
    features = spectrum(1, WINDOW)
    made = decoder(model, temperatures=(temperature,), max_new_tokens=8)
    made._prompt = prompt_of(model, "de", "transcribe")
    decoded = run(prepare(model), made._at(features, temperature))
    prompt = [START, DE, TRANSCRIBE]
    rules = transformers.generation.WhisperTimeStampLogitsProcessor(theirs.generation_config, begin_index=3)
    first = transformers.SuppressTokensAtBeginLogitsProcessor(GENERATION["begin_suppress_tokens"], 3)
    never = transformers.SuppressTokensLogitsProcessor(GENERATION["suppress_tokens"])
    tokens, total = [*decoded.tokens], 0.0
    tokens += [END] if len(tokens) < 8 else []
    with torch.no_grad():
        for i, token in enumerate(tokens):
            ids = torch.tensor([[*prompt, *tokens[:i]]])
            scores = theirs(torch.from_numpy(features.T[None].copy()), decoder_input_ids=ids).logits[:, -1]
            scores = rules(ids, never(ids, first(ids, scores)))
            total += float(torch.log_softmax(scores, dim=-1)[0, token])
    assert decoded.log_prob == pytest.approx(total / len(tokens), rel=1e-5)


def test_no_speech_probability_is_that_of_transformers(folder: Path) -> None:
    theirs, model = make(2, folder)
    features = spectrum(2, WINDOW)
    with torch.no_grad():
        logits = theirs(torch.from_numpy(features.T[None].copy()), decoder_input_ids=torch.tensor([[START]])).logits
    expected = float(torch.softmax(logits[0, -1], dim=-1)[NO_TIMES - 1])
    assert run(prepare(model), decoder(model)._no_speech(features)) == pytest.approx(expected, rel=1e-5)


def test_rules_forbid_what_their_processor_forbids(folder: Path) -> None:
    """On all kinds of prefixes, also ones that no decoding gives."""
    theirs, _ = make(0, folder)
    rng, size = np.random.default_rng(4), FIRST + WINDOW // 2 + 1
    constrain = jax.jit(TimestampRules(FIRST, NO_TIMES, END, 5).constrain)
    processor = transformers.generation.WhisperTimeStampLogitsProcessor(theirs.generation_config, begin_index=3)
    for length in range(7):
        texts, times = (rng.integers(*limits, (300, length)) for limits in ((0, 50), (FIRST, size)))
        tokens = np.where(rng.random((300, length)) < 0.5, texts, times)
        scores = (3 * rng.standard_normal((300, size))).astype(np.float32)
        prompt = np.tile([START, DE, TRANSCRIBE], (300, 1))
        expected = processor(torch.from_numpy(np.concatenate([prompt, tokens], axis=1)), torch.from_numpy(scores))
        filled = np.concatenate([prompt[:, 1:], tokens, np.full((300, 9), END)], axis=1)[:, None]
        column, count = jnp.int32(2 + length), jnp.full(300, length, jnp.int32)
        received = constrain(filled[:, :, :12], column, count, scores[:, None])[:, 0]
        np.testing.assert_array_equal(np.isinf(received), np.isinf(expected.numpy()))


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("kind", ["noise", "sweep", "silence", "a second"])
def test_spectra_are_those_of_the_feature_extractor(bands: int, kind: str) -> None:
    """Against its NumPy path, which computes in float64. Its PyTorch path rounds to float32 on the way."""
    rng, time = np.random.default_rng(0), np.arange(30 * 16_000) / 16_000
    samples = {
        "noise": 0.1 * rng.standard_normal(len(time)),
        "sweep": 0.3 * np.sin(2 * np.pi * (200 + 30 * time) * time) * (np.sin(time) > 0),
        "silence": np.zeros(len(time)),
        "a second": np.where(time < 1, 0.3 * rng.standard_normal(len(time)), 0.0),
    }[kind].astype(np.float32)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    expected = extractor._np_extract_fbank_features(samples[None], "cpu")[0].T
    np.testing.assert_allclose(log_mel(samples, bands), expected, atol=1e-6, rtol=0)
