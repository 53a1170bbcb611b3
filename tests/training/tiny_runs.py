"""Runs of a few steps on a tiny model, and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig

TIMINGS = {"seconds", "tokens_per_second", "compile_seconds", "programs", "time", "data_seconds", "goodput"}
TIMINGS |= {"run_seconds", "mfu"}


def tiny_run(folder: Path, **options: Any) -> RunConfig:
    """6 steps with an evaluation and a checkpoint every 2, all of which are kept."""
    return RunConfig(
        model=TransformerConfig(
            d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, max_length=32
        ),
        data=DataConfig(
            phrasebook_pairs=60,
            valid_pairs=4,
            test_pairs=4,
            max_length=32,
            batch_tokens=640,
            num_shapes=1,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            **{"max_steps": 6, "evaluate_every": 2, "evaluate_sentences": 0, "keep_checkpoints": 3} | options
        ),
        run_dir=str(folder / "run"),
    )


def rows(run: Path) -> list[dict[str, Any]]:
    """Returns the records of metrics.jsonl, without times."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]
