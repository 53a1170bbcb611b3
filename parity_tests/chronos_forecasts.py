"""Writes chronos_forecasts.json: what chronos-forecasting 1.5.3 computes with small T5 models of random weights.

    python parity_tests/chronos_forecasts.py

needs the package (pip install --no-deps chronos-forecasting==1.5.3, which works with the transformers of the project,
though its metadata ask for an older one). `test_chronos.py` compares.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import jax_transformer as jt
from jax_transformer.config import SeriesTokens
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.runtime.trees import flatten, unflatten

GOLDENS = Path(__file__).with_name("chronos_forecasts.json")
MODELS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_head": False, "scale_head": False, "feed_forward_gated": True, "activation": "gelu_tanh"},
    "endless": {"series": {"ends": False, "low": -8.0, "high": 10.0, "num_tokens": 47}},
}
VOCABULARY, CONTEXT, PREDICTION = 48, 24, 6
STEPS = (6, 20)
LEVELS = (0.1, 0.5, 0.9)


def make_model(tie_head: bool = True, series: dict[str, Any] | None = None, **options: Any) -> jt.Model:
    """Returns a T5 of random weights that reads series."""
    table = get_dialect("t5")
    fields = {**table.defaults, "activation": "relu", "scale_head": True, **table.fixed}
    config = jt.TransformerConfig.from_flat(
        fields
        | {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "d_model": 16, "num_heads": 2, "d_ff": 24}
        | {"num_encoder_layers": 2, "num_decoder_layers": 2, "source_pad_id": 0, "target_pad_id": 0}
        | {"tie_head": tie_head, "relative_buckets": 8}
        | options
    )
    rng = np.random.default_rng(5)
    params = {}
    for path, leaf in flatten(abstract_params(config)).items():
        spread = 0.3 if path.endswith("kernel") and "head" not in path else 1.0
        draw = spread * rng.standard_normal(leaf.shape)
        params[path] = (1 + 0.2 * draw if path.endswith("scale") else draw).astype(np.float32)
    tokens: dict[str, Any] = {"num_tokens": VOCABULARY, "context_length": CONTEXT, "prediction_length": PREDICTION}
    reads = SeriesTokens(**tokens | (series or {}))
    return jt.Model(
        config, unflatten(params), None, None, jt.GenerationConfig(decoder_start_id=0, eos_id=1, series=reads)
    )


def make_series() -> list[np.ndarray]:
    """Returns series of several lengths, one longer than the context, with missing values and with zeros."""
    rng = np.random.default_rng(6)
    rows = [100 * np.cumsum(rng.standard_normal(30)), rng.standard_normal(7), np.zeros(11), 5 + np.sin(np.arange(24))]
    rows.append(np.append(np.zeros(15), 60.0))  # the last value is beyond the highest bin
    rows[0][[20, 21]] = np.nan
    rows[1][[0, 6]] = np.nan
    return [row.astype(np.float32) for row in rows]


def compute() -> dict[str, Any]:
    """Returns what the package computes with each of MODELS."""
    import torch
    from chronos import ChronosPipeline

    found: dict[str, Any] = {}
    series = [torch.from_numpy(row) for row in make_series()]
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            jt.export_checkpoint(make_model(**options), Path(folder, name), "t5")
            pipeline: Any = ChronosPipeline.from_pretrained(Path(folder, name))
        stacked = pipeline._prepare_and_validate_context(series)
        ids, mask, scales = pipeline.tokenizer.context_input_transform(stacked)
        ids_after = torch.arange(1, VOCABULARY - 1).reshape(1, 1, -1).expand(len(series), 1, -1)
        decoder = torch.tensor([[0, 9, 3]]).expand(len(series), -1)
        with torch.no_grad():
            logits = pipeline.model.model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder).logits
        found[name] = {
            "ids": ids.tolist(),
            "mask": mask.tolist(),
            "scales": scales.tolist(),
            "values": pipeline.tokenizer.output_transform(ids_after, scales)[:, 0].tolist(),
            "embedding": pipeline.embed(series)[0][:2].tolist(),
            "decoder": decoder[0].tolist(),
            "logits": logits.tolist(),
            "greedy": {
                str(steps): pipeline.predict(series, steps, num_samples=1, top_k=1)[:, 0].tolist() for steps in STEPS
            },
        }
    samples = np.random.default_rng(7).standard_normal((2, 10, 4)).astype(np.float32)
    quantiles = torch.quantile(torch.from_numpy(samples), torch.tensor(LEVELS), dim=1).permute(1, 2, 0)
    return {"models": found, "samples": samples.tolist(), "quantiles": quantiles.tolist()}


if __name__ == "__main__":
    rounded = json.dumps(json.loads(json.dumps(compute()), parse_float=lambda text: float(f"{float(text):.9g}")))
    GOLDENS.write_text(rounded + "\n", encoding="utf-8")
