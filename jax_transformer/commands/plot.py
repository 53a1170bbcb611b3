"""jax-transformer plot KIND [CONFIG] [options]: draws a picture of a config or of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_transformer.commands.attention import PAGE, AttentionOptions
from jax_transformer.commands.attention import draw as draw_attention
from jax_transformer.commands.attention import page as attention_page
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.picture_options import PictureOptions
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.presets import PRESETS, get_preset
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.pages.page import write_page
from jax_transformer.runtime.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # matplotlib itself is imported only when a picture is drawn

PAD = "<pad>"
USAGE = """jax-transformer plot KIND [CONFIG] [-o FILE] [options]
jax-transformer plot attention MODEL SENTENCE [-o FILE] [options]

  positions   the position table, some of its columns, and the dot products of its rows
  masks       the attention masks of a sentence pair with padding
  schedule    the learning rate by step, and the paper's for other sizes and warm-ups
  smoothing   smoothed targets, and the loss against the probability of the label
  attention   each head's weights while the model translates a sentence: a picture, or a page (.html) with all heads

CONFIG is a preset, a run directory or a model directory; the default is paper_base.
jax-transformer plot KIND --help lists the options."""


@dataclass(frozen=True)
class ConfigOptions(PictureOptions):
    """Configures a picture of a config."""

    config: tyro.conf.Positional[str] = "paper_base"
    """A preset, a run directory or a model directory. (./NAME is the directory if a preset has the same name.)"""


@dataclass(frozen=True)
class PositionsOptions(ConfigOptions):
    """Draw a position table. A learned table needs a model directory, or a run directory that contains a model."""

    stack: Literal["encoder", "decoder"] = "encoder"
    """Stack whose table to draw."""
    rows: int = 128
    """Maximum number of rows to draw."""
    columns: tuple[int, ...] = ()
    """Columns to draw as curves. Default: four from the first half."""


@dataclass(frozen=True)
class MasksOptions(ConfigOptions):
    """Draw the attention masks of one sentence pair under the config's rules."""

    source: str = f"A dog sleeps . <eos> {PAD} {PAD}"
    """Source tokens, split at spaces; <pad> is padding."""
    target: str = f"<bos> Ein Hund schläft . {PAD}"
    """Decoder input tokens, in the same form."""
    decoding: bool = False
    """Draw the masks of decoding, which may differ from the masks of training."""


@dataclass(frozen=True)
class ScheduleOptions(ConfigOptions):
    """Draw learning rates. CONFIG is a preset or a run directory; a model directory has no training settings."""

    curves: Annotated[tuple[str, ...], tyro.conf.arg(metavar="D_MODEL:WARMUP")] = ("512:4000", "512:8000", "256:4000")
    """Sizes and warm-ups to draw the paper's schedule for."""
    steps: int = 20_000
    """Number of steps that these curves cover."""


@dataclass(frozen=True)
class SmoothingOptions(ConfigOptions):
    """Draw smoothed targets and losses. CONFIG is a preset or a run directory; a model directory has no training
    settings."""

    label_smoothing: float | None = None
    """Probability that smoothing spreads over the vocabulary. Default: the config's."""


