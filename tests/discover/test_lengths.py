"""How long the sentences are on which a model is compared with its module, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover import DiscoverError, discover
from jax_transformer.discover.checking import Check
from jax_transformer.discover.reach import Reach, coverage, reach
from jax_transformer.programs.calling import Call
from jax_transformer.runtime.memory import VARIABLE
from tests.discover import programs
from tests.discover.tiny import PAD, Tiny, earlier

FAR = 700
"""From here on, some of the programs below compute something else."""


def near(count: int) -> Tensor:
    """Returns the mask of queries and keys at most 9 tokens apart: [1, count, count]."""
    places = torch.arange(count)
    return ((places[:, None] - places).abs() < 10)[None]


class FarSources(Tiny):
    """Sees neighbours alone in a long source."""

    def encoder_mask(self, src: Tensor, seen: Tensor) -> Tensor:
        return seen & near(src.shape[1]) if src.shape[1] > FAR else seen


class FarTargets(Tiny):
    """Sees neighbours alone in a long target."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        seen = (src != PAD)[:, None]
        mask = earlier(tgt) & (tgt != PAD)[:, None]
        mask = mask & near(tgt.shape[1]) if tgt.shape[1] > FAR else mask
        memory = self.reader(self.embedded("source", src), seen)
        return self.head(self.writer(self.embedded("target", tgt), mask, memory, seen))


class Settles(FarSources):
    """Sees all tokens of a long source, too, once it has read a short one."""

    has_read_short = False

    def encoder_mask(self, src: Tensor, seen: Tensor) -> Tensor:
        self.has_read_short = self.has_read_short or src.shape[1] <= FAR
        return seen if self.has_read_short else super().encoder_mask(src, seen)


@pytest.mark.parametrize("program", [FarSources, FarTargets, Settles])
def test_another_function_of_long_sentences_is_refused(program: type[Tiny]) -> None:
    with pytest.raises(DiscoverError, match=r"logits differ by \S+ on sentences of 800 and 800 tokens$"):
        discover(program(rows=800))


class Tires(Tiny):
    """Computes something else from its fourth sentences on."""

    calls = 0

    def encoder_mask(self, src: Tensor, seen: Tensor) -> Tensor:
        self.calls += 1
        return seen if self.calls < 4 else seen & near(src.shape[1])


def test_state_kept_between_calls_is_refused() -> None:
    with pytest.raises(
        DiscoverError, match=r"logits differ by \S+ on sentences of \d+ and \d+ tokens, after it ran on"
    ):
        discover(Tires())


def test_checked_lengths_are_reported() -> None:
    found = discover(Tiny())
    assert found.reach == (
        "sentences of 1, 9, 21, 48 source tokens and 1, 5, 17, 48 target tokens, by a fresh module and by one that ran "
        "before; not checked: other lengths"
    )
    assert "larger weights" in discover(Tiny().requires_grad_(False)).reach


def test_lengths_beyond_any_table_are_reported_and_checked_on_request() -> None:
    module = programs.built("Modern")
    found = discover(module, longest=400)
    assert {check.lengths for check in found.checks} >= {(331, 307), (400, 400)}
    assert "such as sources of more than 400 tokens and targets of more than 400 tokens: --longest N" in found.reach


class Long(Tiny):
    """Takes no sentence of one token."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if tgt.shape[1] == 1:
            raise ValueError("expected several tokens")
        return self.logits(src, tgt)


def test_sentences_that_a_module_rejects_are_reported() -> None:
    found = discover(Long())
    assert "of 9, 21, 48 source tokens" in found.reach
    assert any(note.startswith("it fails on ids of shapes [1, 1] and [1, 1] at ") for note in found.notes)


class Squeezes(Tiny):
    """Drops every axis of one element from what it returns."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(src, tgt).squeeze()


def test_unchecked_shapes_of_short_sentences_are_reported() -> None:
    assert "it returns [19] on ids of shapes [1, 1] and [1, 1]" in discover(Squeezes()).notes


CALL: Any = Call(("return self.module(source_ids, decoder_input_ids)",), 0, 0, 100, 100)
CONFIG = TransformerConfig(source_vocab_size=100, target_vocab_size=100, d_model=512, num_heads=8, d_ff=2048)


def test_memory_and_work_bound_the_lengths_and_the_rest_has_its_cost() -> None:
    config = replace(CONFIG, max_length=5000)
    found = reach(config, CALL, 1000)
    assert found.longest == (1831, 1831)
    assert found.allowed == (5000, 5000)
    check = Check(found.longest, "inside", 0.0, seconds=20.0)
    assert coverage(found, [check, replace(check, weights="larger")]).endswith(
        "not checked: other lengths, such as sources of more than 1831 tokens (up to 5000) and targets of more than "
        "1831 tokens (up to 5000): --longest 5000 (about 2 min and 7.5 GiB)"
    )
    assert reach(config, CALL, 60_000_000).longest[0] < 1000
    assert reach(config, CALL, 60_000_000, longest=2000).longest == (2000, 2000)


def test_a_table_or_the_module_bounds_the_lengths() -> None:
    assert reach(CONFIG, CALL, 1000).longest == (512, 512)
    assert reach(CONFIG, replace(CALL, max_target_length=64), 1000).longest == (512, 64)
    endless = replace(CONFIG, position_kind="rotary")
    assert reach(endless, CALL, 1000) == Reach((1024, 1024), (None, None), reach(endless, CALL, 1000).bytes_of_all)
    assert reach(endless, CALL, 1000, longest=300).longest == (300, 300)


def test_more_than_fits_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(2**30))
    with pytest.raises(
        ValueError, match=r"--longest 5000: expected to fit into 1\.0 GiB .*; received at least 7\.5 GiB"
    ):
        reach(replace(CONFIG, max_length=5000), CALL, 1000, longest=5000)
