"""The published systems as pairs: a reference in PyTorch with random weights, the JAX model that they are imported
into, and a batch.

Inputs are such that mistakes show: all sizes differ pairwise; padding stands right, left and inside; there are a
sentence of one token and one of nothing but padding; pad ids are anywhere, and others on either side; every parameter
is random, biases and the scales of norms included.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as torch_functional

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.porting.convert import import_checkpoint
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.runtime.trees import flatten
from torch_reference import annotated_zh, codersarts, floydhub, harvard, hyunwoongko, pytorch, sayhello, stepwise
from torch_reference.trace import Trace


class System(NamedTuple):
    """A published system, or one of its variants."""

    dialect: str
    build: Callable[..., nn.Module]
    greedy: Callable[..., torch.Tensor]
    hints: Mapping[str, Any] = MappingProxyType({})
    """What import needs to be told of the variant, beside heads and pad ids."""
    heads: tuple[tuple[int, int], ...] = ((3, 4), (4, 5), (5, 4), (3, 6), (6, 5))
    """(num_heads, head_dim) to choose from."""

    @property
    def computes_positions(self) -> bool:
        """Whether its checkpoints hold no position table."""
        return get_dialect(self.dialect).computes_positions


def _step(rung: int, dialect: str) -> System:
    heads = {} if rung == stepwise.HEADS else {"heads": ((1, 14), (1, 16), (1, 18))}
    return System(dialect, partial(stepwise.StepwiseTransformer, rung=rung), stepwise.greedy, **heads)


def _pytorch(**options: Any) -> System:
    return System("pytorch", partial(pytorch.PytorchTransformer, **options), pytorch.greedy, options)


SYSTEMS = {
    "floydhub": System("floydhub", floydhub.FloydhubTransformer, floydhub.greedy),
    "annotated_zh": System("annotated_zh", annotated_zh.AnnotatedZhTransformer, annotated_zh.greedy),
    "harvard": System("harvard", harvard.HarvardTransformer, harvard.greedy),
    "codersarts": System("codersarts", codersarts.CodersartsTransformer, codersarts.greedy),
    "codersarts_as_meant": System(
        "codersarts",
        partial(codersarts.CodersartsTransformer, position_index="column"),
        codersarts.greedy,
        {"position_index": "column"},
    ),
    "sayhello": System("sayhello", sayhello.SayhelloTransformer, sayhello.greedy),
    "sayhello_article": System("sayhello", partial(sayhello.SayhelloTransformer, attention_bias=True), sayhello.greedy),
    "hyunwoongko": System("hyunwoongko", hyunwoongko.HyunwoongkoTransformer, hyunwoongko.greedy),
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
"""Further ones, in which one parameter has several names."""


class Case(NamedTuple):
    """One model in both frameworks, in float32-representable parameters, and one batch."""

    system: System
    hints: dict[str, Any]
    """What import needs to be told, but for a position table that checkpoints don't hold."""
    torch32: nn.Module
    torch64: nn.Module
    config: TransformerConfig
    params32: Params
    params64: Params
    source_ids: np.ndarray
    decoder_input_ids: np.ndarray

    def ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.source_ids), torch.from_numpy(self.decoder_input_ids)


@cache
def make_case(name: str, max_length: int | None = None) -> Case:
    """The case of one of the SYSTEMS, or a TIED one; the same whenever it is made. `max_length`: rows of its tables, if
    not drawn."""
    rng, system = np.random.default_rng([*name.encode()]), (SYSTEMS | TIED)[name]
    arguments = make_arguments(rng, system)
    arguments["max_length"] = max_length or arguments["max_length"]
    torch32 = system.build(**arguments).eval()
    randomise(torch32, rng)
    batch = make_batch(rng, arguments)
    balance(torch32, batch)
    torch64 = system.build(**arguments, dtype=torch.float64).eval()
    torch64.load_state_dict(torch32.state_dict())
    hints = {name: arguments[name] for name in ("num_heads", "source_pad_id", "target_pad_id")} | dict(system.hints)
    if system.dialect.startswith("stepwise") and system.dialect != "stepwise":
        del hints["num_heads"]
    models = []
    for model in (torch32, torch64):
        table = {"position_table": model.encoder.emb.positions} if system.computes_positions else {}
        models.append(import_checkpoint(model.state_dict(), system.dialect, **hints, **table))
    return Case(system, hints, torch32, torch64, models[0].config, models[0].params, models[1].params, *batch)


