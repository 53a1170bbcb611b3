"""`compare` with PyTorch on one side; the command, which calls it, has the rest in the folder command."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np
import pytest
import torch
import user_models

from jax_transformer.parity import ParityError, Side, capture, compare, draft_map
from jax_transformer.porting import import_checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")
OPTIONS: dict[str, Any] = {"stages": ["weights", "masks", "forward"], "dtypes": ["float64"]}


def test_a_module_and_its_own_port() -> None:
    module = user_models.pytorch()
    report = compare(module, dialect="pytorch", **OPTIONS, **user_models.HINTS)
    assert report.verdict == "passed", str(report)
    assert (report.candidate, report.reference) == ("PytorchTransformer in JAX", "PytorchTransformer")
    assert list(report.sha256) == ["PytorchTransformer, its state_dict"]
    assert report.environment["torch"] == metadata.version("torch")


def test_a_model_with_its_program_and_with_a_module() -> None:
    model = import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)
    progress: list[str] = []
    report = compare(model, progress=progress.append, **OPTIONS)
    assert (report.verdict, report.reference) == ("passed", "torch_reference.pytorch")
    assert progress[0] == "weights"
    report = compare(model, Side(user_models.other_eps(), "mine"), **OPTIONS)
    assert (report.verdict, report.exit_code, report.reference) == ("diverged", 1, "mine")
    (fault,) = report.faults
    assert (fault.side, fault.finding.cause, fault.command) == ("reference", "norm: ε = 1e-06", "")
    assert draft_map(model, user_models.foreign()).startswith("# A DRAFT")


def test_a_function_and_any_module() -> None:
    module = torch.nn.Linear(3, 2).eval()

    def linear(params: Any, inputs: Any) -> Any:
        return inputs["input"] @ params["weight"].T + params["bias"], {}

    inputs = {"input": torch.ones(4, 3)}
    report = compare(linear, module, inputs=inputs)
    assert report.verdict == "passed", str(report)
    assert report.candidate.endswith("linear")
    assert report.reference == "Linear"
    with pytest.raises(ParityError, match="reference Linear: expected a module in evaluation mode"):
        compare(linear, module.train(), inputs=inputs)


def test_arrays_of_torch() -> None:
    x = torch.linspace(0, 1, 5, requires_grad=True)
    assert compare({"a": x}, {"a": x.detach().numpy()}, tolerance=0.0).verdict == "passed"
    low = {"a": x.to(torch.bfloat16)}
    assert compare(low, low, truth={"a": np.linspace(0, 1, 5)}).verdict == "passed"


def test_two_modules_are_compared_as_arrays() -> None:
    module = torch.nn.Linear(3, 2).double().eval()
    with pytest.raises(ParityError, match=r"to compare two modules, compare what capture\(\) returns of each"):
        compare(module, module)
    x = [torch.ones(4, 3, dtype=torch.float64)]
    assert compare(capture(module, x), capture(module, x)).verdict == "passed"
