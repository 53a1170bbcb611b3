"""What any PyTorch module computes, as named arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jax_transformer.comparison.capture import observe, watch
from jax_transformer.comparison.gates.arrays import ParityError, read_arrays
from jax_transformer.parity import assert_parity, capture

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
    assert list(found) == [
        "output@input", "linear@input", "linear", "norm@input", "norm", "norm#2@input", "norm#2",
        "output.sum", "output.parts.0", "output.parts.1.0",
    ]  # fmt: skip
    with torch.no_grad():
        expected = module(x)
    np.testing.assert_array_equal(found["linear"], module.linear(x).detach().numpy())
    np.testing.assert_array_equal(found["output.sum"], expected["sum"].numpy())
    np.testing.assert_array_equal(found["output.parts.1.0"], found["output.parts.0"] + 1)
    kept = read_arrays(tmp_path / "trace.npz")
    assert list(kept.arrays) == list(found)
    assert kept.notes["framework"].startswith("torch 2")
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()), (
        "hooks are taken off again"
    )


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


class Attentions(nn.Module):
    """Softmaxes of every sort: its own, one in C++, a module's, and those of a fused attention with and without its
    weights."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.softmax = nn.Linear(4, 4), nn.Softmax(dim=-1)
        self.fused = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        y = torch.softmax(query @ x.mT, dim=-1) @ x
        y = y + nn.functional.scaled_dot_product_attention(query, x, x)
        y = y + self.softmax(query @ x.mT) @ x
        return y + self.fused(query, x, x, need_weights=False)[0] + self.fused(query, x, x)[0]


@pytest.fixture
def attentions() -> Attentions:
    torch.manual_seed(0)
    return Attentions().eval().double()


X = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_softmaxes_wherever_they_are_computed(attentions: Attentions) -> None:
    found = capture(attentions, {"x": X})
    own = ["output@logits", "output@weights", "output@logits#2", "output@weights#2"]
    fused = ["fused@input", "fused@logits", "fused@weights", "fused.0"]
    again = ["fused#2@input", "fused#2@logits", "fused#2@weights", "fused#2.0", "fused#2.1"]
    part = ["softmax@input", "softmax@logits", "softmax@weights", "softmax"]
    assert list(found) == ["output@input", "query@input", "query", *own, *part, *fused, *again, "output"]
    scores = found["query"] @ X.mT.numpy()
    np.testing.assert_allclose(found["output@logits"], scores, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["output@logits#2"], scores / 2, rtol=1e-12, atol=1e-14)
    assert found["fused@logits"].shape == (3, 2, 5, 5)
    np.testing.assert_allclose(
        found["fused#2@logits"].reshape(3, 2, 5, 5), found["fused@logits"], rtol=1e-12, atol=1e-14
    )
    for name in [name for name in found if "@logits" in name]:
        exponentials = np.exp(found[name])
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        np.testing.assert_allclose(found[name.replace("logits", "weights")], weights, rtol=1e-12)


def test_a_shared_tensor_is_kept_once(attentions: Attentions) -> None:
    found = capture(attentions, {"x": X})
    assert np.shares_memory(found["fused@input"], found["query"])
    assert not np.shares_memory(found["output"], found["query"])


class InPlace(nn.Module):
    """Writes over what its linear map returned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(3, 4), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear(x)) + 1


def test_an_overwritten_tensor_keeps_its_captured_value() -> None:
    torch.manual_seed(0)
    module, x = InPlace().eval(), torch.randn(5, 3)
    found = capture(module, [x])
    assert found["linear"].min() < 0
    np.testing.assert_array_equal(found["relu@input"], found["linear"])
    np.testing.assert_array_equal(found["relu"], found["linear"].clip(0))


def test_gradients_of_what_is_written_over() -> None:
    """They are those of the values before."""
    torch.manual_seed(0)
    module, x = InPlace().eval(), torch.randn(2, 5, 3)
    seen = watch(module, [x], keep_gradients=True)
    seen.output.sin().sum().backward()
    after = (module.linear(x).relu() + 1).cos()
    torch.testing.assert_close(seen.gradients["relu"], after)
    torch.testing.assert_close(seen.gradients["linear"], after * (module.linear(x) > 0))


class Scaled(nn.Module):
    """Takes a tensor and a number."""

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor


class Repeated(nn.Module):
    """Norms one stream for queries and again for keys, drops nothing of it twice, and scales it in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.5)
        self.scaled = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        both = self.scaled(y, 1.0) + 5 * self.scaled(y, 3.0)
        return self.norm(y) * self.norm(y).sin() + self.drop(y) * self.drop(y).sin() + self.norm(2 * y) + both


def test_gradients_of_what_is_computed_twice_are_added_up() -> None:
    torch.manual_seed(0)
    module, x = Repeated().eval(), torch.randn(2, 5, 3)
    seen = watch(module, [x], keep_gradients=True, apart={"norm", "drop"})
    seen.output.sum().backward()
    y = module.linear(x)
    normed = module.norm(y)
    torch.testing.assert_close(seen.gradients["norm"], normed.sin() + normed * normed.cos())
    torch.testing.assert_close(seen.gradients["drop"], seen.gradients["linear"])  # they are one tensor
    torch.testing.assert_close(seen.gradients["norm#3"], torch.ones_like(y))
    torch.testing.assert_close(seen.gradients["scaled"], torch.ones_like(y))
    torch.testing.assert_close(seen.gradients["scaled#2"], torch.full_like(y, 5.0))


def test_gradients_of_named_repetitions_stay_apart() -> None:
    """A layer used for several layers computes keys of one encoder output each time."""
    torch.manual_seed(0)
    module, x = Repeated().eval(), torch.randn(2, 5, 3)
    seen = watch(module, [x], keep_gradients=True, apart={"norm", "norm#2"})
    seen.output.sum().backward()
    normed = module.norm(module.linear(x))
    torch.testing.assert_close(seen.gradients["norm"], normed.sin())
    torch.testing.assert_close(seen.gradients["norm#2"], normed * normed.cos())


def test_gradients_of_activations(attentions: Attentions) -> None:
    """Of logits they follow from those of weights."""
    found, seen = observe(attentions, {"x": X}), watch(attentions, (), {"x": X}, keep_gradients=True)
    seen.output.sin().sum().backward()
    assert attentions.query.weight.grad is not None
    for name in [name for name in found if "@logits" in name]:
        weights, gradient = found[name.replace("logits", "weights")], seen.gradients[name.replace("logits", "weights")]
        logits_gradient = seen.gradients[name]
        assert gradient.abs().max() > 0.01
        expected = weights * (gradient - (gradient * weights).sum(-1, keepdim=True))
        torch.testing.assert_close(logits_gradient, expected.detach(), rtol=1e-12, atol=1e-14)
    assert "output@input" not in seen.gradients, "no parameter leads to it"
    assert not seen.tensors
    assert not any(tensor.requires_grad for tensor in found.values())


def test_names_when_a_submodule_is_called_output() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.output(x)

    found = capture(Outer().eval(), [torch.ones(1, 2)])
    assert list(found) == ["output#own@input", "output@input", "output", "output#own"]


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


def test_tensors_that_cannot_be_captured_are_reported() -> None:
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
