"""The systems that faults are put into: small models of every published program, with random weights, and models of the
mechanisms of attention that none of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from block_pairs import config_of, random_params

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import option_names
from jax_transformer.model.functional import abstract_params
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.parity.problems import randomised
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

STEPWISE = (
    "stepwise_core",
    "stepwise_masks",
    "stepwise_positions",
    "stepwise_layers",
    "stepwise_sublayers",
    "stepwise",
)
"""From the first rung of the ladder to the last."""
ONE_HEAD = STEPWISE[:-1]
ONE_LAYER = STEPWISE[:3]


@dataclass(frozen=True)
class Subject:
    """A published system, or one of its variants."""

    dialect: str
    choices: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Config fields in which the variant differs from the dialect's defaults."""


SUBJECTS: Mapping[str, Subject] = {
    "floydhub": Subject("floydhub"),
    "annotated_zh": Subject("annotated_zh"),
    "harvard": Subject("harvard"),
    "codersarts": Subject("codersarts"),
    "codersarts, as meant": Subject("codersarts", {"position_index": "column"}),
    "sayhello": Subject("sayhello"),
    "sayhello, with biases": Subject("sayhello", {"attention_bias": True, "attention_output_bias": True}),
    "hyunwoongko": Subject("hyunwoongko"),
    **{dialect: Subject(dialect) for dialect in STEPWISE},
    "pytorch, post-norm, ReLU": Subject("pytorch"),
    "pytorch, pre-norm, GELU": Subject("pytorch", {"norm_placement": "pre", "activation": "gelu"}),
    "pytorch, tied head": Subject(
        "pytorch", {"norm_placement": "pre", "activation": "gelu", "tie_head": True, "norm_eps": 1e-3}
    ),
    "pytorch, all tied": Subject("pytorch", {"activation": "gelu", "share_embeddings": True, "tie_head": True}),
}


MECHANISMS = {
    f"mechanisms: {name}": name for name in ("rotary in cross-attention", "ALiBi", "relative vectors", "all at once")
}
"""Further systems → the models of parity_tests/zoo/mechanisms.py, which together have every mechanism."""


def make_model(name: str, seed: int = 0, layers: tuple[int, int] | None = None) -> Model:
    """A model of one of SUBJECTS: sizes that differ pairwise, pad ids that are tokens of both sides, weights drawn by
    the seed.

    Args:
      layers: as of `make_config`.
    """
    subject = SUBJECTS[name]
    config = make_config(subject, np.random.default_rng([*name.encode()]), layers)
    rng = np.random.default_rng([seed, *name.encode()])
    leaves = randomised(
        unflatten({path: np.zeros(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}), rng
    )
    leaves |= constants(config)
    params = unflatten({path: leaf.astype(np.float32) for path, leaf in leaves.items()})
    return Model(
        config, params, None, None, GenerationConfig(decoder_start_id=0, eos_id=1), {"dialect": subject.dialect}
    )


def make_block(name: str, seed: int = 0) -> Model:
    """A model of one of the pairs of `block_pairs`, of no dialect, with weights drawn by the seed."""
    config = config_of(name)
    leaves = flatten(random_params(config, np.random.default_rng([seed, *name.encode()])))
    params = unflatten({path: leaf.astype(np.float32) for path, leaf in leaves.items()})
    return Model(config, params, None, None, GenerationConfig(decoder_start_id=0, eos_id=3))


def make_config(subject: Subject, rng: np.random.Generator, layers: tuple[int, int] | None = None) -> TransformerConfig:
    """Draws a config of a subject.

    Args:
      layers: of encoder and decoder, unless the dialect has one number for both; None: the usual ones.
    """
    one_head = subject.dialect in ONE_HEAD
    heads = ((1, 14), (1, 16), (1, 18)) if one_head else ((3, 4), (4, 5), (5, 4), (3, 6), (6, 5))
    num_heads, head_dim = heads[rng.integers(len(heads))]
    d_ff, source_vocab, target_vocab, most = (int(size) for size in rng.choice(np.arange(41, 60), 4, replace=False))
    source_pad, target_pad = (int(token) for token in rng.choice(np.arange(2, 41), 2, replace=False))
    stepwise = (1, 1) if subject.dialect in ONE_LAYER else (2, 2)
    layers = stepwise if subject.dialect in STEPWISE else layers or (3, 2)
    dialect = get_dialect(subject.dialect)
    sizes = {
        "source_vocab_size": target_vocab if subject.choices.get("share_embeddings") else source_vocab,
        "target_vocab_size": target_vocab,
        "d_model": num_heads * head_dim,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "max_length": most,
        "source_pad_id": source_pad,
        "target_pad_id": target_pad,
        "num_encoder_layers": layers[0],
        "num_decoder_layers": layers[1],
    }
    known = {**dialect.defaults, **dialect.fixed, **sizes, **subject.choices}
    first = {field: values[0] for field, values in dialect.choices.items() if field not in known}
    fields = {name: value for name, value in {**first, **known}.items() if name in option_names()}
    return TransformerConfig.from_flat({**fields, **dialect.follows(fields)})  # some options are of no part


def constants(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Its position tables, by path."""
    if config.position_kind != "sinusoidal":
        return {}
    stacks = {"encoder": config.encoder, "decoder": config.decoder}
    return {f"constants/{name}_positions": sinusoid_table(stack) for name, stack in stacks.items()}
