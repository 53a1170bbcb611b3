"""Fits a run's model to the corpus's tokenizers, the mesh and the memory.

The memory is estimated by arithmetic, before the corpus is read or anything is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jax.sharding import Mesh

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.config.shapes import count_constants, count_parameters
from jax_transformer.config.validation import ConfigError, require
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.parallel.mesh import platform_of
from jax_transformer.parallel.rules import check_divides
from jax_transformer.runtime.memory import gibibytes, host_memory, too_much

SLOTS = {"adam": 2, "muon": 1, "sgd": 1, "adafactor": 0}
"""Lower bound of the values that an optimizer keeps for each trained parameter."""


@dataclass(frozen=True)
class FittedRun:
    """Holds a run whose model fits the corpus and the devices."""

    config: RunConfig
    corpus: PreparedCorpus
    model: TransformerConfig
    """The config's model with the vocabulary sizes and pad ids of the corpus's tokenizers."""
    mesh: Mesh


def fit_run(config: RunConfig, corpus: PreparedCorpus, mesh: Mesh, *, into_memory: bool = True) -> FittedRun:
    """Returns the run with its model's sizes.

    Args:
      config: the run.
      corpus: its prepared corpus.
      mesh: its devices.
      into_memory: whether it must also fit into the memory of this machine.

    Raises:
      ConfigError: see `fit_config`; the mesh doesn't divide the model; the run can't fit into memory.
    """
    model = fit_config(config.model, corpus)
    check_divides(model, mesh)
    if into_memory:
        check_memory(config, model, mesh)
    return FittedRun(config, corpus, model, mesh)


def fit_config(model: TransformerConfig, corpus: PreparedCorpus) -> TransformerConfig:
    """Returns the config with the vocabulary sizes and pad ids of the corpus's tokenizers.

    A decoder_padding_id, if set, becomes the source's pad id.

    Raises:
      ConfigError: the config sets a vocabulary size that isn't its tokenizer's.
    """
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size}
    problems = [
        f"{name} must be {size}, the size of the tokenizer's vocabulary, or 0, which takes that size; "
        f"received {getattr(model, name)}"
        for name, size in sizes.items()
        if getattr(model, name) not in (0, size)
    ]
    require(model, problems)
    return model.replace(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        source_pad_id=source.pad_id,
        target_pad_id=target.pad_id,
        decoder_padding_id=None if model.decoder_padding_id is None else source.pad_id,
    )


class LeastMemory(NamedTuple):
    """Holds a lower bound of a run's memory in bytes, summed over all of its devices."""

    state: int
    """Parameters, their optimizer state, and their moving average."""
    batch: int
    """The embeddings of a batch's longer side. All further memory of a step depends on the compiler."""


def least_memory(config: RunConfig, model: TransformerConfig) -> LeastMemory:
    """Returns a lower bound of a run's memory. Leaves out anything uncertain: gradients, other activations, and with
    frozen parameters or adapters the optimizer's state.

    Args:
      config: the run.
      model: its model; a vocabulary of size 0 counts as empty.

    Example:
      >>> from jax_transformer import RunConfig
      >>> from jax_transformer.training.fitting import least_memory
      >>> least_memory(RunConfig(), RunConfig().model)
      LeastMemory(state=528482304, batch=1048576)
    """
    train, wide = config.train, 2 if config.init_from else 4  # an initial model may have values of 16 bits
    values = count_parameters(model)
    trained = 0 if train.freeze or train.lora.rank else values - count_constants(model)
    state = wide * (values + trained * (SLOTS[train.optimizer] + bool(train.ema_decay)))
    positions = config.data.batch_tokens // 4 // max(config.parallel.virtual_shards, 1)  # rows are rounded down twice
    return LeastMemory(state, 2 * positions * model.decoder.d_model)  # at least 16 bits each


def memory_problem(config: RunConfig, model: TransformerConfig, mesh: Mesh) -> str:
    """Describes the shortage if a run can't fit into the memory of this process or its devices; "" if it may fit.

    Args:
      config: the run.
      model: its model.
      mesh: its devices.
    """
    least = least_memory(config, model)
    parts = mesh.shape["fsdp"] * mesh.shape["tensor"]
    state, batch = least.state / parts, least.batch / mesh.size  # of rows, and of features along tensor
    if platform_of(mesh) == "cpu":
        local = len(mesh.local_devices)
        state, batch, (most, what) = state * min(local, parts), batch * local, host_memory()
    else:
        most = min((device.memory_stats() or {}).get("bytes_limit", 0) for device in mesh.local_devices)
        what = f"the memory of a device, {mesh.local_devices[0].device_kind}"
        if not most:
            return ""  # the device doesn't report its memory
    if state + batch <= most:
        return ""
    where = (
        f"memory: {gibibytes(int(state))} for parameters and optimizer, {gibibytes(int(batch))} for the embeddings of "
        f"a batch of {config.data.batch_tokens:,} tokens"
    )
    return too_much(int(state + batch), most, where, what)


def check_memory(config: RunConfig, model: TransformerConfig, mesh: Mesh) -> None:
    """Raises ConfigError, with the estimate, if the run can't fit into memory; see `memory_problem`."""
    problem = memory_problem(config, model, mesh)
    if problem:
        raise ConfigError(problem)
