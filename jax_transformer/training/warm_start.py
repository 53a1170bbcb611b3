"""Fine-tuning: starts a run from the parameters and tokenizers of an existing model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.described import differences
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.presets import OF_INITIAL_MODEL, PRESETS
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.short_names import holders, option_at, short_names, with_values
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.model.functional import Params
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import Model, find_model, load_model
from jax_transformer.storage.model_files import TOKENIZERS
from jax_transformer.storage.training_state import TrainingState

MAY_DIFFER = {
    "dropout_rate",
    "embedding_dropout_rate",
    "attention_dropout_rate",
    "feed_forward_dropout_rate",
    "output_dropout_rate",
    "initializer",
    "compute_dtype",
    "attention_path",
    "layer_loop",
    "remat",
    "trains_pad_embedding",
    "trains_pad_position",
}
"""Options that may differ between the model and the run: none changes the function computed without dropout."""
OF_RUN = {"initializer", "compute_dtype", "attention_path", "layer_loop", "remat"}
"""The subset that affects execution only."""

PROBES = 100
"""Number of validation sentences for comparing tokenizers."""
DECIDING = {
    "source_tokenizer": "lowercase, normalization, tokenizer, source_bos and source_eos",
    "target_tokenizer": "lowercase, normalization and target_kind",
}


class InitialModelError(ValueError):
    """Raised when a run can't start from a model."""


@dataclass(frozen=True)
class InitialModel:
    """Holds the model that a run starts from."""

    path: str
    model: Model
    adapters_path: str = ""
    adapters: Adapters | None = None
    """The adapters that the run continues to train."""

    @property
    def training_state(self) -> TrainingState:
        """Returns the training state that a run continues. Raises InitialModelError if there is none."""
        if self.model.training_state is None:
            raise InitialModelError(
                "init_optimizer: expected a model with a training state, as port --with-optimizer keeps; received "
                f"{self.path}"
            )
        return self.model.training_state

    def check(self, config: TransformerConfig, corpus: PreparedCorpus) -> None:
        """Raises InitialModelError, with all differences, unless the model's config and tokenizers are the run's.

        Args:
          config: the run's model, with its vocabulary sizes.
          corpus: the run's corpus.
        """
        as_theirs = _with_options(config, _options(self.model.config))
        problems = [
            f"model.{name}: the run has {ours!r}, {self.path} has {theirs!r}"
            for name, (ours, theirs) in differences(as_theirs, self.model.config).items()
        ]
        for side in TOKENIZERS:
            theirs, ours = getattr(self.model, side), getattr(corpus, side)
            if theirs is None:
                continue
            if not theirs.has_vocabulary_of(ours):
                file = _directory(self.path) / TOKENIZERS[side]
                problems.append(
                    f"data.{side}: the run has another vocabulary than {self.path}; leave both empty, or set it to "
                    f"{file}"
                )
            elif difference := _difference(ours, theirs, _probes(corpus, side)):
                problems.append(
                    f"data.{side}: {difference} in {self.path}; {DECIDING[side]} must be as they were for that model"
                )
        if problems:
            what = f"init_from: expected a model of the run's config and tokenizers; received {self.path}:"
            raise InitialModelError("\n  - ".join([what, *problems]))

    def adapted(self, params: Params) -> Params:
        """Returns a model's parameters in float32, with the unmerged adapters, if any."""
        adapters = flatten(self.adapters.params) if self.adapters else {}
        return {name: _in_float32(subtree) for name, subtree in unflatten(flatten(params) | adapters).items()}


def load_initial_model(path: str, adapters_path: str = "") -> InitialModel | None:
    """Loads the model at `path`, without its parameters, and the adapters of the model at `adapters_path`, if any.
    Returns None without a path.

    Raises:
      InitialModelError: no adapters at that path, or the model contains them already.
      ModelError: see `load_model`.
    """
    if not path:
        return None
    model = dataclasses.replace(load_model(path), params={}, ignored_tensors=None)
    if not adapters_path:
        return InitialModel(path, model)
    adapters = _adapters(adapters_path)
    if _are_same(adapters, model.adapters):
        raise InitialModelError(
            f"init_from: expected the model that the adapters of {adapters_path} were trained on; received "
            f"{path}, whose parameters contain these adapters"
        )
    return InitialModel(path, model, adapters_path, adapters)


