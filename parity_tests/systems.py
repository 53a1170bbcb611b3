"""The published systems as pairs: a program in PyTorch with random weights, and the JAX model imported from them.

All sizes of a model differ pairwise, pad ids are tokens of both languages, and every parameter is random, biases and
the scales of norms included, so that mistakes show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.systems import SystemReference
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.problems import Problem, own_problem
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.importing import import_checkpoint
from jax_transformer.storage.model_directory import Model
from torch_reference import annotated_zh, codersarts, floydhub, harvard, hyunwoongko, pytorch, sayhello, stepwise


class System(NamedTuple):
    """Describes a published system, or one of its variants."""

    dialect: str
    build: Callable[..., nn.Module]
    hints: Mapping[str, Any] = MappingProxyType({})
    """The hints for import that describe the variant, in addition to heads and pad ids."""
    heads: tuple[tuple[int, int], ...] = ((3, 4), (4, 5), (5, 4), (3, 6), (6, 5))
    """(num_heads, head_dim) to choose from."""

    @property
    def computes_positions(self) -> bool:
        """Whether its checkpoints hold no position table."""
        return get_dialect(self.dialect).computes_positions


def _step(rung: int, dialect: str) -> System:
    heads = {} if rung == stepwise.HEADS else {"heads": ((1, 14), (1, 16), (1, 18))}
    return System(dialect, partial(stepwise.StepwiseTransformer, rung=rung), **heads)


def _pytorch(**options: Any) -> System:
    return System("pytorch", partial(pytorch.PytorchTransformer, **options), options)


SYSTEMS = {
    "floydhub": System("floydhub", floydhub.FloydhubTransformer),
    "annotated_zh": System("annotated_zh", annotated_zh.AnnotatedZhTransformer),
    "harvard": System("harvard", harvard.HarvardTransformer),
    "codersarts": System("codersarts", codersarts.CodersartsTransformer),
    "codersarts_as_meant": System(
        "codersarts",
        partial(codersarts.CodersartsTransformer, position_index="column"),
        {"position_index": "column"},
    ),
    "sayhello": System("sayhello", sayhello.SayhelloTransformer),
    "sayhello_article": System("sayhello", partial(sayhello.SayhelloTransformer, attention_bias=True)),
    "hyunwoongko": System("hyunwoongko", hyunwoongko.HyunwoongkoTransformer),
    "stepwise_core": _step(stepwise.CORE, "stepwise_core"),
    "stepwise_batches": _step(stepwise.BATCHES, "stepwise_core"),
    "stepwise_masks": _step(stepwise.MASKS, "stepwise_masks"),
    "stepwise_positions": _step(stepwise.POSITIONS, "stepwise_positions"),
    "stepwise_layers": _step(stepwise.LAYERS, "stepwise_layers"),
    "stepwise_sublayers": _step(stepwise.SUBLAYERS, "stepwise_sublayers"),
    "stepwise": _step(stepwise.HEADS, "stepwise"),
    "pytorch_post_relu": _pytorch(norm_first=False, activation="relu"),
    "pytorch_pre_gelu": _pytorch(norm_first=True, activation="gelu"),
}
TIED = {
    "pytorch_pre_gelu_tied_head": _pytorch(norm_first=True, activation="gelu", tie_head=True, norm_eps=1e-3),
    "pytorch_post_gelu_all_tied": _pytorch(norm_first=False, activation="gelu", share_embeddings=True, tie_head=True),
}
"""Variants in which one parameter has several names."""


@dataclass(frozen=True)
class Case:
    """Holds one system in both frameworks, and a problem for both."""

    system: System
    hints: Mapping[str, Any]
    """The hints for import, except a position table that checkpoints don't hold."""
    program: nn.Module
    """The program, built from its own arguments, in float64; its parameters and tables are numbers of float32."""
    model: Model
    """The model imported from the program's checkpoint in float32, tables included."""
    problem: Problem
    """The model's own weights; labels include rows that may attend to nothing, except for `pytorch`, whose gradients
    differ there (test_pytorch.py)."""
    candidate: JaxSide
    reference: TorchSide

    @property
    def config(self) -> TransformerConfig:
        return self.model.config

    def ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        source_ids, decoder_input_ids = map(torch.from_numpy, self.problem.ids)
        return source_ids, decoder_input_ids

    def decoding(self, eos_id: int, config: TransformerConfig | None = None) -> tuple[JaxSide, TorchSide]:
        """Returns both sides of the model with another end token; with another config, the JAX side decodes by it."""
        generation = GenerationConfig(decoder_start_id=START_ID, eos_id=eos_id)
        model = dataclasses.replace(self.model, generation=generation)
        candidate = dataclasses.replace(model, config=config or self.config)
        return JaxSide("jax", candidate), TorchSide("torch", model, self.reference.reference)


START_ID = 5
"""The first decoder input of decoding."""


