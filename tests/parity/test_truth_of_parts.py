"""The truth in NumPy is the JAX model's function where encoder, decoder and cross-attention differ in an option."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from config_parts import is_allowed, joint_changes, single_changes, with_paths
from truths import SIZES, assert_is_the_models

from jax_transformer.config import positions, specs
from jax_transformer.config.model import TransformerConfig

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

PARTS = (
    *(specs.Stack, specs.Attention, specs.FeedForward, specs.Residual, specs.LayerNorm, specs.RmsNorm),
    *positions.KINDS.values(),
)
BASES: dict[str, dict[str, Any]] = {
    "post": {"num_decoder_layers": 1, "activation": "leaky_relu", "learned_sublayer_scale": "scalar"},
    "pre": {
        "num_decoder_layers": 1,
        "norm_placement": "pre",
        "norm_kind": "rms_norm",
        "position_kind": "learned",
        "learned_position_scale": True,
    },
    **{kind: {"position_kind": kind, "norm_placement": "pre"} for kind in ("rotary", "relative_vectors")},
    "relative_bias": {"position_kind": "relative_bias", "relative_buckets": 6, "relative_max_distance": 6},
}
ELSEWHERE = {
    specs.Stack: {"d_model"},  # which both have
    specs.Attention: {"causal", "decoding_padding"},  # of the decoder alone, tested beside the masks
    positions.Learned: {"trains_pad"},  # which changes gradients alone, as tests/model/test_positions.py shows
}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """A base, and another value of one option of its encoder and of another of its decoder, by path: all options of the
    first base, and of the others those that the first doesn't have. Then options that need another one."""
    for base, options in BASES.items():
        config = TransformerConfig(**SIZES | options)
        wanted = {"post": (), "pre": ("norm", "positions", "residual")}.get(base, ("positions",))
        of_encoder, of_decoder = (
            [
                {path: value}
                for path, value in single_changes(config, stack)
                if ".dropout." not in path and (not wanted or path.split(".")[1] in wanted)
            ]
            for stack in ("encoder", "decoder")
        )
        of_decoder = of_decoder[1:] + of_decoder[:1]  # another option than the encoder's
        for one, other in itertools.zip_longest(of_encoder, of_decoder, fillvalue={}):
            both = one | other
            for changes in [both] if is_allowed(config, both) else [one, other]:
                yield base, changes
    config = TransformerConfig(**SIZES | BASES["post"])
    for stack in ("encoder", "decoder"):
        yield from (("post", changes) for changes in joint_changes(config, stack))


CASES = list(cases())
KINDS = {
    "encoder.norm": specs.RmsNorm(eps=0.3),
    "decoder.norm": specs.RmsNorm(unbiased=True),
    "encoder.positions": positions.Rotary(dim=2),
    "decoder.positions": positions.Rotary(cross_attention=True, layout="halves"),
    "encoder.feed_forward": specs.FeedForward(width=9, gated=True, activation="prelu"),
    "decoder.feed_forward": None,
}


@pytest.mark.parametrize(("base", "changes"), CASES, ids=str)
def test_options_of_one_stack_alone(
    base: str, changes: dict[str, Any], ids: Any, random_params: Callable[..., Any]
) -> None:
    config = with_paths(TransformerConfig(**SIZES | BASES[base]), changes)
    assert_is_the_models(config, random_params(config), ids)


def test_every_option_differs_somewhere() -> None:
    found: set[tuple[type, str]] = set()
    for base, path in [(base, path) for base, changes in CASES for path in changes]:
        part: Any = TransformerConfig(**SIZES | BASES[base])
        *rest, field = path.split(".")
        for name in rest:
            part = getattr(part, name)
        found.add((type(part), field))
    for kind in PARTS:
        for field in dataclasses.fields(kind):
            own_part = field.name in ("self_attention", "cross_attention", "feed_forward", "norm", "positions")
            own_part |= field.name in ("residual", "dropout")
            if field.init and not own_part and field.name not in ELSEWHERE.get(kind, ()):
                assert (kind, field.name) in found, f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("path", KINDS)
def test_a_single_part_differs(path: str, ids: Any, random_params: Callable[..., Any]) -> None:
    config = with_paths(TransformerConfig(**SIZES), {path: KINDS[path]})
    assert_is_the_models(config, random_params(config), ids)


def test_stacks_without_norms_or_positions(ids: Any, random_params: Callable[..., Any]) -> None:
    for stack in ("encoder", "decoder"):
        config = with_paths(TransformerConfig(**SIZES), {f"{stack}.norm": None, f"{stack}.positions": None})
        assert_is_the_models(config, random_params(config), ids)
