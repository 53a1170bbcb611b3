"""The config of a training run: data, model and training. Frozen, validated once, saved as `config.yaml` in the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.config.positions import Table
from jax_transformer.config.short_names import STACKS, named_values
from jax_transformer.config.validation import check_field_types, require

MOST_STEPS = 2**31 - 1
"""The largest integer that a device counts steps with."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Configures optimization, evaluation, and checkpoints.

    Example:
      >>> from jax_transformer import TrainConfig
      >>> TrainConfig(schedule="cosine", learning_rate=1e-3, max_steps=5000, warmup_steps=500).optimizer
      'adam'
    """

    seed: int = 0
    """Seed of the initial weights, the data order and dropout."""
    max_steps: int = 100_000
    """Number of optimizer steps, unless max_epochs ends the run earlier."""
    max_epochs: int = 0
    """Number of passes over the training pairs, at most. 0: no limit."""

    optimizer: Literal["adam", "sgd", "muon", "adafactor"] = "adam"
    """adam: Adam, or AdamW with weight_decay_kind=decoupled. sgd: SGD with momentum, as in torch. muon: orthogonalized
    momentum for the matrices of the layers, scaled to Adam's step size, and Adam for everything else, such as
    embeddings and head; fewer steps to the same loss, each a little slower. adafactor: Adafactor without momentum
    (Shazeer & Stern 2018), which keeps the sums of a matrix's rows and columns instead of its second moments, and whose
    learning rate is relative to the size of each parameter."""
    weight_decay: float = 0.0
    """Strength of the weight decay. 0: none."""
    weight_decay_kind: Literal["l2", "decoupled"] = "l2"
    """l2: add weight_decay times the parameter to its gradient, before the moments. decoupled: add it to the step,
    before the learning rate, as AdamW does."""
    no_decay: tuple[str, ...] = ()
    """Parameters that weight_decay leaves alone: patterns of paths, such as */bias and *norm/*."""
    schedule: Literal["paper", "constant", "linear", "cosine", "cosine_restarts", "relative"] = "paper"
    """Learning rate after the linear warm-up. paper: proportional to the inverse square root of the step. linear,
    cosine: falls to 0 at max_steps. cosine_restarts: falls to 0 after restart_steps and restarts at the peak (SGDR).
    relative: learning_rate * min(relative_step, step^-0.5), Adafactor's relative step, with which T5 is fine-tuned."""
    learning_rate: float = 1.0
    """Peak learning rate; with schedule=paper the factor of d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    relative_step: float = 0.01
    """Largest relative step of schedule=relative."""
    warmup_steps: int = 4000
    """Steps over which the learning rate rises linearly to its peak."""
    repeats_first_rate: bool = False
    """Delay the schedule by one step, so that steps 1 and 2 share a rate, as torch's LambdaLR does with a schedule that
    counts from 1."""
    warmup_from_zero: bool = False
    """Begin the warm-up at a rate of 0 in the first step, as the schedules of transformers and fairseq do, and not at
    the first of warmup_steps equal rises. The paper schedule then counts its steps from 0 throughout."""
    restart_steps: int = 0
    """Steps in the first cycle of cosine_restarts."""
    restart_factor: int = 1
    """Length of each cycle of cosine_restarts relative to the one before."""
    plateau_patience: int = 0
    """Multiply the learning rate by plateau_factor after more than this many evaluations in a row that lower the
    validation loss by less than 0.01 %, as torch's ReduceLROnPlateau does. 0: never."""
    plateau_factor: float = 0.9
    """Factor of plateau_patience."""
    plateau_start: int = 0
    """Evaluations that plateau_patience ignores at the start."""
    momentum: float = 0.0
    """Momentum of sgd."""
    factored_from: int = 128
    """Least rows and columns of a matrix that adafactor keeps by its sums; it keeps all of smaller ones. 1: of every
    matrix, as transformers' Adafactor does."""
    factored_eps: Literal["added", "clamped"] = "added"
    """How adafactor avoids division by 0. added: squared gradients get 10^-30, as published, and as in transformers.
    clamped: second moments are the squared machine epsilon at least, as in torch.optim.Adafactor."""
    scale_by_parameter: bool = True
    """Multiply adafactor's updates by the root mean square of each parameter. transformers' Trainer sets this to
    false."""
    adam_b1: float = 0.9
    """Decay of Adam's first moment."""
    adam_b2: float = 0.98
    """Decay of Adam's second moment."""
    adam_eps: float = 1e-9
    """Epsilon of Adam's denominator."""
    adam_eps_uncorrected: bool = False
    """Add adam_eps to the root of the second moment before the bias correction, as fairseq's Adam does, and not after
    it, as torch's does."""
    clip_norm: float = 0.0
    """Scale gradients down to this global norm (plus 1e-6, as torch does). 0: never."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """When a loss or a gradient isn't finite. stop: end the run, whose last checkpoint is from before. skip: leave the
    weights as they were, and count the step. rollback: go back to the last checkpoint with a lower learning rate."""
    rollback_factor: float = 0.5
    """Factor of the learning rate at each rollback."""
    label_smoothing: float = 0.1
    """Share of the probability that label smoothing takes from the label."""
    smoothing: Literal["all", "others", "others_but_pad"] = "all"
    """Entries that share the smoothed probability. all: every entry, as in torch. others: every entry but the label, as
    in fairseq. others_but_pad: every entry but the label and the pad, with the KL divergence as the loss, as in the
    Annotated Transformer."""
    loss_counts_pads: bool = False
    """Count padding in the loss like other tokens."""
    accumulate: int = 1
    """Batches accumulated into one optimizer step, each token weighted equally: a larger batch in the memory of a
    smaller one."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average of the parameters, which is then evaluated and saved in their place; at
    step t, counted from 0, the decay is at most (1 + t) / (10 + t). 0: no average."""
    freeze: tuple[str, ...] = ()
    """Parameters that aren't trained: patterns of paths, such as encoder/layers/self_attention/*."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters that are trained in place of the parameters, with a rank above 0."""

    evaluate_every: int = 1000
    """Steps between evaluations on the validation set. Each evaluation saves a checkpoint."""
    evaluate_sentences: int = 500
    """Validation sentences translated for BLEU and chrF at each evaluation. 0: compute the loss only."""
    max_decode_length: int = 0
    """Maximum number of tokens per translation, <eos> included, of the trained model. 0: data.max_length."""
    best_metric: Literal["loss", "bleu", "chrf"] = "loss"
    """Validation metric that selects the best checkpoint."""
    patience: int = 0
    """Stop after this many evaluations without an improvement of best_metric. 0: never."""
    min_improvement: float = 0.0
    """Difference from the best value so far that an evaluation must exceed to count as an improvement for patience, as
    early_stopping_threshold of transformers. It doesn't change which checkpoint is the best one."""
    average_checkpoints: int = 0
    """Save the mean of this many checkpoints as the model. 0: save the best checkpoint."""
    average_which: Literal["last", "best"] = "last"
    """Checkpoints to average: the last or the best ones."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    keep_checkpoints: int = 2
    """Number of latest checkpoints kept, in addition to the best one and those that average_checkpoints needs."""
    score_tokenizer: str = "13a"
    """sacreBLEU's tokenizer, such as 13a, zh for Chinese, or none for tokenized text."""
    report_every: int = 1
    """Evaluations between updates of report.html. 0: write it only at the end."""
    peak_tflops: float = 0.0
    """Most TFLOP/s of one device, to log the model FLOPs utilization (MFU). 0: those of a known device in the dtype of
    the model; none for a CPU."""
    tensorboard: bool = False
    """Also write metrics for TensorBoard to tensorboard/ (requires the extra tensorboard)."""
    wandb_project: str = ""
    """Also write metrics to this project of Weights & Biases (requires the extra wandb). Empty: don't."""
    wandb_entity: str = ""
    """User or team that owns the project. Empty: the default one of the account."""
    wandb_mode: Literal["online", "offline"] = "online"
    """online: send each record to Weights & Biases. offline: keep them in wandb/, for `wandb sync`."""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        if not 0.0 <= self.peak_tflops < math.inf:
            problems.append(f"peak_tflops must be at least 0, and finite; received {self.peak_tflops}")
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
            ("factored_from", 1),
        ):
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}; received {getattr(self, name)}")
            elif name != "seed" and getattr(self, name) > MOST_STEPS:
                problems.append(f"{name} must be at most {MOST_STEPS:,} (32 bits); received {getattr(self, name):,}")
        for name in ("label_smoothing", "momentum", "adam_b1", "adam_b2", "ema_decay", "plateau_factor"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"{name} must be in [0, 1); received {getattr(self, name)}")
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate must be above 0, and finite; received {self.learning_rate}")
        if not 0.0 < self.rollback_factor < 1.0:
            problems.append(f"rollback_factor must be in (0, 1); received {self.rollback_factor}")
        if not 0.0 < self.relative_step < math.inf:
            problems.append(f"relative_step must be above 0, and finite; received {self.relative_step}")
        for name in ("clip_norm", "adam_eps", "weight_decay", "min_improvement"):
            if not 0.0 <= getattr(self, name) < math.inf:
                problems.append(f"{name} must be at least 0, and finite; received {getattr(self, name)}")
        if self.smoothing == "others_but_pad" and self.loss_counts_pads:
            problems.append(
                "loss_counts_pads must be false with smoothing='others_but_pad', which excludes padding; received true"
            )
        if self.schedule == "paper" and self.warmup_steps < 1:
            problems.append(f"warmup_steps must be at least 1 with schedule='paper'; received {self.warmup_steps}")
        if self.warmup_from_zero and self.schedule == "relative":
            problems.append("warmup_from_zero must be false with schedule='relative'; received true")
        if self.best_metric != "loss" and not self.evaluate_sentences:
            problems.append(f"evaluate_sentences must be at least 1 with best_metric={self.best_metric!r}; received 0")
        if self.lora.rank and self.freeze:
            problems.append(
                f"freeze must be empty with lora.rank={self.lora.rank}, which freezes everything but the adapters; "
                f"received {', '.join(self.freeze)}"
            )
        require(self, problems)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configures a training run: model, data, training, and devices.

    Raises:
      ConfigError: the parts contradict each other, such as a data.max_length above model.max_length.

    Example:
      >>> from jax_transformer import DataConfig, RunConfig, TransformerConfig
      >>> config = RunConfig(model=TransformerConfig(max_length=64), data=DataConfig(max_length=32))
      >>> config.train.max_steps
      100000
    """

    model: TransformerConfig = field(default_factory=TransformerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    init_from: str = ""
    """Model or run directory to start from (fine-tuning), or a name on the Hub, such as owner/name@revision. Empty:
    random weights."""
    init_optimizer: bool = False
    """Also continue the training state of the model at init_from: the optimizer's moments and the number of steps, as
    `port --with-optimizer` keeps them."""
    init_adapters_from: str = ""
    """Model or run directory, or a name on the Hub, whose LoRA adapters to start from, on the weights of init_from.
    They bring their rank, scale and targets. Empty: new adapters, if train.lora.rank is above 0."""
    run_dir: str = ""
    """New directory for the run. Empty: runs/PRESET, or the first free one of runs/PRESET-2, runs/PRESET-3, …"""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems: list[str] = []
        longest = self.data.max_length
        tables = [name for name in STACKS if isinstance(getattr(self.model, name).positions, Table)]
        lengths = dict.fromkeys(one for stack in tables for one in named_values(self.model, "max_length", stack))
        problems += [
            f"model.{name} must be at least data.max_length={longest}, the longest sentence trained on; received "
            f"{positions}; raise model.{name} or lower data.max_length"
            for name, positions in lengths
            if positions < longest
        ]
        if self.init_optimizer and not self.init_from:
            problems.append(
                "init_optimizer needs init_from, the model whose training state is continued; received none"
            )
        if self.init_optimizer and (self.train.lora.rank or self.init_adapters_from):
            problems.append(
                "init_optimizer must be false with train.lora, whose adapters have no state in the model; received true"
            )
        if self.init_optimizer and self.train.max_epochs:
            problems.append(
                "train.max_epochs must be 0 with init_optimizer, which counts on from the steps before; received "
                f"{self.train.max_epochs}; set train.max_steps"
            )
        if self.model.share_embeddings and not self.data.joint_vocabulary:
            problems.append("model.share_embeddings needs data.joint_vocabulary; received false")
        if self.train.accumulate > 1 and not self.model.batch_rows_are_independent:
            problems.append(
                f"train.accumulate must be 1 with model.position_index='batch_row', which depends on the row's number; "
                f"received {self.train.accumulate}"
            )
        if self.parallel.virtual_shards > 1 and not self.model.batch_rows_are_independent:
            problems.append(
                "parallel.virtual_shards must be 0 with model.position_index='batch_row', which depends on the row's "
                f"number; received {self.parallel.virtual_shards}"
            )
        if (self.train.lora.rank or self.init_adapters_from) and not self.init_from:
            problems.append(
                "init_from must name the model that the adapters of train.lora or init_adapters_from are for; received "
                "none"
            )
        if self.data.is_pretraining and self.train.best_metric != "loss":
            problems.append(
                "train.best_metric must be 'loss' in pretraining, without translations; received "
                f"{self.train.best_metric!r}"
            )
        require(self, problems + self._packing_problems())

    def _packing_problems(self) -> list[str]:
        problems = []
        if self.data.packing and self.model.packing_obstacle:
            problems.append(f"data.packing must be false with model.{self.model.packing_obstacle}; received true")
        masks_queries = {self.model.decoder_padding, self.model.cross_padding} & {"queries", "both"}
        if self.data.packing and masks_queries and self.data.pad_id == self.data.unk_id:
            problems.append(
                f"data.pad_id must not be data.unk_id={self.data.unk_id} with data.packing and "
                f"model.decoder_padding={self.model.decoder_padding!r}, model.cross_padding="
                f"{self.model.cross_padding!r}: an unknown token would attend to its whole row"
            )
        if self.data.packing and self.train.loss_counts_pads:
            problems.append("data.packing must be false with train.loss_counts_pads; received true")
        return problems


__all__ = ["CorpusConfig", "DataConfig", "LoraConfig", "RunConfig", "TrainConfig"]
