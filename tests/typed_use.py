"""What type checkers must see of the public functions: `mypy tests/typed_use.py` checks it, and nothing runs it.

An error that should be reported is ignored by name, so that mypy complains if it isn't there.
"""

from __future__ import annotations

from typing import Any, assert_type

import jax
import numpy as np

import jax_transformer as jt


def config() -> jt.TransformerConfig:
    jt.TransformerConfig(num_head=4)  # type: ignore[call-arg]
    jt.TransformerConfig(d_model="512")  # type: ignore[arg-type]
    jt.TransformerConfig(norm_placement="prenorm")  # type: ignore[arg-type]
    made = jt.TransformerConfig(num_heads=4, decoder_norm_placement="pre")
    return made.replace(norm_kind="rms_norm")


def forward(config: jt.TransformerConfig, params: dict[str, Any], ids: np.ndarray) -> None:
    assert_type(jt.apply(config, params, ids, ids), jax.Array)
    logits, trace = jt.apply(config, params, ids, ids, return_trace=True)
    assert_type(logits, jax.Array)
    assert_type(trace["logits"], jax.Array)
    assert_type(jt.encode(config, params, ids), jax.Array)
    jt.apply(config, params, ids, ids, mask=None)  # type: ignore[call-overload]


def decoding(model: jt.Model) -> list[str]:
    jt.generate(model, [[1]], beams=4)  # type: ignore[call-arg]
    jt.translate(model, ["a"], sampling="yes")  # type: ignore[arg-type]
    return jt.translate(model, ["a"], beam_size=4, early_stopping="never")
