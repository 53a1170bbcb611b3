"""Drafts of maps: what follows from shapes and words is written out, what doesn't is commented out, and nothing is left
unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity.names.drafts import HEADER, Names, draft
from jax_transformer.parity.names.words import concepts, likeness

OUR_PARAMETERS = {
    "source_embedding/embedding": (11, 6),
    "head/kernel": (6, 12),
    **{
        f"encoder/layers/{path}[{i}]": shape
        for i in range(2)
        for path, shape in {
            "self_attention/query/kernel": (6, 3, 2),
            "self_attention/key/kernel": (6, 3, 2),
            "self_attention/value/kernel": (6, 3, 2),
            "self_attention/output/kernel": (3, 2, 6),
            "self_attention_norm/scale": (6,),
            "feed_forward_norm/scale": (6,),
            "feed_forward/hidden/kernel": (6, 8),
        }.items()
    },
}
OUR_ACTIVATIONS = {
    "mask.encoder_self": (4, 1, 1, 5),
    **{f"encoder.layers.{i}.self_attention.query": (4, 5, 3, 2) for i in range(2)},
    **{f"encoder.layers.{i}.self_attention.logits": (4, 3, 5, 5) for i in range(2)},
    **{f"encoder.layers.{i}.output": (4, 5, 6) for i in range(2)},
    "logits": (4, 7, 12),
}
OURS = Names(OUR_ACTIVATIONS, OUR_PARAMETERS)


def blocks(parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"enc.blocks.{i}.{name}": shape for i in range(2) for name, shape in parts.items()}


def lines(reference: Names) -> tuple[list[str], list[str]]:
    """Of activations and of parameters."""
    text = draft(reference, OURS)
    assert text.startswith(HEADER)
    activations, _, parameters = text.removeprefix(HEADER).removeprefix("activations:\n").partition("parameters:\n")
    return activations.splitlines(), parameters.splitlines()


def test_parameters_that_words_and_shapes_tell() -> None:
    words = {
        "attn.wq.weight": (6, 6),
        "attn.wk.weight": (6, 6),
        "attn.wv.weight": (6, 6),
        "attn.wo.weight": (6, 6),
        "fc.weight": (8, 6),
    }
    norms = {"norm_a.gamma": (6,), "norm_b.gamma": (6,)}
    _, parameters = lines(
        Names({}, {"tok.weight": (11, 6), **blocks(words | norms), "proj.weight": (12, 6), "extra": (99,)})
    )
    assert parameters == [
        "  tok.weight: source_embedding/embedding",
        '  enc.blocks.{i}.attn.wq.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "(N H) D -> '
        'D N H"}',
        '  enc.blocks.{i}.attn.wk.weight: {name: "encoder/layers/self_attention/key/kernel[{i}]", axes: "(N H) D -> D '
        'N H"}',
        '  enc.blocks.{i}.attn.wv.weight: {name: "encoder/layers/self_attention/value/kernel[{i}]", axes: "(N H) D -> '
        'D N H"}',
        '  enc.blocks.{i}.attn.wo.weight: {name: "encoder/layers/self_attention/output/kernel[{i}]", axes: "D (N H) '
        '-> N H D"}',
        "  # enc.blocks.{i}.norm_a.gamma: encoder/layers/self_attention_norm/scale[{i}]  # or "
        "enc.blocks.{i}.norm_b.gamma",
        '  enc.blocks.{i}.fc.weight: {name: "encoder/layers/feed_forward/hidden/kernel[{i}]", axes: "O I -> I O"}',
        "  # enc.blocks.{i}.norm_b.gamma: encoder/layers/feed_forward_norm/scale[{i}]  # or "
        "enc.blocks.{i}.norm_a.gamma",
        '  proj.weight: {name: "head/kernel", axes: "O I -> I O"}',
        "  # not used: extra [99]",
    ]


def test_fused_projections_and_transposed_kernels() -> None:
    _, parameters = lines(Names({}, blocks({"attn.in_proj": (18, 6), "attn.out.weight": (6, 6), "ff.w": (6, 8)})))
    assert "  enc.blocks.{i}.ff.w: encoder/layers/feed_forward/hidden/kernel[{i}]" in parameters
    fused = '{name: "encoder/layers/self_attention/{query,key,value}/kernel[{i}]", axes: "(3 N H) D -> D N H"}'
    assert f"  enc.blocks.{{i}}.attn.in_proj: {fused}" in parameters
    assert "  # head/kernel [6, 12]: nothing fits" in parameters
    assert not any("/query/" in line or "self_attention/key" in line for line in parameters)


def test_an_ambiguous_name_is_a_guess() -> None:
    _, parameters = lines(Names({}, blocks({"norm.gamma": (6,)})))
    assert "  # enc.blocks.{i}.norm.gamma: encoder/layers/self_attention_norm/scale[{i}]" in parameters
    assert "  # encoder/layers/feed_forward_norm/scale[{i}] [6]: perhaps enc.blocks.{i}.norm.gamma" in parameters


def test_activations_that_words_and_shapes_tell() -> None:
    parts = {"attn.wq@input": (4, 5, 6), "attn.wq": (4, 5, 6), "attn@logits": (12, 5, 5), "attn": (4, 5, 6)}
    captured = (
        blocks(parts) | {f"enc.blocks.{i}": (4, 5, 6) for i in range(2)} | {"proj": (4, 7, 12), "output": (4, 7, 12)}
    )
    activations, _ = lines(Names(captured, {}))
    assert activations == [
        "  enc.blocks.{i}.attn.wq: encoder.layers.{i}.self_attention.query",
        "  enc.blocks.{i}.attn@logits: encoder.layers.{i}.self_attention.logits",
        "  enc.blocks.{i}: encoder.layers.{i}.output",
        "  # proj: logits  # or output",
        "  # not used: enc.blocks.{i}.attn [4, 5, 6]",
        "  # not used: output [4, 7, 12]",
    ]


def test_a_draft_is_a_map_with_and_without_its_guesses(tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    text = draft(Names({"x": (4, 7, 12)}, blocks({"a.weight": (6,), "b.weight": (6,)})), OURS)
    path.write_text(text)
    assert NameMap.read(path) == NameMap(), "nothing is sure"
    path.write_text(text.replace("  # x: ", "  x: ").replace("  # enc.", "  enc."))
    names = NameMap.read(path)
    assert names.activations == {"x": ("logits",)}
    assert set(names.parameters) == {"enc.blocks.{i}.a.weight", "enc.blocks.{i}.b.weight"}


@pytest.mark.parametrize(
    ("theirs", "ours", "is_likelier_than"),
    [
        (
            "decoder.layers.0.encoder_attn.k_proj",
            "decoder/layers/cross_attention/key",
            "decoder/layers/self_attention/key",
        ),
        (
            "decoder.block.0.layer.1.EncDecAttention.q",
            "decoder/layers/cross_attention/query",
            "decoder/layers/self_attention/query",
        ),
        ("tgt_embed.0.lut", "target_embedding", "source_embedding"),
        (
            "encoder.layers.3.self_attn_layer_norm",
            "encoder/layers/self_attention_norm",
            "encoder/layers/feed_forward_norm",
        ),
    ],
)
def test_words_of_programs_are_understood(theirs: str, ours: str, is_likelier_than: str) -> None:
    best, other = (likeness(concepts(theirs), concepts(name)) for name in (ours, is_likelier_than))
    assert best is not None
    assert other is None or best > other
