"""A Whisper with random weights and windows of half a second."""

from __future__ import annotations

import json

import jax

import jax_transformer as jt
from jax_transformer.config import Stem
from jax_transformer.config.speech import SpeechTokens

END, START, EN, DE, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMES = 40, 41, 42, 43, 44, 45, 46, 48
FIRST = 49
SPEECH = SpeechTokens(
    no_timestamps_id=NO_TIMES, languages={"en": EN, "de": DE}, transcribe_id=TRANSCRIBE, translate_id=TRANSLATE,
    previous_id=PREVIOUS, max_initial_timestamp=3, alignment_heads=((0, 1),),
)  # fmt: skip
CONFIG = jt.TransformerConfig(
    stem=Stem(features=4), target_vocab_size=FIRST + 26, target_pad_id=END, d_model=8, num_heads=2, d_ff=8,
    num_encoder_layers=1, num_decoder_layers=1, max_length=25, decoder_max_length=24, encoder_padding="none",
    cross_padding="none", decoder_padding="none",
)  # fmt: skip
HALF_SECOND = 8_000


def small_whisper() -> jt.Model:
    """Returns a Whisper whose text is letters from A on."""
    letters = json.dumps({chr(ord("A") + i): i for i in range(END)})
    files = {"vocab.json": letters.encode(), "merges.txt": b"#version: 0.2\n"}
    generation = jt.GenerationConfig(decoder_start_id=START, eos_id=END, speech=SPEECH)
    params = jt.init_params(CONFIG, jax.random.key(1))
    return jt.Model(CONFIG, params, None, None, generation, tokenizer_files=files)
