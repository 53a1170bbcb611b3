"""Encoder-decoders of Hugging Face's transformers that no config expresses, and the operation that each lacks here."""

from __future__ import annotations

MISSING: dict[str, str] = {
    "led": "attention in windows, with global tokens",
    "longt5": "attention in windows, with summaries of blocks",
    "bigbird_pegasus": "attention of sparse blocks",
    "pegasus_x": "attention in blocks, with global tokens",
    "reformer": "attention by hashes",
    "switch_transformers": "a feed-forward of routed experts",
    "nllb-moe": "a feed-forward of routed experts",
    "prophetnet": "decoder streams that predict several tokens ahead",
    "xlm-prophetnet": "decoder streams that predict several tokens ahead",
    "rag": "retrieval of documents",
    "t5gemma2": "self-attention and cross-attention in one softmax",
    "udop": "an encoder of images and layouts",
    "pix2struct": "an encoder of images",
    "vision-encoder-decoder": "an encoder of images",
    "florence2": "an encoder of images",
    "speech_to_text": "convolutions with gated units",
    "speech-encoder-decoder": "an encoder of sounds",
    "speecht5": "convolutions over samples of sound",
    "canary": "an encoder of Conformer blocks",
    "moonshine": "convolutions over samples of sound",
    "seamless_m4t": "an encoder of Conformer blocks",
    "seamless_m4t_v2": "an encoder of Conformer blocks",
    "pop2piano": "an encoder of sounds",
    "musicgen": "a decoder of sounds",
    "bark": "a decoder of sounds",
    "dia": "a decoder of sounds",
}
"""model_type → what its models compute and no config has."""
