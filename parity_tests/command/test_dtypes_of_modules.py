"""`jax-transformer parity` on right modules that hold bfloat16, complex constants, or frozen parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity_command import PYTORCH, Run
from torch import Tensor, nn

from jax_transformer import compare
from jax_transformer.comparison.torch_tensors import to_tensor
from jax_transformer.storage.tensor_files import as_array

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", ["marian", "in_bfloat16"])
def test_a_module_with_frozen_sinusoids_passes_with_default_options(name: str, run: Run) -> None:
    outcome = run("--reference", f"user_marian:{name}", stages=None, dtypes=None)
    assert outcome.code == 0, outcome.output
    assert "proof: one function for all weights: forward, loss, gradients" in outcome.output


@pytest.mark.parametrize("name", ["in_bfloat16", "in_float16", "with_phases"])
def test_a_module_in_another_dtype(name: str, run: Run) -> None:
    stages = "weights,masks,forward,gradients"
    outcome = run(*PYTORCH, "--reference", f"user_models:{name}", stages=stages, dtypes="float64,float32")
    assert outcome.code == 0, outcome.output


class Turned(nn.Module):
    """Multiplies by a complex constant, and returns the imaginary part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("turn", torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.turn).imag


def test_complex_constants_keep_their_imaginary_parts() -> None:
    def turned(
        params: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        product = inputs["x"] @ params["linear.weight"].T + params["linear.bias"]
        return product * params["turn"].imag, {}

    report = compare(turned, Turned().eval(), inputs={"x": np.ones((2, 3), np.float32)})
    assert report.verdict == "passed", str(report)


def test_values_of_bfloat16_become_a_tensor() -> None:
    values = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    assert to_tensor(as_array(values)).tolist() == [1.5, -3.0]
