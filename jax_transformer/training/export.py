"""Makes a run's model: the parameters of one checkpoint or the mean of several, with everything translation needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import merge_adapters, split_adapters
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.parallel.placement import RowShare, place_params, row_shards
from jax_transformer.runtime.files import read_bytes, read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES, TOKENIZER_BYTES
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.hub import is_missing_path
from jax_transformer.storage.model_directory import Model, generation_of, ignored_tensors_of, origin_of
from jax_transformer.storage.model_files import TOKENIZERS, tokenizer_files
from jax_transformer.storage.training_state import TrainingState, parse_training_state
from jax_transformer.training.averaging import average
from jax_transformer.training.checkpoints import CheckpointError, Checkpoints, saved_steps
from jax_transformer.training.evaluation import Split, mean_loss, split_batches
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.optimizer_state import OptimizerStateError, training_state
from jax_transformer.training.run_directory import CHECKPOINTS, CONFIG, CONTINUED, RunError, config_of_run, local_run
from jax_transformer.training.schedules import make_schedule, peak_rate
from jax_transformer.training.state import abstract_state, all_params
from jax_transformer.training.step import make_evaluation_step


def make_model(config: RunConfig, corpus: PreparedCorpus, params: Params) -> Model:
    """Returns a run's model with these parameters. By default it decodes at most as many tokens as the longest training
    sentence may have. Adapters are merged into the parameters, and also kept separately.

    If the run started from a model that still exists, the new model inherits its origin and decoding settings, and
    together with its tokenizers their transformers files. The new training data determine the lengths and, if the start
    id changes, the first token.
    """
    initial = "" if is_missing_path(config.init_from) else config.init_from
    target = corpus.target_tokenizer
    longest = config.train.max_decode_length or config.data.max_length
    model = fit_config(config.model, corpus)
    source_length = None if model.source_padding_is_invisible else _only_source_length(config, corpus)
    generation = GenerationConfig(
        decoder_start_id=corpus.frame.start_id,
        eos_id=target.eos_id,
        max_decode_length=longest,
        source_length=source_length,
        **_decoding_of_initial_model(initial, corpus.frame.start_id) | _first_token(config, corpus),
    )
    origin = origin_of(initial) if initial else None
    ignored = ignored_tensors_of(initial) if initial else None
    _, adapters = split_adapters(params)
    return Model(
        model,
        merge_adapters(params),
        corpus.source_tokenizer,
        target,
        generation,
        origin,
        tokenizer_files=_files_of_initial_tokenizers(config),
        ignored_tensors=ignored,
        adapters=Adapters(config.train.lora, adapters) if adapters else None,
    )


def check_initial_models(config: RunConfig) -> None:
    """Raises RunError if a local model that a run starts from is gone. (The Hub may have a different model of this
    name.)"""
    for option in ("init_from", "init_adapters_from"):
        path = getattr(config, option)
        if is_missing_path(path):
            raise RunError(
                f"{option}: expected the model that the run starts from; there is no directory {path}; put it back, or "
                "go on in the working directory in which the run began"
            )


def _decoding_of_initial_model(path: str, start_id: int) -> dict[str, Any]:
    """Returns the fields of GenerationConfig that are inherited from the initial model; none without one."""
    own = generation_of(path) if path else None
    if own is None:
        return {}
    other = {"max_new_tokens", "min_new_tokens"} | ({"forced_bos_id"} if own.decoder_start_id != start_id else set())
    return {name: value for name, value in own.decoding.items() if name not in other}


def _files_of_initial_tokenizers(config: RunConfig) -> dict[str, bytes] | None:
    """Returns the initial model's tokenizer files; None if it has none, or if the run has other tokenizers."""
    data = config.data
    directory = Path(data.source_tokenizer).parent
    are_own = [data.source_tokenizer, data.target_tokenizer] == [str(directory / name) for name in TOKENIZERS.values()]
    if not (config.init_from and data.tokenizers_as_stored and are_own):
        return None
    files = (directory / name for name in tokenizer_files(directory))
    return {file.name: read_bytes(file, TOKENIZER_BYTES) for file in files} or None


def _first_token(config: RunConfig, corpus: PreparedCorpus) -> dict[str, Any]:
    """Forces the first token of translations to be the targets' tag, if all targets have one and it doesn't start the
    decoder."""
    target, tags = corpus.target_tokenizer, {part.target_tag for part in config.data.corpora}
    if len(tags) != 1 or target.tag_is_last or not (tag := tags.pop()):
        return {}
    return {"forced_bos_id": target.tag_ids[tag]}


def _only_source_length(config: RunConfig, corpus: PreparedCorpus) -> int | None:
    """Returns the length to which training pads all sources; None if there are several, or if it is unknown before
    training."""
    data = config.data
    if data.num_shapes > 1 or data.streaming or data.subword_sampling or data.is_pretraining:
        return None
    pairs = corpus.splits["train"]
    return int(pairs.source_lengths[pairs.usable_indices].max())


