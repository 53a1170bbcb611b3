"""Limits of the server, by the names of the command's options, and the refusal of a request."""

from __future__ import annotations

from dataclasses import dataclass, fields


class Refusal(Exception):
    """Raised when a request isn't served. The client gets the status and the message."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        """Makes a refusal; `retry_after` are seconds to wait before another try."""
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Holds the most that the server accepts. A request beyond a limit is refused with the limit's name.

    Example:
      >>> Limits(max_texts=2).check("max_texts", 3, "texts")
      Traceback (most recent call last):
      ...
      jax_transformer.serving.limits.Refusal: expected at most 2 texts (--max-texts); received 3
    """

    max_body_bytes: int = 1 << 20
    """Bytes of a request's body."""
    max_texts: int = 256
    """Texts of a request."""
    max_characters: int = 10_000
    """Characters of a text. Longer texts are refused, never cut."""
    max_tokens: int = 512
    """Tokens of a text, if the model's own limit isn't lower."""
    max_beam_size: int = 8
    """Hypotheses for each text: beam_size, or num_return with sampling."""
    max_searches: int = 16
    """Kinds of searches that programs are compiled for. Searches that differ only in lengths, tags, length_penalty,
    temperature, top_p, min_p or seed are of one kind. See docs/serving.md."""
    max_weights: int = 1 << 19
    """Attention weights of an answer: layers × heads × target tokens × source tokens, summed over its translations."""
    max_queue_tokens: int = 1 << 16
    """Source tokens that wait at once, each counted once for every hypothesis followed."""
    max_streams: int = 8
    """Streams decoded at once."""
    max_connections: int = 512
    """Open connections."""
    receive_seconds: float = 10.0
    """Seconds that a client may take to send its header, and then its body."""
    request_seconds: float = 60.0
    """Seconds from a request's arrival to its answer, waiting included. A stream may take as long."""

    max_audio_bytes: int = 25 << 20
    """Bytes of a body with a recording."""
    max_audio_seconds: float = 7200.0
    """Seconds of a recording. Longer ones are refused, never cut."""
    max_recordings: int = 16
    """Recordings that are received, or transcribed, at once."""
    transcribe_seconds: float = 600.0
    """Seconds from the arrival of a recording to its transcript, waiting included."""

    def problems(self) -> list[str]:
        """Returns one message for each limit that is out of range."""
        return [
            f"{option(field.name)} must be greater than 0; received {getattr(self, field.name)}"
            for field in fields(Limits)
            if not 0 < getattr(self, field.name) < float("inf")
        ]

    def check(self, name: str, received: int, unit: str, where: str = "", status: int = 422) -> None:
        """Raises Refusal, with the place and the option's name, if there is more than the limit."""
        most = getattr(self, name)
        if received > most:
            place = f"{where}: " if where else ""
            raise Refusal(status, f"{place}expected at most {most:,} {unit} ({option(name)}); received {received:,}")


def option(name: str) -> str:
    """Returns the command's option for a field."""
    return f"--{name.replace('_', '-')}"