def follow_initial_model(config: RunConfig, initial: InitialModel | None) -> RunConfig:
    """Completes the config of a run that starts from a model.

    - If the run's model is a preset's, the initial model's config replaces it. The run keeps its own value of each
      option in OF_RUN, and of each in MAY_DIFFER that it sets to another value than the preset.
    - If `data` names no tokenizers, the model's are taken. A model ported from transformers also determines the tokens
      around targets.
    - With `init_optimizer`, the model's training state fills the training options that the run leaves as in the preset
      finetune.
    - Adapters determine their rank, scale and targets.

    Raises:
      InitialModelError: the preset finetune without a model; a model without a training state to continue; options
        that contradict the adapters.
    """
    if initial is None:
        if _is_variant_of(config.model, OF_INITIAL_MODEL):
            raise InitialModelError("finetune: expected --init-from MODEL, the model to train further; received none")
        return config
    model, train = initial.model, config.train
    ours, data = _followed(config.model, model.config), config.data
    if not data.source_tokenizer and model.source_tokenizer is not None and model.target_tokenizer is not None:
        directory = _directory(initial.path)
        source, target = (str(directory / name) for name in TOKENIZERS.values())
        # the tokenizer files include their own normalization
        data = dataclasses.replace(
            data, source_tokenizer=source, target_tokenizer=target, lowercase=False, normalization="none"
        )
        if "hugging_face" in (model.origin or {}):
            data = dataclasses.replace(
                data,
                tokenizers_as_stored=True,
                decoder_start_id=_training_start(model),
                target_bos=model.source_tokenizer.adds_bos,
            )
    joint = data.joint_vocabulary or (ours.share_embeddings and bool(data.source_tokenizer))
    data = dataclasses.replace(data, joint_vocabulary=joint)
    if config.init_optimizer:
        train = _as_trained(train, initial.training_state)
    if initial.adapters:
        train = _with_adapters(train, initial.adapters.config, initial.adapters_path)
    return dataclasses.replace(
        config, model=ours, data=data, train=train, init_from=initial.path, init_adapters_from=initial.adapters_path
    )


def _training_start(model: Model) -> int | None:
    """Returns the id that starts a target in training. transformers takes it from config.json if present, whichever id
    `generate` starts with."""
    config: dict[str, Any] = (model.origin or {})["hugging_face"]["config"]
    start_id = config.get("decoder_start_token_id")
    return int(start_id) if isinstance(start_id, int | float) else model.generation.decoder_start_id


def _as_trained(train: TrainConfig, state: TrainingState) -> TrainConfig:
    """Fills the options that equal the preset finetune from the training state."""
    usual = PRESETS["finetune"]().train
    unset = {name for name in state.train if getattr(train, name) == getattr(usual, name)}
    saved: dict[str, Any] = {name: _plain(value) for name, value in state.train.items() if name in unset}
    return dataclasses.replace(train, **saved)


def _plain(value: Any) -> Any:
    """Turns a JSON value into the config's: a list becomes a tuple."""
    return tuple(value) if isinstance(value, list) else value


def load_training_state(path: str) -> TrainingState:
    """Reads the training state of the model at `path`.

    Raises:
      InitialModelError: the model has none.
      ModelError: see `load_model`.
    """
    return InitialModel(path, load_model(path, mapped=True)).training_state


def continuation_lines(config: RunConfig, state: TrainingState, rate: float) -> Iterator[str]:
    """Yields lines on the training state that the run continues, and on the options that differ from that training.

    Args:
      config: the run.
      state: the training state that it continues.
      rate: the learning rate of the run's next step.
    """
    yield f"continuing at step {state.step:,} with the {state.optimizer} state of {config.init_from}"
    for name, value in state.train.items():
        ours = getattr(config.train, name)
        if ours != _plain(value):
            yield f"note: train.{name}: {ours!r} in this run, {value!r} in the training before it"
    if state.next_rate is not None and not math.isclose(rate, state.next_rate, rel_tol=1e-6):
        yield (
            f"note: the next learning rate is {rate:.6g} in this run, and {state.next_rate:.6g} in the schedule before "
            "it; to go on as it would have, set train.schedule, learning_rate, warmup_steps, warmup_from_zero and "
            "max_steps as they were"
        )


