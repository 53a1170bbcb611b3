"""What any PyTorch module computes, as named arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jax_transformer.parity import assert_parity, capture
from jax_transformer.parity.arrays import ParityError, read_arrays


class Twice(nn.Module):
    """Calls one norm twice, and returns several things."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, object]:
        y = self.norm(self.linear(x)) * scale
        return {"sum": y + self.norm(y), "parts": (y, [y + 1]), "count": 2}


def test_every_call_of_every_submodule(tmp_path: Path) -> None:
    module, x = Twice().eval(), torch.randn(2, 3)
    found = capture(module, [x], tmp_path / "trace.npz")
    assert list(found) == ["linear", "norm", "norm#2", "output.sum", "output.parts.0", "output.parts.1.0"]
    with torch.no_grad():
        expected = module(x)
    np.testing.assert_array_equal(found["linear"], module.linear(x).detach().numpy())
    np.testing.assert_array_equal(found["output.sum"], expected["sum"].numpy())
    np.testing.assert_array_equal(found["output.parts.1.0"], found["output.parts.0"] + 1)
    kept = read_arrays(tmp_path / "trace.npz")
    assert list(kept.arrays) == list(found)
    assert kept.notes["framework"].startswith("torch 2")
    assert not any(part._forward_hooks for part in module.modules()), "hooks are taken off again"


def test_keyword_arguments_and_bfloat16(tmp_path: Path) -> None:
    module = Twice().eval().to(torch.bfloat16)
    found = capture(module, {"x": torch.randn(2, 3, dtype=torch.bfloat16), "scale": 2.0}, tmp_path / "trace.npz")
    assert {array.dtype.name for array in found.values()} == {"float32"}
    assert set(read_arrays(tmp_path / "trace.npz").notes["widened"].values()) == {"bfloat16"}


def test_a_fused_layer_shows_its_submodules() -> None:
    """PyTorch's encoder layer computes without them where it can."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64).eval()
    found = capture(layer, [torch.randn(2, 5, 8, dtype=torch.float64)])
    assert {"self_attn.0", "linear1", "linear2", "norm1", "norm2", "output"} <= set(found)


def test_two_modules_are_compared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference = Twice().eval().double()
    candidate = Twice().eval().double()
    candidate.load_state_dict(reference.state_dict())
    x = [torch.randn(2, 3, dtype=torch.float64)]
    assert_parity(capture(candidate, x), capture(reference, x))
    candidate.norm.eps = 1e-6
    with pytest.raises(AssertionError, match=r"first at norm \(arrays\)"):
        assert_parity(capture(candidate, x), capture(reference, x))


def test_what_cannot_be_captured_is_told() -> None:
    module = Twice()
    with pytest.raises(ParityError, match="the module itself is in training mode"):
        capture(module, [torch.randn(2, 3)])
    module.eval()
    module.norm.train()
    with pytest.raises(ParityError, match="norm is in training mode"):
        capture(module, [torch.randn(2, 3)])

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    with pytest.raises(ParityError, match="output differs: does it draw random numbers"):
        capture(Noisy().eval(), [torch.zeros(3)])
