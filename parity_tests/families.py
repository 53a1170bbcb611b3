"""The families of Hugging Face's transformers as pairs: a model of the installed transformers with random weights, and
the JAX model imported from its directory.

Sizes differ pairwise where a family allows it. All parameters are random, norms and biases included. Sources are longer
than the relative buckets reach, with pads on the right, on the left and inside.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import indictrans_program
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from torch import nn

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.stages import Stage
from jax_transformer.comparison.sides import Dtype
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.features import Features, SourceInput
from jax_transformer.model.functional import Params
from jax_transformer.parity import oracle
from jax_transformer.parity.backends.families import FamilyReference
from jax_transformer.parity.backends.indictrans import IndicTransConfig, IndicTransForConditionalGeneration
from jax_transformer.parity.backends.jax_sides import QUICKLY, JaxSide, cast, understood
from jax_transformer.parity.backends.modules import Naming, module_reference
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.problems import Problem, own_problem
from jax_transformer.parity.run_results import Forward
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.parity.stages.precision import compare_precision, rounded
from jax_transformer.parity.stages.training import compare_gradients, compare_losses
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import Model

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)


class Family(NamedTuple):
    """Describes a class of models by its configurations."""

    model: type[Any]
    config: Callable[..., Any]
    sizes: tuple[dict[str, Any], ...]


def _fairseq(**more: Any) -> tuple[dict[str, Any], ...]:
    """Returns three sizes; their stacks differ in depth, heads and width."""
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
    """Returns three sizes: stacks of different depths, heads whose widths don't add up to the model's, and distances
    beyond the buckets."""
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


def _whisper() -> tuple[dict[str, Any], ...]:
    """Returns three sizes. Its sources are whole windows of vectors, twice as many as the encoder has positions."""
    names = {"max_position_embeddings": "max_source_positions"}
    positions = ((19, 33, 7), (16, 35, 9), (11, 36, 16))
    return tuple(
        {names.get(key, key): value for key, value in size.items()}
        | {"max_source_positions": source, "max_target_positions": target, "num_mel_bins": bands}
        | {"pad_token_id": 57, "bos_token_id": 57, "eos_token_id": 57, "decoder_start_token_id": 55}
        | {"suppress_tokens": None, "begin_suppress_tokens": None}
        for size, (source, target, bands) in zip(_fairseq(), positions, strict=True)
    )


def _fsmt(**more: Any) -> tuple[dict[str, Any], ...]:
    """Returns three sizes; the target's vocabulary is smaller unless the embeddings are tied."""
    is_tied = more.get("tie_word_embeddings", False)
    return tuple(
        {key: value for key, value in size.items() if key != "vocab_size"}
        | {"src_vocab_size": size["vocab_size"], "tgt_vocab_size": size["vocab_size"] - (0 if is_tied else 3)}
        for size in _fairseq(**more)
    )


