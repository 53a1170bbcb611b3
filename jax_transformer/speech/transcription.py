"""Transcribes recordings of any length: 30 seconds at a time, each window from where the last one's speech ended
(Radford et al. 2022, §3.8 and §4.5)."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.languages import code_of
from jax_transformer.config.speech import SpeechTokens
from jax_transformer.decoding.checks import starts_and_ends
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.decoding.timestamps import TimestampRules
from jax_transformer.speech.alignment import places, words_of
from jax_transformer.speech.audio import Recording, Source
from jax_transformer.speech.segments import FRAME, divide
from jax_transformer.speech.spectra import HOP, SAMPLE_RATE, StreamedSpectrum
from jax_transformer.speech.text import previous_ids, read_tokenizer, text_of
from jax_transformer.speech.transcripts import Segment, Transcript
from jax_transformer.speech.windows import Aligning, Decoding, Judging, Steps, Tokens, Window, aligned_ids, run
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Task = Literal["transcribe", "translate"]
FALLBACK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures of Radford et al. 2022, §4.5."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Says when a window is decoded again at the next temperature. None: never for this reason."""

    compression_ratio: float | None = 2.4
    """A larger ratio tells of a text that repeats itself."""
    log_prob: float | None = -1.0
    """A smaller mean log-probability tells of a text that the model doubts."""
    no_speech: float | None = 0.6
    """If the probability of no speech is larger, a text below log_prob is silence: it isn't decoded again, but left
    out."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Holds the options of `transcribe`, which documents them."""

    language: str | None = None
    task: Task | None = None
    timestamps: bool = True
    temperatures: float | Sequence[float] = FALLBACK
    thresholds: Thresholds | None = None
    condition_on_previous_text: bool = True
    beam_size: int | None = None
    max_new_tokens: int | None = None
    seed: int = 0
    prompt: str = ""
    words: bool = False
    no_speech: bool = False
    """Give each segment the probability that its window holds no speech."""


def transcribe(
    model: Model,
    audio: Source,
    *,
    rate: int | None = None,
    language: str | None = None,
    task: Task | None = None,
    timestamps: bool = True,
    temperatures: float | Sequence[float] = FALLBACK,
    thresholds: Thresholds | None = None,
    condition_on_previous_text: bool = True,
    beam_size: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    prompt: str = "",
    words: bool = False,
) -> Transcript:
    """Transcribes a recording with a Whisper.

    Args:
      model: a Whisper, as `port` and `import_checkpoint` make it.
      audio: a file, by its path or open in binary mode, or samples [N] or [N, channels]; see
        `jax_transformer.speech.read_audio`. It is read window by window, twice, so that hours take no more memory.
      rate: samples per second of an array. None: 16,000.
      language: code of the spoken language, such as "de", or its English name. None: the model's own setting, or else
        the likeliest in the first 30 seconds.
      task: "transcribe", or "translate" into English. None: the model's own setting, or else "transcribe".
      timestamps: decode times, too. Without them, the model reads the recording in windows of 30 seconds that don't
        overlap, and each is one segment.
      temperatures: at 0, the likeliest tokens are taken; above, tokens are drawn. A window whose text a threshold
        rejects is decoded again at the next one, and the last one's text stays.
      thresholds: None: those of `Thresholds()`.
      condition_on_previous_text: show the text of earlier windows to the decoder, unless it was drawn at a temperature
        of 0.5 or more.
      beam_size: beams at temperature 0. None: the model's own setting.
      max_new_tokens: most tokens of a window. None: as many as the model allows.
      seed: seed of the draws.
      prompt: text that is shown to the decoder as if it came before the recording, such as names as they are spelt.
      words: give each segment the times of its tokens and words, from the model's `alignment_heads`.

    Returns:
      The transcript. Its text is "" if the model has no tokenizer files.

    Raises:
      ValueError: another model; an unknown language, or a task of a model that knows one language alone; no
        temperature; words of a model without alignment heads; a prompt for a model that knows no earlier text, or has
        no tokenizer.
      AudioError: a recording that can't be read.

    Example:
      >>> import jax, numpy as np
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params, transcribe
      >>> from jax_transformer.config import Stem
      >>> from jax_transformer.config.speech import SpeechTokens
      >>> config = TransformerConfig(stem=Stem(features=8), target_vocab_size=60, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=50)  # windows of 1 s
      >>> generation = GenerationConfig(decoder_start_id=6, eos_id=5, speech=SpeechTokens(no_timestamps_id=8))
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> said = transcribe(model, np.zeros(20_000, np.float32), temperatures=0.0, max_new_tokens=4)
      >>> said.duration, said.language
      (1.25, None)
    """
    options = Options(
        language=language,
        task=task,
        timestamps=timestamps,
        temperatures=temperatures,
        thresholds=thresholds,
        condition_on_previous_text=condition_on_previous_text,
        beam_size=beam_size,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompt=prompt,
        words=words,
    )
    prepared = prepare(model)
    return run(prepared, transcript_steps(prepared, Recording(audio, rate), options))


