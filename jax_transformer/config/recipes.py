"""The published systems as runs by name: the model, tokenizer, loss, optimizer, schedule and decoding of each program.

Each docstring gives the original's reported scores, and lists its program's habits that the run deliberately omits. In
every run, a batch holds a number of tokens in a few fixed shapes instead of a number of sentences, and the checkpoint
with the best validation loss is kept.
"""

from __future__ import annotations

from dataclasses import replace

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig

# One line per subject, as in a table: sizes, norms, masks, dropout; text, special ids, batches; schedule, loss, scores.


def floydhub() -> RunConfig:
    """Reproduces FloydHub's tutorial, English to French. Needs train.en, train.fr, valid.en and valid.fr here.

    The original reports a loss of about 1.3, and BLEU 0.39 on Europarl. Its program keeps pairs of sentences of fewer
    than 80 spaces; this run keeps those of up to 80 tokens. The released program decodes with a beam of 3; this run
    decodes greedily.
    """
    return RunConfig(
        model=TransformerConfig(
            max_length=200, scale_embedding=True, position_frequency="doubled",
            norm_placement="pre", norm_eps=1e-6, norm_eps_outside=True, norm_unbiased=True, final_norm=True,
            source_pad_id=1, target_pad_id=1, masked_value=-1e9, decoding_decoder_padding="none",
            dropout_rate=0.1, initializer="xavier_uniform",
        ),
        data=DataConfig(
            train=("train.en", "train.fr"), valid=("valid.en", "valid.fr"),
            tokenizer="spacy", source_language="en", target_language="fr", lowercase=True,
            unk_id=0, pad_id=1, bos_id=2, eos_id=3, source_eos=False,
            max_length=80, batch_tokens=1500, num_shapes=8,
        ),
        train=TrainConfig(
            max_steps=100_000, schedule="constant", learning_rate=1e-4, warmup_steps=0,
            label_smoothing=0.0, evaluate_sentences=100,
        ),
    )  # fmt: skip


def annotated_zh() -> RunConfig:
    """Reproduces the Annotated Transformer for English to Chinese on Tatoeba. Needs train.tsv and dev.tsv here.

    The original reports 1200 s for 20 epochs on a laptop's GPU. Its program lowercases English only; this run also
    lowercases Latin letters in the Chinese. It sorts sentences by length into batches of 64 and shuffles their order
    once; this run shuffles each epoch. It also calls `backward()` on the validation batches, whose gradients enter the
    next epoch's first step; this run doesn't.
    """
    return RunConfig(
        model=TransformerConfig(
            d_model=256, d_ff=1024, max_length=5000, scale_embedding=True, activation="none",
            norm_placement="pre", norm_eps=1e-6, norm_unbiased=True, final_norm=True,
            masked_value=-1e9, decoding_decoder_padding="none",
            dropout_rate=0.1, attention_dropout_rate=0.1, initializer="xavier_uniform",
        ),
        data=DataConfig(
            train=("train.tsv",), valid=("dev.tsv",),
            tokenizer="words", target_kind="characters", lowercase=True,
            pad_id=0, unk_id=0, bos_id=1, eos_id=2, source_bos=True,
            max_length=100, batch_tokens=1024, num_shapes=6,
        ),
        train=TrainConfig(
            max_steps=1_000_000, max_epochs=20, schedule="paper", learning_rate=1.0, warmup_steps=2000,
            label_smoothing=0.0, smoothing="others_but_pad",
            evaluate_every=200, evaluate_sentences=100, max_decode_length=60, score_tokenizer="zh",
        ),
    )  # fmt: skip


def annotated_zh_debug() -> RunConfig:
    """Reduces annotated_zh to the sizes that its program has for debugging: 3+3 layers of width 128."""
    run = annotated_zh()
    return replace(run, model=run.model.replace(d_model=128, d_ff=256, num_encoder_layers=3, num_decoder_layers=3))


def harvard() -> RunConfig:
    """Reproduces the Annotated Transformer of 2022, German to English on Multi30k. Needs train, val and
    test_2016_flickr .de and .en here.

    Its program adds up the gradients of 10 batches, each divided by its own tokens, and advances the schedule with
    every batch. This run accumulates ten batches into one step, weights every token equally, and counts steps.
    """
    return RunConfig(
        model=annotated_zh().model.replace(
            d_model=512, d_ff=2048, activation="relu", norm_eps_outside=True,
            source_pad_id=2, target_pad_id=2,
        ),
        data=DataConfig(
            train=("train.de", "train.en"), valid=("val.de", "val.en"),
            test=("test_2016_flickr.de", "test_2016_flickr.en"),
            tokenizer="spacy", source_language="de", target_language="en", min_frequency=2,
            bos_id=0, eos_id=1, pad_id=2, unk_id=3, source_bos=True,
            max_length=72, batch_tokens=640, num_shapes=6,
        ),
        train=TrainConfig(
            max_steps=1_000_000, max_epochs=8, schedule="paper", learning_rate=1.0, warmup_steps=3000,
            repeats_first_rate=True, accumulate=10,
            label_smoothing=0.1, smoothing="others_but_pad", evaluate_every=100, evaluate_sentences=100,
        ),
    )  # fmt: skip