def _encoder_decoder(encoder: str, decoder: str, **more: Any) -> tuple[dict[str, Any], ...]:
    """Returns three sizes, whose stacks also differ in the eps of their norms, their activation and their length.

    Args:
      encoder, decoder: the model_type of each.
      more: of the decoder.
    """
    sizes = []
    for size in _fairseq():
        sides = []
        for side, kind, own in (
            ("encoder", encoder, {"layer_norm_eps": 1e-3, "hidden_act": "gelu", "type_vocab_size": 2}),
            ("decoder", decoder, {"layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "type_vocab_size": 3} | more),
        ):
            sides.append(
                own
                | {
                    "model_type": kind,
                    "hidden_size": size["d_model"],
                    "num_hidden_layers": size[f"{side}_layers"],
                    "num_attention_heads": size[f"{side}_attention_heads"],
                    "intermediate_size": size[f"{side}_ffn_dim"],
                    "vocab_size": size["vocab_size"] - (side == "decoder"),
                    "max_position_embeddings": size["max_position_embeddings"] + 2 * (side == "decoder"),
                    "pad_token_id": 1 if side == "decoder" else 2,
                }
            )
        sizes.append({"encoder": sides[0], "decoder": sides[1], "decoder_start_token_id": 2, "pad_token_id": 1})
    return tuple(sizes)


def _encoder_decoder_config(encoder: dict[str, Any], decoder: dict[str, Any], **more: Any) -> Any:
    """Returns the config of two sides."""
    kinds = {"bert": transformers.BertConfig, "roberta": transformers.RobertaConfig}
    sides = [
        kinds[side["model_type"]](**{key: value for key, value in side.items() if key != "model_type"})
        for side in (encoder, decoder)
    ]
    return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sides, **more)


def _t5gemma() -> tuple[dict[str, Any], ...]:
    """Returns three sizes, whose stacks also differ in their heads, windows, scales, bounds and norms.

    The windows are shorter than the sentences, and longer than the pads at the end of a target.
    """
    names = ("num_key_value_heads", "head_dim", "query_pre_attn_scalar", "sliding_window", "num_attention_heads")
    names = (*names, "rms_norm_eps", "attn_logit_softcapping", "hidden_activation")
    gelu, gelu_tanh = "gelu", "gelu_pytorch_tanh"
    sizes: list[dict[str, Any]] = []
    for size, encoder, decoder in zip(
        _fairseq(),
        (
            (1, 6, 7, 5, 2, 1e-3, 3.0, gelu_tanh),
            (5, 4, 4, 3, 5, 1e-6, 50.0, gelu_tanh),
            (2, 10, 9, 11, 4, 1e-5, 5.0, gelu),
        ),
        (
            (3, 8, 5, 7, 3, 1e-5, 5.0, gelu_tanh),
            (1, 6, 8, 9, 2, 1e-3, 2.0, gelu),
            (1, 12, 12, 8, 1, 1e-6, None, gelu_tanh),
        ),
        strict=True,
    ):
        sides = {}
        for side, own in (("encoder", encoder), ("decoder", decoder)):
            sides[side] = dict(zip(names, own, strict=True)) | {
                "hidden_size": size["d_model"],
                "num_hidden_layers": size[f"{side}_layers"],
                "intermediate_size": size[f"{side}_ffn_dim"],
                "vocab_size": size["vocab_size"] - (side == "decoder"),
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0 if side == "encoder" else 10_000.0},
                "final_logit_softcapping": 4.0,
                "pad_token_id": 0,
            }
        sizes.append(sides | {"vocab_size": size["vocab_size"]})
    sizes[1]["encoder"]["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"]
    return tuple(sizes)


def _indictrans(*, tied: bool) -> tuple[dict[str, Any], ...]:
    """Returns three sizes, whose stacks norm before and after sublayers."""
    return tuple(size | {"share_decoder_input_output_embed": tied} for size in indictrans_program.SIZES)