def transcript_steps(model: PreparedModel, recording: Recording, options: Options) -> Steps[Transcript]:
    """Yields the windows to compute for a recording's transcript, which it returns. Raises as `transcribe` does."""
    speech = speech_of(model)
    language, task = options.language, options.task or speech.task or "transcribe"
    language = speech.language if language is None else code_of(language)
    if language is not None or not speech.languages:  # wrong options are refused before the recording is read
        prompt_ids(speech, language, task, timestamps=options.timestamps)
    used = options.temperatures
    used = (used,) if isinstance(used, int | float) else tuple(used)
    if not used or not all(0.0 <= one < math.inf for one in used):
        raise ValueError(f"temperatures: expected at least one number from 0 on; received {list(used)}")
    decoder = WindowDecoder(model, dataclasses.replace(options, temperatures=used))
    assert model.config.stem is not None  # as speech_of checked
    spectrum = StreamedSpectrum(recording.blocks, model.config.stem.features, least=window_frames(model) * HOP)
    if language is None and speech.languages:
        language = yield from language_steps(model, spectrum)
    prompt = prompt_ids(speech, language, task, timestamps=options.timestamps)
    segments = yield from decoder.segments(spectrum, prompt, language)
    return Transcript(segments, language, spectrum.samples / SAMPLE_RATE)


def detect_language(model: Model, spectrum: np.ndarray) -> str:
    """Returns the code of the likeliest language of a spectrum's first window.

    Args:
      model: a Whisper that knows several languages.
      spectrum: [S, F], as `log_mel` computes it.

    Raises:
      ValueError: another model.
    """
    prepared = prepare(model)
    return run(prepared, language_steps(prepared, spectrum))


def language_steps(model: PreparedModel, spectrum: np.ndarray | StreamedSpectrum) -> Steps[str]:
    """Yields the window to compute for a recording's language, which it returns; see `detect_language`."""
    languages = speech_of(model).languages
    if not languages:
        raise ValueError("expected a model that knows several languages; received one without ids of languages")
    logits = yield Window(Judging(), _cut(spectrum, 0, window_frames(model)))
    return max(languages, key=lambda code: logits[languages[code]])


def default_windows(model: PreparedModel, most: int) -> Iterator[tuple[str, Window]]:
    """Yields what default options ask about a silent window, and names it: to compile programs before they are needed.

    Args:
      most: tokens of the text, with the ids before it.
    """
    speech = speech_of(model)
    assert model.config.stem is not None  # as speech_of checked
    silence = np.zeros((window_frames(model), model.config.stem.features), np.float32)
    yield "the language", Window(Judging(), silence)
    prompt = prompt_ids(speech, next(iter(speech.languages or ()), None), "transcribe", timestamps=True)
    decoder = WindowDecoder(model, Options(temperatures=(0.0,), max_new_tokens=max(most - len(prompt), 1)))
    yield "the text", decoder.first_window(silence, prompt)


def speech_of(model: Model) -> SpeechTokens:
    """Returns the special ids of a model of speech. Raises ValueError for another model."""
    speech = model.generation.speech
    if model.config.stem is None or speech is None:
        lacks = "stem" if model.config.stem is None else "ids of speech in its generation.json"
        raise ValueError(f"transcribe: expected a model of speech, such as a Whisper; received one without {lacks}")
    return speech


def window_frames(model: Model) -> int:
    """Returns the frames of a window, 3000 of a published Whisper."""
    assert model.config.stem is not None  # as speech_of checked
    return model.config.encoder.max_length * model.config.stem.stride


def prompt_ids(speech: SpeechTokens, language: str | None, task: Task, *, timestamps: bool) -> list[int]:
    """Returns the ids between the start and the text."""
    ids: list[int] = []
    if task not in ("transcribe", "translate"):
        raise ValueError(f"task must be 'transcribe' or 'translate'; received {task!r}")
    if language is not None:
        task_id = speech.transcribe_id if task == "transcribe" else speech.translate_id
        if task_id is None:
            raise ValueError(f"task: expected a model with an id for {task!r}; received one without")
        ids = [speech.language_id(language), task_id]
    elif task == "translate":
        raise ValueError("task: expected 'transcribe', since the model knows one language alone; received 'translate'")
    return ids if timestamps else [*ids, speech.no_timestamps_id]


