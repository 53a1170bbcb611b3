"""The attention in a run's report is that of its model, for the translations that it keeps."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.files import dump_config
from jax_transformer.config.run import RunConfig
from jax_transformer.training import report
from jax_transformer.training import sample_attention as module
from jax_transformer.training.sample_attention import sample_attention

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_report_draws_the_weights_of_the_model(drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(RunConfig()))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 3, "model_step": 3}))
    (run / "model").symlink_to(drawn.path)
    samples = [
        {"source": drawn.text, "reference": "", "translation": drawn.target},
        {"source": "", "reference": "", "translation": "x " * 200},  # longer than the model allows
        {"source": drawn.hostile, "reference": "", "translation": ""},
    ]
    (run / "translations.json").write_text(json.dumps({"step": 3, "splits": {"test": samples}, "words": None}))
    pages: list[dict[str, Any]] = []
    monkeypatch.setattr(report, "render", lambda data: pages.append(data) or "")
    assert main(["report", str(run), "--attention"]) == 0
    found = pages[0]["attention"]
    assert (found["split"], found["layer"]) == ("test", 0)
    assert [one["source"] for one in found["maps"]] == [drawn.text, drawn.hostile]
    first = found["maps"][0]
    assert first["keys"] == [*drawn.text.split(), "<eos>"]
    assert first["queries"] == [*drawn.target.split(), "<eos>"]
    weights = np.frombuffer(base64.b64decode(first["weights"]), "<u2").reshape(6, 5) / 65535
    np.testing.assert_allclose(weights, drawn.weights["cross"][0].mean(axis=0), atol=1e-5)


def test_at_most_eight_sentences_are_drawn(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "align", lambda model, sources, targets: [np.zeros(1)] * len(sources))
    samples = [{"source": f"ein {n}", "reference": "", "translation": "EIN"} for n in range(100)]
    assert len(sample_attention(drawn.path, samples)["maps"]) == 8
