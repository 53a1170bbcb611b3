"""`compare`, its refusals, and the report in Python: no PyTorch is needed here; parity_tests/test_compare.py has it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from sample_report import make_report
from selftest.subjects import make_model

from jax_transformer import parity
from jax_transformer.parity import Divergence, Report, assert_parity, compare

X = np.linspace(0, 1, 6)


def test_arrays_of_any_kind() -> None:
    assert compare({"a": jnp.ones(3)}, {"a": np.ones(3, np.float32)}, tolerance=0.0).verdict == "passed"
    low = {"a": np.ones(3, ml_dtypes.bfloat16)}
    report = compare(low, {"a": jnp.ones(3, jnp.bfloat16)})
    assert report.verdict == "inconclusive"
    assert "bfloat16 has no criterion without a float64 truth" in str(report)
    assert compare(low, low, truth={"a": np.ones(3)}).verdict == "passed"


def test_arrays_and_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=X)
    report = compare({"a": X}, tmp_path / "a.npz")
    assert (report.verdict, report.candidate, report.reference) == ("passed", "candidate", str(tmp_path / "a.npz"))
    assert list(report.sha256) == [str(tmp_path / "a.npz")]


MODEL: Any = "model"


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        (({"a": X},), {}, "expected a reference: a mapping of arrays, or an .npz"),
        (({"a": X}, len), {}, "reference: arrays are compared with arrays; received builtin_function_or_method"),
        (({"a": {"b": X}}, {"a": X}), {}, "candidate: expected names with arrays; 'a' is a dict"),
        (({"a": X}, {"a": X}), {"tolerance": -1.0}, "tolerance must be at least 0; received -1.0"),
        (({"a": X}, {"a": X}), {"node": "a"}, "node doesn't apply to named arrays; expected only tolerance, truth"),
        (({"a": X}, {"a": X}), {"num_heads": 2}, "num_heads doesn't apply to named arrays"),
        ((5,), {}, "expected a model, a path, a torch.nn.Module, a function or a mapping of arrays to compare; rec"),
        ((MODEL,), {"truth": {"a": X}}, "truth doesn't apply to models; expected only allow, decoding, dialect"),
        ((MODEL,), {"stages": ["forwards"]}, "stages: expected some of weights, inputs, masks, forward, loss, grad"),
        ((MODEL,), {"dtypes": []}, "dtypes: expected some of float64, float32, bfloat16; received none"),
        ((MODEL,), {"num_heads": 2}, "Model is a model and has its config; expected no num_heads"),
        ((MODEL,), {"inputs": {"a": X}}, "inputs: only a JAX function compared with a torch.nn.Module takes them"),
        ((MODEL,), {"model": MODEL}, "model: only a function takes one; the candidate is a model"),
        ((MODEL, len), {}, "reference: expected a torch.nn.Module or a model; received a function"),
        ((len,), {}, "expected a model whose parameters the function receives, or a reference that has them"),
        ((len,), {"model": 3}, "expected a model, a path, a torch.nn.Module"),
        ((len,), {"model": len}, "model: expected a Model or its path; received builtin_function_or_method"),
        (("nowhere.pt",), {}, "nowhere.pt: no such file"),
    ],
)
def test_incomparable_sides_are_refused(sides: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    model = make_model("stepwise_core")
    sides = tuple(model if side is MODEL else side for side in sides)
    options = {name: model if value is MODEL else value for name, value in options.items()}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        compare(*sides, **options)
    assert "\n" not in str(caught.value)


def test_two_models_and_a_function(quick_compilation: None) -> None:
    from jax_transformer.model import functional

    model = make_model("stepwise_core")
    options: dict[str, Any] = {"stages": ["weights", "masks", "forward"], "dtypes": ["float64"]}
    same = compare(model, model, **options)
    assert same.verdict == "passed"
    assert list(same.sha256) == ["Model, its parameters"]

    def function(params: Any, inputs: Any) -> Any:
        return functional.apply(model.config, params, **inputs, return_trace=True)

    assert compare(function, model, stages=["forward"], dtypes=["float64"]).verdict == "passed"
    other = make_model("stepwise")
    with pytest.raises(ValueError, match=r"reference Model: expected a model with the candidate's parameters; "):
        compare(model, other, **options)


def test_divergence_is_an_assertion_with_the_report() -> None:
    compare({"a": X}, {"a": X}).raise_for_divergence()
    with pytest.raises(Divergence, match=r"^diverged: candidate against reference\nfirst at a \(arrays\)") as caught:
        assert_parity({"a": X + 1e-6}, {"a": X})
    assert isinstance(caught.value, AssertionError)
    assert caught.value.report.verdict == "diverged"
    with pytest.raises(Divergence, match=r"^inconclusive: "):
        assert_parity({"a": X}, {"a": X, "b": X})


def test_a_report_in_files_and_in_a_notebook(tmp_path: Path) -> None:
    report = make_report()
    text = report.to_json(tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == text == report.to_json()
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    frame = report._repr_html_()
    assert re.fullmatch(r'<iframe sandbox="allow-scripts" style="[^"<>]*" srcdoc="[^"<>]*"></iframe>', frame)
    assert html.unescape(frame.partition('srcdoc="')[2].removesuffix('"></iframe>')) == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_show_prints_what_str_says(capsys: pytest.CaptureFixture[str]) -> None:
    report = compare({"a": X}, {"a": X})
    report.show()
    assert capsys.readouterr().out.rstrip() == str(report)
    assert json.loads(report.to_json())["verdict"] == "passed"


def test_exports() -> None:
    assert parity.Report is Report
    assert {*parity.__all__} <= {*dir(parity)}
    with pytest.raises(AttributeError, match="has no attribute 'comparison'"):
        parity.comparison  # noqa: B018
