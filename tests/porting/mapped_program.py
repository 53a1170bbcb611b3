"""A program of no dialect, as NumPy arrays: one small matrix per head, tied embeddings, a position table of its own,
and tensors that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jax_transformer.config.model import TransformerConfig

CONFIG = TransformerConfig(
    source_vocab_size=13,
    target_vocab_size=11,
    d_model=6,
    num_heads=3,
    d_ff=5,
    num_encoder_layers=2,
    num_decoder_layers=3,
    max_length=7,
    source_pad_id=1,
    target_pad_id=2,
    tie_head=True,
    norm_eps=1e-6,
)
CONFIG_TEXT = """
d_model: 6
num_heads: 3
d_ff: 5
num_encoder_layers: 2
num_decoder_layers: 3
max_length: 7
source_pad_id: 1
target_pad_id: 2
tie_head: true
norm_eps: 1e-6
"""
"""Without the vocabularies' sizes, which the embeddings have."""


def _attention(theirs: str, ours: str) -> Iterator[str]:
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
        name = f"{theirs}.heads.{{n}}.{letter}"
        yield f'{name}.weight: {{name: "{ours}/{part}/kernel[{{i}}]", axes: "{{n}} H D -> D {{n}} H"}}'
        yield f'{name}.bias: {{name: "{ours}/{part}/bias[{{i}}]", axes: "{{n}} H -> {{n}} H"}}'
    yield f'{theirs}.proj.weight: {{name: "{ours}/output/kernel[{{i}}]", axes: "D (N H) -> N H D"}}'
    yield f'{theirs}.proj.bias: "{ours}/output/bias[{{i}}]"'


def _norm(theirs: str, ours: str) -> Iterator[str]:
    yield f'{theirs}.weight: "{ours}/scale[{{i}}]"'
    yield f'{theirs}.bias: "{ours}/bias[{{i}}]"'


def _layers() -> Iterator[str]:
    for short, stack in (("enc", "encoder"), ("dec", "decoder")):
        theirs, ours = f"{short}.{{i}}", f"{stack}/layers"
        yield from _attention(f"{theirs}.attn", f"{ours}/self_attention")
        yield from _norm(f"{theirs}.ln1", f"{ours}/self_attention_norm")
        if stack == "decoder":
            yield from _attention(f"{theirs}.cross", f"{ours}/cross_attention")
            yield from _norm(f"{theirs}.ln2", f"{ours}/cross_attention_norm")
        for name, part in (("up", "hidden"), ("down", "output")):
            yield f'{theirs}.{name}.weight: {{name: "{ours}/feed_forward/{part}/kernel[{{i}}]", axes: "O I -> I O"}}'
            yield f'{theirs}.{name}.bias: "{ours}/feed_forward/{part}/bias[{{i}}]"'
        yield from _norm(f"{theirs}.ln3", f"{ours}/feed_forward_norm")


MAP = "\n  ".join(
    [
        "parameters:",
        "src.weight: source_embedding/embedding",
        '["tgt.weight", "out.weight"]: target_embedding/embedding',
        "out.bias: head_bias",
        'pe: {name: "constants/{encoder,decoder}_positions", axes: "1 P D -> P D"}',
        *_layers(),
    ]
)
MAP += '\nignore: ["enc.{i}.mask", "criterion.*", "steps"]\n'


def _attention_tensors(name: str) -> dict[str, tuple[int, ...]]:
    heads = {f"{name}.heads.{n}.{letter}": (2, 6) for n in range(3) for letter in "qkv"}
    shapes = {f"{head}.weight": shape for head, shape in heads.items()} | {f"{head}.bias": (2,) for head in heads}
    return shapes | {f"{name}.proj.weight": (6, 6), f"{name}.proj.bias": (6,)}


def _layer_tensors(name: str, *, crosses: bool) -> dict[str, tuple[int, ...]]:
    shapes = _attention_tensors(f"{name}.attn")
    if crosses:
        shapes |= _attention_tensors(f"{name}.cross")
    for norm in ("ln1", *(["ln2"] if crosses else []), "ln3"):
        shapes |= {f"{name}.{norm}.weight": (6,), f"{name}.{norm}.bias": (6,)}
    return shapes | {
        f"{name}.up.weight": (5, 6),
        f"{name}.up.bias": (5,),
        f"{name}.down.weight": (6, 5),
        f"{name}.down.bias": (6,),
    }


def make_tensors(prefix: str = "", dtype: object = "float32") -> dict[str, np.ndarray]:
    """Returns the program's state_dict: [out, in] matrices; the names of its own begin with the prefix."""
    shapes: dict[str, tuple[int, ...]] = {"pe": (1, 7, 6), "src.weight": (13, 6), "tgt.weight": (11, 6)}
    for i in range(2):
        shapes |= _layer_tensors(f"enc.{i}", crosses=False)
    for i in range(3):
        shapes |= _layer_tensors(f"dec.{i}", crosses=True)
    shapes["out.bias"] = (11,)
    rng = np.random.default_rng(0)
    tensors = {prefix + name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    tensors[f"{prefix}out.weight"] = tensors[f"{prefix}tgt.weight"].copy()
    for i in range(2):
        tensors[f"{prefix}enc.{i}.mask"] = np.tril(np.ones((7, 7), bool))
    tensors[f"{prefix}steps"] = np.array(70_000, np.int64)
    tensors["criterion.weight"] = np.array([-np.inf, 0, 1], np.float16)
    return tensors
