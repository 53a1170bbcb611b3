"""The families of Hugging Face's transformers as they are compared here: configurations, random weights, and
activations by our names.

The installed transformers is the reference. Sizes are pairwise different where a family lets them be; all parameters
are random, norms and biases included; sources are longer than the relative buckets reach, with pads on the right, on
the left and inside.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from greedy_decoding import greedy
from torch import nn
from torch.nn import functional as torch_functional

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.parity.backends.families import wide_norms
from jax_transformer.parity.gates.compare import PrecisionVerdict, compare, precision_rule
from jax_transformer.parity.gates.tolerances import has_zero_gradient
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.state_dicts import params_from_state_dict
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)


class Family(NamedTuple):
    """A class of models, and configurations of it."""

    model: type[Any]
    config: type[Any]
    sizes: tuple[dict[str, Any], ...]


def _fairseq(**more: Any) -> tuple[dict[str, Any], ...]:
    """Stacks of other depth, heads and width; three sizes."""
    names = (
        "d_model",
        "encoder_layers",
        "decoder_layers",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "vocab_size",
        "max_position_embeddings",
    )
    sizes = ((24, 2, 3, 2, 3, 20, 28, 61, 44), (20, 3, 1, 5, 2, 33, 17, 71, 50), (32, 1, 2, 4, 1, 18, 40, 67, 48))
    return tuple(dict(zip(names, size, strict=True)) | more for size in sizes)


def _t5(**more: Any) -> tuple[dict[str, Any], ...]:
    """Stacks of other depth, heads that aren't as wide together as the model, buckets that distances go beyond; three
    sizes."""
    names = (
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_decoder_layers",
        "num_heads",
        "vocab_size",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    )
    sizes = ((24, 5, 20, 2, 3, 3, 61, 8, 16), (20, 7, 33, 3, 1, 2, 71, 12, 20), (28, 4, 18, 1, 2, 5, 67, 32, 24))
    return tuple(dict(zip(names, size, strict=True)) | {"decoder_start_token_id": 0} | more for size in sizes)


MARIAN, BART = (
    {"pad_token_id": 59, "decoder_start_token_id": 59, "eos_token_id": 0},
    {"pad_token_id": 1, "decoder_start_token_id": 2},
)
FAMILIES = {
    "marian": Family(
        transformers.MarianMTModel,
        transformers.MarianConfig,
        _fairseq(**MARIAN, activation_function="swish", scale_embedding=True),
    ),
    "marian_two_vocabularies": Family(
        transformers.MarianMTModel,
        transformers.MarianConfig,
        _fairseq(**MARIAN, decoder_vocab_size=60, share_encoder_decoder_embeddings=False),
    ),
    "bart": Family(transformers.BartForConditionalGeneration, transformers.BartConfig, _fairseq(**BART)),
    "m2m_100": Family(transformers.M2M100ForConditionalGeneration, transformers.M2M100Config, _fairseq(**BART)),
    "t5": Family(transformers.T5ForConditionalGeneration, transformers.T5Config, _t5()),
    "t5_gated": Family(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "mt5": Family(transformers.MT5ForConditionalGeneration, transformers.MT5Config, _t5()),
    "umt5": Family(transformers.UMT5ForConditionalGeneration, transformers.UMT5Config, _t5()),
}
UNTIED = ("t5_gated", "mt5")
"""Those whose file has a head of its own, as T5 1.1 and mT5 have."""
KEYS = [(family, size) for family in FAMILIES for size in range(3)]


class Case(NamedTuple):
    """One model, there and here, and a batch for it."""

    torch32: Any
    torch64: Any
    directory: Path
    """As `save_pretrained` left it."""
    model: Model
    params64: Params
    source_ids: np.ndarray
    decoder_input_ids: np.ndarray
    labels: np.ndarray

    @property
    def config(self) -> TransformerConfig:
        return self.model.config

    def inputs(self) -> dict[str, torch.Tensor]:
        """What the reference is called with."""
        source = torch.from_numpy(self.source_ids)
        mask = source != self.config.source_pad_id
        return {
            "input_ids": source,
            "attention_mask": mask,
            "decoder_input_ids": torch.from_numpy(self.decoder_input_ids),
        }


@cache
def make_case(family: str, size: int, folder: Path) -> Case:
    """The same whenever it is made; its directory lies in `folder`."""
    rng = np.random.default_rng([*family.encode(), size])
    kind = FAMILIES[family]
    config = kind.config(**kind.sizes[size])
    config._attn_implementation = "eager"
    torch32 = randomised(kind.model(config).eval(), rng, untied=family in UNTIED)
    directory = folder / f"{family}_{size}"
    torch32.save_pretrained(directory)
    torch64 = kind.model.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()
    torch64.generation_config = transformers.GenerationConfig()  # Marian's and BART's force their last token
    model = import_checkpoint(directory)
    params64 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.params)
    return Case(torch32, torch64, directory, model, params64, *make_batch(rng, model.config))


def randomised(model: Any, rng: np.random.Generator, *, untied: bool) -> Any:
    """The model with every parameter drawn anew, and the bias of its logits.

    Embeddings are small, and attention is sharp, so that what is decoded depends on the source.
    """
    if untied:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    drawn = {"final_logits_bias": model.final_logits_bias} if hasattr(model, "final_logits_bias") else {}
    drawn |= {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for name, tensor in drawn.items():
            is_scale = tensor.ndim == 1 and ("norm.weight" in name or "layernorm_embedding.weight" in name)
            values = _spread(name, tensor) * rng.standard_normal(tuple(tensor.shape)) + is_scale
            tensor.copy_(torch.from_numpy(values))
    return model


def _spread(name: str, tensor: torch.Tensor) -> float:
    """The standard deviation that a parameter is drawn with."""
    if tensor.ndim == 1 or name == "final_logits_bias":
        return 0.3 if name.endswith("weight") else 0.1
    if "relative" in name or "embed_positions" in name:
        return 1.0
    if any(part in name for part in ("shared", "embed_tokens", "lm_head")):
        return 0.1
    is_sharp = any(name.endswith(part) for part in ("q_proj.weight", "k_proj.weight"))  # T5's logits aren't scaled down
    return (2.4 if is_sharp else 1.2) / float(np.sqrt(tensor.shape[-1]))


def make_batch(rng: np.random.Generator, config: TransformerConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """source_ids [5, 37], decoder_input_ids [5, 31] and labels: pads on the right, on the left, inside, none, and all
    but one."""
    real = [
        index
        for index in range(3, min(config.source_vocab_size, config.target_vocab_size))
        if index != config.source_pad_id
    ]
    source, target, labels = rng.choice(real, (5, 37)), rng.choice(real, (5, 31)), rng.choice(real, (5, 31))
    source[0, 30:] = source[1, :4] = source[2, 9:15] = source[3, 1:] = config.source_pad_id
    target[0, 25:] = labels[0, 25:] = labels[2, 5:8] = config.target_pad_id
    return source, target, labels


# --- the reference's activations, by our names


def reference_trace(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every hidden state, attention's weights and output, bias by distance, and the logits; gradients flow back through
    them."""
    trace: dict[str, torch.Tensor] = {}

    def keep(name: str, pick: Any = lambda output: output) -> Any:
        return lambda module, arguments, output: trace.__setitem__(name, pick(output))

    def first_of(output: Any) -> torch.Tensor:
        return output if isinstance(output, torch.Tensor) else output[0]

    def keep_input(name: str) -> Any:
        return lambda module, arguments: trace.__setitem__(name, arguments[0])

    hooks = []
    for stack, module in (("encoder", model.get_encoder()), ("decoder", model.get_decoder())):
        is_t5 = hasattr(module, "block")
        for i, layer in enumerate(module.block if is_t5 else module.layers):
            name = f"{stack}.layers.{i}"
            first = layer.layer[0] if is_t5 else layer
            attentions = {"self_attention": first.SelfAttention if is_t5 else layer.self_attn}
            if stack == "decoder":
                attentions["cross_attention"] = layer.layer[1].EncDecAttention if is_t5 else layer.encoder_attn
            hooks.append(
                layer.register_forward_hook(
                    keep(f"{name}.output", lambda output: output[0] if isinstance(output, tuple) else output)
                )
            )
            for place, attention in attentions.items():
                hooks.append(attention.register_forward_hook(keep(f"{name}.{place}.output", first_of)))
                hooks.append(
                    attention.register_forward_hook(keep(f"{name}.{place}.weights", lambda output: output[-1]))
                )
                if hasattr(attention, "relative_attention_bias"):
                    per_layer = model.config.model_type == "umt5"
                    of_bias = f"{name}.{place}.position_bias" if per_layer else f"{stack}.position_bias"
                    pick = lambda output: output.permute(2, 0, 1)[None]  # noqa: E731
                    hooks.append(attention.relative_attention_bias.register_forward_hook(keep(of_bias, pick)))
            if i == 0:
                hooks.append(layer.register_forward_pre_hook(keep_input(f"{stack}.embedding")))
        hooks.append(module.register_forward_hook(keep(f"{stack}.output", first_of)))
    try:
        with wide_norms(model):
            trace["logits"] = model(**inputs, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return trace


def as_arrays(trace: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: import_array(tensor) for name, tensor in trace.items()}


def import_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array of its own dtype."""
    from jax_transformer.storage.tensor_mappings import as_arrays as of_state_dict

    return of_state_dict({"tensor": tensor})["tensor"]


# --- what is measured


QUICKLY = {"xla_backend_optimization_level": 0}
_trace = jax.jit(partial(functional.apply, return_trace=True), static_argnums=0, compiler_options=QUICKLY)


def our_trace(case: Case, params: Params) -> dict[str, np.ndarray]:
    _, trace = _trace(case.config, params, case.source_ids, case.decoder_input_ids)
    return {name: np.asarray(value) for name, value in trace.items()}


def forward_errors(case: Case) -> dict[str, float]:
    """Relative RMS of each activation in float64."""
    with torch.no_grad():
        expected = as_arrays(reference_trace(case.torch64, case.inputs()))
    received = our_trace(case, case.params64)
    return {name: compare(received[name], array).relative_rms for name, array in expected.items()}


def precision_verdicts(case: Case, dtype: str) -> dict[str, PrecisionVerdict]:
    """Of each activation in float32 or bfloat16, weights rounded to it."""
    torch_dtype = getattr(torch, dtype)
    rounded = jax.tree.map(lambda leaf: np.asarray(jnp.asarray(leaf, dtype)), case.model.params)
    rounded["constants"] = case.model.params.get(
        "constants", {}
    )  # tables stay as they are, as `port --dtype` leaves them
    reference = (
        type(case.torch32).from_pretrained(case.directory, dtype=torch_dtype, attn_implementation="eager").eval()
    )
    truth = (
        type(case.torch32)
        .from_pretrained(case.directory, dtype=torch_dtype, attn_implementation="eager")
        .eval()
        .double()
    )
    with torch.no_grad():
        theirs, true = (as_arrays(reference_trace(model, case.inputs())) for model in (reference, truth))
    ours = our_trace(case, rounded)
    return {
        name: precision_rule(ours[name].astype(theirs[name].dtype), theirs[name], true[name], dtype) for name in theirs
    }


@partial(jax.jit, static_argnames="config", compiler_options=QUICKLY)
@jax.value_and_grad
def _loss_and_gradients(
    params: Params, config: TransformerConfig, source_ids: Any, decoder_input_ids: Any, labels: Any
) -> jax.Array:
    logits = functional.apply(config, params, source_ids, decoder_input_ids)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    counted = labels != config.target_pad_id
    return jnp.where(counted, losses, 0.0).sum() / counted.sum()


def gradient_errors(case: Case) -> dict[str, float]:
    """Of the loss, and of its gradient to each parameter, in float64."""
    model, pad_id = case.torch64, case.config.target_pad_id
    model.zero_grad()
    with wide_norms(model):
        logits = model(**case.inputs(), use_cache=False).logits
    expected_loss = torch_functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(case.labels).flatten(), ignore_index=pad_id
    )
    expected_loss.backward()
    names = (case.model.origin or {})["tensors"]
    held = {name: tensor for name, tensor in model.state_dict().items() if name in names}
    gradients = {name: torch.zeros_like(tensor) for name, tensor in held.items()}
    gradients |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None and name in names}
    expected = flatten(params_from_state_dict(case.config, gradients, (case.model.origin or {})["dialect"]))
    value, found = _loss_and_gradients(case.params64, case.config, case.source_ids, case.decoder_input_ids, case.labels)
    errors = {"loss": abs(float(value) / expected_loss.item() - 1.0)}
    for path, leaf in flatten(found).items():
        if not path.startswith("constants/") and not has_zero_gradient(path):
            errors[path] = compare(np.asarray(leaf), expected[path]).relative_rms
    return errors


def cached_error(case: Case) -> float:
    """Of decoding token by token with a cache from teacher forcing, in float64."""
    forced = our_trace(case, case.params64)["logits"]
    logits = _decoded_by_steps(case.config, case.params64, case.source_ids, case.decoder_input_ids)
    return compare(np.asarray(logits), forced).relative_rms


@partial(jax.jit, static_argnames="config", compiler_options=QUICKLY)
def _decoded_by_steps(
    config: TransformerConfig, params: Params, source_ids: jax.Array, decoder_input_ids: jax.Array
) -> jax.Array:
    encoder_output = functional.encode(config, params, source_ids)
    start = functional.start_decoding(config, params, encoder_output, source_ids, decoder_input_ids.shape[1])

    def step(state: Any, ids: jax.Array) -> tuple[Any, jax.Array]:
        logits, state = functional.decode_step(config, params, state, ids)
        return state, logits

    return jnp.swapaxes(jax.lax.scan(step, start, decoder_input_ids.T)[1], 0, 1)


def ragged_sources(config: TransformerConfig) -> np.ndarray:
    """source_ids [24, 24]: sentences of 1 to 24 tokens, padded on the right."""
    rng = np.random.default_rng(3)
    real = [index for index in range(3, config.source_vocab_size) if index != config.source_pad_id]
    lengths = np.arange(1, 25)[:, None]
    return np.where(np.arange(24) < lengths, rng.choice(real, (24, 24)), config.source_pad_id)


def greedy_tokens(case: Case, length: int = 24) -> tuple[np.ndarray, np.ndarray, int]:
    """Ours and `generate`'s, [24, length] with pads after the end, and the token that ends sentences: one that comes up
    in most, and not at once."""
    source_ids = ragged_sources(case.config)
    inputs = {
        "input_ids": torch.from_numpy(source_ids),
        "attention_mask": torch.from_numpy(source_ids != case.config.source_pad_id),
    }
    start, pad_id = case.model.generation.decoder_start_id, case.config.target_pad_id

    def generate(eos_id: int) -> np.ndarray:
        options = {
            "max_new_tokens": length,
            "num_beams": 1,
            "do_sample": False,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }
        options["use_cache"] = False  # that of T5 has as many layers as the encoder, also where the decoder has more
        config = transformers.GenerationConfig(**options, decoder_start_token_id=start)
        with torch.no_grad(), wide_norms(case.torch64):
            tokens = case.torch64.generate(**inputs, generation_config=config).numpy()[:, 1:]
        return np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])), constant_values=pad_id)

    unused = case.config.target_vocab_size  # never comes up
    endless = generate(unused)
    firsts = {
        token: [int(np.argmax(row == token)) for row in endless if (row == token).any()] for token in np.unique(endless)
    }
    eos_id = int(
        max(
            (token for token in firsts if token != pad_id),
            key=lambda token: (len(set(firsts[token])), sum(firsts[token])),
        )
    )
    ours = greedy(
        config=case.config,
        params=case.params64,
        source_ids=source_ids,
        decoder_start_id=start,
        eos_id=eos_id,
        max_decode_length=length,
    )
    return np.asarray(ours), generate(eos_id), eos_id


def round_trip(case: Case, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What `from_pretrained` loads of the directory that the imported model is written to, and what it says about
    it."""
    path = folder / f"{case.directory.name}_back"
    export_checkpoint(case.model, path)
    return type(case.torch32).from_pretrained(path, output_loading_info=True)
