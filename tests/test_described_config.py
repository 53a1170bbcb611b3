"""Options named for people: short names where places agree, paths where they don't."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from jax_transformer.config.described import changes, described, differences
from jax_transformer.config.dumped import dump_described
from jax_transformer.config.files import load_config, set_in
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.config.run import DataConfig, RunConfig
from jax_transformer.config.short_names import (
    holders,
    is_of_decoder,
    named_value,
    named_values,
    option_at,
    short_names,
    with_values,
)
from jax_transformer.config.specs import DECODER, Attention, FeedForward, LayerNorm, Residual, RmsNorm

PLAIN = TransformerConfig()
UNLIKE = TransformerConfig(
    decoder=dataclasses.replace(
        DECODER,
        self_attention=Attention(num_heads=4, causal=True, output_norm=True),
        cross_attention=Attention(num_heads=2, bias=False),
        feed_forward=FeedForward(gated=True),
        norm=RmsNorm(eps=1e-6),
        positions=Rotary(base=500.0),
        residual=Residual(stream_factor=2.0),
    ),
    num_encoder_layers=2,
)


def changed(**values: Any) -> TransformerConfig:
    return with_values(UNLIKE, {name.replace("__", "."): value for name, value in values.items()})


CONFIGS = {
    "plain": PLAIN,
    "short": TransformerConfig(num_heads=4, decoder_d_ff=64, norm_kind="rms_norm", embedding_factor=3.0),
    "none": TransformerConfig(
        position_kind="none", norm_kind="none", feed_forward=False, decoder_position_kind="alibi"
    ),
    "unlike": UNLIKE,
    "no norms in the encoder": changed(encoder__norm=None),
    "no feed-forward in the decoder": changed(decoder__feed_forward=None),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_changes_make_the_config_of_the_defaults(name: str) -> None:
    values = changes(CONFIGS[name])
    kinds = {path: value for path, value in values.items() if path.endswith((".norm", ".kind", ".feed_forward"))}
    made = PLAIN
    for path, value in kinds.items():
        part, kind = path.removesuffix(".kind"), {"kind": value}
        made = set_in(made, part, yaml.safe_dump(kind if path.endswith(".kind") else value), "a test")
    made = made.replace(**{option: value for option, value in values.items() if "." not in option})
    for path, value in values.items():
        if "." in path and path not in kinds:
            made = set_in(made, path, yaml.safe_dump(value), "a test")
    assert made == CONFIGS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_yaml_is_read_as_the_config(name: str, tmp_path: Path) -> None:
    run = RunConfig(model=CONFIGS[name], data=DataConfig(batch_tokens=1000, train=("a.tsv",)))
    text = dump_described(run)
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert load_config(tmp_path / "config.yaml", RunConfig()) == run
    lines = text.splitlines()
    model = lines[1 : lines.index("data:")]
    assert len(model) < 120  # with parts alone it is twice as long
    first = model[: model.index("  # defaults:")]
    assert len(first) >= len(changes(CONFIGS[name]))


def test_places_that_agree_have_one_name() -> None:
    assert changes(PLAIN) == {}
    assert all("." not in name for name in described(PLAIN))
    found = changes(UNLIKE)
    assert found["num_encoder_layers"] == 2
    assert (found["decoder.self_attention.num_heads"], found["decoder.cross_attention.num_heads"]) == (4, 2)
    assert (found["decoder_position_kind"], found["rotary_base"]) == ("rotary", 500.0)
    assert (found["decoder.norm.kind"], found["decoder.norm.eps"]) == ("rms_norm", 1e-6)
    assert found["decoder_residual_factor"] == 2.0
    assert not any(name.startswith("encoder.") for name in found)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PLAIN.replace(norm_eps=0.1), {"norm_eps": (1e-5, 0.1)}),
        (PLAIN.replace(decoder_num_heads=4), {"decoder_num_heads": (None, 4)}),
        (PLAIN.replace(position_kind="rotary", rotary_base=500.0), {"position_kind": ("sinusoidal", "rotary")}),
        (with_values(PLAIN, {"decoder.norm.eps": 0.1}), {"decoder.norm.eps": (1e-5, 0.1)}),
        (with_values(PLAIN, {"decoder.feed_forward": None}), {"decoder.feed_forward": ("given", None)}),
        (with_values(PLAIN, {"decoder.norm": RmsNorm()}), {"decoder.norm.kind": ("layer_norm", "rms_norm")}),
        (
            with_values(PLAIN, {"decoder.cross_attention.num_heads": 4}),
            {"decoder.cross_attention.num_heads": (8, 4)},
        ),
    ],
)  # fmt: skip
def test_every_difference_is_named(other: TransformerConfig, expected: dict[str, Any]) -> None:
    assert differences(PLAIN, other) == expected
    assert differences(other, PLAIN) == {name: pair[::-1] for name, pair in expected.items()}


def test_no_difference_of_a_part_is_lost() -> None:
    """Whatever single option is changed, in either stack."""
    count = 0
    for place in ("encoder.self_attention", "decoder.cross_attention", "decoder.feed_forward", "decoder.norm"):
        part: Any = UNLIKE
        for name in place.split("."):
            part = getattr(part, name)
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, bool) and field.name != "causal":
                other = with_values(UNLIKE, {f"{place}.{field.name}": not value})
                assert len(differences(UNLIKE, other)) >= 1, (place, field.name)
                count += 1
    assert count > 15


def test_a_part_of_another_kind_is_named() -> None:
    other = with_values(UNLIKE, {"decoder.norm": LayerNorm(eps=1e-6)})
    assert "decoder.norm.kind" in differences(UNLIKE, other)


def test_messages_name_an_option_in_one_way() -> None:
    """Heads of cross-attention equal the encoder's, not those of the decoder's self-attention: no short name fits."""
    base = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=4)
    own = dataclasses.replace(base.decoder.self_attention, num_heads=2)
    config = dataclasses.replace(base, decoder=dataclasses.replace(base.decoder, self_attention=own))
    assert named_value(config, "decoder.cross_attention", "num_heads") == ("decoder.cross_attention.num_heads", 4)
    for name in short_names():
        at = option_at(name)
        if at is not None and not is_of_decoder(name):
            named = {named_value(config, place, at.field) for place, _ in holders(config, at)}
            assert named == set(named_values(config, name)), name
