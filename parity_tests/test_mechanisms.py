"""Each mechanism of attention is the same function here, in PyTorch and in NumPy; and mistakes in it are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from mechanisms import MECHANISMS, MechanismReference, make_model
from torch import Tensor, nn
from torch.nn import functional

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.config.specs import Attention
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.lowering import lowered
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.oracle import formulas, forward
from jax_transformer.parity.oracle.graph import has_window
from jax_transformer.parity.problems import decoding_problem, other_weights, own_problem, with_keys_for_all
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.parity.stages.training import ZERO, compare_gradients, compare_losses
from jax_transformer.proof import decide
from torch_reference.mechanisms import alibi, relative_vectors, transformer

pytestmark = pytest.mark.usefixtures("quick_compilation")


TRAINED = (
    "rotary halves, part of a head",
    "rotary in cross-attention",
    "ALiBi",
    "relative biases, scaled in each stack",
    "relative vectors of keys, per layer",
    "narrow values, relative vectors",
    "norm of contexts",
    "capped logits",
    "windows of each stack",
    "all at once",
    "stacks that differ",
)
"""Those that together have every mechanism."""


def sides(name: str, layers: int = 2) -> tuple[JaxSide, TorchSide]:
    model = make_model(name, layers=layers)
    return JaxSide("jax", model), TorchSide("torch", model, MechanismReference(model.config))


@pytest.mark.parametrize("name", MECHANISMS)
def test_jax_torch_and_the_truth_agree_on_every_activation_in_float64(name: str) -> None:
    """On every problem: names, order, shapes, dtypes, masks and fill values; each node by itself, too."""
    model, (candidate, reference) = make_model(name), sides(name)
    for problem in (own_problem(model.config, model.params), *other_weights(model.config, model.params)):
        received, expected = (side.forward(problem, "float64") for side in (candidate, reference))
        truth = forward(model.config, problem.params, *problem.ids)
        assert list(received) == list(expected) == list(truth)
        for other in (received, truth):
            result = compare_forward(model.config, problem, other, expected, look_at_reference=True)
            assert result.faults == (), problem.name
            assert result.masks.verdict == result.forward.verdict == result.truth.verdict == "passed", problem.name
            assert len(result.masks.rows) + len(result.forward.rows) == len(expected)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_parameters_and_activations_agree(name: str) -> None:
    """Of one layer in each stack, as compiling takes most of the time. Those of key biases too, where a rotation or a
    norm makes them matter."""
    model, (candidate, reference) = make_model(name, layers=1), sides(name, layers=1)
    problem = own_problem(model.config, model.params)
    received, expected = candidate.gradients(problem), reference.gradients(problem)
    assert compare_losses(received, expected).verdict == "passed"
    stage = compare_gradients(received, expected, config=model.config)
    assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]
    biases = [path for path in expected.parameters if path.endswith("key/bias[0]")]
    sizes = {path: np.abs(expected.parameters[path.replace("key/", "value/")]).max() for path in biases}
    matter = {path for path in biases if np.abs(expected.parameters[path]).max() > 1e-6 * sizes[path]}
    assert matter == {path for path in biases if _bias_matters(model.config, path)}
    assert matter == {row.name for row in stage.rows if row.name in biases and row.gate != ZERO}
    wrong = {path: 1.001 * expected.parameters[path] for path in matter}
    other = expected._replace(parameters=expected.parameters | wrong)
    rows = compare_gradients(other, expected, config=model.config).rows
    assert {row.name for row in rows if row.verdict == "diverged"} == matter


def _bias_matters(config: TransformerConfig, path: str) -> bool:
    """Whether the keys of a path's attention are normed or rotated after their bias is added, or its logits capped:
    else the bias adds one number to all logits of a row, which softmax takes out."""
    stack, _, name, *_ = path.split("/")
    own = getattr(config, stack)
    is_rotated = isinstance(own.positions, Rotary) and (name == "self_attention" or own.positions.cross_attention)
    attention = getattr(own, name)
    return attention.query_key_norm or attention.logits_cap is not None or is_rotated


def test_stacks_that_differ_are_proven_and_a_norm_of_the_other_stack_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, reference = sides("stacks that differ", layers=1)
    model = make_model("stacks that differ", layers=1)
    problem = with_keys_for_all(model.config, own_problem(model.config, model.params))
    assert decide(lowered(candidate, reference, problem).forward(gradients=False)).verdict == "proven"
    module: Any = reference._module("float64")
    monkeypatch.setattr(module.decoder.layers[0].cross_attention_norm, "eps", model.config.encoder.norm.eps)
    result = decide(lowered(candidate, reference, problem).forward(gradients=False))
    assert result.verdict == "refuted"
    assert result.different[0] == "decoder.layers.0.cross_attention_norm"


@pytest.mark.parametrize(
    "name",
    [
        "rotary in cross-attention",
        "ALiBi",
        "narrow values, relative vectors",
        "capped logits",
        "windows, every other layer full",
        "windows of each stack",
        "all at once",
        "stacks that differ",
    ],
)
def test_decoding_with_a_cache_gives_torchs_tokens(name: str) -> None:
    """PyTorch computes the whole prefix again for every token."""
    model, (candidate, reference) = make_model(name), sides(name)
    problem = own_problem(model.config, model.params)
    mean = forward(model.config, model.params, *problem.ids)["logits"].mean(axis=(0, 1))
    head = {
        **model.params["head"],
        "bias": model.params["head"]["bias"] - mean,
    }  # no token likely everywhere
    problem = decoding_problem(model.config, replace(problem, params={**model.params, "head": head}), more=1)
    received, expected = (
        side.decode(problem, DecodingConfig(beam_size=1, max_new_tokens=9)) for side in (candidate, reference)
    )
    width = received.ids.shape[1]
    np.testing.assert_array_equal(received.ids, expected.ids[:, :width])
    assert (expected.ids[:, width:] == model.config.target_pad_id).all()
    assert len(np.unique(expected.ids, axis=0)) > 2


# --- programs with a mistake

Mistake = Callable[[pytest.MonkeyPatch], None]


def other_option(**options: Any) -> Mistake:
    """The program is built with other options than the model's."""

    def make(patch: pytest.MonkeyPatch) -> None:
        build = MechanismReference.build

        def wrong(self: MechanismReference, dtype: torch.dtype) -> Any:
            module: Any = build(self, dtype)
            for part in module.modules():
                if hasattr(part, "mechanisms"):
                    part.mechanisms = replace(part.mechanisms, **options)
            return module

        patch.setattr(MechanismReference, "build", wrong)

    return make


