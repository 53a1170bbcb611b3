"""What a training run is: which text, which model, how it is trained. Frozen, validated once, written as `config.yaml` into the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from jax_transformer.config import TransformerConfig
from jax_transformer.validation import check_field_types, require


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Parallel text and how it becomes token ids.

    Each of train, valid and test is one TSV file (source, tab, target), or two parallel files, one sentence a line; `.gz` is decompressed.
    Without `train` the embedded phrasebook is used.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    valid_pairs: int = 0
    """Without `valid`: how many pairs are taken out of `train` for it, chosen by the seed. Of the phrasebook: how many are drawn."""
    test_pairs: int = 0
    """The same for `test`."""
    phrasebook_pairs: int = 100_000
    """Training pairs drawn from the embedded phrasebook."""
    split_seed: int = 0
    """Seed of the phrasebook's draw and of the pairs taken out of `train`."""

    tokenizer: Literal["words", "whitespace", "characters", "bpe"] = "words"
    """words splits off punctuation; whitespace splits at spaces only; bpe learns subwords that keep the spaces."""
    joint_vocabulary: bool = False
    """One tokenizer, trained on both sides."""
    vocab_size: int = 0
    """Most entries of a vocabulary, specials included. 0: no limit (bpe needs one)."""
    min_frequency: int = 1
    """Tokens seen less often than this in the training text become unknown. With bpe: pieces seen less often together aren't merged."""
    lowercase: bool = False
    pad_id: int = 0
    """May equal unk_id; the four are otherwise different."""
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    source_bos: bool = False
    """Put <bos> before every source sentence."""
    source_eos: bool = True
    """Put <eos> after every source sentence."""

    max_length: int = 128
    """Pairs with a side longer than this, in tokens, specials included, are dropped from training, left out of every loss, and counted."""
    batch_tokens: int = 4096
    """Rows times the longer side's padded length, at most, in one batch."""
    num_shapes: int = 4
    """How many (rows, source length, target length) shapes the training batches have, at most: as many programs are compiled. More shapes
    mean less padding: of Multi30k in bpe, 22% with 4 shapes, 16% with 6, 13% with 8."""
    cache_dir: str = "~/.cache/jax_transformer"
    """Where prepared corpora are kept, each under the hash of its files and options."""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        for name in ("train", "valid", "test"):
            if len(getattr(self, name)) > 2:
                problems.append(f"{name} must name one TSV file or two parallel files; received {len(getattr(self, name))} files")
        for name, least in (
            ("valid_pairs", 0), ("test_pairs", 0), ("phrasebook_pairs", 1), ("vocab_size", 0), ("min_frequency", 1), ("pad_id", 0),
            ("unk_id", 0), ("bos_id", 0), ("eos_id", 0), ("max_length", 2), ("num_shapes", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
        if self.batch_tokens < self.max_length:
            problems.append(f"batch_tokens must be at least max_length={self.max_length}; received {self.batch_tokens}")
        roles = {"pad_id": self.pad_id, "unk_id": self.unk_id, "bos_id": self.bos_id, "eos_id": self.eos_id}
        distinct = len({self.unk_id, self.bos_id, self.eos_id} | {self.pad_id})
        if distinct < (3 if self.pad_id == self.unk_id else 4):
            problems.append(f"pad_id, unk_id, bos_id and eos_id must differ (only pad_id may equal unk_id); received {roles}")
        if self.tokenizer == "bpe" and not self.vocab_size:
            problems.append("vocab_size must be set with tokenizer='bpe'; received 0")
        require(self, problems)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation, evaluation, and what is kept."""

    seed: int = 0
    """Initial weights, data order and dropout are functions of it."""
    max_steps: int = 100_000
    """Optimizer steps, unless max_epochs ends the run earlier."""
    max_epochs: int = 0
    """0: no limit."""

    schedule: Literal["paper", "constant", "linear", "cosine"] = "paper"
    """After a linear warm-up. paper: inverse square root of the step; linear and cosine fall to 0 at max_steps."""
    learning_rate: float = 1.0
    """The peak rate; with schedule=paper the factor of d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup_steps: int = 4000
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_eps: float = 1e-9
    clip_norm: float = 0.0
    """Scales gradients down to this global norm. 0: never."""
    label_smoothing: float = 0.1
    """Share of the target's probability spread evenly over the vocabulary."""

    evaluate_every: int = 1000
    """Steps between evaluations on the validation set; each also saves a checkpoint."""
    evaluate_sentences: int = 500
    """Validation sentences translated for BLEU and chrF at each evaluation. 0: only the loss is computed."""
    best_metric: Literal["loss", "bleu"] = "loss"
    """Which validation figure picks the best checkpoint."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    keep_checkpoints: int = 2
    """Latest checkpoints kept, beside the best."""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        for name, least in (
            ("max_steps", 1), ("max_epochs", 0), ("warmup_steps", 0), ("evaluate_every", 1), ("evaluate_sentences", 0), ("log_every", 1),
            ("keep_checkpoints", 1), ("seed", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
        for name in ("label_smoothing", "adam_b1", "adam_b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"{name} must be in [0, 1); received {getattr(self, name)}")
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate must be above 0, and finite; received {self.learning_rate}")
        for name in ("clip_norm", "adam_eps"):
            if not 0.0 <= getattr(self, name) < math.inf:
                problems.append(f"{name} must be at least 0, and finite; received {getattr(self, name)}")
        if self.schedule == "paper" and self.warmup_steps < 1:
            problems.append(f"warmup_steps must be at least 1 with schedule='paper'; received {self.warmup_steps}")
        if self.best_metric == "bleu" and not self.evaluate_sentences:
            problems.append("evaluate_sentences must be at least 1 with best_metric='bleu'; received 0")
        require(self, problems)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run, whole."""

    model: TransformerConfig = field(default_factory=TransformerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run_dir: str = ""
    """Where the run is kept; must not exist yet. Empty: runs/PRESET, or the first free runs/PRESET-2, runs/PRESET-3, …"""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        longest = self.data.max_length
        for name, stack in (("max_length", self.model.encoder), ("decoder_max_length", self.model.decoder)):
            if self.model.position_kind in ("sinusoidal", "learned") and stack.max_length < longest:
                problems.append(f"model.{name} must be at least data.max_length={longest}; received {stack.max_length}")
        if self.model.share_embeddings and not self.data.joint_vocabulary:
            problems.append("model.share_embeddings needs data.joint_vocabulary; received false")
        require(self, problems)
