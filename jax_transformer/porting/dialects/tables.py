"""Parts that tables are put together from: what a submodule's tensors are called on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jax_transformer.mapping.rules import Rule

Lines = Iterable[tuple[str, str, str]]
"""(tensor's name, leaf's path, axes), the names relative to the submodule."""

LINEAR = [("weight", "kernel", "O I -> I O"), ("bias", "bias", "")]


def within(torch: str, jax: str, lines: Lines, *, stacked: bool = False) -> list[Rule]:
    """Returns the rules of a submodule, called `torch` there and `jax` here."""
    return [Rule(f"{torch}.{name}", f"{jax}/{path}", axes, stacked=stacked) for name, path, axes in lines]


def attention(
    query: str, key: str, value: str, output: str | None, *, bias: bool = True, key_bias: bool = True
) -> list[tuple[str, str, str]]:
    """Returns the rules of an attention whose linear maps have these names and hold all heads."""
    lines = []
    for name, path in ((query, "query"), (key, "key"), (value, "value")):
        lines.append((f"{name}.weight", f"{path}/kernel", "(N H) D -> D N H"))
        if bias and (key_bias or path != "key"):
            lines.append((f"{name}.bias", f"{path}/bias", "(N H) -> N H"))
    if output:
        lines.append((f"{output}.weight", "output/kernel", "D (N H) -> N H D"))
        if bias:
            lines.append((f"{output}.bias", "output/bias", ""))
    return lines


def norm(scale: str, bias: str) -> list[tuple[str, str, str]]:
    """Returns the rules of a norm."""
    return [(scale, "scale", ""), (bias, "bias", "")]


def layers(torch: str, jax: str, parts: Mapping[str, tuple[str, Lines]]) -> list[Rule]:
    """Returns the rules of a stack's layers, from the name of each submodule there to its name here and its rules."""
    return [
        rule
        for name, (path, lines) in parts.items()
        for rule in within(f"{torch}.{{i}}.{name}", f"{jax}/layers/{path}", lines)
    ]


TUTORIAL: dict[str, Any] = {
    "share_embeddings": False,
    "tie_head": False,
    "trains_pad_embedding": True,
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "scale_head": False,
    "head_bias": "parameter",
    "position_kind": "sinusoidal",
    "position_layout": "interleaved",
    "position_frequency": "standard",
    "position_index": "column",
    "position_offset": 0,
    "norm_kind": "layer_norm",
    "norm_bias": True,
    "attention_scale": None,
    "attention_bias": True,
    "attention_output": True,
    "attention_output_bias": True,
    "feed_forward": True,
    "feed_forward_gated": False,
    "feed_forward_bias": True,
    "activation": "relu",
    "encoder_padding": "keys",
    "decoder_padding": "keys",
    "cross_padding": "keys",
    "decoding_decoder_padding": None,
    "decoding_cross_padding": None,
    "decoder_causal": True,
    "output_dropout_rate": 0.0,
}
"""The fields in which most published tutorials agree; a dialect overrides the rest."""

ASKS = {
    "num_heads": "how many heads its attentions have",
    "source_pad_id": "the id that pads source sentences",
    "target_pad_id": "the id that pads target sentences",
}
"""The fields that none of their checkpoints determines."""
