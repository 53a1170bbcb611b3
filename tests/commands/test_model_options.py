"""Options of a command line that set a model whose stacks differ."""

from __future__ import annotations

import dataclasses

import pytest

from jax_transformer.commands.model_options import parse_run
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.config.short_names import with_values
from jax_transformer.config.validation import ConfigError

UNLIKE = RunConfig(
    model=with_values(TransformerConfig(), {"decoder.norm.eps": 0.1, "decoder.feed_forward.bias": False})
)


def parsed(*arguments: str) -> TransformerConfig:
    config, _ = parse_run(UNLIKE, list(arguments), "train", "")
    assert dataclasses.replace(config, model=UNLIKE.model) == UNLIKE
    return config.model


def test_missing_options_keep_their_values() -> None:
    assert parsed() == UNLIKE.model
    assert parsed("--model.num-heads", "4") == UNLIKE.model.replace(num_heads=4)


@pytest.mark.parametrize("flag", ["--model.norm-eps=1e-5", "--model.norm_eps=1e-5"])
def test_a_short_name_sets_all_places_even_to_the_default(flag: str) -> None:
    """Where they have several values, none of them is shown as the option's."""
    assert parsed(flag) == UNLIKE.model.replace(norm_eps=1e-5)
    assert parsed("--model.feed-forward-bias") == UNLIKE.model.replace(feed_forward_bias=True)
    assert parsed("--model.no-feed-forward-bias") == UNLIKE.model.replace(feed_forward_bias=False)


def test_a_path_sets_one_place() -> None:
    model = parsed("--model.encoder.norm.eps", "0.2")
    assert (model.encoder.norm.eps, model.decoder.norm.eps) == (0.2, 0.1)  # type: ignore[union-attr]


def test_a_decoder_with_a_table_alone_needs_room_for_the_longest_sentence() -> None:
    model = TransformerConfig(position_kind="none", decoder_position_kind="learned", max_length=9)
    with pytest.raises(ConfigError, match=r"model\.max_length must be at least data\.max_length=128, .* received 9"):
        RunConfig(model=model)
    RunConfig(model=model.replace(decoder_max_length=128))
