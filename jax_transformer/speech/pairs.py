"""Recordings with their texts: read from tables and datasets, and made into batches to train on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.config.data import CorpusConfig
from jax_transformer.config.languages import code_of
from jax_transformer.data.batching import Batch
from jax_transformer.data.tables import read_table
from jax_transformer.decoding.checks import starts_and_ends
from jax_transformer.decoding.padding import limit
from jax_transformer.model.features import Features
from jax_transformer.runtime.extras import require
from jax_transformer.speech.audio import Recording, Source
from jax_transformer.speech.spectra import HOP, SAMPLE_RATE, log_mel
from jax_transformer.speech.text import read_tokenizer
from jax_transformer.speech.transcription import Task, prompt_ids, speech_of, window_frames
from jax_transformer.storage.model_directory import Model

IGNORED = -100
"""Label that never counts."""


class Spoken(NamedTuple):
    """Holds a recording and its text.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech import Spoken
      >>> Spoken("tone", np.zeros(8_000, np.float32), "Silence.").text
      'Silence.'
    """

    name: str
    """Names the recording in messages."""
    audio: str | bytes | np.ndarray
    """A file's path or content, or samples [N] or [N, channels] at 16 kHz."""
    text: str

    @property
    def source(self) -> Source:
        """The recording as `read_audio` and `transcribe` take it."""
        return io.BytesIO(self.audio) if isinstance(self.audio, bytes) else self.audio


def read_spoken(path: str, *, source_column: str = "audio", target_column: str = "text") -> list[Spoken]:
    """Reads recordings with their texts.

    Args:
      path: a table (.jsonl, .csv, .tsv, .parquet) with the path of an audio file and its text in each row, or a
        directory that `save_to_disk` of Hugging Face's datasets wrote, with a column of the type Audio. Paths are
        relative to the table.
      source_column: the column of recordings.
      target_column: the column of texts.

    Raises:
      CorpusError: no such file or column, or a row that can't be read.
      ValueError: no rows; a directory that isn't such a dataset, or has no such columns.
      ImportError: a directory needs datasets (pip install 'jax-transformer[datasets]').

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.speech import read_spoken
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     table = Path(folder) / "train.tsv"
      ...     written = table.write_text("audio\\ttext\\none.wav\\tHello.\\n")
      ...     [pair] = read_spoken(str(table))
      >>> Path(pair.audio).name, pair.text
      ('one.wav', 'Hello.')
    """
    if Path(path).is_dir():
        found = _of_dataset(path, source_column, target_column)
    else:
        folder = Path(path).parent
        rows = read_table(path, CorpusConfig(source_column=source_column, target_column=target_column))
        found = [Spoken(str(folder / file), str(folder / file), text) for file, text in rows]
    if not found:
        raise ValueError(f"{path}: expected at least one recording with its text; received none")
    return found