def make_arguments(rng: np.random.Generator, system: System) -> dict[str, Any]:
    """Sizes no two of which are equal (but the vocabularies of one embedding), and two pad ids, each a token of both
    sides."""
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


def randomise(model: nn.Module, rng: np.random.Generator) -> None:
    """Every parameter random, the scales of norms around 1."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            values = rng.standard_normal(parameter.shape)
            values *= 1.3 / np.sqrt(parameter.shape[-1]) if parameter.ndim == 2 else 0.4
            if path.rsplit(".")[-1] in ("alpha", "a_2", "gamma") or ("norm" in path and path.endswith("weight")):
                values += 1.0
            parameter.copy_(torch.from_numpy(values))


def balance(model: nn.Module, batch: tuple[np.ndarray, np.ndarray]) -> None:
    """Takes from the head's bias what all places of the batch share in their logits, so that no word is the likeliest
    of them everywhere.

    Random biases, those of norms above all, give every place the same large part: after a few layers it would choose
      the words alone.
    """
    *_, head_bias = model.parameters()
    with torch.no_grad():
        head_bias -= model(*map(torch.from_numpy, batch)).mean(dim=(0, 1))


def make_batch(rng: np.random.Generator, sizes: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """source_ids [7, 11] and decoder_input_ids [7, 9]."""

    def sentences(length: int, vocab_size: int, pad_id: int) -> np.ndarray:
        real = np.array([token for token in range(vocab_size) if token != pad_id])
        return rng.choice(real, (7, length))

    source_pad, target_pad = sizes["source_pad_id"], sizes["target_pad_id"]
    source = sentences(11, sizes["source_vocab_size"], source_pad)
    target = sentences(9, sizes["target_vocab_size"], target_pad)
    source[1, 8:] = source_pad  # right
    source[2, :3] = source_pad  # left: with the causal mask, as a target, fully masked rows
    source[3, [2, 5, 6]] = source_pad  # inside
    source[4, 1:] = source_pad  # one token
    source[5] = source_pad  # none
    target[0, 6:] = target_pad
    target[1, :2] = target_pad
    target[2, [3, 4]] = target_pad
    target[3, 1:] = target_pad
    target[4, [2, 6]] = source_pad  # which sayhello's decoder takes for padding
    target[5, 0] = source_pad
    target[6] = target_pad
    return source, target


# --- parameters


def bits(tensors: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...], str, bytes]]:
    """Name, shape, dtype and bytes of torch tensors or arrays, in their order."""
    arrays = {
        name: value.view(torch.uint8) if isinstance(value, torch.Tensor) else value for name, value in tensors.items()
    }
    return [
        (name, tuple(tensors[name].shape), str(tensors[name].dtype), np.asarray(array).tobytes())
        for name, array in arrays.items()
    ]


def per_layer(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters one by one: stacked leaves taken apart, constants left out."""
    parts = {}
    for path, leaf in gradients.items():
        if "/layers/" in path:
            parts |= {f"{path}[{i}]": leaf[i] for i in range(len(leaf))}
        elif not path.startswith("constants/"):
            parts[path] = leaf
    return parts


# --- traces


def torch_trace(model: nn.Module, case: Case) -> OrderedDict[str, np.ndarray]:
    trace = Trace()
    with torch.no_grad():
        model(*case.ids(), trace=trace)
    return OrderedDict((name, value.numpy()) for name, value in trace.items())


