"""Modules that put their own start token in the place of a target's first token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.discover import DiscoverError, discover, prove
from tests.discover.tiny import PAD, Tiny, earlier

START = 5


def begun(target: Tensor) -> Tensor:
    return torch.full_like(target[:, :1], START)


class ShiftsRight(Tiny):
    """Takes labels, and reads them behind its start token."""

    def forward(self, src: Tensor, labels: Tensor) -> Tensor:
        return self.logits(src, torch.cat([begun(labels), labels[:, :-1]], 1))


class Prepends(Tiny):
    """Returns logits of one token more than it is given."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(src, torch.cat([begun(tgt), tgt], 1))


@pytest.mark.parametrize("style", [ShiftsRight, Prepends])
def test_a_module_that_inserts_start_tokens_is_discovered(style: type[Tiny]) -> None:
    module = style()
    found = discover(module, "program:build")
    assert found.worst <= 1e-12
    assert found.call.start_id == found.model.generation.decoder_start_id == START
    assert found.allow == ("fully-masked", "first-token")
    assert any("holds for targets that begin with it" in note for note in found.notes)
    source, target = torch.tensor([[3, 4, 6]]), torch.tensor([[START, 7, 8, 9]])
    torch.testing.assert_close(found.call.wrap(module)(source, target), module.logits(source, target))
    report = prove(found, module, "program:build", ["masks", "forward", "gradients"])
    assert report.verdict == "passed", str(report)


def test_another_start_than_the_modules_is_refused() -> None:
    with pytest.raises(ValueError, match=rf"expected --decoder-start-id {START}, .*; received 3"):
        discover(ShiftsRight(), decoder_start_id=3)
    assert discover(ShiftsRight(), decoder_start_id=START).model.generation.decoder_start_id == START


class MasksUnshifted(ShiftsRight):
    """Hides the places where the labels are padding, which stand one before the padding that it reads."""

    def forward(self, src: Tensor, labels: Tensor) -> Tensor:
        seen = (src != PAD)[:, None]
        target = torch.cat([begun(labels), labels[:, :-1]], 1)
        mask = earlier(target) & (labels != PAD)[:, None]
        memory = self.reader(self.embedded("source", src), seen)
        return self.head(self.writer(self.embedded("target", target), mask, memory, seen))


def test_masks_of_the_labels_that_it_shifts_are_refused_by_name() -> None:
    with pytest.raises(DiscoverError, match="a mask of decoder_self attention that hides neither keys nor queries"):
        discover(MasksUnshifted())


def test_targets_need_a_start_to_begin_with() -> None:
    module: Any = Tiny()
    found = discover(module)
    from jax_transformer.parity import compare

    with pytest.raises(ParityError, match="allow first-token: expected the id that targets begin with"):
        compare(found.model, module, names=found.names, allow=["first-token"], stages=["weights"])
