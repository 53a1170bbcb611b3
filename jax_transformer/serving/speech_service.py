"""Answers requests for transcripts: reads recordings on threads, and computes their windows on the device's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import IO, Any

from jax_transformer.serving.limits import Refusal
from jax_transformer.serving.service import Host
from jax_transformer.serving.speech_engine import SpeechEngine
from jax_transformer.serving.speech_requests import SpeechRequest
from jax_transformer.speech.audio import AudioError, Recording, TooLong
from jax_transformer.speech.transcription import transcript_steps
from jax_transformer.speech.transcripts import Transcript
from jax_transformer.speech.windows import Steps, Window


class SpeechService(Host):
    """Serves a model that transcribes. The windows of a recording follow each other; those of several share batches."""

    def __init__(
        self, engine: SpeechEngine, *, max_wait_ms: float = 5.0, warm_up: int = 0, name: str = "a model"
    ) -> None:
        """Makes a service that isn't running yet.

        Args:
          engine: the model.
          max_wait_ms: how long a window may wait for a full batch.
          warm_up: 0: compile programs on first use.
          name: the model's, for the page and for the field `model` of requests.
        """
        threads = engine.limits.max_recordings
        super().__init__(engine, max_wait_ms=max_wait_ms, warm_up=warm_up, name=name, threads=threads)
        self.engine, self._recordings = engine, 0

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Makes room for a recording, until the block ends. Raises Refusal if there is none."""
        most = self.limits.max_recordings
        if self._recordings >= most:
            message = f"expected at most {most} recordings at once (--max-recordings); received another"
            raise Refusal(503, message, retry_after=5)
        self._recordings += 1
        try:
            yield
        finally:
            self._recordings -= 1

    async def transcribe(self, request: SpeechRequest, file: IO[bytes]) -> Transcript:
        """Returns the transcript of a recording, an open file. Raises Refusal."""
        recording = Recording(file, name="file", most_seconds=self.limits.max_audio_seconds)
        steps, answer = transcript_steps(self.engine.model, recording, request.options()), None
        while True:
            step = await asyncio.get_running_loop().run_in_executor(self._threads, _next_step, steps, answer)
            if isinstance(step, Transcript):
                return step
            kind, unit = self.engine.unit(step)
            (answer,) = await self._results(kind, [unit])


def _next_step(steps: Steps[Transcript], answer: Any) -> Window | Transcript:
    """Returns the next window to compute, or the transcript. Raises Refusal for a recording or options that are
    wrong."""
    try:
        return steps.send(answer)
    except StopIteration as end:
        found: Transcript = end.value
        return found
    except TooLong as error:
        raise Refusal(413, f"{error} (--max-audio-seconds)") from None
    except AudioError as error:
        raise Refusal(400, str(error)) from None
    except ValueError as error:
        raise Refusal(422, str(error).replace("words: ", "timestamp_granularities: ")) from None