MARIAN = {"pad_token_id": 59, "decoder_start_token_id": 59, "eos_token_id": 0}
BART = {"pad_token_id": 1, "decoder_start_token_id": 2}
BLENDERBOT = {"pad_token_id": 0, "decoder_start_token_id": 1}
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
    "mvp": Family(transformers.MvpForConditionalGeneration, transformers.MvpConfig, _fairseq(**BART)),
    "plbart": Family(transformers.PLBartForConditionalGeneration, transformers.PLBartConfig, _fairseq(**BART)),
    "mbart": Family(transformers.MBartForConditionalGeneration, transformers.MBartConfig, _fairseq(**BART)),
    "blenderbot": Family(
        transformers.BlenderbotForConditionalGeneration, transformers.BlenderbotConfig, _fairseq(**BLENDERBOT)
    ),
    "blenderbot_small": Family(
        transformers.BlenderbotSmallForConditionalGeneration, transformers.BlenderbotSmallConfig, _fairseq(**BLENDERBOT)
    ),
    "pegasus": Family(
        transformers.PegasusForConditionalGeneration,
        transformers.PegasusConfig,
        _fairseq(activation_function="relu"),
    ),
    "m2m_100": Family(transformers.M2M100ForConditionalGeneration, transformers.M2M100Config, _fairseq(**BART)),
    "fsmt": Family(transformers.FSMTForConditionalGeneration, transformers.FSMTConfig, _fsmt()),
    "fsmt_tied": Family(
        transformers.FSMTForConditionalGeneration, transformers.FSMTConfig, _fsmt(tie_word_embeddings=True)
    ),
    "indictrans": Family(IndicTransForConditionalGeneration, IndicTransConfig, _indictrans(tied=False)),
    "indictrans_tied": Family(IndicTransForConditionalGeneration, IndicTransConfig, _indictrans(tied=True)),
    "t5": Family(transformers.T5ForConditionalGeneration, transformers.T5Config, _t5()),
    "t5_gated": Family(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "ul2": Family(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        _t5(feed_forward_proj="gated-silu", tie_word_embeddings=False),
    ),
    "mt5": Family(transformers.MT5ForConditionalGeneration, transformers.MT5Config, _t5()),
    "umt5": Family(transformers.UMT5ForConditionalGeneration, transformers.UMT5Config, _t5()),
    "bert2bert": Family(transformers.EncoderDecoderModel, _encoder_decoder_config, _encoder_decoder("bert", "bert")),
    "roberta2roberta": Family(
        transformers.EncoderDecoderModel, _encoder_decoder_config, _encoder_decoder("roberta", "roberta")
    ),
    "bert2roberta": Family(
        transformers.EncoderDecoderModel,
        _encoder_decoder_config,
        _encoder_decoder("bert", "roberta", tie_word_embeddings=False),
    ),
    "t5gemma": Family(transformers.T5GemmaForConditionalGeneration, transformers.T5GemmaConfig, _t5gemma()),
    "whisper": Family(transformers.WhisperForConditionalGeneration, transformers.WhisperConfig, _whisper()),
}
UNTIED = ("t5_gated", "ul2", "mt5", "fsmt", "indictrans", "bert2roberta")
"""Families whose files have a head of their own, as T5 1.1 and mT5 do."""
LIKE_OTHERS = (
    *("mvp", "plbart", "mbart", "blenderbot", "blenderbot_small", "pegasus"),
    *("fsmt", "fsmt_tied", "indictrans_tied", "ul2"),
)
"""Families that differ from others in a few options."""
KEYS = [(family, size) for family in FAMILIES for size in range(3)]