@cache
def make_case(name: str, **sizes: int) -> Case:
    """Returns the case of one of SYSTEMS or TIED, the same at each call.

    Args:
      sizes: arguments of the program that replace the drawn ones, such as max_length.
    """
    rng, system = np.random.default_rng([*name.encode()]), (SYSTEMS | TIED)[name]
    arguments = make_arguments(rng, system) | sizes
    program = system.build(**arguments, dtype=torch.float64).eval()
    randomise(program, rng)
    hints = {name: arguments[name] for name in ("num_heads", "source_pad_id", "target_pad_id")} | dict(system.hints)
    if system.dialect.startswith("stepwise") and system.dialect != "stepwise":
        del hints["num_heads"]
    batch = _problem(_import(program, system, hints), system).ids
    balance(program, batch)
    program.float().double()  # tables are numbers of float32, too
    model = _import(program, system, hints)
    reference = SystemReference(system.dialect, model.config, model.params.get("constants", {}))
    sides = JaxSide("jax", model), TorchSide("torch", model, reference)
    return Case(system, hints, program, model, _problem(model, system), *sides)


def _import(program: nn.Module, system: System, hints: Mapping[str, Any]) -> Model:
    tensors = {name: tensor.float() for name, tensor in program.state_dict().items()}
    table = {"position_table": program.encoder.emb.positions.float()} if system.computes_positions else {}
    return import_checkpoint(tensors, system.dialect, **hints, **table)


def _problem(model: Model, system: System) -> Problem:
    problem = own_problem(model.config, model.params)
    if system.dialect == "pytorch":
        return problem
    labels = np.random.default_rng(0).integers(model.config.target_vocab_size, size=problem.labels.shape)
    return dataclasses.replace(problem, labels=labels)


def make_arguments(rng: np.random.Generator, system: System) -> dict[str, Any]:
    """Draws sizes that differ pairwise (except the vocabularies of a shared embedding), and two pad ids, each a token
    of both languages."""
    num_heads, head_dim = (int(size) for size in rng.choice(np.array(system.heads)))
    d_ff, source_vocab_size, target_vocab_size, max_length = (
        int(size) for size in rng.choice(np.arange(41, 60), 4, replace=False)
    )
    if system.hints.get("share_embeddings"):
        source_vocab_size = target_vocab_size
    source_pad_id, target_pad_id = (
        int(token) for token in rng.choice(min(source_vocab_size, target_vocab_size), 2, replace=False)
    )
    sizes = {
        "source_vocab_size": source_vocab_size,
        "target_vocab_size": target_vocab_size,
        "d_model": num_heads * head_dim,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "max_length": max_length,
        "source_pad_id": source_pad_id,
        "target_pad_id": target_pad_id,
    }
    if not system.dialect.startswith("stepwise"):
        return sizes | {"num_encoder_layers": 3, "num_decoder_layers": 2}
    return sizes | {"num_layers": 2 if system.dialect in ("stepwise", "stepwise_sublayers", "stepwise_layers") else 1}


def layers(name: str, encoder: int, decoder: int) -> dict[str, int]:
    """Returns the sizes of `make_case` for this depth; the stepwise ladder has 1 layer, or its usual number."""
    is_ladder = (SYSTEMS | TIED)[name].dialect.startswith("stepwise")
    if not is_ladder:
        return {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
    return {"num_layers": 1} if decoder == 1 else {}


def randomise(model: nn.Module, rng: np.random.Generator) -> None:
    """Draws every parameter, scales of norms around 1, as numbers of float32."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            values = rng.standard_normal(parameter.shape)
            values *= 1.3 / np.sqrt(parameter.shape[-1]) if parameter.ndim == 2 else 0.4
            if path.rsplit(".")[-1] in ("alpha", "a_2", "gamma") or ("norm" in path and path.endswith("weight")):
                values += 1.0
            parameter.copy_(torch.from_numpy(values).float())


def balance(model: nn.Module, batch: tuple[np.ndarray, np.ndarray]) -> None:
    """Subtracts the batch's mean logits from the head's bias, so that no token is the most likely at every position.

    Random biases, those of norms above all, add the same large part to every position; after a few layers it alone
    would choose the tokens.
    """
    *_, head_bias = model.parameters()
    with torch.no_grad():
        head_bias.copy_((head_bias - model(*map(torch.from_numpy, batch)).mean(dim=(0, 1))).float())


def bits(tensors: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...], str, bytes]]:
    """Returns name, shape, dtype and bytes of torch tensors or arrays, in their order."""
    arrays = {
        name: value.view(torch.uint8) if isinstance(value, torch.Tensor) else value for name, value in tensors.items()
    }
    return [
        (name, tuple(tensors[name].shape), str(tensors[name].dtype), np.asarray(array).tobytes())
        for name, array in arrays.items()
    ]