def _of_dataset(path: str, source_column: str, target_column: str) -> list[Spoken]:
    require("datasets", path)
    import datasets

    try:
        dataset = datasets.load_from_disk(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{path}: expected a directory that datasets' save_to_disk wrote; {reason}") from None
    if not isinstance(dataset, datasets.Dataset):
        parts = ", ".join(dataset)
        raise ValueError(f"{path}: expected one split; received {parts}: name the directory of one of them")
    for column in (source_column, target_column):
        if column not in dataset.column_names:
            names = ", ".join(dataset.column_names)
            raise ValueError(f"{path}: expected the columns {source_column} and {target_column}; received {names}")
    if not isinstance(dataset.features[source_column], datasets.Audio):
        kind = type(dataset.features[source_column]).__name__
        raise ValueError(f"{path}: {source_column}: expected a column of the type Audio; received {kind}")
    rows = dataset.cast_column(source_column, datasets.Audio(decode=False))
    return [
        Spoken(f"{path}, row {number}", row[source_column]["bytes"] or row[source_column]["path"], row[target_column])
        for number, row in enumerate(rows)
    ]


class SpokenBatches(Sequence[Batch]):
    """Makes the batch of each training step of a Whisper from recordings and their texts.

    `batches[step]` is a function of the seed and the step alone, so that a run goes on after any step. Every epoch
    shuffles the pairs anew; a batch may end one epoch and begin the next. `len(batches)` is the number of steps of an
    epoch, rounded up, and steps may be larger.

    A batch is that of transformers' recipe: the log-mel spectrum of each recording, filled with silence to 30 seconds,
    as `Features`; the decoder's input is the start, the ids of language, task and "no timestamps", and the text; the
    labels are one ahead, end in the end, and are -100 elsewhere. Train on them with `loss_counts_pads`, since the end
    is also the padding of a Whisper.

    Example:
      >>> import json
      >>> import jax, numpy as np
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.config import Stem
      >>> from jax_transformer.config.speech import SpeechTokens
      >>> from jax_transformer.speech import Spoken, SpokenBatches
      >>> config = TransformerConfig(stem=Stem(features=8), target_vocab_size=60, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=50)  # windows of 1 s
      >>> generation = GenerationConfig(decoder_start_id=6, eos_id=5, speech=SpeechTokens(no_timestamps_id=8))
      >>> files = {"vocab.json": json.dumps({"a": 0, "b": 1}).encode(), "merges.txt": b""}
      >>> params = init_params(config, jax.random.key(0))
      >>> model = Model(config, params, None, None, generation, tokenizer_files=files)
      >>> pairs = [Spoken("one", np.zeros(8_000), "ab"), Spoken("two", np.zeros(9_000), "a")]
      >>> batch = SpokenBatches(model, pairs, rows=2, shuffle=False)[0]
      >>> batch.source_ids.shape, batch.decoder_input_ids.tolist(), batch.labels.tolist()
      ((2, 100, 8), [[6, 8, 0, 1], [6, 8, 0, 0]], [[8, 0, 1, 5], [8, 0, 5, -100]])
    """

    def __init__(
        self,
        model: Model,
        pairs: Sequence[Spoken],
        *,
        rows: int,
        language: str | None = None,
        task: Task = "transcribe",
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Tokenizes the texts; reads no recording yet.

        Args:
          model: a Whisper with its tokenizer files, as `port` makes it.
          pairs: recordings of at most 30 seconds, with their texts.
          rows: pairs of a batch.
          language: code or English name of the language. None: the model's own setting.
          task: "transcribe", or "translate" for texts in English.
          shuffle: whether to draw the order of the pairs.
          seed: seed of the order.

        Raises:
          ValueError: another model, one without tokenizer files, or one that doesn't know the language; no pair; a text
            that is too long for the model.
        """
        speech, tokenizer = speech_of(model), read_tokenizer(model)
        if tokenizer is None:
            raise ValueError("model: expected tokenizer files, to make ids of the texts; received none")
        if not len(pairs) or rows < 1:
            raise ValueError(f"expected at least one pair, and rows from 1 on; received {len(pairs)} and {rows}")
        code = speech.language if language is None else code_of(language)
        if code is None and speech.languages:
            raise ValueError(f"language: expected one that the model knows ({', '.join(sorted(speech.languages))})")
        prompt = prompt_ids(speech, code, task, timestamps=False)
        self._start, self._end = starts_and_ends(model)
        self._pairs, self._rows, self._seed, self._shuffles = list(pairs), rows, seed, shuffle
        texts = [one.ids for one in tokenizer.encode_batch([pair.text for pair in pairs], add_special_tokens=False)]
        self._labels = [[*prompt, *ids, self._end] for ids in texts]
        self._length, most = max(map(len, self._labels)), limit(model, "target")
        for pair, labels in zip(pairs, self._labels, strict=True):
            if len(labels) > most:
                raise ValueError(
                    f"{pair.name}: expected a text of at most {most - len(prompt) - 1} tokens, for which the decoder "
                    f"has room; received {len(labels) - len(prompt) - 1}: divide the recording"
                )
        assert model.config.stem is not None  # as speech_of checked
        self._bands, self._samples = model.config.stem.features, window_frames(model) * HOP
        self._pad_id = model.config.target_pad_id

    def __len__(self) -> int:
        return -(-len(self._pairs) // self._rows)

    def __getitem__(self, step: Any) -> Any:
        """Returns the batch of a step, from 0 on.

        Raises:
          AudioError: a recording that can't be read, or is longer than 30 seconds.
        """
        places = range(step * self._rows, (step + 1) * self._rows)
        chosen = [self._pair_at(place) for place in places]
        labels = np.full((self._rows, self._length), IGNORED, np.int32)
        inputs = np.full((self._rows, self._length), self._pad_id, np.int32)
        for row, number in enumerate(chosen):
            own = self._labels[number]
            labels[row, : len(own)] = own
            inputs[row, : len(own)] = [self._start, *own[:-1]]
        vectors = np.stack([self._spectrum(self._pairs[number]) for number in chosen])
        return Batch(Features(vectors), inputs, labels)  # type: ignore[arg-type]  # a stem reads features

    def _pair_at(self, place: int) -> int:
        """Returns the number of the pair at a place in the endless order."""
        epoch, within = divmod(place, len(self._pairs))
        if not self._shuffles:
            return within
        return int(np.random.default_rng((self._seed, epoch)).permutation(len(self._pairs))[within])

    def _spectrum(self, pair: Spoken) -> np.ndarray:
        recording = Recording(pair.source, name=pair.name, most_seconds=self._samples / SAMPLE_RATE)
        samples = np.concatenate(list(recording.blocks()))[: self._samples]
        return log_mel(np.pad(samples, (0, self._samples - len(samples))), self._bands)
