"""A program for one process with eight CPU devices: it computes on several meshes what one device computes, and prints
the largest differences as JSON. test_mesh.py runs it."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jax_transformer.comparison.gates.tolerances import ZERO_GRADIENTS
from jax_transformer.compiling import programs
from jax_transformer.compiling.costs import COLLECTIVES, count_costs
from jax_transformer.compiling.hlo import parse
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch, make_batch, pack_batch
from jax_transformer.data.planning import Shape
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.scoring import score
from jax_transformer.model.functional import Params, abstract_params
from jax_transformer.parallel import make_mesh, pad_rows, place_rows, tree_shardings
from jax_transformer.parallel.placement import RowShare, fetch, place_params, row_shards
from jax_transformer.runtime.garbage import collect_nothing_at_exit, collect_rarely
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.checkpoints import Checkpoints
from jax_transformer.training.optimizer_state import continue_training, training_state
from jax_transformer.training.state import TrainState, abstract_state, all_params, init_state
from jax_transformer.training.step import make_evaluation_step, make_train_step
from jax_transformer.training.virtual_shards import VirtualShards

Sizes = tuple[int, int, int]
MESHES: tuple[Sizes, ...] = ((8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 8, 1), (1, 1, 8))
ROWS, STEPS = 12, 20

PAPER = TransformerConfig(
    source_vocab_size=40,
    target_vocab_size=40,
    d_model=16,
    num_heads=8,
    d_ff=24,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=12,
    share_embeddings=True,
    tie_head=True,
    dropout_rate=0.2,
)
PLAIN = dataclasses.replace(PAPER, dropout_rate=0.0)
BIASES: dict[str, Any] = {"position_kind": "relative_bias", "relative_buckets": 8, "relative_max_distance": 6}
FAMILIES = {
    "T5, a vocabulary that doesn't divide": dataclasses.replace(
        PAPER,
        **BIASES,
        source_vocab_size=41,
        target_vocab_size=41,
        norm_kind="rms_norm",
        norm_placement="pre",
        norm_bias=False,
        final_norm=True,
        scale_head=True,
        scale_embedding=False,
        attention_scale=1.0,
        attention_bias=False,
        attention_output_bias=False,
        feed_forward_bias=False,
        feed_forward_gated=True,
        activation="gelu_tanh",
        head_bias="none",
        output_dropout_rate=0.1,
    ),
    "BART": dataclasses.replace(
        PLAIN,
        position_kind="learned",
        position_offset=2,
        learned_position_scale=True,
        encoder_embedding_norm="after_positions",
        decoder_embedding_norm="after_positions",
        activation="gelu",
        head_bias="buffer",
        scale_embedding=False,
    ),
    "own tables, layers unrolled, attention in blocks": dataclasses.replace(
        PLAIN,
        **BIASES,
        relative_bias_per_layer=True,
        attention_path="flash",
        share_embeddings=False,
        tie_head=False,
        source_vocab_size=33,
        layer_loop="unrolled",
        remat="none",
    ),
    "relative vectors": dataclasses.replace(PLAIN, position_kind="relative_vectors", relative_max_distance=3),
    "rotary, shared keys, sublayers side by side, shared layers": dataclasses.replace(
        PLAIN,
        position_kind="rotary",
        num_heads=4,
        num_kv_heads=2,
        query_key_norm=True,
        head_scale=True,
        context_norm="attention",
        attention_bias=False,
        norm_placement="pre",
        parallel_residual=True,
        output_norm="attention",
        feed_forward_hidden_norm=True,
        learned_sublayer_scale="channel",
        share_layers=True,
        num_encoder_layers=2,
        decoder_embedding_factor=0.5,
        activation="prelu",
    ),
}
TRAIN = TrainConfig(
    schedule="constant", learning_rate=1e-3, warmup_steps=2, clip_norm=0.5, ema_decay=0.99, adam_eps=1e-6
)


class Trained(NamedTuple):
    losses: list[float]
    state: TrainState


def batches(config: TransformerConfig, count: int, packed: bool = False) -> list[Batch]:
    """Batches of ROWS pairs of one shape, whose rows no mesh here divides."""
    rng = np.random.default_rng(7)

    def sentences(vocabulary: int) -> list[list[int]]:
        return [rng.integers(4, vocabulary, rng.integers(2, 8)).tolist() for _ in range(ROWS)]

    make, shape = (pack_batch, Shape(ROWS // 2 + 1, 12, 12)) if packed else (make_batch, Shape(ROWS, 9, 9))
    return [
        make(sentences(config.source_vocab_size), sentences(config.target_vocab_size), shape=shape)
        for _ in range(count)
    ]


def first_params(config: TransformerConfig, dtype: type = np.float64) -> Params:
    """Draws every parameter, biases, scales and tables of positions included; nothing is compiled for it."""
    rng = np.random.default_rng(3)

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (0.2 * rng.standard_normal(leaf.shape) + ("scale" in path[-1].key)).astype(dtype)

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config))


def random_state() -> TrainState:
    """Returns a state whose every array is random and in float32, on the host."""
    rng = np.random.default_rng(5)
    like = abstract_state(PAPER, TRAIN)
    return jax.tree.map(lambda leaf: rng.integers(1, 2**30, leaf.shape).astype(leaf.dtype), like)


def train(
    config: TransformerConfig,
    train: TrainConfig,
    sizes: Sizes | None,
    steps: int,
    dtype: type = np.float64,
    packed: bool = False,
) -> Trained:
    """Trains `steps` steps; `sizes` None: on one device, without a mesh."""
    mesh = None if sizes is None else make_mesh(ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2]))
    state = init_state(config, train, first_params(config, dtype), mesh=mesh)
    step = make_train_step(config, train, mesh=mesh)
    losses = []
    for batch in batches(config, steps, packed):
        state, metrics = step(state, placed(batch, mesh, train.accumulate))
        losses.append(float(metrics["loss"]))
    if mesh is not None:
        check_divided(state, sizes)
    return Trained(losses, fetch(state))


def placed(batch: Batch, mesh: Mesh | None, parts: int) -> Batch:
    """Returns a batch on the mesh, of which each process passes its rows."""
    padded = pad_rows(batch, row_shards(mesh) * parts, (0, 0))
    if mesh is None:
        return padded
    share = RowShare(mesh)
    own = share.rows_of(len(padded.labels))
    return share.place(jax.tree.map(lambda ids: ids[own], padded))


def check_divided(state: TrainState, sizes: Any) -> None:
    """Every parameter and its moments are still divided among the devices after the last step."""
    _, fsdp, tensor = sizes
    for tree in (state.params, state.average, *(part.mu for part in state.optimizer if hasattr(part, "mu"))):
        leaves, start = flatten(tree), "encoder/layers/feed_forward/hidden/"
        parts = {"kernel": (1, fsdp, tensor), "lora_a": (1, fsdp, 1), "lora_b": (1, 1, tensor)}
        assert any(start + name in leaves for name in parts)
        for leaf, divided in ((leaves.get(start + name), divided) for name, divided in parts.items()):
            if leaf is not None:
                share = leaf.sharding.shard_shape(leaf.shape)
                assert tuple(np.multiply(share, divided)) == leaf.shape, leaf.sharding


def difference(received: Params, expected: Params) -> float:
    """Returns the largest relative difference of a parameter, in the norm of each. A bias of keys has gradient zero but
    for rounding, which Adam magnifies."""
    compared = {path: leaf for path, leaf in flatten(received).items() if not path.endswith(ZERO_GRADIENTS)}
    pairs = ((leaf, flatten(expected)[path]) for path, leaf in compared.items())
    return max(float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in pairs)


def compare(received: Trained, expected: Trained) -> dict[str, float]:
    return {
        "losses": float(np.abs(np.array(received.losses) / np.array(expected.losses) - 1.0).max()),
        "parameters": difference(received.state.params, expected.state.params),
        "averages": difference(received.state.average, expected.state.average),
        "learned": 1.0 - received.losses[-1] / received.losses[0],
    }


def twenty_steps() -> dict[str, Any]:
    """All three axes, with two parts (--all: each axis with all devices too, and with one part)."""
    found = {}
    for parts, meshes in ((2, MESHES), (1, MESHES)) if "--all" in sys.argv else ((2, MESHES[2:3]),):
        config = dataclasses.replace(TRAIN, accumulate=parts)
        alone = train(PAPER, config, None, STEPS)
        for sizes in meshes:
            found[f"{sizes}, {parts}"] = compare(train(PAPER, config, sizes, STEPS), alone)
    return found


def families() -> dict[str, Any]:
    """The two that have most rules of their own (--all: all)."""
    names = list(FAMILIES) if "--all" in sys.argv else [next(iter(FAMILIES)), list(FAMILIES)[-1]]
    return {
        name: compare(train(FAMILIES[name], TRAIN, (2, 2, 2), 3), train(FAMILIES[name], TRAIN, None, 3))
        for name in names
    }


def packing() -> dict[str, Any]:
    """Trains on packed batches on a mesh, with dropout and in two parts, and on one device."""
    config = dataclasses.replace(TRAIN, accumulate=2)
    alone = train(PAPER, config, None, 3, packed=True)
    return {"dropout": compare(train(PAPER, config, (2, 2, 2), 3, packed=True), alone)}


def adapters() -> dict[str, Any]:
    """LoRA's adapters on a mesh, with dropout and in two parts; and the kernels that they change."""
    lora = LoraConfig(rank=3, targets=("*_attention/*/kernel", "*/feed_forward/*/kernel"))
    config = dataclasses.replace(TRAIN, accumulate=2, lora=lora)
    found = compare(train(PAPER, config, (2, 2, 2), 3), train(PAPER, config, None, 3))
    mesh, first = make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2)), first_params(PAPER)
    state = init_state(PAPER, config, first)
    rng = np.random.default_rng(4)
    drawn = {path: rng.standard_normal(leaf.shape) for path, leaf in flatten(state.params).items()}
    given = unflatten(flatten(first) | drawn)
    alone, divided = (fetch(all_params(init_state(PAPER, config, given, mesh=where))) for where in (None, mesh))
    return found | {"merged": difference(divided, alone), "changed": difference(divided, first)}