def _alignment_heads(model: Model) -> tuple[tuple[int, int], ...]:
    """Returns the heads that follow the speech. Raises ValueError if they aren't known, or the model lacks one."""
    speech, decoder = speech_of(model), model.config.decoder
    if not speech.alignment_heads:
        raise ValueError(
            "words: expected a model whose generation.json names alignment_heads in speech, the heads that follow the "
            "speech; received one without"
        )
    speech.check_heads(decoder.num_layers, decoder.heads.num_heads)
    return speech.alignment_heads


def _without_next_start(tokens: list[int], first_time: int) -> list[int]:
    """Returns the tokens of a segment without the start of the next one, which follows its end."""
    ends_in_pair = len(tokens) > 2 and tokens[-2] >= first_time
    return tokens[:-1] if ends_in_pair and tokens[-1] >= first_time else tokens


def _cut(spectrum: np.ndarray | StreamedSpectrum, first: int, window: int) -> np.ndarray:
    """Returns the window [window, F] that begins at a frame, with zeros after the spectrum's end."""
    part = spectrum[first : first + window]
    return np.pad(part, ((0, window - len(part)), (0, 0)))


@dataclass(frozen=True)
class Decoded:
    """Holds the tokens of a window, without prompt and end, and how sure the model is of them."""

    tokens: list[int]
    log_prob: float
    compression_ratio: float
    temperature: float
    ended: bool
    """Whether an end follows the tokens."""
    no_speech: float | None = None
    """The probability that there is no speech, if it is asked for."""


