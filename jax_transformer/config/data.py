"""Which parallel text is trained on, and how it becomes token ids. Frozen, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from jax_transformer.config.validation import check_field_types, require


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """One corpus of sentence pairs: local files, or a Hugging Face dataset.

    Files: one table (.tsv, .csv, .jsonl, .parquet), or two parallel text files, source and target, one sentence a line.
    `.gz` is decompressed.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    dataset: str = ""
    """A dataset of Hugging Face, by its name on the Hub or a directory of its files; used where `train` names no
    files."""
    dataset_config: str = ""
    """The dataset's configuration, such as de-en."""
    dataset_revision: str = ""
    """The commit, tag or branch that is read of a dataset on the Hub. Empty: the latest version."""
    train_split: str = "train"
    """The dataset's split for training; train[:100000] takes its beginning."""
    valid_split: str = ""
    """Its split for validation. Empty: validation, where it has one."""
    test_split: str = ""
    """Its split for the test. Empty: test, where it has one."""
    source_column: str = ""
    """The column of the source sentences; nested ones with dots: translation.en. Empty: translation.SOURCE_LANGUAGE,
    the column named source or as the source language, or (without a header) the first."""
    target_column: str = ""
    """The same for the target; without a header the second."""
    source_language: str = ""
    """Its code, such as en: names a column, and spaCy's rules of tokenization."""
    target_language: str = ""
    source_tag: str = ""
    """A token put before every source sentence of this corpus, such as <2de>: tells a multilingual model the target
    language."""
    weight: float = 1.0
    """How often each training pair of this corpus comes in an epoch: 2 is twice, 0.5 every other epoch or so, chosen by
    the seed."""
    valid_pairs: int = 0
    """Without a validation set: how many pairs are taken out of the training pairs for it, chosen by split_seed."""
    test_pairs: int = 0
    """The same for the test set."""

    def __post_init__(self) -> None:
        check_field_types(self)
        require(self, self._problems())

    @property
    def is_given(self) -> bool:
        """Whether it names any text."""
        return bool(self.train or self.dataset)

    @property
    def used_dataset(self) -> str:
        """The dataset, unless there are files in its place."""
        return "" if self.train else self.dataset

    def _problems(self) -> list[str]:
        problems = []
        for name in ("train", "valid", "test"):
            files = getattr(self, name)
            if len(files) > 2:
                problems.append(f"{name} must name one table or two parallel files; received {len(files)} files")
            if files and self.used_dataset:
                problems.append(f"{name} must be empty where dataset={self.dataset!r} is used; received {list(files)}")
        for name in ("valid_pairs", "test_pairs"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must be at least 0; received {getattr(self, name)}")
        if not 0.0 < self.weight < math.inf:
            problems.append(f"weight must be above 0, and finite; received {self.weight}")
        if len(self.source_tag.split()) > 1 or self.source_tag != self.source_tag.strip():
            problems.append(f"source_tag must be one token without spaces; received {self.source_tag!r}")
        return problems


@dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusConfig):
    """A corpus, those mixed with it, and how they are tokenized and batched. Without a corpus the embedded phrasebook
    is used."""

    more: tuple[CorpusConfig, ...] = ()
    """Further corpora mixed with the first; a list in the YAML file."""
    phrasebook_pairs: int = 100_000
    """Training pairs drawn from the embedded phrasebook."""
    split_seed: int = 0
    """Seed of the phrasebook's draw and of the pairs taken out of `train`."""
    streaming: bool = False
    """Read the training pairs of a dataset as they come, keeping none: for corpora larger than the disk. valid_pairs
    and test_pairs then take the first of the stream."""
    stream_pairs: int = 200_000
    """With streaming: pairs read, shuffled and batched at a time; the first so many also train the tokenizer, and
    choose the shapes."""

    tokenizer: Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"] = "words"
    """words splits off punctuation; whitespace splits at spaces only; bpe and unigram (sentencepiece) learn subwords
    that keep the spaces; spacy uses the rules of source_language and target_language."""
    source_tokenizer: str = ""
    """A file used as it is instead of training one: tokenizer.json, a sentencepiece .model, or a .txt of tokens, one a
    line, split as `tokenizer` says."""
    target_tokenizer: str = ""
    target_kind: Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"] | None = None
    """How the target is tokenized. None: as `tokenizer` says."""
    joint_vocabulary: bool = False
    """One tokenizer, trained on both sides."""
    vocab_size: int = 0
    """Most entries of a vocabulary, specials included. 0: no limit (bpe and unigram need one)."""
    min_frequency: int = 1
    """Tokens seen less often than this in the training text become unknown. With bpe: pieces seen less often together
    aren't merged."""
    lowercase: bool = False
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalization of the text before it is tokenized."""
    subword_sampling: float = 0.0
    """Other segmentations of the training text in every epoch. bpe: the probability that a merge is left out
    (BPE-dropout); unigram: the exponent of the distribution that segmentations are drawn from. 0: always the best
    one."""
    pad_id: int = 0
    """May equal unk_id; the four are otherwise different."""
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    source_bos: bool = False
    """Put <bos> before every source sentence."""
    source_eos: bool = True
    """Put <eos> after every source sentence."""
    max_unknown: float = 0.5
    """Preparation is refused when more than this share of a training side's tokens is unknown."""

    max_length: int = 128
    """Pairs with a side longer than this, in tokens, specials included, are dropped from training, left out of every
    loss, and counted."""
    max_length_ratio: float = 0.0
    """Training pairs whose longer side has more than this times the tokens of the shorter are dropped. 0: only those
    over 9 are counted."""
    drop_duplicates: bool = False
    """Training pairs that occurred before are dropped; otherwise only counted."""
    drop_overlap: bool = False
    """Training pairs that are also in the test or validation set are dropped; otherwise only counted."""
    batch_tokens: int = 4096
    """Rows times the longer side's padded length, at most, in one batch."""
    num_shapes: int = 4
    """How many (rows, source length, target length) shapes the training batches have, at most: as many programs are
    compiled. More shapes mean less padding: of Multi30k in bpe, 22% with 4 shapes, 16% with 6, 13% with 8."""
    cache_dir: str = "~/.cache/jax_transformer"
    """Where prepared corpora are kept, each under the hash of its text and options."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """The corpora in the order in which pairs are numbered: this one and `more`. Empty: the phrasebook."""
        return (self, *self.more) if self.is_given else ()

    @property
    def source_tags(self) -> tuple[str, ...]:
        """The distinct tags of the corpora, in order."""
        return tuple(dict.fromkeys(corpus.source_tag for corpus in self.corpora if corpus.source_tag))

    def _problems(self) -> list[str]:
        problems = super()._problems()
        for name, least in (
            ("phrasebook_pairs", 1),
            ("vocab_size", 0),
            ("min_frequency", 1),
            ("pad_id", 0),
            ("unk_id", 0),
            ("bos_id", 0),
            ("eos_id", 0),
            ("max_length", 2),
            ("num_shapes", 1),
            ("stream_pairs", 1),
            ("split_seed", 0),
        ):
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
        if self.batch_tokens < self.max_length:
            problems.append(f"batch_tokens must be at least max_length={self.max_length}; received {self.batch_tokens}")
        roles = {"pad_id": self.pad_id, "unk_id": self.unk_id, "bos_id": self.bos_id, "eos_id": self.eos_id}
        distinct = len({self.unk_id, self.bos_id, self.eos_id} | {self.pad_id})
        if distinct < (3 if self.pad_id == self.unk_id else 4):
            problems.append(
                f"pad_id, unk_id, bos_id and eos_id must differ (only pad_id may equal unk_id); received {roles}"
            )
        return problems + self._corpus_problems() + self._tokenizer_problems()

    def _corpus_problems(self) -> list[str]:
        problems = []
        if self.more and not self.is_given:
            problems.append(
                f"train or dataset must be set beside more; received {len(self.more)} further corpora and no first one"
            )
        problems += [
            f"more: train or dataset must be set; corpus {k} has neither"
            for k, c in enumerate(self.more, 2)
            if not c.is_given
        ]
        if self.streaming:
            problems += self._streaming_problems()
        if self.max_length_ratio and not 1.0 <= self.max_length_ratio < math.inf:
            problems.append(f"max_length_ratio must be at least 1, or 0; received {self.max_length_ratio}")
        if not 0.0 <= self.max_unknown <= 1.0:
            problems.append(f"max_unknown must be in [0, 1]; received {self.max_unknown}")
        return problems

    def _streaming_problems(self) -> list[str]:
        problems = []
        if not self.used_dataset:
            problems.append(
                f"dataset must be set with streaming, and train be empty; received {self.dataset!r} and "
                f"{list(self.train)}"
            )
        if self.more:
            problems.append(
                f"more must be empty with streaming, which reads one corpus; received {len(self.more)} further ones"
            )
        if self.drop_duplicates or self.drop_overlap:
            problems.append("streaming can't tell duplicates: drop_duplicates and drop_overlap must be false")
        if self.weight != 1.0:
            problems.append(f"weight must be 1 with streaming, which reads one corpus; received {self.weight}")
        if self.subword_sampling:
            problems.append(f"subword_sampling must be 0 with streaming; received {self.subword_sampling}")
        for name in ("train_split", "valid_split", "test_split"):
            if "[" in getattr(self, name):
                advice = "valid_pairs and test_pairs take the first pairs of the stream"
                problems.append(
                    f"{name} must be a whole split with streaming ({advice}); received {getattr(self, name)!r}"
                )
        return problems

    def _tokenizer_problems(self) -> list[str]:
        problems = []
        kinds = {self.tokenizer, self.target_kind or self.tokenizer}
        if kinds & {"bpe", "unigram"} and not self.vocab_size and not self.source_tokenizer:
            problems.append(f"vocab_size must be set with tokenizer={self.tokenizer!r}; received 0")
        if self.joint_vocabulary and len(kinds) > 1:
            problems.append(f"target_kind must be null with joint_vocabulary; received {self.target_kind!r}")
        if "spacy" in kinds and self.is_given and not (self.source_language and self.target_language):
            problems.append("source_language and target_language must be set with tokenizer='spacy', such as en and de")
        languages = {(corpus.source_language, corpus.target_language) for corpus in self.corpora}
        if "spacy" in kinds and len(languages) > 1:
            pairs = ", ".join(f"{source}-{target}" for source, target in sorted(languages))
            problems.append(f"the languages of all corpora must be the same with tokenizer='spacy'; received {pairs}")
        if "spacy" in kinds and self.joint_vocabulary:
            problems.append("joint_vocabulary must be false with tokenizer='spacy', whose rules are one language's")
        if bool(self.source_tokenizer) != bool(self.target_tokenizer):
            problems.append(
                "source_tokenizer and target_tokenizer must both be set, or neither; received "
                f"{self.source_tokenizer!r} and "
                f"{self.target_tokenizer!r}"
            )
        if not 0.0 <= self.subword_sampling < 1.0:
            problems.append(f"subword_sampling must be in [0, 1); received {self.subword_sampling}")
        if self.subword_sampling and not kinds & {"bpe", "unigram"} and not self.source_tokenizer:
            problems.append(
                f"subword_sampling must be 0 with tokenizer={self.tokenizer!r}; received {self.subword_sampling}"
            )
        return problems
