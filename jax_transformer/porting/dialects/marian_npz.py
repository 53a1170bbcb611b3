"""Marian's own files: one matrix per weight under names such as encoder_l1_self_Wq, layers counted from 1.

Its vocabularies have no padding: porting/formats/marian.py adds a row of zeros to the embeddings. Its tables and its ε
aren't those of `marian`, the family of transformers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, fairseq, marian, one_size_of_heads, one_target_pad_id
from jax_transformer.storage.tensors import Tensors

NAME = "marian_npz"
SHARED, SOURCE, TARGET = "Wemb", "encoder_Wemb", "decoder_Wemb"
HEAD, OLD_HEAD, HEAD_BIAS = "decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W", "decoder_ff_logit_out_b"
ATTENTIONS = {
    "encoder": {"self": "self_attention"},
    "decoder": {"self": "self_attention", "context": "cross_attention"},
}
FIXED = marian.FIXED | {
    "position_frequency": "inclusive",
    "scale_embedding": True,
    "head_bias": "parameter",
}
del FIXED["norm_placement"], FIXED["final_norm"]


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    table = _embeddings(config)
    table.append(Rule(HEAD_BIAS, "head_bias" if config.tie_head else "head/bias", "1 V -> V"))
    suffix = "_pre" if config.norm_placement == "pre" else ""
    for stack, count in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        lines = [line for name, path in ATTENTIONS[stack].items() for line in _attention(name, path, suffix)]
        for name, path, axes in [*lines, *_feed_forward(suffix)]:
            names = {i: (f"{stack}_l{i + 1}_{name}",) for i in range(count)}
            table.append(Rule((), f"{stack}/layers/{path}", axes, by_layer=names))
        if config.final_norm:
            table += [
                Rule(f"{stack}_top_ln_{name}", f"{stack}/final_norm/{name}", "1 D -> D") for name in ("scale", "bias")
            ]
    return table


def _embeddings(config: TransformerConfig) -> list[Rule]:
    if config.share_embeddings:
        table = [Rule(SHARED, "shared_embedding/embedding")]
    else:
        table = [Rule(SOURCE, "source_embedding/embedding"), Rule(TARGET, "target_embedding/embedding")]
    return table if config.tie_head else [*table, Rule(HEAD, "head/kernel", "V D -> D V")]


def _attention(name: str, path: str, suffix: str) -> list[tuple[str, str, str]]:
    lines = []
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
        lines.append((f"{name}_W{letter}", f"{path}/{part}/kernel", "D (N H) -> D N H"))
        lines.append((f"{name}_b{letter}", f"{path}/{part}/bias", "1 (N H) -> N H"))
    lines.append((f"{name}_Wo", f"{path}/output/kernel", "(N H) D -> N H D"))
    lines.append((f"{name}_bo", f"{path}/output/bias", "1 D -> D"))
    return lines + _norm(f"{name}_Wo", f"{path}_norm", suffix)


def _feed_forward(suffix: str) -> list[tuple[str, str, str]]:
    lines = []
    for number, part in (("1", "hidden"), ("2", "output")):
        lines.append((f"ffn_W{number}", f"feed_forward/{part}/kernel", "I O -> I O"))
        lines.append((f"ffn_b{number}", f"feed_forward/{part}/bias", "1 O -> O"))
    return lines + _norm("ffn_ffn", "feed_forward_norm", suffix)


def _norm(name: str, path: str, suffix: str) -> list[tuple[str, str, str]]:
    return [(f"{name}_ln_{part}{suffix}", f"{path}/{part}", "1 D -> D") for part in ("scale", "bias")]


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are Marian's."""
    return "encoder_l1_self_Wq" in names and "decoder_l1_context_Wq" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    source, target = (SHARED, SHARED) if SHARED in tensors else (SOURCE, TARGET)
    return reader.finished(
        "Marian",
        source_vocab_size=reader.size(source, 0, 2),
        target_vocab_size=reader.size(target, 0, 2),
        d_model=reader.size(source, 1, 2),
        d_ff=reader.size("encoder_l1_ffn_W1", 1, 2),
        decoder_d_ff=reader.size("decoder_l1_ffn_W1", 1, 2),
        num_encoder_layers=_layers(tensors, "encoder"),
        num_decoder_layers=_layers(tensors, "decoder"),
        share_embeddings=SHARED in tensors,
        tie_head=HEAD not in tensors,
        norm_placement="pre" if "encoder_l1_ffn_ffn_ln_scale_pre" in tensors else "post",
        final_norm="encoder_top_ln_scale" in tensors,
    )


def _layers(tensors: Tensors, stack: str) -> int:
    return next(i for i in range(len(tensors) + 1) if f"{stack}_l{i + 1}_ffn_W1" not in tensors)


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Computes the position tables as Marian does, in float32."""
    half = config.d_model // 2
    step = np.log(np.float32(10000)) / np.float32(half - 1)
    frequencies = np.exp(np.arange(half, dtype=np.float32) * -step)
    angles = np.arange(config.encoder.table_rows, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {f"constants/{stack}_positions": table.copy() for stack in ("encoder", "decoder")}


def refuses(config: TransformerConfig) -> list[str]:
    return one_size_of_heads(config) + one_target_pad_id(config)


DIALECT = Dialect(
    name=NAME,
    title="Marian's own models, in .npz",
    recognises=recognises,
    fixed=FIXED,
    choices={
        "share_embeddings": (False, True),
        "tie_head": (False, True),
        "activation": ("relu", "gelu", "silu"),
        "norm_placement": ("post", "pre"),
        "final_norm": (False, True),
    },
    defaults={"norm_eps": 1e-6, "max_length": 1024},
    read=read,
    asks={name: fairseq.ASKS[name] for name in ("num_heads", "source_pad_id", "target_pad_id", "activation")},
    rules=rules,
    refuses=refuses,
    computed=computed,
)

DIALECTS = (DIALECT,)
