"""Speech in: audio files, log-mel spectra, and transcription of recordings of any length.

`spectra.py` computes the features that Whisper reads, `audio.py` reads files, `transcription.py` decodes window after
window, `windows.py` computes windows, one or many together, `segments.py` divides what a window says by its timestamps,
`alignment.py` finds the times of words, and `transcripts.py` writes text, JSON and subtitles. `pairs.py` makes batches
of recordings and texts to train on, and `error_rates.py` counts the errors of transcripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.speech.audio import AudioError, read_audio
    from jax_transformer.speech.error_rates import ErrorRate, character_error_rate, word_error_rate
    from jax_transformer.speech.pairs import Spoken, SpokenBatches, read_spoken
    from jax_transformer.speech.spectra import log_mel, mel_filters
    from jax_transformer.speech.transcription import transcribe
    from jax_transformer.speech.transcripts import Segment, Transcript, Word

_HOMES = {
    "jax_transformer.speech.audio": ("AudioError", "read_audio"),
    "jax_transformer.speech.error_rates": ("ErrorRate", "character_error_rate", "word_error_rate"),
    "jax_transformer.speech.pairs": ("Spoken", "SpokenBatches", "read_spoken"),
    "jax_transformer.speech.spectra": ("log_mel", "mel_filters"),
    "jax_transformer.speech.transcription": ("transcribe",),
    "jax_transformer.speech.transcripts": ("Segment", "Transcript", "Word"),
}
__all__ = [
    "AudioError",
    "ErrorRate",
    "Segment",
    "Spoken",
    "SpokenBatches",
    "Transcript",
    "Word",
    "character_error_rate",
    "log_mel",
    "mel_filters",
    "read_audio",
    "read_spoken",
    "transcribe",
    "word_error_rate",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
