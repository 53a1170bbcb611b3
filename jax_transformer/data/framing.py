"""What stands around the tokens of a target: the id that starts the decoder, and what it learns to say before and after
the sentence.

The decoder's input is [start, *before, *sentence, *after without the last]; its labels are [*before, *sentence,
*after]. A program's own shift of labels is one such frame:

| model | start | before | after |
|---|---|---|---|
| trained here, Marian, PEGASUS, Blenderbot, FSMT, T5 | decoder_start_id | | <eos> |
| BART, MVP, CodeT5 | decoder_start_id | <bos> | <eos> |
| M2M-100, NLLB, mBART-50 | decoder_start_id | tag | <eos> |
| mBART, PLBART | tag | | <eos> tag |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax_transformer.config.data import DataConfig
from jax_transformer.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class TargetFrame:
    """Holds the ids around the tokens of each target of a corpus."""

    start_id: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """At least one id."""

    @property
    def end_id(self) -> int:
        """The last label."""
        return self.after[-1]

    @property
    def size(self) -> int:
        """Number of ids that `stored` adds to a sentence."""
        return len(self.before) + len(self.after) - 1

    def stored(self, sentences: Iterable[Sequence[int]]) -> list[list[int]]:
        """Returns the ids that stand between `start_id` in the decoder's input and `end_id` in the labels."""
        return [[*self.before, *ids, *self.after[:-1]] for ids in sentences]


def target_frame(config: DataConfig, target: Tokenizer, corpus: int = 0) -> TargetFrame:
    """Returns the frame of the targets of one corpus, by its number in `config.corpora`.

    Raises:
      ValueError: the vocabulary doesn't have the corpus's target_tag, or no id to start with or to end with.
    """
    tag = config.corpora[corpus].target_tag if config.corpora else ""
    tags = (target.tag_id(tag, "data.target_tag"),) if tag else ()
    start_id = target.bos_id if config.decoder_start_id is None else config.decoder_start_id
    if tags and target.tag_is_last:
        (start_id,) = tags
    for name, value in (("decoder_start_id", start_id), ("eos_id", target.eos_id)):
        if not 0 <= value < target.vocab_size:
            raise ValueError(f"data.{name}: expected an id of the target's vocabulary; received {value}, without <bos>")
    before = () if target.tag_is_last else tags
    if config.target_bos and not before:
        before = (target.bos_id,)
    is_tag = target.tag_is_last and start_id in target.tag_ids.values()
    return TargetFrame(start_id, before, (target.eos_id, start_id) if is_tag else (target.eos_id,))


def target_frames(config: DataConfig, target: Tokenizer) -> list[TargetFrame]:
    """Returns the frame of each corpus.

    Raises:
      ValueError: see `target_frame`; corpora whose decoders start, or whose labels end, with different ids.
    """
    frames = [target_frame(config, target, number) for number in range(max(len(config.corpora), 1))]
    around = {(frame.start_id, frame.end_id) for frame in frames}
    if len(around) > 1:
        tags = ", ".join(corpus.target_tag or "none" for corpus in config.corpora)
        raise ValueError(
            f"data.target_tag: expected one for all corpora, since it starts this model's decoder; received {tags}"
        )
    return frames
