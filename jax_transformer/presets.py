"""Runs by name: `python train.py NAME`. Each docstring says what the run is, what it costs and what it scores."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from jax_transformer.config import TransformerConfig
from jax_transformer.run_config import DataConfig, RunConfig, TrainConfig
from jax_transformer.validation import ConfigError


def demo() -> RunConfig:
    """English to German on the embedded phrasebook: a small pre-norm model, minutes on a laptop's CPU."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128, num_heads=4, d_ff=512, num_encoder_layers=2, num_decoder_layers=2, max_length=64,
            norm_placement="pre", final_norm=True, dropout_rate=0.0,
        ),
        data=DataConfig(phrasebook_pairs=100_000, tokenizer="words", max_length=32, batch_tokens=2048, num_shapes=2),
        train=TrainConfig(
            max_steps=600, schedule="cosine", learning_rate=2e-3, warmup_steps=120, label_smoothing=0.0, clip_norm=1.0,
            evaluate_every=300, evaluate_sentences=200,
        ),
    )  # fmt: skip


def tiny() -> RunConfig:
    """4+4 layers of width 128 for parallel text of some ten thousand pairs (give it with --data.train and --data.valid), joint BPE."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128, num_heads=4, d_ff=256, num_encoder_layers=4, num_decoder_layers=4, max_length=256, norm_placement="pre",
            final_norm=True, share_embeddings=True, tie_head=True, dropout_rate=0.15, initializer="fairseq",
        ),
        data=DataConfig(tokenizer="bpe", joint_vocabulary=True, vocab_size=10_000, max_length=128, batch_tokens=2048, num_shapes=7),
        train=TrainConfig(max_steps=20_000, schedule="cosine", learning_rate=2e-3, warmup_steps=500, clip_norm=1.0),
    )  # fmt: skip


def paper_base() -> RunConfig:
    """The base model of Vaswani et al. 2017, table 3, with its optimizer: 6+6 layers of width 512. For a GPU or TPU."""
    return RunConfig(
        model=TransformerConfig(share_embeddings=True, tie_head=True, head_bias="none", initializer="fairseq"),
        data=DataConfig(tokenizer="bpe", joint_vocabulary=True, vocab_size=37_000, batch_tokens=25_000, num_shapes=8),
        train=TrainConfig(max_steps=100_000, warmup_steps=4000),
    )


def paper_big() -> RunConfig:
    """The big model of the same table: width 1024, 16 heads, dropout 0.3, 300,000 steps. For GPUs or TPUs."""
    base = paper_base()
    return RunConfig(
        model=TransformerConfig(
            d_model=1024, num_heads=16, d_ff=4096, dropout_rate=0.3, share_embeddings=True, tie_head=True, head_bias="none",
            initializer="fairseq",
        ),
        data=base.data,
        train=TrainConfig(max_steps=300_000, warmup_steps=4000),
    )  # fmt: skip


PRESETS: dict[str, Callable[[], RunConfig]] = {preset.__name__: preset for preset in (demo, tiny, paper_base, paper_big)}


def get_preset(name: str) -> RunConfig:
    """The named run.

    Raises:
      ConfigError: there is no such preset; the message lists those there are.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        suggestion = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown preset {name!r}; expected one of {', '.join(PRESETS)}.{suggestion}")
    return PRESETS[name]()
