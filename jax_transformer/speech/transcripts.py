"""Transcripts, and the formats in which they are written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """Holds a word, as the tokens have it with its leading space, and its times in seconds.

    Example:
      >>> from jax_transformer.speech import Word
      >>> Word(" Hello.", 0.0, 0.42).end
      0.42
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """Holds what is said in a part of a recording.

    Example:
      >>> from jax_transformer.speech import Segment
      >>> Segment(0.0, 2.5, " Hello.", [50364, 2425, 13, 50489], -0.2, 1.1, 0.0).text
      ' Hello.'
    """

    start: float
    """Seconds from the recording's start."""
    end: float
    text: str
    """The text as the tokens have it, with its leading space; "" without a tokenizer."""
    tokens: list[int]
    """Its ids, times included."""
    log_prob: float
    """The mean log-probability of a token of its window."""
    compression_ratio: float
    """Bytes of its window's text by those of the same text compressed; large where a text repeats itself."""
    temperature: float
    """Of its window: 0 if the likeliest tokens were taken."""
    token_times: list[float] | None = None
    """Seconds at which each token begins, if `transcribe` was asked for words."""
    words: list[Word] | None = None
    """Its words, if `transcribe` was asked for them."""
    no_speech: float | None = None
    """The probability that its window holds no speech, if it was asked for."""
    window_start: float = 0.0
    """Seconds at which its window begins."""


@dataclass(frozen=True)
class Transcript:
    """Holds the transcript of a recording.

    Example:
      >>> from jax_transformer.speech import Segment, Transcript
      >>> said = Transcript([Segment(0.0, 2.5, " Hello.", [2425, 13], -0.2, 1.1, 0.0)], "en", 3.0)
      >>> print(said.text, said.srt(), sep="\\n")
      Hello.
      1
      00:00:00,000 --> 00:00:02,500
      Hello.
      <BLANKLINE>
    """

    segments: list[Segment]
    language: str | None
    """Code of the language; None if the model knows one alone."""
    duration: float
    """Seconds of the recording."""

    @property
    def text(self) -> str:
        """The text of all segments, without space around it."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def tokens(self) -> list[int]:
        """The ids of all segments."""
        return [token for segment in self.segments for token in segment.tokens]

    def as_json(self) -> dict[str, Any]:
        """Returns the transcript as an object of JSON."""
        fields = [dataclasses.asdict(segment) for segment in self.segments]
        segments = [{key: value for key, value in one.items() if value is not None} for one in fields]
        return {"text": self.text, "language": self.language, "duration": self.duration, "segments": segments}

    def srt(self) -> str:
        """Returns subtitles in SubRip's format."""
        cues = [
            f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{_one_line(segment.text)}\n"
            for number, segment in enumerate(self.segments, start=1)
        ]
        return "\n".join(cues)

    def vtt(self) -> str:
        """Returns subtitles in the format WebVTT; words with times are marked by them."""
        cues = [
            f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{_marked(segment)}\n"
            for segment in self.segments
        ]
        return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def _marked(segment: Segment) -> str:
    """Returns a cue's text, each word but the first after its time in the cue."""
    if not segment.words:
        return _one_line(segment.text)
    first, *others = segment.words
    marked = [f"<{_clock(word.start, '.')}>{' ' * word.text.startswith(' ')}{_one_line(word.text)}" for word in others]
    return _one_line(first.text) + "".join(marked)


def _one_line(text: str) -> str:
    """Returns a cue's text: without blank lines, which would end it, or an arrow, which is no text in a cue."""
    return " ".join(text.split()).replace("-->", "->")


FORMATS: Mapping[str, Callable[[Transcript], str]] = {
    "text": lambda transcript: f"{transcript.text}\n",
    "json": lambda transcript: f"{json.dumps(transcript.as_json(), ensure_ascii=False)}\n",
    "srt": Transcript.srt,
    "vtt": Transcript.vtt,
}
"""Format → the content of a file."""
