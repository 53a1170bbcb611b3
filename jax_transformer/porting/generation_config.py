"""How Hugging Face's transformers says how a model is decoded: generation_config.json, and of old, config.json."""

from __future__ import annotations

import json
import math
from typing import Any

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.porting.dialects import Json, like_default
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.storage.tensors import PortingError

SAME = {
    "no_repeat_ngram_size": "no_repeat_ngram",
    "bad_words_ids": "bad_words",
    "forced_bos_token_id": "forced_bos_id",
    "forced_eos_token_id": "forced_eos_id",
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "renormalize_logits": "renormalize",
    "do_sample": "sampling",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
"""Keys whose values are those of fields of GenerationConfig."""
LENGTHS = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}
"""Keys, and fields, that count new tokens, and prevail, and those that count the start token, too."""
TOP_K = 50
"""Of `generate`, where tokens are drawn and no top_k is said."""
UNBUILT = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "remove_invalid_values": False,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "constraints": None,
    "force_words_ids": None,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "num_return_sequences": 1,
    "max_time": None,
    "stop_strings": None,
    "token_healing": False,
}
"""Keys that no decoding here obeys, and the values that change nothing."""
IDS = {"decoder_start_token_id": "decoder_start_id", "eos_token_id": "eos_id"}
"""Keys of config.json and generation_config.json, and the fields of GenerationConfig that they are here."""
OTHERS = ("pad_token_id", "bos_token_id", *IDS)
INTEGERS = (
    *("num_beams", "no_repeat_ngram_size", "top_k", "forced_bos_token_id", "forced_eos_token_id"),
    *LENGTHS,
    *LENGTHS.values(),
    *OTHERS,
)
BOOLEANS = ("renormalize_logits", "do_sample", "early_stopping", "remove_invalid_values", "token_healing")
FORCES_BOS = "force_bos_token_to_be_generated"
"""A former key of config.json: the first token is bos_token_id."""


def in_effect(config: Json, text: str) -> dict[str, Any]:
    """Returns the settings that transformers 5 applies: those of generation_config.json or, without this file, those of
    config.json that it knows.

    Args:
      config: config.json.
      text: the text of generation_config.json; "" for none.

    Raises:
      PortingError: the text is no JSON object; a number of beams, or a length, that is no integer.
    """
    content = parsed(text)
    if not text:
        known = {*SAME, *LENGTHS, *LENGTHS.values(), *UNBUILT, *OTHERS}
        content = {key: value for key, value in config.items() if key in known}
        if config.get(FORCES_BOS):
            content["forced_bos_token_id"] = config.get("bos_token_id")
    content = {key: _typed(key, value) for key, value in content.items() if value is not None}
    for key in ("num_beams", *LENGTHS, *LENGTHS.values()):
        if type(content.get(key, 0)) is not int:
            raise PortingError(f"{key} must be an integer; received {content[key]!r}")
    return content


def _typed(key: str, value: Any) -> Any:
    """Returns 12.0 as an integer and 0 or 1.0 as a boolean where the key has such values: transformers takes them for
    these."""
    if key in BOOLEANS:
        return like_default(value, False)
    if key not in INTEGERS:
        return value
    return [like_default(one, 0) for one in value] if isinstance(value, list) else like_default(value, 0)


