"""The config of the data: parallel text, its tokenization and its batches. Frozen, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from jax_transformer.config.validation import check_field_types, require

MOST_SHAPES, MOST_PHRASEBOOK_PAIRS, MOST_BATCH_TOKENS = 128, 10_000_000, 100_000_000
MOST_VOCABULARY, MOST_LENGTH = 10_000_000, 10_000_000
"""Sizes beyond which work would not end, or not fit any memory."""
MODES = ("[NLU]", "[NLG]", "[S2S]")
"""Tokens that announce UL2's regular, extreme and sequential denoisers."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Describes one corpus of sentence pairs: local files or a Hugging Face dataset.

    Files are one table (.tsv, .csv, .jsonl, .parquet), or two parallel text files, source and target, with one sentence
    per line. `.gz` is decompressed.

    Example:
      >>> from jax_transformer.config.data import CorpusConfig
      >>> CorpusConfig(train=("train.en", "train.de"), valid_pairs=500).is_given
      True
    """

    train: tuple[str, ...] = ()
    """Training files: one table, or source and target."""
    valid: tuple[str, ...] = ()
    """Validation files."""
    test: tuple[str, ...] = ()
    """Test files."""
    dataset: str = ""
    """Hugging Face dataset to read if `train` is empty: a name on the Hub or a directory of files."""
    dataset_config: str = ""
    """Configuration of the dataset, such as de-en."""
    dataset_revision: str = ""
    """Commit, tag or branch of a dataset on the Hub. Empty: the latest version."""
    train_split: str = "train"
    """Training split of the dataset; train[:100000] takes its beginning."""
    valid_split: str = ""
    """Validation split of the dataset. Empty: validation, valid or dev, if it has one."""
    test_split: str = ""
    """Test split of the dataset. Empty: test, if it has one."""
    source_column: str = ""
    """Column of the source sentences; nested columns with dots, such as translation.en. Empty:
    translation.SOURCE_LANGUAGE, source, or SOURCE_LANGUAGE; without a header, the first column."""
    target_column: str = ""
    """Column of the target sentences, as source_column; without a header, the second column."""
    source_language: str = ""
    """Language code of the source, such as en; selects a column and spaCy's tokenization rules."""
    target_language: str = ""
    """Language code of the target, such as de."""
    source_tag: str = ""
    """Token put before every source sentence of this corpus, such as <2de>, which tells a multilingual model the target
    language."""
    target_tag: str = ""
    """Token of an existing target_tokenizer that names this corpus's target language, such as deu_Latn. The decoder
    learns to say it first (M2M-100, NLLB, mBART-50), or starts with it (mBART, PLBART)."""
    weight: float = 1.0
    """Mean number of times that each training pair of this corpus occurs per epoch: 2 is twice, 0.5 in half of the
    epochs, chosen by the seed."""
    valid_pairs: int = 0
    """Number of training pairs to hold out for validation, chosen by split_seed, if there is no validation set."""
    test_pairs: int = 0
    """Number of training pairs to hold out for testing, if there is no test set."""

    def __post_init__(self) -> None:
        check_field_types(self)
        require(self, self._problems())

    @property
    def is_given(self) -> bool:
        """Whether the config names any text."""
        return bool(self.train or self.dataset)

    @property
    def used_dataset(self) -> str:
        """The dataset to read; empty if `train` names files."""
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
        for name in ("source_tag", "target_tag"):
            tag = getattr(self, name)
            if len(tag.split()) > 1 or tag != tag.strip():
                problems.append(f"{name} must be one token without spaces; received {tag!r}")
        return problems


@dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusConfig):
    """Configures the corpora, their tokenization and their batches. Without a corpus, the built-in phrasebook is used.

    Example:
      >>> from jax_transformer import DataConfig
      >>> config = DataConfig(train=("train.tsv",), valid=("valid.tsv",), tokenizer="bpe", vocab_size=8000)
      >>> len(config.corpora)
      1
    """

    more: tuple[CorpusConfig, ...] = ()
    """Additional corpora mixed with the first; a list in the YAML file."""
    phrasebook_pairs: int = 100_000
    """Training pairs to draw from the built-in phrasebook."""
    split_seed: int = 0
    """Seed that draws the phrasebook's pairs and the held-out pairs."""
    streaming: bool = False
    """Stream the training pairs of a dataset without storing them, for corpora larger than the disk. valid_pairs and
    test_pairs then take the first pairs of the stream."""
    stream_pairs: int = 200_000
    """Pairs that streaming reads, shuffles and batches at a time. The first ones also train the tokenizer and determine
    the batch shapes."""
    stream_parts: int = 1
    """Number of parts that streaming divides the dataset's training files into. Each part gives as many pairs of every
    stream_pairs, and one process reads it. The batches depend on this number, not on the number of processes."""

    tokenizer: Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"] = "words"
    """words: splits at spaces and punctuation. whitespace: splits at spaces only. characters: one token per character.
    bpe, unigram (sentencepiece): learned subwords that keep the spaces. spacy: spaCy's rules for source_language and
    target_language."""
    source_tokenizer: str = ""
    """Existing source tokenizer to use: tokenizer.json, a sentencepiece .model or .spm, or a .txt with one token per
    line, for text split as `tokenizer` says. Empty: train one."""
    target_tokenizer: str = ""
    """Existing target tokenizer to use, as source_tokenizer."""
    tokenizers_as_stored: bool = False
    """Use source_tokenizer and target_tokenizer as a model directory stores them, whatever they put around sentences.
    --init-from sets it for a model that was ported from transformers."""
    target_kind: Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"] | None = None
    """Tokenizer of the target. None: the same as `tokenizer`."""
    joint_vocabulary: bool = False
    """Train one tokenizer on both sides."""
    vocab_size: int = 0
    """Maximum size of a vocabulary, special tokens included. 0: no limit (bpe and unigram require one)."""
    min_frequency: int = 1
    """Minimum count of a token in the training text; rarer ones become unknown. With bpe: minimum count of a merge."""
    lowercase: bool = False
    """Convert the text to lowercase."""
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalization applied before tokenization."""
    subword_sampling: float = 0.0
    """Draw new segmentations of the training text in every epoch. bpe: probability of skipping a merge (BPE-dropout).
    unigram: exponent of the distribution over segmentations. 0: always use the best segmentation."""
    objective: Literal["translation", "span-corruption", "ul2", "prefix-lm"] = "translation"
    """What is learned. The others pretrain on plain text, one file per corpus with a text per line. span-corruption:
    fill in hidden spans (T5). ul2: UL2's mixture of seven denoisers, announced by [NLU], [NLG] or [S2S]. prefix-lm:
    continue a prefix."""
    noise_density: float = 0.15
    """Share of the tokens that span-corruption hides."""
    mean_span_length: float = 3.0
    """Mean number of tokens in a span that span-corruption hides."""
    join_lines: bool = False
    """Pretrain on texts of equal length: the lines of a corpus, one after another, cut so that examples just fit
    max_length, as T5 does. Else a line is a text; of one that needs a single span, its end is hidden."""
    sentinels: int = 100
    """Tokens <extra_id_0>, <extra_id_1>, … that stand for spans, at the end of a vocabulary that is trained for
    pretraining, descending. An existing tokenizer has its own."""
    mixture_temperature: float = 1.0
    """Flatten the shares of corpora in a mixture: each share, by pairs and weight, is raised to 1 / temperature."""
    pad_id: int = 0
    """Id of padding. It may equal unk_id; otherwise the four special ids must differ."""
    unk_id: int = 1
    """Id of unknown tokens."""
    bos_id: int = 2
    """Id of the beginning of a sentence."""
    eos_id: int = 3
    """Id of the end of a sentence."""
    source_bos: bool = False
    """Put <bos> before every source sentence."""
    source_eos: bool = True
    """Put <eos> after every source sentence."""
    decoder_start_id: int | None = None
    """Id that starts the decoder. None: the target's <bos>. --init-from sets it for a ported model."""
    target_bos: bool = False
    """Let the decoder learn to say <bos> before each target sentence, as BART does. --init-from sets it for a ported
    model."""
    max_unknown: float = 0.5
    """Maximum share of unknown tokens on either side of the training text; preparation stops if there are more."""

    max_length: int = 128
    """Maximum sentence length in tokens, special tokens included. Longer pairs are dropped from training, left out of
    every loss, and counted."""
    max_length_ratio: float = 0.0
    """Drop training pairs whose longer side has more than this many times the tokens of the shorter one. 0: drop none,
    and count those above 9."""
    drop_duplicates: bool = False
    """Drop repeated training pairs; otherwise only count them."""
    drop_overlap: bool = False
    """Drop training pairs that are also in the validation or test set; otherwise only count them."""
    batch_tokens: int = 4096
    """Maximum size of a batch: rows times the padded length of the longer side."""
    num_shapes: int = 4
    """Maximum number of batch shapes (rows, source length, target length); each compiles one program. More shapes mean
    less padding: for Multi30k with bpe, 22% with 4 shapes, 16% with 6, 13% with 8."""
    packing: bool = False
    """Lay several pairs in one row of a training batch, each hidden from the others: one shape, almost no padding. Rows
    have max_length tokens on the longer side; num_shapes is ignored. Validation and decoding aren't packed."""
    cache_dir: str = "~/.cache/jax_transformer"
    """Directory for prepared corpora, each named by the hash of its text and options."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """The corpora in their numbered order: this one, then `more`. Empty: the phrasebook."""
        return (self, *self.more) if self.is_given else ()

    @property
    def is_pretraining(self) -> bool:
        """Whether pairs are made of plain text."""
        return self.objective != "translation"

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
            ("stream_parts", 1),
            ("split_seed", 0),
        ):
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
        for name, most, why in (
            ("num_shapes", MOST_SHAPES, "each is a program to compile"),
            ("phrasebook_pairs", MOST_PHRASEBOOK_PAIRS, "the phrasebook is drawn pair by pair, in memory"),
            ("batch_tokens", MOST_BATCH_TOKENS, "a batch is made in main memory"),
            ("vocab_size", MOST_VOCABULARY, "the largest vocabularies have 300,000 tokens"),
            ("max_length", MOST_LENGTH, "sentences are counted by their length"),
            ("valid_pairs", MOST_PHRASEBOOK_PAIRS, "held-out pairs are kept in memory"),
            ("test_pairs", MOST_PHRASEBOOK_PAIRS, "held-out pairs are kept in memory"),
        ):
            if getattr(self, name) > most:
                problems.append(f"{name} must be at most {most:,} ({why}); received {getattr(self, name):,}")
        if self.batch_tokens < self.max_length:
            problems.append(f"batch_tokens must be at least max_length={self.max_length}; received {self.batch_tokens}")
        roles = {"pad_id": self.pad_id, "unk_id": self.unk_id, "bos_id": self.bos_id, "eos_id": self.eos_id}
        distinct = len({self.unk_id, self.bos_id, self.eos_id} | {self.pad_id})
        if distinct < (3 if self.pad_id == self.unk_id else 4):
            problems.append(
                f"pad_id, unk_id, bos_id and eos_id must differ (only pad_id may equal unk_id); received {roles}"
            )
        if self.is_pretraining:
            problems += self._pretraining_problems()
        if not 1.0 <= self.mixture_temperature < math.inf:
            problems.append(f"mixture_temperature must be at least 1, and finite; received {self.mixture_temperature}")
        return problems + self._corpus_problems() + self._tokenizer_problems()

    def _pretraining_problems(self) -> list[str]:
        what = f"with objective={self.objective!r}"
        problems = []
        for corpus in self.corpora:
            for name in ("train", "valid", "test"):
                if len(files := getattr(corpus, name)) > 1:
                    problems.append(f"{name} must be one file of text {what}; received {list(files)}")
            if corpus.source_tag or corpus.target_tag:
                problems.append(f"source_tag and target_tag must be empty {what}")
            if corpus.source_column != corpus.target_column:
                problems.append(
                    f"source_column and target_column must be the same {what}; received {corpus.source_column!r} and "
                    f"{corpus.target_column!r}"
                )
        if not 0.0 < self.noise_density < 1.0:
            problems.append(f"noise_density must be in (0, 1); received {self.noise_density}")
        if not 1.0 <= self.mean_span_length < math.inf:
            problems.append(f"mean_span_length must be at least 1, and finite; received {self.mean_span_length}")
        if not 1 <= self.sentinels <= MOST_VOCABULARY:
            problems.append(f"sentinels must be from 1 to {MOST_VOCABULARY:,}; received {self.sentinels}")
        if not self.joint_vocabulary and not self.source_tokenizer:
            problems.append(f"joint_vocabulary must be true {what}, since both sides are one text; received false")
        if "spacy" in (self.tokenizer, self.target_kind):
            problems.append(f"tokenizer must not be 'spacy' {what}")
        if self.join_lines and self.objective == "prefix-lm" and self.max_length < 4:
            problems.append(f"max_length must be at least 4 {what} and join_lines; received {self.max_length}")
        if self.subword_sampling:
            problems.append(f"subword_sampling must be 0 {what}; received {self.subword_sampling}")
        if self.target_bos:
            problems.append(f"target_bos must be false {what}; received true")
        return problems

    def _corpus_problems(self) -> list[str]:
        problems = []
        if self.more and not self.is_given:
            problems.append(
                f"train or dataset must be set with more; received {len(self.more)} further corpora and no first one"
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
        if self.stream_parts > 0 and self.stream_pairs % self.stream_parts:
            problems.append(
                f"stream_pairs must be a multiple of stream_parts={self.stream_parts}, since each part gives as many; "
                f"received {self.stream_pairs}"
            )
        if not self.used_dataset:
            problems.append(
                "dataset must be set with streaming, and train be empty; "
                f"received {self.dataset!r} and {list(self.train)}"
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
        if self.tokenizers_as_stored and not self.source_tokenizer:
            problems.append("tokenizers_as_stored must be false without source_tokenizer; received true")
        if self.decoder_start_id is not None and self.decoder_start_id < 0:
            problems.append(f"decoder_start_id must be at least 0; received {self.decoder_start_id}")
        if bool(self.source_tokenizer) != bool(self.target_tokenizer):
            problems.append(
                "source_tokenizer and target_tokenizer must both be set, or neither; "
                f"received {self.source_tokenizer!r} and {self.target_tokenizer!r}"
            )
        if not 0.0 <= self.subword_sampling < 1.0:
            problems.append(f"subword_sampling must be in [0, 1); received {self.subword_sampling}")
        if self.subword_sampling and not kinds & {"bpe", "unigram"} and not self.source_tokenizer:
            problems.append(
                f"subword_sampling must be 0 with tokenizer={self.tokenizer!r}; received {self.subword_sampling}"
            )
        return problems