def in_float32() -> dict[str, Any]:
    """One mesh that twenty_steps lacks (--all: all of them)."""
    alone = train(PAPER, TRAIN, None, 1, np.float32)
    meshes = MESHES if "--all" in sys.argv else MESHES[3:4]
    return {str(sizes): compare(train(PAPER, TRAIN, sizes, 1, np.float32), alone) for sizes in meshes}


def initial() -> dict[str, Any]:
    """Weights that are drawn on a mesh."""
    mesh = make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2))
    alone, divided = (jax.device_get(all_params(init_state(PAPER, TRAIN, mesh=where))) for where in (None, mesh))
    return {"equal": jax.tree.all(jax.tree.map(np.array_equal, alone, divided))}


def evaluation() -> dict[str, Any]:
    mesh = make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2))
    params, (batch,) = first_params(PAPER), batches(PAPER, 1)
    alone = make_evaluation_step(PAPER)(params, batch)
    padded = place_rows(pad_rows(batch, row_shards(mesh), (0, 0)), mesh)
    divided = make_evaluation_step(PAPER, mesh)(place_params(params, mesh), padded)
    return {"loss": abs(float(divided[0]) / float(alone[0]) - 1.0), "tokens": int(divided[1]) - int(alone[1])}


def decoding() -> dict[str, Any]:
    """Greedy decoding, beam search, sampling and scores of 5 sentences, which no mesh divides."""
    found = {}
    source = [[4, 5, 6], [7, 8], [9, 10, 11, 12], [5, 5], [6]]
    t5, bart = list(FAMILIES)[:2]
    for name, meshes in ((t5, ((8, 1, 1), (2, 2, 2))), (bart, ((2, 2, 2),))):
        config = FAMILIES[name]
        generation = GenerationConfig(decoder_start_id=2, eos_id=3)
        model = Model(config, first_params(config), None, None, generation)
        for sizes in meshes:
            divided = prepare(model, make_mesh(ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2])))
            same = {}
            for options in ({}, {"beam_size": 3, "num_return": 2}, {"sampling": True, "seed": 5}):
                expected, received = (generate(each, source, max_new_tokens=6, **options) for each in (model, divided))
                same[str(options)] = bool(
                    np.array_equal(received.sequences, expected.sequences)
                    and np.allclose(received.scores, expected.scores, rtol=1e-6)
                )
            targets = [[4, 9, 3], [5, 3], [6, 7, 8, 3], [9], [10, 3]]
            expected, received = (score(each, source, targets).log_probs for each in (model, divided))
            same["scores"] = bool(np.allclose(received, expected, rtol=1e-12))
            found[f"{name}, {sizes}"] = same
    return found


