"""Runs by name: `python train.py NAME`. Each docstring says what the run is, what it costs and what it scores."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.recipes import RECIPES
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError


def demo() -> RunConfig:
    """English to German on the embedded phrasebook: a small pre-norm model, minutes on a laptop's CPU."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128,
            num_heads=4,
            d_ff=512,
            num_encoder_layers=2,
            num_decoder_layers=2,
            max_length=64,
            norm_placement="pre",
            final_norm=True,
            dropout_rate=0.0,
        ),
        data=DataConfig(phrasebook_pairs=100_000, tokenizer="words", max_length=32, batch_tokens=2048, num_shapes=2),
        train=TrainConfig(
            max_steps=600,
            schedule="cosine",
            learning_rate=2e-3,
            warmup_steps=120,
            label_smoothing=0.0,
            clip_norm=1.0,
            evaluate_every=300,
            evaluate_sentences=200,
        ),
    )


def tiny() -> RunConfig:
    """4+4 layers of width 128 for parallel text of some ten thousand pairs (give it with --data.train and
    --data.valid), joint BPE."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128,
            num_heads=4,
            d_ff=256,
            num_encoder_layers=4,
            num_decoder_layers=4,
            max_length=256,
            norm_placement="pre",
            final_norm=True,
            share_embeddings=True,
            tie_head=True,
            initializer="fairseq",
            dropout_rate=0.3,
            attention_dropout_rate=0.0,
            feed_forward_dropout_rate=0.0,
        ),
        data=DataConfig(
            tokenizer="bpe", joint_vocabulary=True, vocab_size=10_000, max_length=128, batch_tokens=2048, num_shapes=7
        ),
        train=TrainConfig(
            max_steps=8_000,
            optimizer="muon",
            schedule="cosine",
            learning_rate=8e-3,
            warmup_steps=500,
            clip_norm=1.0,
            evaluate_every=500,
        ),
    )


def multi30k_tiny() -> RunConfig:
    """English to German on Multi30k, lowercased and tokenized: the files of data/task1/tok in
    https://github.com/multi30k/dataset, here.

    `tiny`, for an hour on two cores: 56 minutes on an Intel Xeon with AVX-512, 93 s of them compilation. Greedily, with
    the mean of the last five checkpoints, seeds 0, 1 and 2 score 39.76, 39.78 and 39.48 BLEU on test_2016_flickr, 39.67
    in the mean, and 39.98, 39.98 and 39.96 on the validation set (sacreBLEU, tokenize=none). With five beams they score
    40.64, 40.65 and 40.15, and 41.75, 41.28 and 41.44.
    """
    base, name = tiny(), "{}.lc.norm.tok.{}".format
    return replace(
        base,
        data=replace(
            base.data,
            train=(name("train", "en"), name("train", "de")),
            valid=(name("val", "en"), name("val", "de")),
            test=(name("test_2016_flickr", "en"), name("test_2016_flickr", "de")),
            num_shapes=12,
        ),
        train=replace(
            base.train, max_steps=9_000, score_tokenizer="none", evaluate_sentences=200, average_checkpoints=5
        ),
    )


def tatoeba_en_zh() -> RunConfig:
    """English to Chinese, in characters, on short sentences of Tatoeba: train.tsv and dev.tsv of the annotated_zh
    tutorial, here.

    Validation pairs are taken out of train.tsv; dev.tsv, 1,817 pairs, is the test. Seed 0, greedily, with the mean of
    the last five checkpoints: BLEU 26.0 (sacreBLEU, tokenize=zh) and chrF 22.8, after 57 minutes on one core of an
    Intel Xeon with AVX-512, beside other work. "Tell me the reason why she got angry." becomes 告訴我她為什麼生氣。,
    "When does the game begin?" 比賽什麼時候開始?, and "Would you lend me some money?" 你能借我一些錢嗎?; rare words go
    wrong: 14,000 pairs are few.
    """
    return RunConfig(
        model=TransformerConfig(
            d_model=256,
            num_heads=4,
            d_ff=512,
            num_encoder_layers=3,
            num_decoder_layers=3,
            max_length=128,
            norm_placement="pre",
            final_norm=True,
            tie_head=True,
            initializer="fairseq",
            dropout_rate=0.3,
            attention_dropout_rate=0.0,
            feed_forward_dropout_rate=0.0,
        ),
        data=DataConfig(
            train=("train.tsv",),
            test=("dev.tsv",),
            valid_pairs=500,
            tokenizer="bpe",
            target_kind="characters",
            vocab_size=4000,
            lowercase=True,
            normalization="nfkc",
            subword_sampling=0.1,
            max_length=64,
            batch_tokens=2048,
            num_shapes=6,
        ),
        train=TrainConfig(
            max_steps=3000,
            optimizer="muon",
            schedule="cosine",
            learning_rate=5e-3,
            warmup_steps=300,
            clip_norm=1.0,
            evaluate_every=300,
            evaluate_sentences=200,
            average_checkpoints=5,
            score_tokenizer="zh",
        ),
    )


def iwslt14() -> RunConfig:
    """German to English on IWSLT 2014, as fairseq's prepare-iwslt14.sh leaves it, before its BPE: train, valid and test
    .de and .en, here.

    The sizes of fairseq's transformer_iwslt_de_en: 6+6 layers, d_ff 1024, 4 heads, dropout 0.3. For a GPU. Not run
    here.
    """
    return RunConfig(
        model=TransformerConfig(
            d_model=512,
            num_heads=4,
            d_ff=1024,
            max_length=256,
            share_embeddings=True,
            tie_head=True,
            head_bias="none",
            initializer="fairseq",
            dropout_rate=0.3,
            attention_dropout_rate=0.0,
            feed_forward_dropout_rate=0.0,
        ),
        data=DataConfig(
            train=("train.de", "train.en"),
            valid=("valid.de", "valid.en"),
            test=("test.de", "test.en"),
            tokenizer="bpe",
            joint_vocabulary=True,
            vocab_size=10_000,
            max_length=175,
            batch_tokens=4096,
            num_shapes=8,
        ),
        train=TrainConfig(
            max_steps=60_000,
            learning_rate=0.7,
            warmup_steps=4000,
            average_checkpoints=10,
            score_tokenizer="none",
            evaluate_sentences=500,
        ),
    )


def opus100() -> RunConfig:
    """English to German on OPUS-100, a million pairs of mixed quality, from the Hub (Zhang et al. 2020). For a GPU. Not
    run here."""
    base = paper_base()
    return replace(
        base,
        data=replace(
            base.data,
            dataset="Helsinki-NLP/opus-100",
            dataset_config="de-en",
            source_language="en",
            target_language="de",
            vocab_size=32_000,
            max_length=128,
            max_length_ratio=3.0,
            drop_duplicates=True,
            drop_overlap=True,
        ),
        train=replace(base.train, average_checkpoints=5),
    )


def wmt14_base() -> RunConfig:
    """English to German on WMT 2014 from the Hub, 4.5 million pairs: the paper's base model, the mean of its last 5
    checkpoints (§6.1).

    The paper reports 27.3 BLEU on newstest2014 with beam 4, after 12 hours on 8 P100. Not run here.
    """
    base = paper_base()
    return replace(base, data=_wmt14(base.data), train=replace(base.train, average_checkpoints=5))


def wmt14_big() -> RunConfig:
    """The same with the big model, the mean of its last 20 checkpoints. The paper reports 28.4 BLEU, after 3.5 days.
    Not run here."""
    base = paper_big()
    return replace(base, data=_wmt14(base.data), train=replace(base.train, average_checkpoints=20))


def _wmt14(data: DataConfig) -> DataConfig:
    return replace(
        data,
        dataset="wmt/wmt14",
        dataset_config="de-en",
        source_language="en",
        target_language="de",
        max_length_ratio=3.0,
        drop_duplicates=True,
    )


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
    return replace(
        base,
        model=replace(base.model, d_model=1024, num_heads=16, d_ff=4096, dropout_rate=0.3),
        train=replace(base.train, max_steps=300_000),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    preset.__name__: preset
    for preset in (
        demo,
        tiny,
        multi30k_tiny,
        tatoeba_en_zh,
        iwslt14,
        opus100,
        wmt14_base,
        wmt14_big,
        paper_base,
        paper_big,
        *RECIPES,
    )
}


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