class TrainedModel(NamedTuple):
    """Holds a run's model at a checkpoint, with its training state and the values needed to write it."""

    model: Model
    state: TrainingState
    """The training state, including all fields of TrainConfig and the learning rate of the next step."""
    peak_rate: float
    former: TrainingState | None
    """The training state that the run continued."""


def load_training_model(run: str | Path, step: int | None = None) -> TrainedModel:
    """Returns a run's model at a checkpoint with its training state. The run may still be training.

    The parameters are the trained ones, not their moving average.

    Args:
      run: the run's directory, here or in a bucket.
      step: the step of the checkpoint. None: the latest.

    Raises:
      CheckpointError: no run at this path, or no such checkpoint.
      RunError: the model whose training the run continued is gone.
      OptimizerStateError: the run's optimizer is Muon, or it trains LoRA adapters instead of the model's parameters.
    """
    path = local_run(run, CHECKPOINTS)
    config = _config_of_run(path)
    if config.train.lora.rank:
        raise OptimizerStateError(
            f"{path}: expected a run that trains the model's own parameters; received one that trains LoRA adapters, "
            "whose optimizer's state has no place in its checkpoint"
        )
    corpus = prepare(config.data)
    model = fit_config(config.model, corpus)
    checkpoints = Checkpoints(path / CHECKPOINTS, config.train, read_only=True)
    try:
        known = saved_steps(path / CHECKPOINTS)
        step = max(known, default=None) if step is None else step
        if step is None or step not in known:
            have = ", ".join(map(str, known)) or "none"
            raise CheckpointError(f"{path}: expected a step with a checkpoint ({have}); received {step}")
        mesh = make_mesh(devices=jax.devices()[:1])
        state = checkpoints.restore(step, abstract_state(model, config.train, mesh=mesh))
    finally:
        checkpoints.close()
    with jax.enable_x64(True):
        rate = float(make_schedule(config.train, model.d_model)(int(state.step))) * float(state.rate_scale)
    saved = dataclasses.replace(
        training_state(state, config.train), train=dataclasses.asdict(config.train), next_rate=rate
    )
    former = _continued_state(path) if config.init_optimizer else None
    params = jax.tree.map(np.asarray, all_params(state))
    return TrainedModel(make_model(config, corpus, params), saved, peak_rate(config.train, model.d_model), former)


def _continued_state(path: Path) -> TrainingState:
    """Reads the run's record of the training state that it continued.

    Raises:
      CheckpointError: the record can't be read.
    """
    try:
        return parse_training_state(parse_json(read_text(path / CONTINUED, JSON_BYTES)))
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path / CONTINUED}: expected the description of a training state; received another ({error!r})"
        ) from None


def _config_of_run(path: Path) -> RunConfig:
    """Reads the config of a run that has checkpoints. Raises CheckpointError if there is none."""
    if not (path / CONFIG).is_file() or not (path / CHECKPOINTS).is_dir():
        raise CheckpointError(f"{path}: expected a run directory with checkpoints; received none")
    return config_of_run(path)


def load_averaged_model(run: str | Path, which: str, count: int, mesh: Mesh | None = None) -> Model:
    """Averages the `count` "last" or "best" evaluated checkpoints of a run, or all if fewer. The run may still be
    training. `Model.training` includes the validation loss.

    Args:
      run: the run's directory, here or in a bucket. It may have been trained on other devices.
      which: "last" or "best".
      count: the number of checkpoints.
      mesh: the devices that share the checkpoints and the validation. None: JAX's default device.

    Raises:
      CheckpointError: no run at this path, or one without checkpoints.
      ConfigError: the mesh doesn't divide the model.
      ValueError: the run's corpus can't be read (see `prepare`).
    """
    mesh = make_mesh(devices=jax.devices()[:1]) if mesh is None else mesh
    path = local_run(run, CHECKPOINTS)
    config = _config_of_run(path)
    corpus = prepare(config.data)
    model = fit_config(config.model, corpus)
    like = abstract_state(model, config.train, mesh=mesh)
    checkpoints = Checkpoints(path / CHECKPOINTS, config.train, read_only=True)
    try:
        steps = checkpoints.steps_to_keep(which, count)
        if not steps:
            raise CheckpointError(
                f"{path}: expected a run directory with checkpoints; received one without a finished one"
            )
        params = average(checkpoints, steps, like)
    finally:
        checkpoints.close()
    valid = Split.lay_out(corpus.splits["valid"], config.data.batch_tokens)
    share = RowShare(mesh, row_shards(mesh))
    batches = split_batches(valid, corpus, share)
    averaged = make_model(config, corpus, params)
    loss = mean_loss(make_evaluation_step(model, mesh), place_params(averaged.params, mesh), batches)
    training = {"step": steps[-1], "checkpoints": steps, "valid_loss": loss}
    return dataclasses.replace(averaged, training=training)