def restoring() -> dict[str, Any]:
    """Saves a state on one mesh and restores it onto others, onto one device, and back."""
    devices = jax.devices()
    meshes = {
        "(2, 2, 2)": make_mesh(ParallelConfig(data=2, fsdp=2, tensor=2)),
        "(1, 8, 1)": make_mesh(ParallelConfig(data=1, fsdp=8)),
        "one": make_mesh(ParallelConfig(), devices[:1]),
    }
    found, state = {}, random_state()
    with tempfile.TemporaryDirectory() as folder:
        for name, mesh in meshes.items():
            shardings = tree_shardings(state, all_params(state), mesh)
            checkpoints = Checkpoints(Path(folder) / name, TRAIN)
            checkpoints.save(jax.device_put(state, shardings), None, {})
            for other in meshes:
                restored = checkpoints.restore(int(state.step), abstract_state(PAPER, TRAIN, mesh=meshes[other]))
                placed = all(leaf.sharding.mesh == meshes[other] for leaf in jax.tree.leaves(restored))
                same = jax.tree.all(jax.tree.map(np.array_equal, jax.device_get(restored), state))
                found[f"{name} to {other}"] = placed and same
            checkpoints.close()
    return found


def continuing() -> dict[str, Any]:
    """Puts a training state onto meshes, where it lies as a trained one does, and reads it back from there."""
    state, found = random_state()._replace(step=np.asarray(3, np.int32)), {}
    saved = training_state(state, TRAIN)
    for sizes in ((2, 2, 2), (1, 8, 1)):
        mesh = make_mesh(ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2]))
        begun = init_state(PAPER, TRAIN, first_params(PAPER, np.float32), mesh=mesh)
        continued = continue_training(begun, saved, TRAIN)
        check_divided(continued, sizes)
        back = training_state(continued, TRAIN)
        lies = jax.tree.all(jax.tree.map(lambda one, other: one.sharding == other.sharding, continued, begun))
        found[str(sizes)] = lies and back.step == 3 and same(back.slots, saved.slots)
    return found


