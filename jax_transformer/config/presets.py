"""Runs by name: `python train.py NAME`. Each docstring describes the run, its cost and its scores."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.recipes import RECIPES
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError

OF_INITIAL_MODEL = TransformerConfig(position_kind="relative_bias", max_length=1)
"""Stands for the config of a model that isn't known yet: without a table of positions, it fits any sentences."""

# One line per subject, as in a table: sizes, norms, embeddings, dropout; text, batches; schedule, loss, scores.


def demo() -> RunConfig:
    """Trains English to German on the built-in phrasebook: a small pre-norm model, minutes on a laptop's CPU."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128, num_heads=4, d_ff=512, num_encoder_layers=2, num_decoder_layers=2, max_length=64,
            norm_placement="pre", final_norm=True, dropout_rate=0.0,
        ),
        data=DataConfig(phrasebook_pairs=100_000, tokenizer="words", max_length=32, batch_tokens=2048, num_shapes=2),
        train=TrainConfig(
            max_steps=600, schedule="cosine", learning_rate=2e-3, warmup_steps=120,
            label_smoothing=0.0, clip_norm=1.0, evaluate_every=300, evaluate_sentences=200,
        ),
    )  # fmt: skip


def tiny() -> RunConfig:
    """Trains 4+4 layers of width 128 with a joint BPE on parallel text of some ten thousand pairs. Name the text with
    --data.train and --data.valid."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128, num_heads=4, d_ff=256, num_encoder_layers=4, num_decoder_layers=4, max_length=256,
            norm_placement="pre", final_norm=True, share_embeddings=True, tie_head=True, initializer="fairseq",
            dropout_rate=0.3, attention_dropout_rate=0.0, feed_forward_dropout_rate=0.0,
        ),
        data=DataConfig(
            tokenizer="bpe", joint_vocabulary=True, vocab_size=10_000, max_length=128, batch_tokens=2048, num_shapes=7
        ),
        train=TrainConfig(
            max_steps=8_000, optimizer="muon", schedule="cosine", learning_rate=8e-3, warmup_steps=500,
            clip_norm=1.0, evaluate_every=500,
        ),
    )  # fmt: skip


def pretrain() -> RunConfig:
    """Pretrains a small T5 1.1 on the lines of plain text, with Adafactor as T5 was. Name the text with --data.train,
    and --data.valid or --data.valid-pairs; choose --data.objective span-corruption, ul2 or prefix-lm. Then fine-tune
    it: --init-from names the run."""
    return RunConfig(
        model=TransformerConfig(
            d_model=128, num_heads=4, d_ff=256, num_encoder_layers=2, num_decoder_layers=2, max_length=256,
            norm_placement="pre", final_norm=True, norm_kind="rms_norm", norm_eps=1e-6, norm_bias=False,
            position_kind="relative_bias", attention_scale=1.0, attention_bias=False, attention_output_bias=False,
            feed_forward_gated=True, feed_forward_bias=False, activation="gelu_tanh", share_embeddings=True,
            scale_embedding=False, head_bias="none", tie_head=True, scale_head=True, dropout_rate=0.0,
        ),
        data=DataConfig(
            objective="span-corruption", join_lines=True, tokenizer="unigram", joint_vocabulary=True, vocab_size=4_000,
            max_length=128, batch_tokens=4096, packing=True,
        ),
        train=TrainConfig(
            max_steps=10_000, optimizer="adafactor", scale_by_parameter=True, schedule="relative", learning_rate=1.0,
            relative_step=0.01, warmup_steps=0, label_smoothing=0.0, evaluate_every=500, evaluate_sentences=0,
        ),
    )  # fmt: skip


