"""Proofs of models that differ at padding alone: proven, with the places that weren't compared; never more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jax_transformer.parity import prove
from jax_transformer.proof import Certificate
from torch_reference.harvard import HarvardTransformer

PAD = 2
Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, source_ids, target_ids) → other logits."""


class Other(nn.Module):
    """A model with other logits at some places."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 32}
        self.model = HarvardTransformer(
            source_vocab_size=23, target_vocab_size=19, source_pad_id=PAD, target_pad_id=PAD, **sizes, **layers
        )
        self.change = change

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        return self.change(self.model(source_ids, target_ids), source_ids, target_ids)


def certificate_of(change: Change, stages: tuple[str, ...] = ("forward", "loss")) -> Certificate:
    hints: dict[str, Any] = {"num_heads": 2, "source_pad_id": PAD, "target_pad_id": PAD}
    hints |= {"decoder_start_id": 0, "eos_id": 1}
    return prove(Other(change).eval(), dialect="harvard", stages=stages, **hints)


def zeroed(logits: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return logits * (target != PAD)[..., None].to(logits.dtype)


def doubled(logits: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return logits * (1 + (target == PAD)[..., None].to(logits.dtype))


@pytest.mark.parametrize("change", [zeroed, doubled])
def test_what_differs_at_padding_alone_is_a_note(change: Change) -> None:
    certificate = certificate_of(change)
    assert certificate.verdict == "proven", certificate.summary()
    forward, loss = certificate.stages
    assert forward.reason.startswith("not compared at positions of padding, where they differ: logits (")
    assert "values)" in forward.reason
    assert not loss.reason
    assert any("not compared at positions of padding" in line for line in certificate.summary())


def test_equal_models_are_compared_everywhere() -> None:
    certificate = certificate_of(lambda logits, source, target: logits)
    assert certificate.verdict == "proven"
    assert not any(stage.reason for stage in certificate.stages)


def last_token_too(logits: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Zeroes the last place that counts of each sentence that has padding, too."""
    following = torch.cat([target[:, 1:], target[:, -1:]], dim=1)
    return zeroed(logits, source, target) * (following != PAD)[..., None].to(logits.dtype)


@pytest.mark.parametrize("stages", [("forward",), ("forward", "loss")])
def test_a_place_that_counts_refutes(stages: tuple[str, ...]) -> None:
    assert certificate_of(last_token_too, stages).verdict == "refuted"