def _with_adapters(train: TrainConfig, theirs: LoraConfig, path: str) -> TrainConfig:
    """Returns the config with the rank, scale and targets of the adapters at `path`, from which the run starts.

    Raises:
      InitialModelError: the run sets a different value.
    """
    ours, usual = train.lora, LoraConfig()
    for name in (field.name for field in dataclasses.fields(LoraConfig)):
        if getattr(ours, name) not in (getattr(usual, name), getattr(theirs, name)):
            raise InitialModelError(
                f"train.lora.{name}: the run has {getattr(ours, name)!r}, the adapters of {path} "
                f"have {getattr(theirs, name)!r}; leave it out"
            )
    return dataclasses.replace(train, lora=theirs)


def _adapters(path: str) -> Adapters:
    """Returns the adapters of the model at `path`. Raises InitialModelError if it has none."""
    adapters = load_model(path, mapped=True).adapters
    if adapters is None:
        raise InitialModelError(
            f"init_adapters_from: expected a model with LoRA adapters, from a run with train.lora.rank or from "
            f"jax-transformer port; received {path}, which has none"
        )
    return adapters


def _are_same(first: Adapters, second: Adapters | None) -> bool:
    """Checks whether two models' adapters add the same values to their kernels."""
    if second is None or first.config.scale != second.config.scale:
        return False
    here, there = flatten(first.params), flatten(second.params)
    return here.keys() == there.keys() and all(np.array_equal(leaf, there[path]) for path, leaf in here.items())


def _followed(ours: TransformerConfig, theirs: TransformerConfig) -> TransformerConfig:
    """Returns the initial model's config, with the options that the run may set, if the run's model is a preset's;
    otherwise the run's own."""
    for preset in (preset().model for preset in PRESETS.values()):
        if _is_variant_of(ours, preset):
            usual = _options(preset)
            chosen = {at: value for at, value in _options(ours).items() if at[0] in OF_RUN or value != usual[at]}
            return _with_options(theirs, chosen)
    return ours


def _is_variant_of(ours: TransformerConfig, preset: TransformerConfig) -> bool:
    """Checks whether a config differs from a preset's only in options that may differ."""
    return _with_options(preset, _options(ours)) == ours


def _options(config: TransformerConfig) -> dict[tuple[str, str], Any]:
    """Returns the options that may differ, at every place in the config: (short name, path) → value."""
    found: dict[tuple[str, str], Any] = {("initializer", "initializer"): config.initializer}
    for name in MAY_DIFFER & short_names().keys():
        at = option_at(name)
        assert at is not None
        found |= {(name, f"{place}.{at.field}"): getattr(part, at.field) for place, part in holders(config, at)}
    return found


def _with_options(config: TransformerConfig, options: Mapping[tuple[str, str], Any]) -> TransformerConfig:
    """Returns the config with these values at their paths."""
    changed: TransformerConfig = with_values(config, {path: value for (_, path), value in options.items()})
    return changed


def load_initial_params(
    path: str, config: TransformerConfig, corpus: PreparedCorpus, adapters_path: str = ""
) -> Params:
    """Loads the parameters of the model at `path`, in float32, for a run of `config` (with vocabulary sizes) on
    `corpus`, with the unmerged adapters of the model at `adapters_path`, if any.

    Raises:
      InitialModelError: see `InitialModel.check`.
      ModelError: see `load_model`.
    """
    model = load_model(path)
    initial = InitialModel(path, model, adapters_path, _adapters(adapters_path) if adapters_path else None)
    initial.check(config, corpus)
    return initial.adapted(model.params)


def _probes(corpus: PreparedCorpus, side: str) -> list[str]:
    """Returns sentences for comparing tokenizers: the first validation sentences, also in capitals."""
    valid = corpus.splits["valid"]
    sentences = valid.source_sentences if side == "source_tokenizer" else valid.target_sentences
    texts = sentences.texts(np.arange(min(len(valid), PROBES)))
    return [*texts, *(text.upper() for text in texts)]


def _difference(ours: Tokenizer, theirs: Tokenizer, sentences: list[str]) -> str:
    """Describes the first sentence whose ids differ; "" if none do."""
    for sentence, here, there in zip(sentences, ours.encode(sentences), theirs.encode(sentences), strict=True):
        if here != there:
            return f"{sentence!r} is {' '.join(ours.tokens(here))} in the run, and {' '.join(theirs.tokens(there))}"
    return ""


def _in_float32(tree: Params | np.ndarray) -> Params | np.ndarray:
    return (
        {name: _in_float32(subtree) for name, subtree in tree.items()}
        if isinstance(tree, dict)
        else tree.astype(np.float32)
    )


def _directory(path: str) -> Path:
    """Returns the model directory that `path` names, with an absolute path."""
    return find_model(path).absolute()
