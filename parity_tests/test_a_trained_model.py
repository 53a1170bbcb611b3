"""A model trained on the phrasebook goes to PyTorch, is the same function there, and comes back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as torch_functional

from jax_transformer.comparison.gates.compare import compare, float32_rule
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.data.batching import Batch, assemble
from jax_transformer.data.phrasebook.pairs import sample_pairs
from jax_transformer.data.planning import Shape
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.decoding.translation import translate
from jax_transformer.model import functional
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.state_dicts import params_from_state_dict
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model, load_model
from jax_transformer.training.loop import train
from jax_transformer.training.losses import Criterion, cross_entropy
from torch_reference.pytorch import PytorchTransformer, greedy

pytestmark = pytest.mark.usefixtures("quick_compilation")

Params = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The demo's kind of model, smaller, after 100 steps: enough for translations that look like German."""
    from jax_transformer.config.model import TransformerConfig

    folder = tmp_path_factory.mktemp("trained")
    config = RunConfig(
        model=TransformerConfig(
            d_model=64,
            num_heads=4,
            d_ff=128,
            num_encoder_layers=2,
            num_decoder_layers=2,
            max_length=48,
            norm_placement="pre",
            final_norm=True,
            dropout_rate=0.0,
        ),
        data=DataConfig(
            phrasebook_pairs=5000,
            valid_pairs=8,
            test_pairs=8,
            max_length=32,
            batch_tokens=512,
            num_shapes=1,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            max_steps=100,
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=30,
            label_smoothing=0.0,
            evaluate_every=100,
            evaluate_sentences=0,
        ),
        run_dir=str(folder / "run"),
    )
    with jax.enable_x64(False):
        return load_model(train(config).model)


@pytest.fixture(scope="module")
def exported(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.pt"
    export_checkpoint(trained, path, dialect="pytorch")
    return path


def in_torch(model: Model, path: Path, dtype: torch.dtype) -> PytorchTransformer:
    config = model.config
    reference = PytorchTransformer(
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        num_encoder_layers=config.num_encoder_layers,
        num_decoder_layers=config.num_decoder_layers,
        max_length=config.max_length,
        source_pad_id=config.source_pad_id,
        target_pad_id=config.target_pad_id,
        norm_first=True,
        norm_eps=config.norm_eps,
        dtype=dtype,
    )
    reference.load_state_dict(torch.load(path, weights_only=True), strict=True)
    return reference.eval()


def tokenizers(model: Model) -> tuple[Tokenizer, Tokenizer]:
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    return model.source_tokenizer, model.target_tokenizer


def held_out(model: Model) -> Batch:
    """40 test pairs of the phrasebook as one batch."""
    from jax_transformer.data.preparation import Sentences, TokenPairs

    source, target = tokenizers(model)
    english, german = zip(*sample_pairs("test", 40, seed=11), strict=True)
    pairs = TokenPairs(
        Sentences.pack(source.encode(english), english), Sentences.pack(target.encode(german), german), max_length=48
    )
    shape = Shape(40, int(pairs.source_lengths.max()), int(pairs.target_lengths.max()) + 1)
    return assemble(
        pairs,
        shape,
        np.arange(40),
        source_pad_id=source.pad_id,
        target_pad_id=target.pad_id,
        bos_id=target.bos_id,
        eos_id=target.eos_id,
    )


def wide(params: Params) -> Params:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def as_torch(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def test_logits_equal_torch(trained: Model, exported: Path) -> None:
    batch = held_out(trained)
    logits = {}
    for dtype, params in ((torch.float32, trained.params), (torch.float64, wide(trained.params))):
        with torch.no_grad():
            theirs = in_torch(trained, exported, dtype)(
                as_torch(batch.source_ids), as_torch(batch.decoder_input_ids)
            ).numpy()
        ours = np.asarray(functional.apply(trained.config, params, batch.source_ids, batch.decoder_input_ids))
        assert ours.dtype == theirs.dtype
        logits[dtype] = ours, theirs
    ours64, theirs64 = logits[torch.float64]
    assert compare(ours64, theirs64).relative_rms <= FLOAT64_RELATIVE_RMS
    assert float32_rule(*logits[torch.float32], theirs64).passed


def test_gradients_equal_torch(trained: Model, exported: Path) -> None:
    batch, config = held_out(trained), trained.config
    reference = in_torch(trained, exported, torch.float64)
    logits = reference(as_torch(batch.source_ids), as_torch(batch.decoder_input_ids))
    torch_functional.cross_entropy(
        logits.flatten(0, 1), as_torch(batch.labels).flatten(), ignore_index=config.target_pad_id
    ).backward()
    named = {
        name: parameter.grad.numpy() for name, parameter in reference.named_parameters() if parameter.grad is not None
    }
    theirs = flatten(params_from_state_dict(config, {**named, "positions": reference.positions.numpy()}, "pytorch"))

    @jax.jit
    def loss(params: Params) -> jax.Array:
        logits = functional.apply(config, params, batch.source_ids, batch.decoder_input_ids)
        total, tokens = cross_entropy(logits, jnp.asarray(batch.labels), Criterion(config.target_pad_id))
        return total / tokens

    ours = flatten(jax.grad(loss)(wide(trained.params)))
    compared = [path for path in ours if not path.startswith("constants/") and not has_zero_gradient(path)]
    assert len(compared) > 40
    for path in compared:
        assert compare(np.asarray(ours[path]), theirs[path]).relative_rms <= FLOAT64_RELATIVE_RMS, path


def test_greedy_translations_equal_torch(trained: Model, exported: Path) -> None:
    sentences = [english for english, _ in sample_pairs("test", 60, seed=5)]
    source, target = tokenizers(trained)
    reference = in_torch(trained, exported, torch.float32)
    with jax.enable_x64(False):
        ours = translate(trained, sentences)
    ids = source.encode(sentences)
    padded = np.full((len(ids), max(map(len, ids))), source.pad_id)
    for row, sentence in zip(padded, ids, strict=True):
        row[: len(sentence)] = sentence
    generation = trained.generation
    tokens = greedy(
        reference,
        as_torch(padded),
        generation.decoder_start_id,
        generation.eos_id,
        max_decode_length=trained.config.max_length,
    )
    rows = [row[: row.index(target.eos_id)] if target.eos_id in row else row for row in np.asarray(tokens).tolist()]
    theirs = target.decode([[token for token in row if token != generation.decoder_start_id] for row in rows])
    assert ours == theirs
    assert len(set(ours)) > 30  # a model that says one thing to everything would prove little


def test_a_round_trip_keeps_every_bit(trained: Model, exported: Path) -> None:
    config, generation = trained.config, trained.generation
    back = import_checkpoint(
        exported,
        num_heads=config.num_heads,
        source_pad_id=config.source_pad_id,
        target_pad_id=config.target_pad_id,
        norm_placement="pre",
        activation=config.activation,
        decoder_start_id=generation.decoder_start_id,
        eos_id=generation.eos_id,
        share_embeddings=False,
        tie_head=False,
    )
    before, after = flatten(trained.params), flatten(back.params)
    assert before.keys() == after.keys()
    for path in before:
        ours = np.asarray(before[path])
        assert ours.dtype == after[path].dtype
        assert ours.tobytes() == after[path].tobytes(), path
