"""Steps of training a Whisper on recordings and texts, here and in transformers, on the batches of its recipe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
import transformers
from test_transcription import GENERATION
from whispers import drawn

import jax_transformer as jt
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.runtime.trees import flatten
from jax_transformer.speech import Spoken, SpokenBatches
from jax_transformer.training import all_params, init_state, make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")

LETTERS = "abcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRST"
SPECIAL = (
    "endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev", "nospeech",
    "notimestamps",
)  # fmt: skip
"""From 50 on."""
TEXTS = ("ein hund", "Ein Mann.", "a", "zwei, drei", "")
SAMPLES = (4_000, 9_600, 8_000, 777, 5_000)
RATE = 0.05


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, jt.Model]:
    """Returns the directory of a Whisper with its tokenizer, the tokenizer there, and the model here."""
    path = tmp_path_factory.mktemp("training") / "whisper"
    config = transformers.WhisperConfig(
        vocab_size=91, num_mel_bins=6, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=3, encoder_ffn_dim=32, decoder_ffn_dim=40, max_source_positions=30,
        max_target_positions=40, pad_token_id=50, bos_token_id=50, eos_token_id=50, decoder_start_token_id=51,
        suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0,
    )  # fmt: skip
    drawn(config, np.random.default_rng(0), embedding=0.35, matrix=1.0).save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)} | {"Ġ": 48, "Ġh": 49}
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    (path / "merges.txt").write_text("#version: 0.2\nĠ h\n")
    tokenizer = transformers.WhisperTokenizer.from_pretrained(path, unk_token="a")
    tokenizer.add_tokens([f"<|{name}|>" for name in SPECIAL], special_tokens=True)
    tokenizer.set_prefix_tokens(language="zh", task="transcribe")  # its second language, as German is of the model
    return path, tokenizer, jt.import_checkpoint(path)


def pairs() -> list[Spoken]:
    rng = np.random.default_rng(1)
    noises = [0.1 * rng.standard_normal(count) for count in SAMPLES]
    return [Spoken(f"recording {i}", noise, text) for i, (noise, text) in enumerate(zip(noises, TEXTS, strict=True))]


def their_labels(tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """Returns the labels of the collator of transformers' recipe: pads are -100, and the start is cut off."""
    ids = [tokenizer(text).input_ids for text in texts]
    longest = max(map(len, ids))
    padded = torch.tensor([one + [-100] * (longest - len(one)) for one in ids])
    assert (padded[:, 0] == 51).all()
    return padded[:, 1:]


def test_batches_are_those_of_their_recipe(sides: tuple[Path, Any, jt.Model]) -> None:
    _, tokenizer, model = sides
    batch = SpokenBatches(model, pairs(), rows=5, language="de", shuffle=False)[0]
    labels = their_labels(tokenizer, list(TEXTS))
    np.testing.assert_array_equal(batch.labels, labels)
    shifted = transformers.models.whisper.modeling_whisper.shift_tokens_right(labels, 50, 51)
    np.testing.assert_array_equal(batch.decoder_input_ids, shifted)
    extractor = transformers.WhisperFeatureExtractor(feature_size=6, chunk_length=1)
    extractor.n_samples = 9_600
    padded = np.stack([np.pad(pair.audio, (0, 9_600 - len(pair.audio))) for pair in pairs()])  # type: ignore[arg-type]
    expected = extractor._np_extract_fbank_features(padded.astype(np.float32), "cpu").transpose(0, 2, 1)
    np.testing.assert_allclose(batch.source_ids.vectors, expected, atol=1e-6)


@pytest.mark.parametrize("freezes", [False, True])
def test_losses_and_weights_are_those_of_transformers(
    sides: tuple[Path, Any, jt.Model], tmp_path: Path, *, freezes: bool
) -> None:
    """In float64, of steps of plain gradient descent: equal weights after one mean equal gradients."""
    path, _, model = sides
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(path).double().train()
    theirs.model.encoder.embed_positions.requires_grad_(requires_grad=False)  # as its class has it
    if freezes:
        theirs.freeze_encoder()
    optimizer = torch.optim.SGD([one for one in theirs.parameters() if one.requires_grad], lr=RATE)
    train = TrainConfig(loss_counts_pads=True, label_smoothing=0.0, freeze=("encoder/*", "stem/*") if freezes else ())
    sgd = optax.sgd(RATE)
    state = init_state(model.config, train, cast(model.params, "float64"), optimizer=sgd)
    step = make_train_step(model.config, train, optimizer=sgd)
    batches = SpokenBatches(model, pairs(), rows=3, language="de", seed=4)
    for number in range(4):
        batch = batches[number]
        wide = batch._replace(source_ids=jt.Features(batch.source_ids.vectors.astype(np.float64)))
        features = torch.from_numpy(wide.source_ids.vectors).transpose(1, 2)
        loss = theirs(input_features=features, labels=torch.from_numpy(batch.labels).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state, metrics = step(state, wide)
        assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=1e-12)
        assert int(metrics["tokens"]) == int((batch.labels >= 0).sum())
    theirs.save_pretrained(tmp_path / "trained")
    (tmp_path / "trained" / "generation_config.json").write_text(json.dumps(GENERATION))
    expected = flatten(jt.import_checkpoint(tmp_path / "trained").params)
    received, before = flatten(jax.device_get(all_params(state))), flatten(model.params)
    assert received.keys() == expected.keys()
    for name, value in received.items():
        assert compare(np.asarray(value), np.asarray(expected[name])).relative_rms <= FLOAT64_RELATIVE_RMS, name
    moved = {name for name, value in received.items() if not np.array_equal(value, before[name])}
    assert any(name.startswith("decoder") for name in moved)
    assert any(name.startswith(("encoder", "stem")) for name in moved) != freezes


def test_a_run_in_float32_follows_and_its_model_is_written(sides: tuple[Path, Any, jt.Model], tmp_path: Path) -> None:
    """A run that is cut goes on bit for bit, since a batch is a function of its step."""
    _, _, model = sides
    train, batches = (
        TrainConfig(loss_counts_pads=True, label_smoothing=0.0),
        SpokenBatches(model, pairs(), rows=2, language="de"),
    )
    step, sgd = make_train_step(model.config, train, optimizer=optax.adam(1e-3)), optax.adam(1e-3)

    def trained(state: Any, first: int, end: int) -> Any:
        for number in range(first, end):
            state, _ = step(state, batches[number])
        return state

    whole = trained(init_state(model.config, train, model.params, optimizer=sgd), 0, 6)
    half = jax.device_get(trained(init_state(model.config, train, model.params, optimizer=sgd), 0, 3))
    resumed = trained(jax.device_put(half), 3, 6)
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True):
        np.testing.assert_array_equal(one, other)
    after = dataclasses.replace(model, params=jax.device_get(all_params(whole)))
    jt.export_checkpoint(after, tmp_path / "back")
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    batch = batches[9]
    features = torch.from_numpy(batch.source_ids.vectors).transpose(1, 2)
    with torch.no_grad():
        expected = theirs(input_features=features, decoder_input_ids=torch.from_numpy(batch.decoder_input_ids).long())
    received = jt.apply(after.config, after.params, batch.source_ids, batch.decoder_input_ids)
    np.testing.assert_allclose(received, expected.logits, atol=2e-5)