@dataclass(frozen=True)
class Case:
    """Holds one model in both libraries, and a problem for both."""

    theirs: Any
    """The model in float32."""
    directory: Path
    """The directory as `save_pretrained` left it."""
    model: Model
    """The model imported from the directory."""
    problem: Problem

    @property
    def config(self) -> TransformerConfig:
        return self.model.config

    @property
    def candidate(self) -> JaxSide:
        return JaxSide("jax", self.model)

    @property
    def reference(self) -> TorchSide:
        return TorchSide("transformers", self.model, self.family_reference)

    @property
    def family_reference(self) -> FamilyReference:
        """Runs their own model, not one that was exported from ours."""
        naming, problem = Naming(None, None), own_problem(self.config, self.model.params)
        return module_reference(FamilyReference, "transformers", self.theirs, self.model, naming, problem)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Returns the arguments of their model."""
        decoder_input_ids = torch.from_numpy(self.problem.decoder_input_ids)
        if self.problem.features is not None:
            vectors = torch.from_numpy(np.asarray(self.problem.features.vectors))
            return {"input_features": vectors.transpose(1, 2), "decoder_input_ids": decoder_input_ids}
        source = torch.from_numpy(self.problem.source_ids)
        mask = source != self.config.source_pad_id
        return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": decoder_input_ids}

    def with_models(self, theirs: Any, model: Model) -> Case:
        """Returns the same batch for other models."""
        problem = dataclasses.replace(self.problem, params=model.params)
        return dataclasses.replace(self, theirs=theirs, model=model, problem=problem)


@cache
def make_case(family: str, size: int, folder: Path) -> Case:
    """Returns the same case at each call; its directory lies in `folder`."""
    rng = np.random.default_rng([*family.encode(), size])
    kind = FAMILIES[family]
    config = kind.config(**kind.sizes[size])
    config._attn_implementation = "eager"
    theirs = randomised(kind.model(config).eval(), rng, untied=family in UNTIED)
    directory = folder / f"{family}_{size}"
    theirs.save_pretrained(directory)
    theirs = load_theirs(kind.model, directory)
    model = import_checkpoint(directory)
    return Case(theirs, directory, model, make_problem(rng, model))


def load_theirs(kind: type[Any], directory: Path) -> Any:
    """Loads a model of transformers with unfused attention, in float32."""
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    for name, parameter in kind(model.config).named_parameters():  # it forgets that Whisper's positions are fixed
        model.get_parameter(name).requires_grad_(parameter.requires_grad)
    model.generation_config = transformers.GenerationConfig()  # Marian's and BART's force their last token
    return model


def randomised(model: Any, rng: np.random.Generator, *, untied: bool) -> Any:
    """Draws every parameter of the model, and the bias of its logits.

    Embeddings are small and attention is sharp, so that decoded tokens depend on the source.
    """
    if untied and hasattr(model, "lm_head"):
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    drawn = {"final_logits_bias": model.final_logits_bias} if hasattr(model, "final_logits_bias") else {}
    drawn |= {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for name, tensor in drawn.items():
            is_scale = tensor.ndim == 1 and ("norm.weight" in name.lower() or "layernorm_embedding.weight" in name)
            is_scale &= model.config.model_type != "t5gemma"  # which adds 1 itself
            values = _spread(name, tensor) * rng.standard_normal(tuple(tensor.shape)) + is_scale
            tensor.copy_(torch.from_numpy(values))
    return model


def _spread(name: str, tensor: torch.Tensor) -> float:
    """Returns the standard deviation for a parameter."""
    if tensor.ndim == 1 or name == "final_logits_bias":
        return 0.3 if name.endswith("weight") else 0.1
    if any(part in name for part in ("relative", "embed_positions", "position_embeddings", "word_embeddings")):
        return 1.0
    tables = ("shared", "embed_tokens", "lm_head.weight", "lm_head.decoder.weight", "token_type")
    if any(part in name for part in tables):
        return 0.1
    queries_and_keys = ("q_proj.weight", "k_proj.weight", "self.query.weight", "self.key.weight")
    is_sharp = name.endswith(queries_and_keys)  # T5's logits aren't scaled down
    return (2.4 if is_sharp else 1.2) / float(np.sqrt(tensor[0].numel()))


def make_problem(rng: np.random.Generator, model: Model) -> Problem:
    """Returns source_ids [5, 37], or as many rows of feature vectors, and decoder_input_ids and labels [5, 31].

    Pads stand on the right, on the left, inside, and everywhere but in one place; one sentence has none.
    """
    config = model.config
    tokens = range(3, min(getattr(config, name) for name in config.vocabularies))
    real = [token for token in tokens if token != config.source_pad_id]
    source, target, labels = rng.choice(real, (5, 37)), rng.choice(real, (5, 31)), rng.choice(real, (5, 31))
    source[0, 30:] = source[1, :4] = source[2, 9:15] = source[3, 1:] = config.source_pad_id
    target[0, 25:] = labels[0, 25:] = labels[2, 5:8] = config.target_pad_id
    features = None
    if config.stem is not None:
        drawn = own_problem(config, model.params).rows(slice(5))
        source, features = drawn.source_ids, drawn.features
    return Problem("own weights", model.params, source, target, labels, features=features)


def head_of(model: Any) -> nn.Linear:
    """Returns the map to logits."""
    head: nn.Linear
    if model.config.model_type == "fsmt":
        head = model.model.decoder.output_projection
    else:
        head = model.get_output_embeddings()
    return head


# --- comparisons


def compare_activations(case: Case) -> list[Forward]:
    """Compares JAX's activations in float64 with theirs, then NumPy's, and each node of all three with the truth."""
    expected = case.reference.forward(case.problem, "float64")
    visible = case.family_reference.visible()
    truth = oracle.forward(case.config, case.model.params, *case.problem.inputs)
    return [
        compare_forward(case.config, case.problem, candidate, expected, look_at_reference=True, visible=visible)
        for candidate in (case.candidate.forward(case.problem, "float64"), truth)
    ]


def assert_same_activations(case: Case) -> None:
    for result in compare_activations(case):
        assert result.faults == (), result.faults
        assert result.masks.verdict == result.forward.verdict == result.truth.verdict == "passed", result
        assert len(result.forward.rows) > 5 + 9 * case.config.num_encoder_layers + 14 * case.config.num_decoder_layers


def compare_in_precision(case: Case, dtype: Dtype) -> Stage:
    """Compares the distances of both sides' activations from the float64 truth."""
    problem, reference = rounded(case.problem, dtype), case.reference
    truth, expected = (reference.forward(problem, one) for one in ("float64", dtype))
    received = case.candidate.forward(problem, dtype)
    return compare_precision(case.config, dtype, {name: received[name] for name in expected}, expected, truth)