def codersarts() -> RunConfig:
    """Reproduces Codersarts' article on the built-in phrasebook; the article trains on random tensors.

    A token's position is its row in the batch, as the article computes it; `--model.position-index column` gives the
    intended numbering. Pads count in the loss. Positions by row carry no word order, so this model can't translate.
    """
    return RunConfig(
        model=TransformerConfig(
            max_length=5000, scale_embedding=False, position_index="batch_row",
            norm_placement="pre", norm_eps=1e-6, norm_eps_outside=True, norm_unbiased=True, masked_value=-1e9,
            dropout_rate=0.1, attention_dropout_rate=0.1, initializer="torch",
        ),
        data=DataConfig(tokenizer="whitespace", source_eos=False, max_length=32, batch_tokens=2048, num_shapes=2),
        train=TrainConfig(
            max_steps=1_000_000, max_epochs=100, schedule="constant", learning_rate=1e-4, warmup_steps=0,
            adam_b2=0.999, adam_eps=1e-8,
            label_smoothing=0.0, loss_counts_pads=True, evaluate_sentences=100,
        ),
    )  # fmt: skip


def sayhello() -> RunConfig:
    """Reproduces SayHello's series, English to German on Multi30k. Needs train, val and test_2016_flickr .en and .de
    here.

    The original reports curves, and a BLEU of about 19 under teacher forcing, which is no translation score. The
    learning rate falls by a tenth after 10 evaluations without a better validation loss, from the hundredth on;
    torch's ε of 1e-8 stops it near 1e-7. An evaluation comes about once an epoch.
    """
    return RunConfig(
        model=TransformerConfig(
            max_length=256, scale_embedding=False, trains_pad_embedding=False,
            norm_placement="post", norm_eps=1e-12, norm_eps_outside=True, norm_unbiased=True,
            attention_bias=False, attention_output_bias=False, masked_value=-1e12,
            encoder_padding="both", decoder_padding="both", cross_padding="both",
            source_pad_id=1, target_pad_id=1, decoder_padding_id=1,
            dropout_rate=0.1, attention_dropout_rate=0.0, initializer="kaiming_uniform",
        ),
        data=DataConfig(
            train=("train.en", "train.de"), valid=("val.en", "val.de"),
            test=("test_2016_flickr.en", "test_2016_flickr.de"),
            tokenizer="spacy", source_language="en", target_language="de", lowercase=True, min_frequency=2,
            unk_id=0, pad_id=1, bos_id=2, eos_id=3, source_bos=True,
            max_length=256, batch_tokens=640, num_shapes=6,
        ),
        train=TrainConfig(
            max_steps=1_000_000, max_epochs=1000, schedule="constant", learning_rate=1e-5, warmup_steps=0,
            adam_b2=0.999, adam_eps=5e-9, weight_decay=5e-4, clip_norm=1.0,
            plateau_patience=10, plateau_factor=0.9, plateau_start=100,
            label_smoothing=0.0, evaluate_every=700, evaluate_sentences=0,
        ),
    )  # fmt: skip


def hyunwoongko() -> RunConfig:
    """Reproduces hyunwoongko/transformer, English to German on Multi30k: the files and training of sayhello, in batches
    four times as large.

    The original reports 26.4: the BLEU of the argmax under teacher forcing on the validation set, which is no
    translation score.
    """
    run = sayhello()
    model = run.model.replace(
        norm_eps_outside=False, norm_unbiased=False,
        attention_bias=True, attention_output_bias=True, masked_value=-10000.0,
        encoder_padding="keys", decoder_padding="queries", cross_padding="keys", decoder_padding_id=None,
    )  # fmt: skip
    return replace(
        run, model=model, data=replace(run.data, batch_tokens=2560), train=replace(run.train, evaluate_every=180)
    )


def stepwise() -> RunConfig:
    """Reproduces the article that builds a Transformer in steps: width 4, to memorise 50 pairs. Needs them as train.tsv
    here.

    The original reports that it memorises its 50 pairs of OPUS-100. Repeated at this size, it translates 7 of 50
    correctly; `stepwise_wide` memorises all. The article's batches of 32 cut the end off the longest sentences'
    targets; this run cuts nothing. Its single <EOS> begins and ends targets, and it has no <unk>; here <bos> begins
    them, and both vocabularies have an <unk>. Its model attends to padding, so all batches have one length, and
    decoding pads sources to it, too.
    """
    return RunConfig(
        model=TransformerConfig(
            d_model=4, num_heads=2, d_ff=128, num_encoder_layers=3, num_decoder_layers=3, max_length=1024,
            scale_embedding=False, norm_placement="post", masked_value=-1e9,
            encoder_padding="queries", decoder_padding="queries", cross_padding="none",
            dropout_rate=0.0, initializer="torch",
        ),
        data=DataConfig(
            train=("train.tsv",), valid=("train.tsv",),
            tokenizer="whitespace", source_eos=False, max_length=128, batch_tokens=1024, num_shapes=1,
        ),
        train=TrainConfig(
            max_steps=1_000_000, max_epochs=2000, schedule="constant", learning_rate=5e-3, warmup_steps=0,
            adam_b2=0.999, adam_eps=1e-8, label_smoothing=0.0, loss_counts_pads=True,
            evaluate_every=500, evaluate_sentences=50, max_decode_length=40, score_tokenizer="none",
        ),
    )  # fmt: skip


def stepwise_wide() -> RunConfig:
    """Widens stepwise to 32, with a learning rate of 1e-3, so that it memorises.

    Of the first 50 pairs of Multi30k (German to English) it translates 47 correctly after 250 epochs, and all 50 from
    500 on. The run takes 51 s on two cores of an Intel Xeon.
    """
    run = stepwise()
    return replace(
        run, model=run.model.replace(d_model=32), train=replace(run.train, learning_rate=1e-3, max_epochs=1000)
    )


RECIPES = (
    *(floydhub, annotated_zh, annotated_zh_debug, harvard, codersarts),
    *(sayhello, hyunwoongko, stepwise, stepwise_wide),
)