def jax_trace(
    config: TransformerConfig, params: Params, case: Case, *, quickly: bool = False
) -> OrderedDict[str, np.ndarray]:
    """`quickly`: without XLA's optimisations, which users don't go without."""
    run = quick_trace if quickly else partial(functional.apply, return_trace=True)
    _, trace = run(config, params, case.source_ids, case.decoder_input_ids)
    return OrderedDict((name, np.asarray(value)) for name, value in trace.items())


def attended(name: str, trace: OrderedDict[str, np.ndarray]) -> np.ndarray | None:
    """Where attention logits are no fill value, next to which nothing else counts."""
    if not name.endswith("attention.logits"):
        return None
    mask = "cross" if "cross_attention" in name else f"{name.split('.')[0]}_self"
    return trace.get(f"mask.{mask}")


# --- gradients


def make_labels(case: Case, counts_fully_masked: bool | None = None) -> np.ndarray:
    """Labels [B, T], pads here and there. `counts_fully_masked`: also where nothing may be attended; None: unless the
    system is `pytorch`, whose gradients are others there (test_pytorch.py)."""
    rng, config = np.random.default_rng(0), case.config
    labels = rng.integers(config.target_vocab_size, size=case.decoder_input_ids.shape)
    if counts_fully_masked is False or (counts_fully_masked is None and case.system.dialect == "pytorch"):
        nothing_to_read = (case.source_ids == config.source_pad_id).all(axis=1)
        labels[(case.decoder_input_ids == config.target_pad_id) | nothing_to_read[:, None]] = config.target_pad_id
    return labels


def torch_gradients(case: Case, labels: np.ndarray, trace: Trace | None = None) -> dict[str, np.ndarray]:
    """The gradients of cross-entropy, under the JAX model's paths; those of activations are then in the trace."""
    from jax_transformer.porting.state_dicts import params_from_state_dict

    model = case.torch64
    model.zero_grad()
    logits = model(*case.ids(), trace=trace)
    pad_id = case.config.target_pad_id
    torch_functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(labels).flatten(), ignore_index=pad_id
    ).backward()
    gradients = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    gradients |= {
        name: parameter.grad
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None
    }
    return flatten(params_from_state_dict(case.config, gradients, case.system.dialect))


def jax_loss(
    params: Params, add: dict[str, Any], config: TransformerConfig, source_ids: Any, decoder_input_ids: Any, labels: Any
) -> jax.Array:
    logits = functional.apply(config, params, source_ids, decoder_input_ids, add=add)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    counted = labels != config.target_pad_id
    return jnp.where(counted, losses, 0.0).sum() / counted.sum()


QUICKLY = {"xla_backend_optimization_level": 0}  # the same operations, compiled in two thirds of the time
_gradients = jax.jit(jax.grad(jax_loss, argnums=(0, 1)), static_argnames="config", compiler_options=QUICKLY)
quick_logits = jax.jit(functional.apply, static_argnums=0, compiler_options=QUICKLY)
quick_trace = jax.jit(partial(functional.apply, return_trace=True), static_argnums=0, compiler_options=QUICKLY)


def jax_gradients(case: Case, labels: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Those of the parameters, by path, and those of everything in the trace but the masks, by name.

    The latter are the gradients of zeros that are added to what the trace has. One program has both, so that it is
    compiled once a case.
    """
    trace = jax.eval_shape(
        partial(functional.apply, case.config, return_trace=True),
        case.params64,
        case.source_ids,
        case.decoder_input_ids,
    )[1]
    zeros = {name: np.zeros(value.shape, value.dtype) for name, value in trace.items() if not name.startswith("mask.")}
    both = _gradients(case.params64, zeros, case.config, case.source_ids, case.decoder_input_ids, labels)
    of_parameters, of_activations = jax.tree.map(np.asarray, both)
    return flatten(of_parameters), of_activations


def torch_activation_gradients(case: Case, labels: np.ndarray) -> OrderedDict[str, np.ndarray]:
    """Of everything in the trace but the masks, by name."""
    trace = Trace(keep_gradients=True)
    torch_gradients(case, labels, trace)
    return OrderedDict((name, gradient.numpy()) for name, gradient in trace.gradients().items())
