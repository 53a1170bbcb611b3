"""What config.json files with a part for each side have in common: transformers' EncoderDecoderModel and T5Gemma."""

from __future__ import annotations

from typing import Any

from jax_transformer.porting.dialects import Json


def problems_of_both(json: Json, encoder: Json, decoder: Json, lacks: str) -> list[str]:
    """Lists what contradicts a model of one width with one id of target pads.

    Args:
      json: the resolved config.json.
      encoder, decoder: the parts of the sides.
      lacks: what no config here has that two widths would need.
    """
    problems = []
    if encoder["hidden_size"] != decoder["hidden_size"]:
        problems.append(
            f"decoder.hidden_size must be encoder.hidden_size={encoder['hidden_size']}; received "
            f"{decoder['hidden_size']}: no config has {lacks}"
        )
    if json["pad_token_id"] not in (None, decoder["pad_token_id"]):
        problems.append(
            f"pad_token_id must be decoder.pad_token_id={decoder['pad_token_id']}; received {json['pad_token_id']!r}"
        )
    return problems


def fields_of_both(encoder: Json, decoder: Json) -> dict[str, Any]:
    """Returns the width, the vocabularies, their pads and the numbers of layers."""
    return {
        "d_model": encoder["hidden_size"],
        "source_vocab_size": encoder["vocab_size"],
        "target_vocab_size": decoder["vocab_size"],
        "source_pad_id": encoder["pad_token_id"],
        "target_pad_id": decoder["pad_token_id"],
        "num_encoder_layers": encoder["num_hidden_layers"],
        "num_decoder_layers": decoder["num_hidden_layers"],
    }