def other_function(where: Any, name: str, wrong: Callable[..., Any]) -> Mistake:
    return lambda patch: patch.setattr(where, name, wrong)


def tiled(x: Tensor, num_heads: int) -> Tensor:
    return x.repeat(1, num_heads // x.shape[1], 1, 1)


def queries_one_too_far(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return ROTATE(x, positions + (x.shape[1] == 6), **options)  # six heads of queries, three of keys


def in_float32(x: Tensor, positions: Tensor, *, base: float, **_: Any) -> Tensor:
    """As programs do that keep cosines and sines in float32 whatever they are given."""
    frequencies = base ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angles = positions.float()[:, None] * frequencies
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1).flatten(-2)


def normed_head_by_head(self: nn.LayerNorm, x: Tensor) -> Tensor:
    if self.normalized_shape != (30,):  # six heads of five
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
    return functional.layer_norm(x.unflatten(-1, (6, 5)), (5,)).flatten(-2) * self.weight + self.bias


ROTATE = transformer.rotate
SLOPES = alibi.slopes


def raised(num_heads: int) -> list[float]:
    return [-slope for slope in SLOPES(num_heads)]


def geometric(num_heads: int) -> list[float]:
    return [2.0 ** (-8.0 * (i + 1) / num_heads) for i in range(num_heads)]


def nearer(self: relative_vectors.RelativeVectors, length: int) -> Tensor:
    columns = torch.arange(length)
    return (columns - columns[:, None]).clamp(1 - self.limit, self.limit - 1) + self.limit


def exchanged(self: relative_vectors.RelativeVectors, query: Tensor) -> Tensor:
    assert self.values is not None
    return torch.einsum("bnqh,qkh->bnqk", query, self.values[self.rows(query.shape[2])])


def too_wide(window: int, length: int) -> Tensor:
    return WINDOW_MASK(window + 1, length)


def counted_from_0(options: transformer.AttentionOptions, layer: int) -> bool:
    return options.full_every is not None and layer % options.full_every == 0


WINDOW_MASK = transformer.window_mask


MISTAKES: dict[str, tuple[str, Mistake, set[str]]] = {
    "layout": ("rotary", other_option(rotary_halves=True), {"rotary: pairs of the two halves"}),
    "base": (
        "rotary in cross-attention",
        other_option(rotary_base=500000.0),
        {"rotary: base 500,000 instead of 10,000"},
    ),
    "position": (
        "all at once",
        other_function(transformer, "rotate", queries_one_too_far),
        {"rotary: positions 1 too far"},
    ),
    "float32": (
        "rotary",
        other_function(transformer, "rotate", in_float32),
        {"rotary: cosines and sines in float32"},
    ),
    "sign": ("ALiBi, 4 heads", other_function(alibi, "slopes", raised), {"ALiBi: sign reversed"}),
    "slopes": (
        "ALiBi",
        other_function(alibi, "slopes", geometric),
        {"ALiBi: slopes 2^(−8i / N) though N is no power of two"},
    ),
    "clip": (
        "relative vectors",
        other_function(relative_vectors.RelativeVectors, "rows", nearer),
        {"relative vectors of keys: clipped one too near", "relative vectors of values: clipped one too near"},
    ),
    "exchanged": (
        "relative vectors",
        other_function(relative_vectors.RelativeVectors, "products", exchanged),
        {"relative vectors of keys are those of values"},
    ),
    "window": (
        "windows, every other layer full",
        other_function(transformer, "window_mask", too_wide),
        {"window off by one: wider"},
    ),
    "full layers": (
        "windows, every other layer full",
        other_function(transformer, "sees_all", counted_from_0),
        {
            "window missing, in this attention alone",
            "window where all positions should be seen, in this attention alone",
        },
    ),
    "head by head": (
        "norm of contexts in self-attention",
        other_function(nn.LayerNorm, "forward", normed_head_by_head),
        {"contexts normed head by head"},
    ),
    "tiled": (
        "grouped queries",
        other_function(transformer, "for_all_queries", tiled),
        {"heads of keys tiled, not repeated", "heads of values tiled, not repeated"},
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_program_is_named(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the truth in NumPy, with the JAX side's function (the tests above show it the same)."""
    name, make, causes = MISTAKES[mistake]
    model = make_model(name)
    make(monkeypatch)
    problem = own_problem(model.config, model.params)
    wrong = TorchSide("torch", model, MechanismReference(model.config)).forward(problem, "float64")
    right = forward(model.config, problem.params, *problem.ids)
    result = compare_forward(model.config, problem, wrong, right)
    assert result.forward.verdict == "diverged"
    named = [{match.variant for match in fault.finding.matches} for fault in result.faults]
    assert set.union(*named) == causes, result.faults
    assert all(len(names) == 1 for names in named)


def test_windows_equal_transformers() -> None:
    """Of a causal model the same number; of T5Gemma's encoder, whose masks count the query's neighbours, one more."""
    from transformers import T5GemmaModuleConfig, masking_utils

    query, key = torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij")
    config = TransformerConfig(window=4)
    causal = formulas.decoder_window_mask(config.decoder.self_attention, config.target, np.full((1, 9), 5))
    theirs = masking_utils.sliding_window_causal_mask_function(4)(0, 0, query, key)
    np.testing.assert_array_equal(causal, theirs[None, None])
    both_sides = formulas.encoder_window_mask(config.encoder.self_attention, config.source, np.full((1, 9), 5))
    theirs = masking_utils.sliding_window_bidirectional_mask_function(3)(0, 0, query, key)
    np.testing.assert_array_equal(both_sides, theirs[None, None])
    of_gemma = Attention(window=4, full_every=2)
    kinds = ["sliding_attention" if has_window(of_gemma, i) else "full_attention" for i in range(5)]
    assert kinds == T5GemmaModuleConfig(num_hidden_layers=5).layer_types


def test_kv_heads_that_do_not_divide_are_refused() -> None:
    make = partial(replace, make_model("grouped queries").config)
    with pytest.raises(ValueError, match="num_kv_heads must be a divisor of the encoder's num_heads=6; received 4"):
        make(num_kv_heads=4)
    config = make_model("grouped queries").config
    sizes = {
        "source_vocab_size": 5,
        "target_vocab_size": 5,
        "d_ff": 4,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    }
    with pytest.raises(ValueError, match="num_kv_heads must divide num_heads=6; received 4"):
        transformer.MechanismTransformer(
            **sizes, d_model=config.d_model, num_heads=6, head_dim=4, source_pad_id=0, target_pad_id=0,
            encoder=transformer.Mechanisms(),
            decoder=transformer.Mechanisms(cross_attention=transformer.AttentionOptions(num_kv_heads=4)),
        )  # fmt: skip
