"""The Annotated Transformer of 2022 (torch_reference.harvard): annotated_zh's names and shapes, other numbers."""

from __future__ import annotations

from jax_transformer.porting.dialects import Dialect, Text, annotated_zh

DIALECT = Dialect(
    name="harvard",
    title="the Annotated Transformer: ReLU, norms with ε outside the root (torch_reference.harvard)",
    recognises=annotated_zh.recognises,
    fixed=annotated_zh.FIXED | {"activation": "relu", "norm_eps_outside": True},
    defaults=annotated_zh.DEFAULTS,
    read=annotated_zh.read,
    asks=annotated_zh.DIALECT.asks,
    rules=annotated_zh.rules,
    text={"source": Text("spacy", add_bos=True, add_eos=True), "target": Text("spacy")},
)

DIALECTS = (DIALECT,)