def finetune() -> RunConfig:
    """Trains an existing model further, such as one that was ported from transformers, with AdamW and the learning
    rates of transformers' Trainer. --init-from names the model, which brings its config, its tokenizers and what stands
    around targets. Name the text with --data.train and --data.valid, and languages with --data.source-tag and
    --data.target-tag."""
    return RunConfig(
        model=OF_INITIAL_MODEL,
        data=DataConfig(max_length=128, batch_tokens=4096, num_shapes=4),
        train=TrainConfig(
            max_steps=1_000, schedule="linear", learning_rate=5e-5, warmup_steps=0, clip_norm=1.0,
            weight_decay_kind="decoupled", adam_b2=0.999, adam_eps=1e-8, label_smoothing=0.0,
            evaluate_every=200, evaluate_sentences=200,
        ),
    )  # fmt: skip


def multi30k_tiny() -> RunConfig:
    """Trains `tiny` on Multi30k, English to German, lowercased and tokenized. Needs the files of data/task1/tok in
    https://github.com/multi30k/dataset here.

    The run takes 56 minutes on two cores of an Intel Xeon with AVX-512, 93 s of them compilation. Greedily, with the
    mean of the last five checkpoints, seeds 0, 1 and 2 score 39.76, 39.78 and 39.48 BLEU on test_2016_flickr, 39.67 in
    the mean, and 39.98, 39.98 and 39.96 on the validation set (sacreBLEU, tokenize=none). With five beams they score
    40.64, 40.65 and 40.15, and 41.75, 41.28 and 41.44.
    """
    base, name = tiny(), "{}.lc.norm.tok.{}".format
    return replace(
        base,
        data=replace(
            base.data, num_shapes=12,
            train=(name("train", "en"), name("train", "de")),
            valid=(name("val", "en"), name("val", "de")),
            test=(name("test_2016_flickr", "en"), name("test_2016_flickr", "de")),
        ),
        train=replace(
            base.train, max_steps=9_000, score_tokenizer="none", evaluate_sentences=200, average_checkpoints=5
        ),
    )  # fmt: skip


def tatoeba_en_zh() -> RunConfig:
    """Trains English to Chinese, in characters, on short sentences of Tatoeba. Needs train.tsv and dev.tsv of the
    annotated_zh tutorial here.

    Validation pairs come out of train.tsv; the 1,817 pairs of dev.tsv are the test. Seed 0, greedily, with the mean of
    the last five checkpoints, scores BLEU 26.0 (sacreBLEU, tokenize=zh) and chrF 22.8, after 57 minutes on one core of
    a busy Intel Xeon with AVX-512. "Tell me the reason why she got angry." becomes 告訴我她為什麼生氣。,
    "When does the game begin?" 比賽什麼時候開始?, and "Would you lend me some money?" 你能借我一些錢嗎? Rare words come
    out wrong: 14,000 pairs are few.
    """
    base = tiny()
    return replace(
        base,
        model=base.model.replace(
            d_model=256, d_ff=512, num_encoder_layers=3, num_decoder_layers=3, max_length=128,
            share_embeddings=False,
        ),
        data=DataConfig(
            train=("train.tsv",), test=("dev.tsv",), valid_pairs=500,
            tokenizer="bpe", target_kind="characters", vocab_size=4000, subword_sampling=0.1,
            lowercase=True, normalization="nfkc", max_length=64, batch_tokens=2048, num_shapes=6,
        ),
        train=replace(
            base.train, max_steps=3000, learning_rate=5e-3, warmup_steps=300, average_checkpoints=5,
            evaluate_every=300, evaluate_sentences=200, score_tokenizer="zh",
        ),
    )  # fmt: skip


def iwslt14() -> RunConfig:
    """Trains German to English on IWSLT 2014 with the sizes of fairseq's transformer_iwslt_de_en: 6+6 layers, d_ff
    1024, 4 heads, dropout 0.3. Needs train, valid and test .de and .en, as fairseq's prepare-iwslt14.sh leaves them
    before its BPE, here.

    For a GPU. Not run here.
    """
    base = paper_base()
    return replace(
        base,
        model=base.model.replace(
            num_heads=4, d_ff=1024, max_length=256,
            dropout_rate=0.3, attention_dropout_rate=0.0, feed_forward_dropout_rate=0.0,
        ),
        data=replace(
            base.data, train=("train.de", "train.en"), valid=("valid.de", "valid.en"), test=("test.de", "test.en"),
            vocab_size=10_000, max_length=175, batch_tokens=4096,
        ),
        train=replace(
            base.train, max_steps=60_000, learning_rate=0.7, average_checkpoints=10,
            score_tokenizer="none", evaluate_sentences=500,
        ),
    )  # fmt: skip


