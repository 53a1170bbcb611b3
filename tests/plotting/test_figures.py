"""Pictures show the numbers that the model and its training compute, and are saved whole or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from figure_parts import SIGNATURES, SMALL, image, panel
from matplotlib.figure import Figure

from jax_transformer import plotting as plots
from jax_transformer.config.run import TrainConfig
from jax_transformer.model import functional
from jax_transformer.model.masks import make_masks
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.plotting import training_figures
from jax_transformer.plotting.style import figure_style, save
from jax_transformer.training.losses import Criterion, cross_entropy
from jax_transformer.training.schedules import inverse_square_root, make_schedule

SOURCE, TARGET = [4, 0, 5, 6, 0], [2, 4, 0, 5, 1, 0]

# --- positions


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position_layout": "halves", "position_frequency": "inclusive"},
        {"position_frequency": "doubled"},
        {"position_index": "non_pad_count"},
    ],
)
@pytest.mark.parametrize("rows", [15, 99])
def test_positions_are_the_models_table(changes: dict[str, Any], rows: int) -> None:
    config = dataclasses.replace(SMALL, **changes)
    figure = plots.positions(config, stack="decoder", rows=rows, columns=(3, 6))
    table = sinusoid_table(config.decoder)[:rows]
    assert np.array_equal(image(figure, "The table"), table)
    assert np.array_equal(image(figure, "Similarity"), table @ table.T)
    for line, column in zip(panel(figure, "Some").lines, (3, 6), strict=True):
        assert np.array_equal(line.get_xydata(), np.stack([np.arange(len(table)), table[:, column]], axis=1))
        assert line.get_label() == str(column)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_models_own_positions_are_drawn(kind: Any, stack: Any) -> None:
    config = dataclasses.replace(SMALL, position_kind=kind)
    params = functional.init_params(config, jax.random.key(0))
    if kind == "learned":
        table = params[stack]["positions"]["embedding"]
    else:
        table = params["constants"][f"{stack}_positions"] + 1.0  # as a port's may differ from the formula
        params["constants"][f"{stack}_positions"] = table
    assert np.array_equal(image(plots.positions(config, params, stack=stack), "The table"), table)


@pytest.mark.parametrize(("kind", "message"), [("none", "has no table"), ("learned", "expected a model directory")])
def test_positions_that_cannot_be_drawn_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.positions(dataclasses.replace(SMALL, position_kind=kind))


# --- masks


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder_padding": "queries", "decoder_padding": "none", "cross_padding": "none"},
        {"encoder_padding": "both", "decoder_padding": "both", "cross_padding": "both", "decoder_padding_id": 1},
        {"encoder_padding": "none", "decoder_padding": "queries", "cross_padding": "queries"},
        {"decoder_causal": False},
    ],
)
def test_masks_are_the_models(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **changes)
    figure = plots.masks(config, SOURCE, TARGET, source_tokens=list("abcde"), target_tokens=list("uvwxyz"))
    masks = make_masks(config, jnp.asarray([SOURCE]), jnp.asarray([TARGET]))
    for title, mask, queries, keys in (
        ("Encoder self", masks.encoder_self, "abcde", "abcde"),
        ("Decoder self", masks.decoder_self, "uvwxyz", "uvwxyz"),
        ("Cross", masks.cross, "uvwxyz", "abcde"),
    ):
        shape = (1, 1, len(queries), len(keys))
        allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        assert np.array_equal(image(figure, title), allowed[0, 0]), title
        axes = panel(figure, title)
        assert "".join(label.get_text() for label in axes.get_xticklabels()) == keys
        assert "".join(label.get_text() for label in axes.get_yticklabels()) == queries
        discs = {(round(y), round(x)) for x, y in np.asarray(axes.collections[0].get_offsets())}
        assert discs == set(zip(*map(list, np.nonzero(allowed[0, 0])), strict=True))
        hatched = sorted(round(patch.get_y() + 0.5) for patch in axes.patches)  # type: ignore[attr-defined]
        assert hatched == list(np.flatnonzero(~allowed[0, 0].any(axis=1)))
    both = image(figure, "Target padding") & image(figure, "Causal")
    assert np.array_equal(both, image(figure, "Decoder self"))


def test_pads_are_marked() -> None:
    labels = panel(plots.masks(SMALL, SOURCE, TARGET), "Cross").get_yticklabels()
    assert [label.get_fontstyle() == "italic" for label in labels] == [token == 0 for token in TARGET]
    assert [label.get_text() for label in labels] == list("012345")


def test_a_wrong_number_of_tokens_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"target: expected the ids of one sentence and as many tokens; received \(6,\) and 2 tokens"
    ):
        plots.masks(SMALL, SOURCE, TARGET, target_tokens=["a", "b"])


# --- learning rates


@pytest.mark.parametrize("kind", ["paper", "constant", "linear", "cosine"])
@pytest.mark.parametrize(("steps", "warmup"), [(50, 7), (12_345, 1000)])
def test_the_learning_rate_is_the_trainings(kind: Any, steps: int, warmup: int) -> None:
    config = TrainConfig(schedule=kind, learning_rate=0.5, warmup_steps=warmup, max_steps=steps)
    line, peak = panel(plots.schedule(config, 48), "This config").lines
    taken, rates = np.asarray(line.get_xydata()).T
    assert taken[0] == 1
    assert taken[-1] == steps
    assert warmup in taken
    expected = [float(make_schedule(config, 48)(step - 1)) for step in (1, warmup, steps)]
    assert np.interp([1, warmup, steps], taken, rates) == pytest.approx(expected, abs=1e-7)
    assert peak.get_ydata() == pytest.approx([max(expected)])


def test_the_papers_curves_are_the_papers() -> None:
    figure = plots.schedule(TrainConfig(), 512, curves=((512, 400), (64, 30)), steps=1000)
    for line, (size, warmup) in zip(panel(figure, "The paper's").lines, ((512, 400), (64, 30)), strict=True):
        taken, rates = np.asarray(line.get_xydata()).T
        assert list(taken) == list(range(1, 1001))
        assert np.array_equal(rates, inverse_square_root(1.0, size, warmup)(jnp.arange(1.0, 1001.0)))
        assert rates[warmup - 1] == pytest.approx(size**-0.5 * warmup**-0.5)  # the formula, once by hand
        assert line.get_label() == f"{size}:{warmup}"


# --- label smoothing


def test_targets_minimise_the_loss() -> None:
    table = image(plots.smoothing(0.3), "Target distributions")
    entries = len(training_figures.EXAMPLE_VOCABULARY)
    for row, label in zip(table, training_figures.EXAMPLE_LABELS, strict=True):
        if label == training_figures.EXAMPLE_PAD:
            assert not row.any()
            continue
        assert row.sum() == pytest.approx(1.0, abs=1e-6)
        assert row == pytest.approx(0.7 * np.eye(entries)[label] + 0.3 / entries, abs=1e-6)
        gradient = jax.grad(lambda x, y: cross_entropy(x, y, Criterion(0, 0.3))[0])(
            jnp.log(row)[None, None], jnp.asarray([[label]])
        )
        assert np.abs(gradient).max() < 1e-6


@pytest.mark.parametrize(("over", "others"), [("others", 6), ("others_but_pad", 5)])
def test_targets_of_the_other_smoothings(over: Literal["others", "others_but_pad"], others: int) -> None:
    figure = plots.smoothing(0.3, over=over)
    assert f"ε / (V − {7 - others})" in figure.get_suptitle()
    table = image(figure, "Target distributions")
    for row, label in zip(table, training_figures.EXAMPLE_LABELS, strict=True):
        if label != training_figures.EXAMPLE_PAD:
            expected = np.full(7, 0.3 / others)
            expected[label] = 0.7
            if over == "others_but_pad":
                expected[training_figures.EXAMPLE_PAD] = 0.0
            assert row == pytest.approx(expected, abs=1e-6)
    title = "Divergence of one token" if over == "others_but_pad" else "Cross-entropy of one token"
    least = min(np.min(line.get_ydata()) for line in panel(figure, title).lines[1:])
    assert (least < 0.1) == (over == "others_but_pad")


def test_the_loss_is_the_trainings() -> None:
    lines = [
        line for line in panel(plots.smoothing(0.2, vocab_size=50), "Cross-entropy").lines if len(line.get_xdata()) > 1
    ]
    assert [line.get_label() for line in lines] == ["ε = 0, V = 7", "ε = 0.2, V = 7", "ε = 0.2, V = 50"]
    for line, (epsilon, size) in zip(lines, ((0.0, 7), (0.2, 7), (0.2, 50)), strict=True):
        probabilities, curve = np.asarray(line.get_xydata()).T
        logits = np.log(np.repeat((1 - probabilities[:, None]) / (size - 1), size, axis=1))
        logits[:, 3] = np.log(probabilities)
        labels = jnp.full((1, 1), 3)
        expected = [cross_entropy(jnp.asarray(x)[None, None], labels, Criterion(0, epsilon))[0] for x in logits[::50]]
        assert curve[::50] == pytest.approx(np.asarray(expected), abs=1e-5)
        if epsilon:
            assert probabilities[np.argmin(curve)] == pytest.approx(1 - epsilon + epsilon / size, abs=0.003)


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
        plots.smoothing(value)


# --- files


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("dark", [False, True])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str, dark: bool) -> None:
    for name in ("a", "b"):
        with figure_style(dark=dark):
            save(plots.smoothing(0.1), tmp_path / f"{name}{suffix}")
    first, second = (tmp_path / f"{name}{suffix}" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(SIGNATURES[suffix])
    assert len(list(tmp_path.iterdir())) == 2


def test_the_settings_of_matplotlib_are_left_as_they_were() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with figure_style(dark=True):
        assert matplotlib.rcParams["axes.facecolor"] != before["axes.facecolor"]
    assert dict(matplotlib.rcParams) == before


def test_a_picture_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: Figure, path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    (tmp_path / "a.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", breaks)
    with pytest.raises(OSError, match="no space"):
        save(Figure(), tmp_path / "a.png")
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"old"


# --- forecasts


def test_a_forecast_continues_its_history() -> None:
    history = np.array([[1.0, 2.0, np.nan, 4.0], [5.0, 6.0, 7.0, 8.0]])
    quantiles = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    figure = plots.forecasts(history, quantiles, [0.1, 0.5, 0.7, 0.9], ["one", "two"], shown=3)
    axes = panel(figure, "two")
    before, median, alone = axes.lines
    np.testing.assert_array_equal(before.get_xydata(), [[2, 6], [3, 7], [4, 8]])
    np.testing.assert_array_equal(median.get_xydata(), np.stack([[5, 6, 7], quantiles[1, :, 1]], axis=1))
    np.testing.assert_array_equal(alone.get_ydata(), quantiles[1, :, 2])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {tuple(corner) for corner in corners} == {
        (step, quantiles[1, i, level]) for i, step in enumerate((5.0, 6.0, 7.0)) for level in (0, 3)
    }
    assert np.isnan(panel(figure, "one").lines[0].get_ydata()).tolist() == [False, True, False]