def plot(arguments: list[str]) -> int:
    """Runs `jax-transformer plot` with these arguments: writes one picture and prints its path."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in KINDS:
        raise ValueError(f"unknown picture {name!r}; expected one of {', '.join(KINDS)}")
    kind, draw = KINDS[name]
    options: Any = parsed(kind, arguments[1:], f"plot {name}")
    output = Path(options.output or f"{name}.png")
    _check_size(options)
    from jax_transformer.plotting.formats import FORMATS, check_path

    is_attention = isinstance(options, AttentionOptions)
    check_path(output, (*FORMATS, PAGE) if is_attention else FORMATS)
    if is_attention and output.suffix.lower() == PAGE:
        write_page(output, attention_page(options))
        print(output)
        return 0
    require("matplotlib", f"plot {name}")
    from jax_transformer.plotting.style import figure_style, save

    with figure_style(dark=options.dark):
        figure = draw(options)
        figure.set_size_inches(options.width, options.height or options.width / 12.0 * figure.get_figheight())
        save(figure, output, dpi=options.dpi)
    print(output)
    return 0


def _check_size(options: PictureOptions) -> None:
    for name, least, most in (("width", 4, 40), ("height", 3, 40), ("dpi", 30, 600)):
        value = getattr(options, name)
        if not (least <= value <= most or (name == "height" and value == 0)):
            raise ValueError(f"--{name} must be from {least} to {most}; received {value}")


# --- pictures


def _positions(options: PositionsOptions) -> Figure:
    from jax_transformer import plotting

    if options.rows < 1:
        raise ValueError(f"--rows must be at least 1; received {options.rows}")
    config, params = _model(options.config)
    return plotting.positions(config, params, stack=options.stack, rows=options.rows, columns=options.columns)


def _masks(options: MasksOptions) -> Figure:
    from jax_transformer import plotting

    config, _ = _model(options.config)
    config = config.while_decoding() if options.decoding else config
    source, target = options.source.split(), options.target.split()
    reserved = {config.source_pad_id, config.target_pad_id, config.decoder_padding_id}
    return plotting.masks(
        config,
        _ids(source, config.source_pad_id, reserved),
        _ids(target, config.target_pad_id, reserved),
        source_tokens=source,
        target_tokens=target,
    )


def _schedule(options: ScheduleOptions) -> Figure:
    from jax_transformer import plotting

    config = _run(options.config)
    return plotting.schedule(
        config.train, config.model.d_model, curves=[_curve(text) for text in options.curves], steps=options.steps
    )


def _smoothing(options: SmoothingOptions) -> Figure:
    from jax_transformer import plotting

    config = _run(options.config)
    share = config.train.label_smoothing if options.label_smoothing is None else options.label_smoothing
    vocab_size = config.model.target_vocab_size or config.data.vocab_size
    return plotting.smoothing(share, over=config.train.smoothing, vocab_size=vocab_size)


def _ids(tokens: Sequence[str], pad_id: int, reserved: set[int | None]) -> list[int]:
    """Returns ids for tokens: the pad id for pads, and for all other tokens an id that no mask treats as padding."""
    if not tokens:
        raise ValueError("--source and --target expect at least one token each; received none")
    real = next(number for number in range(len(reserved) + 1) if number not in reserved)
    return [pad_id if token == PAD else real for token in tokens]


def _curve(text: str) -> tuple[int, int]:
    size, _, warmup = text.partition(":")
    if not (size.isdecimal() and warmup.isdecimal()):
        raise ValueError(f"--curves expects D_MODEL:WARMUP such as 512:4000; received {text!r}")
    return int(size), int(warmup)


# --- configs


def _run(name: str) -> RunConfig:
    """Returns the config of a preset or a run directory."""
    if name in PRESETS:
        return get_preset(name)
    file = _directory(name) / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{name}: expected a preset or a run directory; it has no config.yaml with training settings")
    from jax_transformer.config.files import load_config

    return load_config(file, RunConfig())


def _model(name: str) -> tuple[TransformerConfig, dict[str, Any] | None]:
    """Returns the config of a preset, run or model directory, and the parameters if it has a model."""
    if name in PRESETS:
        return get_preset(name).model, None
    directory = _directory(name)
    from jax_transformer.storage.model_directory import load_model
    from jax_transformer.storage.model_files import is_model_directory

    if (directory / "config.yaml").is_file() and not is_model_directory(directory / "model"):
        return _run(name).model, None  # a run that has saved no model yet
    model = load_model(directory)
    return model.config, model.params


def _directory(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        raise ConfigError(f"{name}: expected a preset, a run directory or a model directory; received a file")
    if not path.is_dir():
        try:
            get_preset(name)
        except ConfigError as error:
            raise ConfigError(f"{error} There is no run or model directory of that name either.") from None
    return path


KINDS: dict[str, tuple[type[PictureOptions], Callable[[Any], Figure]]] = {
    "positions": (PositionsOptions, _positions),
    "masks": (MasksOptions, _masks),
    "schedule": (ScheduleOptions, _schedule),
    "smoothing": (SmoothingOptions, _smoothing),
    "attention": (AttentionOptions, draw_attention),
}
