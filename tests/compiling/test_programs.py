"""Programs compiled for a CPU: the floating-point operations of the model and of the program, and its memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jax_transformer.compiling.costs import count_costs
from jax_transformer.compiling.hlo import parse
from jax_transformer.compiling.programs import Name, Shape, lower
from jax_transformer.compiling.report import CompileReport, largest_batch
from jax_transformer.compiling.targets import CompileError, DoesNotFit, Target
from jax_transformer.config import flops as flops_of
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import RelativeVectors
from jax_transformer.config.run import TrainConfig
from jax_transformer.config.specs import Attention, FeedForward
from jax_transformer.parallel.mesh import make_mesh

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = TransformerConfig(
    source_vocab_size=96, target_vocab_size=96, d_model=64, num_heads=4, d_ff=96, num_encoder_layers=2,
    num_decoder_layers=3, max_length=32, dropout_rate=0.0, remat="none",
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "own tables": {},
    "tied": {"share_embeddings": True, "tie_head": True},
    "gated, other decoder": {"feed_forward_gated": True, "decoder_num_heads": 2, "decoder_d_ff": 64},
    "side by side, one layer": {
        "parallel_residual": True,
        "norm_placement": "pre",
        "output_norm": "all",
        "feed_forward_hidden_norm": True,
        "learned_sublayer_scale": "scalar",
        "share_layers": True,
        "num_kv_heads": 2,
        "query_key_norm": True,
        "position_kind": "rotary",
        "rotary_cross_attention": True,
    },
    "relative vectors": {
        "position_kind": "relative_vectors",
        "share_layers": True,
        "num_kv_heads": 2,
        "value_dim": 24,
    },
    "relative vectors of keys": {"position_kind": "relative_vectors", "relative_value_vectors": False},
    "narrow heads": {"head_dim": 8, "value_dim": 12},
    "shared keys and values": {"num_kv_heads": 2, "decoder_num_kv_heads": 1},
    "stacks that differ": {
        "encoder": dataclasses.replace(
            SMALL.encoder, feed_forward=FeedForward(width=96, gated=True), positions=RelativeVectors(), norm=None
        ),
        "decoder": dataclasses.replace(
            SMALL.decoder,
            self_attention=Attention(num_heads=2, num_kv_heads=1, causal=True),
            cross_attention=Attention(num_heads=8, head_dim=16, value_dim=12),
            feed_forward=FeedForward(width=200),
        ),
    },
}


@pytest.fixture
def mesh() -> Mesh:
    return make_mesh(devices=jax.devices()[:1])


@pytest.mark.parametrize(
    ("name", "variant"),
    [("evaluate", "tied"), *((name, variant) for name in ("train", "decode") for variant in VARIANTS)],
)
def test_the_programs_flops_match_the_model(name: Name, variant: str, mesh: Mesh) -> None:
    """Every product of the program belongs to the model, and the other way round. Each beam attends to all positions
    that the cache has room for, those of the other beams included."""
    model, shape = dataclasses.replace(SMALL, **VARIANTS[variant]), Shape(8, 16, 24)
    program = lower(name, model, TrainConfig(), shape, mesh, beams=2)
    costs = count_costs(parse(program.lowered.compile().as_text()), 1, most_trips=shape.target)
    flops, most = program.flops, 1.05
    if name == "decode":
        needed, room = (
            flops_of._decoder_layer(model, shape.target, shape.source, keys)
            for keys in ((shape.target + 1) / 2, 2 * shape.target)
        )
        flops, most = flops + 2 * shape.rows * model.decoder.num_layers * (room - needed), 1.001
    assert 1.0 <= costs.flops / flops < most


def test_rematerialisation_shows(mesh: Mesh) -> None:
    def flops(remat: Any) -> float:
        program = lower("train", dataclasses.replace(SMALL, remat=remat), TrainConfig(), Shape(8, 16, 24), mesh)
        return count_costs(parse(program.lowered.compile().as_text()), 1).flops / program.flops

    assert flops("all") > 1.15


# --- the largest batch


def report_of(rows: int, *, memory: float = 1000.0, fixed: int = 100, each: float = 3.0) -> CompileReport:
    """Returns the report of a program whose temporaries grow with the rows."""
    return CompileReport(
        target="tpu", program="train", mesh="", devices=1, shape=Shape(rows, 1, 1), arguments=fixed,
        temporaries=int(50 + each * rows), output=0, memory=memory, compile_seconds=0, compile_processor_seconds=0,
        model_flops=1, program_flops=1, traffic=0, collectives=(), roofline=None, utilization=None,
    )  # fmt: skip


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("start", [8, 64, 4096])
def test_the_largest_batch_fits_and_few_more_rows_do_not(start: int, multiple: int) -> None:
    asked: list[int] = []

    def compile_rows(rows: int) -> CompileReport:
        asked.append(rows)
        report = report_of(rows)
        if not report.fits:
            raise DoesNotFit(f"{rows} rows")
        return report

    best = largest_batch(compile_rows, multiple, start).shape.rows
    assert best % multiple == 0
    assert (1000 - 150) / 3 * 15 / 16 - multiple <= best <= (1000 - 150) / 3
    assert len(asked) == len(set(asked)) < 14


def test_no_batch_fits() -> None:
    def compile_rows(rows: int) -> CompileReport:
        raise DoesNotFit(f"{rows} rows need too much")

    with pytest.raises(DoesNotFit, match="8 rows need too much"):
        largest_batch(compile_rows, 8, 64)


# --- targets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu:h100:8", "expected one such as tpu:v5e:4x4"),
        ("tpu:v9:2x2", "expected tpu: and one of v5e, v5p, v6e"),
        ("tpu:v5e", "expected a topology, such as 4x4, after tpu:v5e"),
        ("tpu:v5e:0x4", "expected a topology"),
        ("tpu:v5e:4x4:no", "expected a number of slices"),
        ("nvidia:h100:8:2", "expected a number of slices"),
        ("nvidia:h100:2x4", "expected a number of devices after nvidia:h100"),
        ("nvidia:h100:16", "at most 8 GPUs"),
        ("nvidia:a100:8", "expected nvidia: and one of h100, h200"),
        ("cpu:no", "expected a number of devices"),
    ],
)
def test_targets_that_do_not_exist(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        Target.parse(text)


@pytest.mark.parametrize("text", ["tpu:v5e:4x4", "tpu:v5e:4x4:2", "tpu:v5p:2x2x2", "nvidia:h200:8", "cpu:2"])
def test_a_target_round_trips_through_text(text: str) -> None:
    assert str(Target.parse(text)) == text


def test_a_batchs_bytes_are_on_the_devices_of_its_rows(mesh: Mesh) -> None:
    """The program takes the state and three arrays of ids."""
    program = lower("train", SMALL, TrainConfig(), Shape(8, 16, 24), mesh)
    batch = [
        leaf for leaf in jax.tree.leaves(program.lowered.args_info) if leaf.dtype == np.int32 and len(leaf.shape) == 2
    ]
    assert [leaf.shape for leaf in batch] == [(8, 16), (8, 24), (8, 24)]


def test_a_model_with_adapters_is_evaluated_as_merged(mesh: Mesh) -> None:
    config = dataclasses.replace(SMALL, num_encoder_layers=1, num_decoder_layers=1)
    adapted = TrainConfig(lora=LoraConfig(rank=2))
    texts = [
        lower("evaluate", config, train, Shape(8, 5, 5), mesh).lowered.as_text() for train in (adapted, TrainConfig())
    ]
    assert texts[0] == texts[1]
