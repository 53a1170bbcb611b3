"""The page that compares runs, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_report_browser import HOSTILE, write_run

from jax_transformer.training import run_comparison
from jax_transformer.training.report import write_comparison

Open = Callable[..., Any]


def finish(run: Path, translations: list[str]) -> Path:
    """Ends a run with translations of one test set."""
    scores = {"bleu": 30.0, "chrf": 40.0, "exact_match": 0.0, "sentences": len(translations)}
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 100, "model_step": 100, "test": scores}) + "\n")
    samples = [
        {"source": text, "reference": text, "translation": own} for text, own in zip(HOSTILE, translations, strict=True)
    ]
    (run / "translations.json").write_text(json.dumps({"step": 100, "splits": {"test": samples}, "words": None}))
    return run


def test_runs_are_drawn_over_each_other(visited: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = run_comparison.compare_systems
    monkeypatch.setattr(run_comparison, "compare_systems", lambda *a, **options: compare(*a, **options, samples=10))
    one = finish(write_run(tmp_path / "one", texts=HOSTILE), HOSTILE)
    two = finish(write_run(tmp_path / "<img src=x>", 50, texts=HOSTILE), ["a"] * len(HOSTILE))
    three = write_run(tmp_path / "three", 0, 0)
    page = visited(write_comparison([one, two, three], tmp_path / "page.html"), 420)
    page.wait_for_selector(".canvas:empty", state="detached")
    assert page.evaluate("window.broken") is None
    assert page.locator("[data-chart='valid_loss 0'] path.curve.slot-1").count() == 2  # the curve, and its swatch
    assert page.locator("[data-chart='valid_loss 0'] .legend li:not(.at)").count() == 2  # the third has no values
    assert "<img src=x>" in page.inner_text("h1")
    scores = page.inner_text("#scores tbody")
    assert "100.00 ± 0.00" in scores
    assert scores.count("p ") == 3
    assert page.locator(".sentences > li").count() == len(HOSTILE)
    assert page.locator(".sentences dd").first.text_content() == HOSTILE[0]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
