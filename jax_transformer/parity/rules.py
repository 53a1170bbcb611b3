"""The rules by which both sides of a parity run should train and decode, and a user's own programs that follow them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.tolerances import TRAJECTORY_STEPS
from jax_transformer.comparison.sides import Path
from jax_transformer.config.decoding import DEFAULTS, DecodingConfig
from jax_transformer.config.files import load_config
from jax_transformer.config.run import RunConfig, TrainConfig

SETUP = TrainConfig(
    optimizer="adam",
    weight_decay=0.02,
    weight_decay_kind="decoupled",
    schedule="paper",
    warmup_steps=400,
    adam_b1=0.9,
    adam_b2=0.98,
    adam_eps=1e-8,
    clip_norm=0.7,
    label_smoothing=0.1,
    max_steps=TRAJECTORY_STEPS,
)
"""The rule of the built-in programs, with everything on in which programs differ: Adam with decoupled decay, clipped
gradients and a warm-up; smoothed labels."""

LOSS_FIELDS = ("label_smoothing", "smoothing", "loss_counts_pads")
"""The fields of TrainConfig that define the loss."""
UPDATE_FIELDS = (
    *("optimizer", "momentum", "adam_b1", "adam_b2", "adam_eps", "weight_decay", "weight_decay_kind", "clip_norm"),
    *("schedule", "learning_rate", "warmup_steps", "repeats_first_rate", "restart_steps", "restart_factor"),
    *("max_steps", "warmup_from_zero", "no_decay", "adam_eps_uncorrected", "factored_from", "scale_by_parameter"),
    *("factored_eps", "relative_step"),
)
"""The fields of TrainConfig that define an optimizer step."""
SEARCH_FIELDS = ("beam_size", "max_new_tokens", "semantics", "length_penalty", "early_stopping")
"""The fields of DecodingConfig that a user's decoder can be compared by."""


@dataclass(frozen=True)
class Programs:
    """Holds a user's own programs for one side. None: the built-in one runs."""

    loss: Callable[..., Any] | None = None
    """PyTorch: (logits [B, T, V], labels [B, T]) → a scalar. JAX: the same → losses [B, T], as `make_train_step` takes
    it."""
    optimizer: Any = None
    """PyTorch: module → an object with `zero_grad()` and `step()`. JAX: an optax.GradientTransformation."""
    decode: Callable[..., Any] | None = None
    """PyTorch: (module, source_ids [B, S], start_id=, eos_id=, max_new_tokens=) → ids [B, T], without the start
    token, or (ids, scores [B])."""


@dataclass(frozen=True)
class Rules:
    """Says how both sides should train and decode."""

    train: TrainConfig = SETUP
    knows_loss: bool = True
    """Whether `train` defines the loss; false if both sides run a user's and no config says what they should
    compute."""
    knows_update: bool = True
    """Whether `train` defines the optimizer step."""
    decoding: DecodingConfig | None = None
    """The search that the user's decoder should run, with every option set. None: the built-in searches run."""
    own: frozenset[str] = frozenset()
    """Which of "loss", "optimizer" and "decode" are the user's."""


NO_PROGRAMS = Programs()
BUILT_IN = Rules()


def make_rules(
    source: Any,
    train: TrainConfig | Path | None,
    decoding: DecodingConfig | None,
    candidate: Programs,
    reference: Programs,
) -> Rules:
    """Returns the rules for these programs: the config's where a user's program runs, SETUP elsewhere.

    Args:
      source: the candidate. Where a PyTorch program has no partner in JAX, and the candidate is a run, it follows this
        run's config.
      train: the config to follow instead, or its file.
      decoding: the search that a decoder should make.
      candidate, reference: the programs of both sides.

    Raises:
      ConfigError: a file that is no config.
      ParityError: no program that a rule is for, or no rule for a program; a rule that a parity run can't follow.
    """
    has_no_partner = any(getattr(reference, one) and not getattr(candidate, one) for one in ("loss", "optimizer"))
    if train is None and isinstance(source, str | os.PathLike) and has_no_partner:
        train = _config_of_run(source)
    if isinstance(train, str | os.PathLike):
        train = load_config(_config_of_run(train) or os.fspath(train), RunConfig()).train
    _check(train, candidate, reference, decoding)
    merged, given = SETUP, train or SETUP
    for one, fields in (("loss", LOSS_FIELDS), ("optimizer", UPDATE_FIELDS)):
        if getattr(reference, one) is not None:
            merged = dataclasses.replace(merged, **{name: getattr(given, name) for name in fields})
    search = {**DEFAULTS, **(decoding.given if decoding else {})}
    return Rules(
        merged,
        knows_loss=train is not None or reference.loss is None,
        knows_update=train is not None or reference.optimizer is None,
        decoding=None if reference.decode is None else DecodingConfig(**search),
        own=frozenset(name for name, program in vars(reference).items() if program is not None),
    )


def _config_of_run(directory: Path) -> str | None:
    """Returns the path of a run's config; None if the directory is no run."""
    path = os.path.join(directory, "config.yaml")
    return path if os.path.isfile(path) else None


def _check(
    train: TrainConfig | None, candidate: Programs, reference: Programs, decoding: DecodingConfig | None
) -> None:
    for name in ("loss", "optimizer"):
        theirs, ours = getattr(reference, name), getattr(candidate, name)
        if ours is not None and theirs is None:
            raise ParityError(f"jax_{name}: expected {name} too, the PyTorch program to compare it with")
        if theirs is not None and ours is None and train is None:
            raise ParityError(
                f"{name}: expected train, the TrainConfig that it should follow (--train FILE), or jax_{name} to "
                "compare it with"
            )
    if train is not None and reference.loss is None and reference.optimizer is None:
        raise ParityError("train: expected a loss or an optimizer that should follow it; received neither")
    if train is not None and train.freeze:
        raise ParityError(f"train: expected no frozen parameters; received freeze={', '.join(train.freeze)}")
    if train is not None and train.lora.rank:
        raise ParityError(f"train: expected no adapters; received lora.rank={train.lora.rank}")
    if decoding is not None and reference.decode is None:
        raise ParityError("decoding: expected decode too, the function that should search so")
    others = [name for name in (decoding.given if decoding else ()) if name not in SEARCH_FIELDS]
    if others:
        raise ParityError(f"decoding: expected only {', '.join(SEARCH_FIELDS)}; received {others[0]}")
    if decoding is not None and decoding.semantics == "floydhub":
        raise ParityError("decoding: expected semantics huggingface or gnmt; received floydhub")
