"""Presets: each is a complete run with a docstring."""

from __future__ import annotations

import dataclasses
import re

import pytest

from jax_transformer.config.presets import PRESETS, get_preset
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError

GENERIC = {"demo", "tiny", "pretrain", "finetune", "paper_base", "paper_big", "codersarts"}
"""Presets without a corpus of their own: on the phrasebook, or on the user's text."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_run_with_a_docstring(name: str) -> None:
    preset = get_preset(name)
    assert isinstance(preset, RunConfig)
    assert get_preset(name) == preset
    assert len(str(PRESETS[name].__doc__)) > 40
    assert preset.data.is_given == (name not in GENERIC)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in GENERIC])
def test_files_on_the_command_line_replace_the_presets(name: str) -> None:
    data = get_preset(name).data
    own = dataclasses.replace(data, train=("mine.tsv",), valid=(), test=(), valid_pairs=10)
    assert own.used_dataset == ""
    assert own.train == ("mine.tsv",)


def test_the_papers_models_have_the_papers_sizes() -> None:
    """Vaswani et al. 2017, table 3."""
    runs = get_preset("wmt14_base"), get_preset("wmt14_big")
    sizes = [
        (run.model.d_model, run.model.d_ff, run.model.num_heads, run.model.dropout_rate, run.train.max_steps)
        for run in runs
    ]
    assert sizes == [(512, 2048, 8, 0.1, 100_000), (1024, 4096, 16, 0.3, 300_000)]
    for run in runs:
        assert (run.model.num_encoder_layers, run.model.num_decoder_layers, run.model.norm_placement) == (6, 6, "post")
        assert (run.train.adam_b2, run.train.adam_eps, run.train.warmup_steps, run.train.label_smoothing) == (
            0.98,
            1e-9,
            4000,
            0.1,
        )


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=re.escape("Did you mean 'multi30k_tiny'?")):
        get_preset("multi30k_tinny")
