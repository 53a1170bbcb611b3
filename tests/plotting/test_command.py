"""`jax-transformer plot`: its documented commands run, draw a run's own values, and answer mistakes in one line."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from figure_parts import SIGNATURES, SMALL, image, panel
from matplotlib.figure import Figure

from jax_transformer.cli import main
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.files import dump_config
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model, save_model

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: empty, but for docs/pictures/ and a run with a model of learned positions, two layers and
    four heads."""
    sizes = {"num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
    config = dataclasses.replace(SMALL, position_kind="learned", source_pad_id=3, target_pad_id=3, **sizes)
    words = train_tokenizer(["dog Hund"], kind="words", specials=SpecialIds(pad=3, unk=0, bos=2, eos=4), vocab_size=7)
    run = RunConfig(
        model=config,
        data=DataConfig(max_length=20),
        train=TrainConfig(schedule="constant", learning_rate=0.25, max_steps=30, warmup_steps=0),
    )
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "config.yaml").write_text(dump_config(run))
    params = functional.init_params(config, jax.random.key(0))
    params["head"]["bias"] = params["head"]["bias"].at[5].set(9.0)  # a word, so that no translation is empty
    save_model(
        Model(
            config,
            params,
            words,
            words,
            GenerationConfig(decoder_start_id=2, eos_id=4, max_new_tokens=3),
        ),
        tmp_path / "runs" / "demo" / "model",
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Returns the figures that the command draws."""
    from jax_transformer.plotting import style as plot_style

    figures: list[Figure] = []
    write: Callable[..., None] = plot_style.save
    monkeypatch.setattr(
        plot_style, "save", lambda figure, path, **options: (figures.append(figure), write(figure, path, **options))
    )
    return figures


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "runs" not in path.parts}


def documented_commands() -> list[str]:
    lines = [
        line
        for page in ("docs/pictures.md", "README.md")
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
    ]
    commands = [
        line.split("#")[0].strip() for line in lines if line.startswith("jax-transformer plot ") and "[" not in line
    ]
    assert len(commands) >= 9
    return commands


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_run(here: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (here / "english.txt").write_text("The dog sleeps.\nWho sleeps?\n", encoding="utf-8")
    assert main(shlex.split(command)[1:]) == 0
    written = files(here) - {"english.txt"}
    assert capsys.readouterr().out.split("\n") == [*written, ""]
    (name,) = written
    assert (here / name).read_bytes().startswith(SIGNATURES[Path(name).suffix])


def test_the_pictures_of_the_page_are_there_and_small() -> None:
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    for kind in ("positions", "masks", "schedule", "smoothing", "attention"):
        assert f"(pictures/{kind}.png)" in page
        assert (ROOT / "docs" / "pictures" / f"{kind}.png").stat().st_size < 120_000


@pytest.mark.usefixtures("here")
def test_a_run_is_drawn_with_its_own_values(drawn: list[Figure]) -> None:
    from jax_transformer.storage.model_directory import load_model

    model = load_model("runs/demo")
    for name in ("runs/demo", "runs/demo/model"):
        assert main(["plot", "positions", name]) == 0
        assert np.array_equal(image(drawn[-1], "The table"), model.params["encoder"]["positions"]["embedding"])
        assert main(["plot", "masks", name, "--target", "<bos> a <pad> b"]) == 0
        expected = np.tril(np.ones((4, 4), bool)) & np.array([True, True, False, True])
        assert np.array_equal(image(drawn[-1], "Decoder self"), expected)
    assert main(["plot", "schedule", "runs/demo"]) == 0
    rates = panel(drawn[-1], "This config").lines[0].get_ydata()
    assert set(np.asarray(rates)) == {0.25}
    assert main(["plot", "smoothing", "runs/demo"]) == 0
    assert image(drawn[-1], "Target distributions").max() == pytest.approx(1 - 0.1 + 0.1 / 7)


@pytest.mark.usefixtures("here")
def test_without_a_config_the_papers_base_model_is_drawn(drawn: list[Figure]) -> None:
    assert main(["plot", "positions"]) == 0
    assert image(drawn[-1], "The table").shape == (128, 512)
    assert main(["plot", "schedule"]) == 0
    assert panel(drawn[-1], "This config").lines[0].get_ydata().max() == pytest.approx((512 * 4000) ** -0.5)


@pytest.mark.usefixtures("here")
def test_sizes_are_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "schedule", "--width", "6", "--height", "4", "--dpi", "50"]) == 0
    header = Path(capsys.readouterr().out.strip()).read_bytes()[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (300, 200)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("flow", "unknown picture 'flow'; expected one of positions, masks, schedule, smoothing, attention"),
        ("positions dmeo", "unknown preset 'dmeo'; expected one of demo"),
        ("positions docs", "docs is no model directory"),
        ("positions --columns 600", "expected columns from 0 to 511 (d_model=512); received 600"),
        ("positions --rows 0", "--rows must be at least 1; received 0"),
        ("positions -o a.jpg", "a.jpg: expected a file name that ends in one of .png, .svg, .pdf; received '.jpg'"),
        ("positions -o a", "a: expected a file name that ends in one of .png, .svg, .pdf; received ''"),
        ("positions -o nowhere/a.png", "expected a directory that exists; there is no nowhere"),
        ("masks --source ''", "expect at least one token each"),
        ("schedule runs/demo/model", "it has no config.yaml with training settings"),
        ("schedule --curves 512", "--curves expects D_MODEL:WARMUP such as 512:4000; received '512'"),
        ("schedule --curves 0:5", "expected a d_model and a warm-up of at least 1; received 0:5"),
        ("schedule --steps 0", "expected from 1 to 1,000,000,000 steps; received 0"),
        ("smoothing --label-smoothing 1", "label_smoothing must be in [0, 1); received 1.0"),
        ("smoothing --dpi 7", "--dpi must be from 30 to 600; received 7"),
    ],
)
def test_mistakes_give_one_line(here: Path, capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    assert main(["plot", *shlex.split(command)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert files(here) == set()
