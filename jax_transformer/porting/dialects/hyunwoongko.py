"""hyunwoongko/transformer (torch_reference.hyunwoongko): sayhello's names and shapes, other numbers."""

from __future__ import annotations

from collections.abc import Collection

from jax_transformer.porting.dialects import Dialect, Text, sayhello

FIXED = sayhello.FIXED | {
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "masked_value": -10000.0,
    "encoder_padding": "keys",
    "decoder_padding": "queries",
    "cross_padding": "keys",
    "attention_bias": True,
    "attention_output_bias": True,
}


def recognises(names: Collection[str]) -> bool:
    return sayhello.recognises(names) and "encoder.layers.0.attention.w_q.bias" in names


DIALECT = Dialect(
    name="hyunwoongko",
    title="hyunwoongko/transformer: the paper's norms, the decoder's padding masked on queries "
    "(torch_reference.hyunwoongko)",
    recognises=recognises,
    fixed=FIXED,
    defaults=sayhello.DEFAULTS,
    read=sayhello.read,
    asks=sayhello.DIALECT.asks,
    rules=sayhello.rules,
    text={"source": Text("spacy", lowercase=True, add_bos=True, add_eos=True), "target": Text("spacy", lowercase=True)},
    computed=sayhello.computed,
)

DIALECTS = (DIALECT,)
