"""Read from attention weights which padding a module hides, and whether it hides later tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import option_at
from jax_transformer.discover.graph import Graph
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.sublayers import AttentionSublayer, Parts
from jax_transformer.parity.oracle import formulas

COVERS = ("keys", "both", "none", "queries")
FIELDS = {"encoder_self": "encoder_padding", "decoder_self": "decoder_padding", "cross": "cross_padding"}


def padding_fields(
    graph: Graph,
    parts: Parts,
    ids: dict[str, np.ndarray],
    source_pad_id: int | None,
    target_pad_id: int | None,
    notes: list[str],
) -> dict[str, Any]:
    """Returns the options of masks by their paths in a config.

    Args:
      ids: the ids that the embeddings read, `source_ids` [B, S] and `target_ids` [B, T].
      source_pad_id, target_pad_id: None: no id is padding, so no mask hides it.

    Raises:
      Unknown: a pattern of visible keys that no field expresses; layers whose patterns differ.
    """
    fields: dict[str, Any] = {"source_pad_id": source_pad_id or 0, "target_pad_id": target_pad_id or 0}
    has_pads = {"encoder_self": source_pad_id, "decoder_self": target_pad_id, "cross": source_pad_id}
    for kind, field in FIELDS.items():
        found = [one for one in parts.sublayers if isinstance(one, AttentionSublayer) and one.kind == kind]
        covers = COVERS if has_pads[kind] is not None else ("none",)
        masks = _masks(kind, field, ids, fields, covers)
        fits = [_fits(one, masks) for one in found]
        common = [fit for fit in fits[0] if all(fit in others for others in fits)] if fits else []
        if not common:
            where = found[0].attention.first if found else graph.recording.output
            what = f"a mask of {kind} attention that hides neither keys nor queries of padding alone"
            raise Unknown(where, what, _nearest(found[0], masks) if found else None)
        fields |= common[0]
        if len(common) > 1:
            notes.append(
                f"{field}={common[0][field]!r}: also fits: {', '.join(repr(one[field]) for one in common[1:])}"
            )
    return {_path(name): value for name, value in fields.items()}


def _path(name: str) -> str:
    """Returns the path of an option that one part has."""
    at = option_at(name)
    assert at is not None
    return f"{at.places[0]}.{at.field}"


Masks = list[tuple[dict[str, Any], np.ndarray]]
"""Values of a config's fields of a mask, and the mask that they give, True = visible."""


def _masks(kind: str, field: str, ids: dict[str, np.ndarray], known: dict[str, Any], covers: Sequence[Any]) -> Masks:
    """Returns every mask that a config may have for a kind of attention, besides the fields already known."""
    causal = ({"decoder_causal": True}, {"decoder_causal": False}) if kind == "decoder_self" else ({},)
    choices = ({field: cover} | other for cover, other in product(covers, causal))
    return [(fields, _mask(kind, TransformerConfig(**known | fields), ids)) for fields in choices]


def _fits(one: AttentionSublayer, masks: Masks) -> list[dict[str, Any]]:
    """Returns the fields whose mask matches the attention's weights."""
    weights = np.nan_to_num(one.attention.weights)
    flat = np.ptp(weights, axis=-1) < 1e-6
    fits = []
    for fields, mask in masks:
        expected = np.broadcast_to(mask, weights.shape)
        open_rows = expected.any(axis=-1)
        same = ((weights > 0) == expected).all(axis=-1)
        if (same[open_rows]).all() and flat[~open_rows].all():
            fits.append(fields)
    return fits


def _nearest(one: AttentionSublayer, masks: Masks) -> tuple[str, float]:
    """Returns the fields whose mask agrees with the module's in the most places, and the share in which it doesn't."""
    visible = np.nan_to_num(one.attention.weights) > 0
    fields, mask = min(masks, key=lambda one: float(np.mean(visible != one[1])))
    return ", ".join(f"{name}={value!r}" for name, value in fields.items()), float(np.mean(visible != mask))


def _mask(kind: str, config: TransformerConfig, ids: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the mask of a kind of attention."""
    encoder, decoder, cross = config.attentions
    source, target = ids["source_ids"], ids["target_ids"]
    if kind == "cross":
        return formulas.cross_mask(cross, config.source, config.target, source, target)
    if kind == "encoder_self":
        return formulas.encoder_self_mask(encoder, config.source, source)
    return formulas.decoder_self_mask(decoder, config.target, target)