def compare_training(case: Case) -> list[Stage]:
    """Compares the loss, and its gradients with respect to every parameter and every activation that hooks show."""
    received, expected = (side.gradients(case.problem) for side in (case.candidate, case.reference))
    received = received._replace(activations={name: received.activations[name] for name in expected.activations})
    return [compare_losses(received, expected), compare_gradients(received, expected)]


def cached_error(case: Case) -> float:
    """Returns the relative RMS by which cached decoding differs from teacher forcing in float64."""
    decoding = dataclasses.replace(case.model, config=case.config.while_decoding())
    forced = JaxSide("jax", decoding).forward(case.problem, "float64")["logits"]
    params = cast(case.model.params, "float64")
    decoded = jax.jit(_decoded_by_steps, static_argnames="config", compiler_options=understood(QUICKLY))
    return compare(np.asarray(decoded(case.config, params, *case.problem.inputs)), forced).relative_rms


def _decoded_by_steps(
    config: TransformerConfig, params: Params, source_ids: SourceInput, decoder_input_ids: jax.Array
) -> jax.Array:
    encoder_output = functional.encode(config, params, source_ids)
    start = functional.start_decoding(config, params, encoder_output, source_ids, decoder_input_ids.shape[1])

    def step(state: Any, ids: jax.Array) -> tuple[Any, jax.Array]:
        logits, state = functional.decode_step(config, params, state, ids)
        return state, logits

    return jnp.swapaxes(jax.lax.scan(step, start, decoder_input_ids.T)[1], 0, 1)


def ragged_problem(case: Case) -> Problem:
    """Returns the case's problem on 24 sources: sentences of 1 to 24 tokens, or windows of vectors."""
    if case.problem.features is None:
        return dataclasses.replace(case.problem, source_ids=ragged_sources(case.config))
    vectors = np.asarray(case.problem.features.vectors)
    drawn = np.random.default_rng(3).standard_normal((24, *vectors.shape[1:])).astype(np.float32)
    ids = np.ones((24, case.problem.source_ids.shape[1]), int)
    return dataclasses.replace(case.problem, source_ids=ids, features=Features(drawn, np.full(24, vectors.shape[1])))


def ragged_sources(config: TransformerConfig) -> np.ndarray:
    """Returns source_ids [24, 24]: sentences of 1 to 24 tokens, padded on the right."""
    rng = np.random.default_rng(3)
    real = [index for index in range(3, config.source_vocab_size) if index != config.source_pad_id]
    lengths = np.arange(1, 25)[:, None]
    return np.where(np.arange(24) < lengths, rng.choice(real, (24, 24)), config.source_pad_id)


def decoded_tokens(case: Case, length: int = 24, beams: int = 1) -> tuple[np.ndarray, np.ndarray, int]:
    """Decodes here and with `generate`.

    Returns:
      Both sides' tokens [24, length] with pads after the end, and the end token: one that ends most sentences, and at
      different lengths.
    """
    pad_id = case.config.target_pad_id
    problem = ragged_problem(case)

    def decode(side: type[JaxSide] | partial[TorchSide], eos_id: int) -> np.ndarray:
        generation = dataclasses.replace(case.model.generation, eos_id=eos_id)
        options = DecodingConfig(beam_size=beams, max_new_tokens=length)
        tokens = side("side", dataclasses.replace(case.model, generation=generation)).decode(problem, options).ids
        return np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])), constant_values=pad_id)

    theirs = partial(TorchSide, reference=case.family_reference)
    endless = decode(theirs, case.config.target_vocab_size)  # no token has this id
    firsts = {
        token: [int(np.argmax(row == token)) for row in endless if (row == token).any()] for token in np.unique(endless)
    }
    eos_id = int(
        max(
            (token for token in firsts if token != pad_id),
            key=lambda token: (len(set(firsts[token])), sum(firsts[token])),
        )
    )
    return decode(JaxSide, eos_id), decode(theirs, eos_id), eos_id


def round_trip(case: Case, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Exports the imported model, and returns the model that `from_pretrained` loads and its loading information."""
    path = folder / f"{case.directory.name}_back"
    export_checkpoint(case.model, path)
    return type(case.theirs).from_pretrained(path, output_loading_info=True)
