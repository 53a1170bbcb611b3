"""`chronos_config` in a config.json: how a Chronos-T5 reads a series of values as tokens (Ansari et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_transformer.config.series import SeriesTokens
from jax_transformer.config.validation import ConfigError
from jax_transformer.porting.dialects import Json
from jax_transformer.storage.tensors import PortingError

KEY, PIPELINE = "chronos_config", "chronos_pipeline_class"
TOKENIZER = "MeanScaleUniformBins"
SAME = {
    "context_length": "context_length",
    "n_special_tokens": "num_special",
    "n_tokens": "num_tokens",
    "num_samples": "num_samples",
    "prediction_length": "prediction_length",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "use_eos_token": "ends",
}
"""Keys → fields of SeriesTokens with the same values."""
LIMITS = {"high_limit": "high", "low_limit": "low"}
"""The same of `tokenizer_kwargs`."""
OTHERS = {
    "ChronosBolt": "Chronos-Bolt, which reads patches of values instead of tokens and predicts quantiles in one pass",
    "Chronos2": "Chronos-2, an encoder of patches of values, without a decoder",
}
"""How names of classes begin → the models that aren't Chronos-T5."""


def refuse_other_forecasters(file: Path, config: Json) -> None:
    """Raises PortingError, which says what the model is, for a config.json of Chronos's other kinds of models."""
    architectures = config.get("architectures")
    names = [config.get(PIPELINE), *(architectures if isinstance(architectures, list) else [architectures])]
    found = [what for start, what in OTHERS.items() for name in names if str(name).startswith(start)]
    settings = config.get(KEY)
    if isinstance(settings, Mapping) and settings.get("model_type") == "causal":
        found.append(f"a causal Chronos ({config.get('model_type')}), a decoder without an encoder")
    if found:
        raise PortingError(f"{file}: expected a Chronos-T5, an encoder-decoder of tokens; received {found[0]}")


def series_fields(file: Path, config: Json, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a config.json says that series are read, as the field `series` of GenerationConfig; none if it
    doesn't.

    Args:
      file: the config.json, for messages.
      fields: its other fields.

    Raises:
      PortingError: settings that are missing, unknown, out of range, or contradict the rest of the file.
    """
    settings = config.get(KEY)
    if settings is None:
        return {}
    limits = settings.get("tokenizer_kwargs") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or not isinstance(limits, Mapping):
        raise PortingError(f"{file}: {KEY}: expected an object with an object tokenizer_kwargs; received {settings!r}")
    ids = {"pad_token_id": fields.get("source_pad_id"), "eos_token_id": fields.get("eos_id")}
    wanted = {"tokenizer_class": TOKENIZER, "model_type": "seq2seq", **ids}
    problems = [
        f"{key} must be {value!r}{', as of the model' if key in ids else ''}; received {settings.get(key)!r}"
        for key, value in wanted.items()
        if settings.get(key) != value
    ]
    tables = ((settings, {*SAME, *wanted, "tokenizer_kwargs"}), (limits, {*LIMITS}))
    problems += [f"unknown key {key}" for table, known in tables for key in table if key not in known]
    needed = ((settings, SAME), (limits, LIMITS))
    problems += [f"missing key {key}" for table, names in needed for key in names if key not in table]
    if problems:
        raise PortingError(f"{file}: {KEY}: no series that this reads", problems)
    try:
        series = SeriesTokens(
            **{name: settings[key] for key, name in SAME.items()}, **{name: limits[key] for key, name in LIMITS.items()}
        )
    except ConfigError as error:
        raise PortingError(f"{file}: {KEY}: {error}") from None
    size = fields["source_vocab_size"]
    if series.num_tokens > size:
        raise PortingError(f"{file}: {KEY}: n_tokens must be at most vocab_size={size}; received {series.num_tokens}")
    return {"series": series}


def with_series(content: Json, series: SeriesTokens | None, pad_id: int, eos_id: int | None) -> dict[str, Any]:
    """Returns a config.json that says how a model's series are read: as it is, if it says so already.

    Args:
      content: without `chronos_config`, or with that of the model's directory.
      series: of the model.
      pad_id, eos_id: of the model.
    """
    rest = {key: value for key, value in content.items() if key != KEY}
    if series is None:
        return rest
    settings = {
        **{key: getattr(series, name) for key, name in SAME.items()},
        "tokenizer_class": TOKENIZER,
        "tokenizer_kwargs": {key: getattr(series, name) for key, name in LIMITS.items()},
        "model_type": "seq2seq",
        "pad_token_id": pad_id,
        "eos_token_id": eos_id,
    }
    return dict(content) if content.get(KEY) == settings else rest | {KEY: dict(sorted(settings.items()))}