def start_and_end(
    content: Json, config: Json, *, starts_with_tag: bool = False
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the ids that start and end a target as fields of GenerationConfig: those that `generate` takes, and those
    that it lacks, which config.json has.

    `generate` starts with bos_token_id without a decoder_start_token_id, refuses to start without both, and goes on to
    the longest length without an eos_token_id.

    Args:
      content: the settings in effect.
      config: config.json with the family's defaults.
      starts_with_tag: the tag of the target's language is the start unless decoder_start_token_id gives another.

    Raises:
      PortingError: several ids, or something else than an id.
    """
    taken: dict[str, int] = {}
    lacking: dict[str, int] = {}
    for key, name in IDS.items():
        value = content.get(key)
        if value is None and key == "decoder_start_token_id" and not starts_with_tag:
            value = content.get("bos_token_id")
        where = lacking if value is None else taken
        value = _typed(key, config.get(key)) if value is None else value
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is not None and type(value) is not int:
            raise PortingError(f"{key} must be one id; received {value!r}")
        if value is not None:
            where[name] = value
    return taken, lacking


def parsed(text: str) -> dict[str, Any]:
    """Parses the text of generation_config.json; "" has no settings. Raises PortingError if it is no JSON object."""
    try:
        content = parse_json(text or "{}")
    except ValueError as error:
        raise PortingError(f"no JSON ({error})") from None
    if not isinstance(content, dict):
        raise PortingError(f"expected a JSON object; received {type(content).__name__}")
    return content


def decoding_fields(content: Json) -> dict[str, Any]:
    """Returns the decoding fields of GenerationConfig from the settings in effect."""
    left_out = not_decoded(content)
    fields = {field: content[key] for key, field in SAME.items() if key in content and key not in left_out}
    fields |= {name: value for name, value in _lengths(content).items() if not left_out.keys() & {name, LENGTHS[name]}}
    if isinstance(ids := fields.get("forced_eos_id"), list) and len(ids) == 1:
        (fields["forced_eos_id"],) = ids
    if fields.get("sampling"):
        fields.setdefault("top_k", TOP_K)
    if isinstance(words := fields.get("bad_words"), list):
        end = content.get("eos_token_id")
        fields["bad_words"] = [word for word in words if word not in ([end], end)] or None  # the end isn't forbidden
    return fields


def _lengths(content: Json) -> dict[str, int]:
    """Returns the most and the fewest new tokens, by the keys of LENGTHS."""
    found = {}
    for new, whole in LENGTHS.items():
        if new in content:
            found[new] = content[new]
        elif whole in content:
            found[new] = content[whole] - 1
    return {name: count for name, count in found.items() if name == "max_new_tokens" or count > 0}


def not_decoded(content: Json) -> dict[str, Any]:
    """Returns the settings that `generate` obeys and decoding here doesn't."""
    found = {key: content[key] for key, usual in UNBUILT.items() if content.get(key) and content[key] != usual}
    if content.get("do_sample") and content.get("num_beams", 1) > 1:
        found["do_sample"] = True  # of beams
    if isinstance(ids := content.get("forced_eos_token_id"), list) and len(ids) != 1:
        found["forced_eos_token_id"] = ids
    lengths = _lengths(content)
    if lengths.get("min_new_tokens", 0) >= lengths.get("max_new_tokens", math.inf):  # no sentence ever ends
        found |= {key: content[key] for key in ("min_new_tokens", "min_length") if key in content}
    return found


def text_of(generation: GenerationConfig, config: Json, text: str) -> str:
    """Returns the text of a generation_config.json with the model's decoding settings: the original text if it has
    them, "" if none is needed.

    Args:
      config, text: the model's original ones, as in `in_effect`, or {} and "".

    Raises:
      PortingError: transformers has no such beam search.
    """
    if generation.semantics not in (None, "huggingface"):
        raise PortingError(
            f"generation_config.json: semantics must be 'huggingface'; received {generation.semantics!r}"
        )
    content = in_effect(config, text)
    wanted, said = _expressed(generation), _expressed(GenerationConfig(**decoding_fields(content)))
    changed = {field for field in wanted | said if wanted.get(field) != said.get(field)}
    if not changed:
        return text
    content = parsed(text) if text else content
    for key, field in {**SAME, **{name: name for name in LENGTHS}}.items():
        if field in changed:
            content.pop(LENGTHS.get(key, key), None)
            content[key] = wanted.get(field)
    return json.dumps({key: value for key, value in content.items() if value is not None}, indent=2) + "\n"


def _expressed(generation: GenerationConfig) -> dict[str, Any]:
    """Its fields as generation_config.json has them, where they are known."""
    fields = {field: getattr(generation, field) for field in (*SAME.values(), *LENGTHS)}
    most = [count for count in (generation.max_new_tokens, generation.max_decode_length) if count is not None]
    fields["max_new_tokens"] = min(most, default=None)
    if generation.sampling and generation.top_k is None:
        fields["top_k"] = 0
    return {field: value for field, value in fields.items() if value is not None}
