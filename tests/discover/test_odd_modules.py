"""Modules that hold what can't be copied, or run on some sentences alone."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jax_transformer.discover import CannotRun, discover
from jax_transformer.programs.calling import find_call
from jax_transformer.programs.copies import copied
from jax_transformer.runtime.memory import VARIABLE
from tests.discover.tiny import PAD, WIDTH, Tiny


class Holding(Tiny):
    """Keeps a Python module and a lock among its attributes, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = math
        self.held: dict[str, Any] = {"lock": SimpleNamespace(one=threading.Lock()), "calls": [0]}

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        self.held["calls"][0] += 1
        return self.logits(src, tgt)


def test_a_copy_shares_only_what_cannot_be_copied() -> None:
    module = Holding()
    other: Any = copied(module)
    assert other.settings is math
    assert other.held["lock"].one is module.held["lock"].one
    assert other.held["calls"] is not module.held["calls"]
    assert other.head.weight is not module.head.weight


def test_a_module_that_holds_a_python_module_is_discovered_unchanged() -> None:
    module = Holding()
    assert discover(module).worst <= 1e-12
    assert module.held["calls"] == [0]


class Uncopied(nn.LayerNorm):
    """Refuses to be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("one is enough")


def test_a_part_that_refuses_to_be_copied_is_reported_and_never_shared() -> None:
    module = Tiny()
    module.reader.norms[0] = Uncopied(WIDTH).eval()
    with pytest.raises(TypeError, match="one is enough"):
        copied(module)
    with pytest.raises(ValueError, match=r"^program:build: expected a module that copy\.deepcopy copies; it raises Ty"):
        discover(module, "program:build")


class LossOfTokens(Tiny):
    """Returns the loss of the real tokens alone, whose logits it picks out."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits, labels = self.logits(src, tgt)[:, :-1], tgt[:, 1:]
        return F.cross_entropy(logits[labels != PAD], labels[labels != PAD])


def test_a_loss_of_real_tokens_is_read_at_the_part_that_returns_all_logits() -> None:
    call = find_call(LossOfTokens())
    assert "with outputs_of(self.module.head) as logits:" in call.lines
    assert discover(LossOfTokens()).worst <= 1e-12


class NoPadding(Tiny):
    """Fails on padded sentences, in any dtype."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if bool((src == PAD).any()):
            raise KeyError("expected no padding")
        return self.logits(src, tgt)


def test_a_modules_error_is_reported_if_no_dtype_avoids_it() -> None:
    with pytest.raises(CannotRun) as error:
        discover(NoPadding())
    assert "it fails on ids of shapes [3, 13] and [3, 11], padding among them, at " in str(error.value)
    assert "KeyError: 'expected no padding'" in str(error.value)
    assert "float64" not in str(error.value)


class Narrow(Tiny):
    """Runs in float32 alone."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(src, tgt) + self.head.weight.sum(1) @ torch.eye(self.head.weight.shape[0])


def test_the_dtype_is_reported_if_it_is_the_cause() -> None:
    with pytest.raises(CannotRun, match=r"expected a module that runs in float64 too; it fails at \S+:\d+ \(Runtime"):
        discover(Narrow())


class Padded(Tiny):
    """Pads every source to the size of a window."""

    def embedded(self, side: str, ids: Tensor) -> Tensor:
        x = super().embedded(side, ids)
        return F.pad(F.pad(x, (0, 0, 0, 4096)).sin(), (0, 0, 0, -4096)) if side == "source" else x


def test_activations_that_need_too_much_memory_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(16 * 2**20))
    message = (
        r"a run on ids of shapes \[3, 13\] and \[3, 11\] makes more than 1\.0 MiB of activations, .* smaller window"
    )
    with pytest.raises(CannotRun, match=message):
        discover(Padded())
    monkeypatch.setenv(VARIABLE, str(2**18))
    with pytest.raises(ValueError, match=r"program:build, with 4,\d+ parameters: expected to fit into 0\.2 MiB"):
        discover(Padded(), "program:build")
