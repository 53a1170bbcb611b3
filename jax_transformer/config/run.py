"""What a training run is: which text, which model, how it is trained. Frozen, validated once, written as `config.yaml`
into the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.validation import check_field_types, require


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation, evaluation, and what is kept."""

    seed: int = 0
    """Initial weights, data order and dropout are functions of it."""
    max_steps: int = 100_000
    """Optimizer steps, unless max_epochs ends the run earlier."""
    max_epochs: int = 0
    """0: no limit."""

    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    """sgd: with momentum, the gradient added whole, as in torch. muon: the matrices of the layers move by
    orthogonalised momentum, scaled to be about as large as Adam's steps, and all else, embeddings and head included, by
    Adam. Fewer steps to the same loss, each a little slower."""
    weight_decay: float = 0.0
    weight_decay_kind: Literal["l2", "decoupled"] = "l2"
    """l2: weight_decay times the parameter is added to its gradient, before any moments; decoupled: to its step, before
    the learning rate (adam is then AdamW)."""
    schedule: Literal["paper", "constant", "linear", "cosine", "cosine_restarts"] = "paper"
    """After a linear warm-up. paper: inverse square root of the step; linear and cosine fall to 0 at max_steps;
    cosine_restarts: to 0 after restart_steps, then again from the peak (SGDR)."""
    learning_rate: float = 1.0
    """The peak rate; with schedule=paper the factor of d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup_steps: int = 4000
    repeats_first_rate: bool = False
    """The first step's rate is the second's too, and so on: all come a step late, as under torch's LambdaLR with a
    schedule that counts from 1."""
    restart_steps: int = 0
    """Length of the first cycle of cosine_restarts."""
    restart_factor: int = 1
    """How many times longer each cycle is than the one before."""
    plateau_patience: int = 0
    """Multiply the rate by plateau_factor after more than this many evaluations in a row without a validation loss
    lower by a ten-thousandth, as torch's ReduceLROnPlateau. 0: never."""
    plateau_factor: float = 0.9
    plateau_start: int = 0
    """Evaluations before the first that is looked at."""
    momentum: float = 0.0
    """Of sgd."""
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_eps: float = 1e-9
    clip_norm: float = 0.0
    """Scales gradients down to this global norm (plus 1e-6, as torch does). 0: never."""
    label_smoothing: float = 0.1
    """Share of the target's probability that is spread over the vocabulary."""
    smoothing: Literal["all", "others", "others_but_pad"] = "all"
    """Over which entries. all: every one, the label's included (as in torch); others: all but the label's (fairseq);
    others_but_pad: all but the label's and the pad's, and the loss is the divergence from that (the Annotated
      Transformer)."""
    loss_counts_pads: bool = False
    """Whether pads count in the loss as other tokens do: all that fill up a batch."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step, each token counting alike: a larger batch in the memory of a
    small one."""
    ema_decay: float = 0.0
    """Evaluate, and keep, an exponential moving average of the parameters: at step t, from 0, it keeps this share of
    itself, but at most (1 + t) / (10 + t). 0: none."""
    freeze: tuple[str, ...] = ()
    """Parameters left as they are: patterns with * of paths such as encoder/layers/self_attention/*."""

    evaluate_every: int = 1000
    """Steps between evaluations on the validation set; each also saves a checkpoint."""
    evaluate_sentences: int = 500
    """Validation sentences translated for BLEU and chrF at each evaluation. 0: only the loss is computed."""
    max_decode_length: int = 0
    """Most tokens of a translation, <eos> included, by the model that is trained. 0: data.max_length."""
    best_metric: Literal["loss", "bleu"] = "loss"
    """Which validation figure picks the best checkpoint."""
    patience: int = 0
    """Stop after this many evaluations without a better best_metric. 0: never."""
    average_checkpoints: int = 0
    """The model kept at the end is the mean of this many checkpoints. 0: the best one."""
    average_which: Literal["last", "best"] = "last"
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    keep_checkpoints: int = 2
    """Latest checkpoints kept, beside the best. (More where average_checkpoints needs more.)"""
    score_tokenizer: str = "13a"
    """sacreBLEU's tokenizer: none for text that is tokenized already, zh for Chinese."""
    report_every: int = 1
    """Evaluations between versions of report.html. 0: only at the end."""
    tensorboard: bool = False
    """Also write metrics for TensorBoard, into tensorboard/ (needs the extra tensorboard)."""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        for name, least in (
            ("max_steps", 1),
            ("max_epochs", 0),
            ("warmup_steps", 0),
            ("evaluate_every", 1),
            ("evaluate_sentences", 0),
            ("log_every", 1),
            ("keep_checkpoints", 1),
            ("seed", 0),
            ("accumulate", 1),
            ("patience", 0),
            ("average_checkpoints", 0),
            ("report_every", 0),
            ("restart_steps", 1 if self.schedule == "cosine_restarts" else 0),
            ("restart_factor", 1),
            ("plateau_patience", 0),
            ("plateau_start", 0),
            ("max_decode_length", 0),
        ):
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
        for name in ("label_smoothing", "momentum", "adam_b1", "adam_b2", "ema_decay", "plateau_factor"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"{name} must be in [0, 1); received {getattr(self, name)}")
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate must be above 0, and finite; received {self.learning_rate}")
        for name in ("clip_norm", "adam_eps", "weight_decay"):
            if not 0.0 <= getattr(self, name) < math.inf:
                problems.append(f"{name} must be at least 0, and finite; received {getattr(self, name)}")
        if self.smoothing == "others_but_pad" and self.loss_counts_pads:
            problems.append(
                "loss_counts_pads must be false with smoothing='others_but_pad', which gives pads no share; received "
                "true"
            )
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
    init_from: str = ""
    """A model or run directory whose parameters are the first ones, in place of drawn ones."""
    run_dir: str = ""
    """Where the run is kept; must not exist yet. Empty: runs/PRESET, or the first free runs/PRESET-2, runs/PRESET-3,
    …"""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        longest = self.data.max_length
        has_position_table = self.model.position_kind in ("sinusoidal", "learned")
        for name in ("max_length", "decoder_max_length"):
            positions = getattr(self.model, name)
            if has_position_table and positions is not None and positions < longest:
                problems.append(
                    f"model.{name} must be at least data.max_length={longest}, the longest sentence trained on; "
                    f"received {positions}; raise model.{name} or lower data.max_length"
                )
        if self.model.share_embeddings and not self.data.joint_vocabulary:
            problems.append("model.share_embeddings needs data.joint_vocabulary; received false")
        if self.train.accumulate > 1 and not self.model.batch_rows_are_independent:
            problems.append(
                f"train.accumulate must be 1 with model.position_index='batch_row', where a row's number counts; "
                f"received {self.train.accumulate}"
            )
        require(self, problems)


__all__ = ["CorpusConfig", "DataConfig", "RunConfig", "TrainConfig"]