class WindowDecoder:
    """Decodes the windows of one recording, one after the other."""

    def __init__(self, model: PreparedModel, options: Options) -> None:
        """Takes options that were checked, with a tuple of temperatures. Raises ValueError for words and a prompt that
        the model can't give or take."""
        self._model, self._options, self._speech = model, options, speech_of(model)
        self._thresholds = options.thresholds or Thresholds()
        self._conditions = options.condition_on_previous_text and self._speech.previous_id is not None
        self._start, self._end = starts_and_ends(model)
        self._tokenizer: Tokenizer | None = read_tokenizer(model)
        first = self._speech.first_timestamp_id
        rules = TimestampRules(first, self._speech.no_timestamps_id, self._end, self._speech.max_initial_timestamp)
        self._rules = rules if options.timestamps else None
        self._heads = _alignment_heads(model) if options.words else None
        self._previous: list[int] = previous_ids(self._tokenizer, self._speech, options.prompt)
        self._prompt: list[int] = []
        self._language: str | None = None

    def segments(
        self, spectrum: np.ndarray | StreamedSpectrum, prompt: list[int], language: str | None
    ) -> Steps[list[Segment]]:
        """Yields the windows to compute for the segments of a spectrum [S, F] of at least one window; returns these.

        Args:
          prompt: the ids between the start and the text.
          language: its code, for the borders of words.
        """
        self._prompt, self._language = prompt, language
        window, found = window_frames(self._model), []
        assert self._model.config.stem is not None  # as speech_of checked
        stride, seek = self._model.config.stem.stride, 0
        while seek < len(spectrum):
            part, frames = _cut(spectrum, seek, window), min(window, len(spectrum) - seek)
            decoded = yield from self._decoded(part)
            if decoded is None:
                seek += frames
                continue
            spans, advance = divide(decoded.tokens, self._speech.first_timestamp_id, frames, stride)
            times, done = (yield from self._times(part, frames, decoded)), 0
            for span in spans:
                text = text_of(self._tokenizer, span.tokens, self._end)
                bounds = (seek + span.start) * FRAME, (seek + span.end) * FRAME
                quality = decoded.log_prob, decoded.compression_ratio, decoded.temperature
                segment = Segment(
                    *bounds, text, span.tokens, *quality, no_speech=decoded.no_speech, window_start=seek * FRAME
                )
                found.append(self._with_words(segment, times[done:], seek))
                done += len(span.tokens)
                self._previous += _without_next_start(span.tokens, self._speech.first_timestamp_id)
            if decoded.temperature >= 0.5 or not self._conditions:  # a text that was drawn would spoil the next one
                self._previous = []
            seek += advance or frames
        return found

    def _decoded(self, part: np.ndarray) -> Steps[Decoded | None]:
        """Decodes a window [S, F] at one temperature after the other; returns None for silence."""
        temperatures: Any = self._options.temperatures
        no_speech = (yield from self._no_speech(part)) if self._options.no_speech else None
        for number, temperature in enumerate(temperatures):
            decoded = yield from self._at(part, temperature)
            least, silent = self._thresholds.log_prob, self._thresholds.no_speech
            is_doubtful = least is not None and decoded.log_prob < least
            if is_doubtful and silent is not None:
                no_speech = (yield from self._no_speech(part)) if no_speech is None else no_speech
                if no_speech > silent:
                    return None
            most = self._thresholds.compression_ratio
            repeats = most is not None and decoded.compression_ratio > most
            if not (is_doubtful or repeats) or number == len(temperatures) - 1:
                return dataclasses.replace(decoded, no_speech=no_speech if self._options.no_speech else None)
        raise AssertionError("there is at least one temperature")

    def _at(self, part: np.ndarray, temperature: float) -> Steps[Decoded]:
        window = self._asking(part, temperature)
        tokens: Tokens = yield window
        ended = len(tokens.ids) < window.most
        return Decoded(tokens.ids, tokens.log_prob, self._compression_ratio(tokens.ids), temperature, ended)

    def first_window(self, part: np.ndarray, prompt: list[int]) -> Window:
        """Returns what is asked first about a window [S, F]; see `segments`."""
        self._prompt = prompt
        return self._asking(part, self._options.temperatures[0])  # type: ignore[index]

    def _asking(self, part: np.ndarray, temperature: float) -> Window:
        begin = self._beginning()
        room = limit(self._model, "target") - len(begin)
        most = room if self._options.max_new_tokens is None else min(self._options.max_new_tokens, room)
        # the window's own number would keep windows after texts of other lengths out of its batch
        wanted = self._options.max_new_tokens
        options: dict[str, Any] = {
            "max_new_tokens": limit(self._model, "target") if wanted is None else wanted,
            "seed": self._options.seed,
        }
        if temperature:
            options |= {"sampling": True, "temperature": temperature, "top_k": 0, "length_penalty": 1.0}
        else:
            options |= {"sampling": False} | ({"beam_size": self._options.beam_size} if self._options.beam_size else {})
        kind = Decoding(DecodingConfig(**options), self._rules, continues=bool(self._previous))
        return Window(kind, part, tuple(begin[1:]), most)

    def _times(self, part: np.ndarray, frames: int, decoded: Decoded) -> Steps[list[float]]:
        """Returns the time of each token in a window of so many frames, in seconds; none if words aren't asked for.

        A token begins where attention looks while it is read; the last one before the end of a window that was cut off
        is never read, and has the time of the one before it.
        """
        begin = self._beginning()
        read = decoded.tokens if decoded.ended else decoded.tokens[:-1]
        if self._heads is None or not decoded.tokens:
            return []
        stem = self._model.config.stem
        assert stem is not None  # as speech_of checked
        stride, ids = stem.stride, [*begin, *read]
        weights = yield Window(Aligning(self._heads), part, aligned_ids(self._model, ids))
        rows = weights[:, len(begin) : len(ids), : max(frames // stride, 1)]
        found = (places(rows) * stride * FRAME).tolist() if read else [0.0]
        return found if decoded.ended or not read else [*found, found[-1]]

    def _with_words(self, segment: Segment, times: list[float], seek: int) -> Segment:
        """Returns a segment with the times of its tokens, from those in its window, and with its words."""
        if self._heads is None:
            return segment
        own = [round(seek * FRAME + time, 2) for time in times[: len(segment.tokens)]]
        words = words_of(
            segment.tokens,
            own,
            segment.end,
            lambda tokens: text_of(self._tokenizer, tokens, self._end),
            lambda token: token < self._end,
            self._language,
        )
        return dataclasses.replace(segment, token_times=own, words=words if self._tokenizer else [])

    def _beginning(self) -> list[int]:
        """Returns the decoder's first input ids, before the text: with earlier text, that comes first."""
        own = [self._start, *self._prompt]
        if not self._previous:
            return own
        assert self._speech.previous_id is not None  # as there would be no earlier text
        room = self._model.config.decoder.max_length // 2 - 1
        return [self._speech.previous_id, *self._previous[-room:], *own]

    def _no_speech(self, part: np.ndarray) -> Steps[float]:
        """Returns the probability that a window holds no speech, where its text would start."""
        logits = yield Window(Judging(), part)
        shifted = np.exp(logits - logits.max())
        return float(shifted[self._speech.no_speech_id] / shifted.sum())

    def _compression_ratio(self, tokens: list[int]) -> float:
        """Returns the ratio of a text's bytes, or without a tokenizer its tokens' bytes, to the compressed ones."""
        text = text_of(self._tokenizer, tokens, self._end).encode()
        data = text or np.array(tokens, "<u4").tobytes()
        return len(data) / len(zlib.compress(data))