def virtual_shards() -> dict[str, Any]:
    """Trains on 1, 2 and 4 devices in 4 virtual shards, in float32, two parts each; also from 4 devices on to 2. XLA
    compiles a program for each device."""
    config = dataclasses.replace(TRAIN, accumulate=2)
    meshes = {count: make_mesh(ParallelConfig(virtual_shards=4), jax.devices()[:count]) for count in (1, 2, 4)}
    steps = {count: VirtualShards(PAPER, config, mesh, 4) for count, mesh in meshes.items()}

    def trained(devices: int, state: TrainState, batches: list[Batch]) -> tuple[TrainState, list[float], float]:
        mesh, step, losses = meshes[devices], steps[devices], []
        state = _copies(state, mesh)
        for batch in batches:
            state, metrics = step(state, place_rows(pad_rows(batch, 8, (0, 0)), mesh))
            losses.append(float(metrics["loss"]))
        loss, _ = step.evaluate(all_params(state), place_rows(pad_rows(batches[0], 4, (0, 0)), mesh))
        return jax.device_get(state), losses, float(loss)

    params, given = first_params(PAPER, np.float32), batches(PAPER, 4)
    first = jax.device_get(init_state(PAPER, config, params))
    alone = trained(1, first, given)
    found: dict[str, Any] = {str(devices): same(trained(devices, first, given), alone) for devices in (2, 4)}
    half, _, _ = trained(4, first, given[:2])
    found["4 to 2"] = same(trained(2, half, given[2:])[0], alone[0])
    state, _ = make_train_step(PLAIN, config)(init_state(PAPER, config, params), given[0])
    received, _ = VirtualShards(PLAIN, config, meshes[1], 4)(
        _copies(first, meshes[1]), place_rows(pad_rows(given[0], 8, (0, 0)), meshes[1])
    )
    found["of the plain step"] = difference(jax.device_get(received.params), jax.device_get(state.params))
    return found


def _copies(state: TrainState, mesh: Mesh) -> TrainState:
    return jax.device_put(state, tree_shardings(state, all_params(state), mesh))


def communication() -> dict[str, Any]:
    """Collectives of a training step whose arrays have an axis as long as the vocabulary, which no other axis is; and
    what the step sends, in sums of the residual stream [B, T, D] over the devices."""
    config = dataclasses.replace(PAPER, source_vocab_size=424, target_vocab_size=424, feed_forward_gated=True)
    found = {}
    for sizes in ((1, 1, 8), (2, 2, 2)):
        mesh, shape = make_mesh(ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2])), programs.Shape(16, 9, 9)
        program = parse(programs.lower("train", config, TRAIN, shape, mesh).lowered.compile().as_text())
        every = [one for part in program.computations.values() for one in part.instructions.values()]
        collectives = [one for one in every if one.opcode.removesuffix("-start") in COLLECTIVES]
        one_sum = 2 * 7 / 8 * shape.rows * shape.target * config.d_model * 4
        found[str(sizes)] = {
            "collectives": len(collectives),
            "sums": count_costs(program, 8).sent / one_sum,
            "of the vocabulary": [
                f"{one.opcode} {array.shape}" for one in collectives for array in one.result if 424 in array.shape
            ],
        }
    return found


def same(received: Any, expected: Any) -> bool:
    return bool(jax.tree.all(jax.tree.map(np.array_equal, received, expected)))


CASES: tuple[Callable[[], dict[str, Any]], ...] = (
    twenty_steps,
    families,
    packing,
    adapters,
    in_float32,
    initial,
    evaluation,
    decoding,
    restoring,
    continuing,
    virtual_shards,
    communication,
)

if __name__ == "__main__":
    collect_rarely()
    collect_nothing_at_exit()
    assert jax.device_count() == 8
    chosen = [name for name in sys.argv[1:] if name != "--all"] or [case.__name__ for case in CASES]
    with jax.enable_x64(True):
        print(json.dumps({case.__name__: case() for case in CASES if case.__name__ in chosen}))
