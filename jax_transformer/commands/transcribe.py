"""jax-transformer transcribe MODEL FILES… [options]."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_transformer.commands.decode_options import Dtype, load, output_may_close
from jax_transformer.commands.parsing import parsed
from jax_transformer.runtime.extras import require

ENDINGS = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
"""Format → the ending of its files."""


@dataclass(frozen=True)
class TranscribeOptions:
    """Transcribe recordings with a Whisper, one after the other.

    A recording may have any length, rate and number of channels. Its format is one that libsndfile reads: WAV, FLAC,
    OGG, MP3 and more.
    """

    model: tyro.conf.Positional[str]
    """Model directory, or name on the Hub (owner/name, owner/name@revision)."""
    files: tyro.conf.Positional[tuple[str, ...]]
    """Recordings."""
    language: str = ""
    """Code of the spoken language, such as de, or its English name. Default: the model's own setting, or else the
    likeliest in the first 30 seconds of each recording."""
    task: Literal["transcribe", "translate"] | None = None
    """translate: write English. Default: the model's own setting, or else transcribe."""
    format: Literal["text", "json", "srt", "vtt"] = "text"
    """json: an object with the text, and each segment's times, tokens and probability; srt, vtt: subtitles."""
    output: str = ""
    """Existing directory for a file of each recording, named like it. Default: standard output."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Draw tokens again at the next temperature where a text repeats itself or is improbable; 0 takes the likeliest."""
    beam_size: int | None = None
    """Beams at temperature 0. Default: the model's own setting."""
    max_new_tokens: int | None = None
    """Most tokens of 30 seconds. Default: as many as the model allows."""
    condition_on_previous_text: tyro.conf.FlagCreatePairsOff[bool] = True
    """Show the text so far to the model."""
    seed: int = 0
    """Seed of the draws."""
    prompt: str = ""
    """Text that is shown to the model as if it came before each recording, such as names as they are spelt."""
    words: bool = False
    """Times of words, too: in json, and as marks in vtt."""
    dtype: Dtype | None = None
    """Round the weights to this dtype, and compute in it. Default: the model's own."""


def transcribe(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer transcribe ARGUMENTS`; returns the exit code: 2 if some recordings can't be read."""
    options = parsed(TranscribeOptions, arguments, "transcribe")
    require("soundfile", "transcribe")
    folder = Path(options.output) if options.output else None
    targets = _targets(options, folder)
    from jax_transformer import speech
    from jax_transformer.runtime.files import atomic_write
    from jax_transformer.speech.transcripts import FORMATS

    model, failed = load(options.model, "", options.dtype), 0
    with output_may_close():
        for file, target in zip(options.files, targets, strict=True):
            try:
                found = speech.transcribe(
                    model,
                    file,
                    language=options.language or None,
                    task=options.task,
                    temperatures=options.temperatures,
                    beam_size=options.beam_size,
                    max_new_tokens=options.max_new_tokens,
                    condition_on_previous_text=options.condition_on_previous_text,
                    seed=options.seed,
                    prompt=options.prompt,
                    words=options.words,
                )
            except speech.AudioError as error:
                print(f"error: {error}", file=sys.stderr)
                failed += 1
                continue
            content = FORMATS[options.format](found)
            if target is None:
                sys.stdout.write(content)
                sys.stdout.flush()
            else:
                with atomic_write(target) as temporary:
                    temporary.write_text(content, encoding="utf-8")
    return 2 if failed else 0


def _targets(options: TranscribeOptions, folder: Path | None) -> list[Path | None]:
    """Returns the file for each transcript; None for standard output. Raises ValueError for a directory that isn't
    there, and recordings whose files would have one name."""
    if not options.files:
        raise ValueError("transcribe: expected at least one recording; received none")
    if folder is None:
        return [None] * len(options.files)
    if not folder.is_dir():
        raise ValueError(f"--output: expected an existing directory; received {folder}")
    targets = [folder / f"{Path(file).stem}{ENDINGS[options.format]}" for file in options.files]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise ValueError(f"--output: expected recordings of different names; received several for {twice}")
    return [*targets]