def opus100() -> RunConfig:
    """Trains English to German on OPUS-100, a million pairs of mixed quality, from the Hub (Zhang et al. 2020). For a
    GPU. Not run here."""
    base = paper_base()
    data = replace(_from_hub(base.data, "Helsinki-NLP/opus-100"), vocab_size=32_000, max_length=128, drop_overlap=True)
    return replace(base, data=data, train=replace(base.train, average_checkpoints=5))


def wmt14_base() -> RunConfig:
    """Trains English to German on WMT 2014 from the Hub, 4.5 million pairs: the paper's base model, the mean of its
    last 5 checkpoints (§6.1).

    The paper reports 27.3 BLEU on newstest2014 with beam 4, after 12 hours on 8 P100. Not run here.
    """
    base = paper_base()
    data = _from_hub(base.data, "wmt/wmt14")
    return replace(base, data=data, train=replace(base.train, average_checkpoints=5))


def wmt14_big() -> RunConfig:
    """Trains the big model on the same data, the mean of its last 20 checkpoints. The paper reports 28.4 BLEU, after
    3.5 days. Not run here."""
    base = paper_big()
    data = _from_hub(base.data, "wmt/wmt14")
    return replace(base, data=data, train=replace(base.train, average_checkpoints=20))


def _from_hub(data: DataConfig, dataset: str) -> DataConfig:
    """Returns the settings for the English and German of a dataset on the Hub, without duplicates."""
    languages = replace(data, dataset=dataset, dataset_config="de-en", source_language="en", target_language="de")
    return replace(languages, max_length_ratio=3.0, drop_duplicates=True)


def paper_base() -> RunConfig:
    """Configures the base model of Vaswani et al. 2017, table 3, with its optimizer: 6+6 layers of width 512. For a GPU
    or TPU."""
    return RunConfig(
        model=TransformerConfig(share_embeddings=True, tie_head=True, head_bias="none", initializer="fairseq"),
        data=DataConfig(tokenizer="bpe", joint_vocabulary=True, vocab_size=37_000, batch_tokens=25_000, num_shapes=8),
        train=TrainConfig(max_steps=100_000, warmup_steps=4000),
    )


def paper_big() -> RunConfig:
    """Configures the big model of the same table: width 1024, 16 heads, dropout 0.3, 300,000 steps. For GPUs or
    TPUs."""
    base = paper_base()
    return replace(
        base,
        model=base.model.replace(d_model=1024, num_heads=16, d_ff=4096, dropout_rate=0.3),
        train=replace(base.train, max_steps=300_000),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    preset.__name__: preset
    for preset in (
        *(
            demo,
            tiny,
            pretrain,
            finetune,
            multi30k_tiny,
            tatoeba_en_zh,
            iwslt14,
            opus100,
            wmt14_base,
            wmt14_big,
            paper_base,
            paper_big,
        ),
        *RECIPES,
    )
}


MEASURED = {
    "demo": "minutes on two cores",
    "multi30k_tiny": "56 minutes on two cores, 39.7 BLEU",
    "tatoeba_en_zh": "57 minutes on one core, 26.0 BLEU",
    "iwslt14": "not run here",
    "opus100": "not run here",
    "wmt14_base": "not run here; the paper: 12 hours on 8 P100, 27.3 BLEU",
    "wmt14_big": "not run here; the paper: 3.5 days on them, 28.4 BLEU",
    "stepwise_wide": "51 s on two cores, all 50 pairs",
}
"""How long a preset takes and what it scores, as its text says in detail."""


def get_preset(name: str) -> RunConfig:
    """Returns the run of this name.

    Raises:
      ConfigError: no preset has this name; the message lists the presets and suggests the nearest.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        suggestion = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown preset {name!r}; expected one of {', '.join(PRESETS)}.{suggestion}")
    return PRESETS[name]()
