"""Decoding of one sentence a few tokens at a time: what it ends with is what decoding at once gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding import sampling_loop
from jax_transformer.decoding.batches import generate_each
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import generate, run_loop
from jax_transformer.decoding.stepwise import decode_stepwise
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({}, []), ({"max_new_tokens": 3}, []), ({"sampling": True, "seed": 5, "temperature": 2.0}, []), ({}, [4, 5])],
)
@pytest.mark.parametrize("tokens", [(1,), (3, 1, 0), (100,)])
def test_the_last_step_is_the_hypothesis(
    model: Model, sources: list[list[int]], options: dict[str, Any], prefix: list[int], tokens: tuple[int, ...]
) -> None:
    decoding = DecodingConfig(**options)
    for number, source in enumerate(sources[:4]):
        ((whole,),) = generate_each(model, [source], decoding, prefix_ids=prefix, numbers=[number])
        counts = itertools.cycle(tokens)
        steps = list(
            decode_stepwise(
                model,
                source,
                decoding,
                tokens=lambda counts=counts: next(counts),
                prefix_ids=prefix,
                number=number,  # type: ignore[misc]
            )
        )
        assert steps[-1].decoded.ids == whole.ids
        assert steps[-1].decoded.score == pytest.approx(whole.score, rel=1e-6)
        assert [step.is_last for step in steps] == [False] * (len(steps) - 1) + [True]
        for step in steps:
            assert step.decoded.ids == whole.ids[: len(step.decoded.ids)]
        if tokens == (1,):
            assert len(steps) >= len(whole.ids)


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"sampling": True, "num_return": 2}])
def test_several_hypotheses_are_refused(model: Model, options: dict[str, Any]) -> None:
    with pytest.raises(DecodingError, match="expected greedy decoding, or sampling with num_return=1"):
        next(decode_stepwise(model, [4, 5], DecodingConfig(**options), tokens=lambda: 1))


def test_no_limit_on_tokens_compiles_a_program_of_its_own(model: Model) -> None:
    generate(model, [[4, 5]])
    programs = sampling_loop.start._cache_size(), run_loop._cache_size()  # type: ignore[attr-defined]
    for most in range(1, 10):
        found = generate(model, [[4, 5]], max_new_tokens=most, min_new_tokens=0)
        assert found.sequences.shape == (1, 1, most)
    assert (sampling_loop.start._cache_size(), run_loop._cache_size()) == programs  # type: ignore[attr-defined]


def test_languages_share_a_program(model: Model) -> None:
    """Whatever id begins the targets."""
    generate(model, [[4, 5]], forced_bos_id=4)
    programs = run_loop._cache_size()  # type: ignore[attr-defined]
    for forced in (5, 6, 7):
        assert generate(model, [[4, 5]], forced_bos_id=forced).sequences[0, 0, 0] == forced
    assert run_loop._cache_size() == programs  # type: ignore[attr-defined]
