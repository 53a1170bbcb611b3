"""Programs of a mesh, and those of one device. The meshes are abstract: no devices are needed.

Axes: B rows, T positions, D features, F feed-forward units, V vocabulary, L layers, M microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jax_transformer.comparison.gates.tolerances import ZERO_GRADIENTS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model import functional
from jax_transformer.parallel import MeshConfig, make_abstract_mesh
from jax_transformer.parallel.tracing import divide_rows, in_mesh
from jax_transformer.proof.jax_programs import cut
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.state import init_state
from jax_transformer.training.step import StepFunctions
from jax_transformer.training.virtual_shards import _tree_over_devices
from proof.pairs import Function, Pair, Shapes, Weights, in_jax

# --- our own training step

MESH = make_abstract_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
PLAIN = TransformerConfig(
    source_vocab_size=12, target_vocab_size=12, d_model=4, num_heads=2, d_ff=6, num_encoder_layers=1,
    num_decoder_layers=1, max_length=9, dropout_rate=0.0, attention_path="reference", share_embeddings=True,
    tie_head=True,
)  # fmt: skip
T5_LIKE = replace(
    PLAIN, share_embeddings=False, tie_head=False, source_vocab_size=9, target_vocab_size=11,
    position_kind="relative_bias", relative_buckets=4, relative_max_distance=4, norm_kind="rms_norm",
    norm_placement="pre", norm_bias=False, final_norm=True, attention_scale=1.0, attention_bias=False,
    attention_output_bias=False, feed_forward_bias=False, feed_forward_gated=True, activation="gelu_tanh",
    head_bias="none",
)  # fmt: skip
"""Its tables are its own, and the mesh divides neither vocabulary."""
TRAIN = TrainConfig(schedule="constant", learning_rate=1e-3, warmup_steps=0, clip_norm=0.5, accumulate=2)
ROWS = 8


def batch() -> Batch:
    """Returns ROWS pairs of sentences, two of which have pads."""
    rng = np.random.default_rng(3)
    source, inputs, labels = (rng.integers(3, 9, (ROWS, length)).astype(np.int32) for length in (3, 2, 2))
    source[1, 2:] = labels[2, 1:] = PLAIN.source_pad_id
    return Batch(source, inputs, labels)


def training_step(config: TransformerConfig, mesh: AbstractMesh | None) -> Function:
    """Returns logits, the loss, its gradients and the parameters after a step, in two parts of the batch. Biases of
    keys are left out: their gradients are zero, and what floats make of zero can't be compared."""

    def step(w: Weights) -> dict[str, Any]:
        with in_mesh(mesh):
            params, given = unflatten(dict(w)), divide_rows(jax.tree.map(jnp.asarray, batch()), TRAIN.accumulate)
            optimizer = make_optimizer(TRAIN, lambda count: TRAIN.learning_rate)
            state = init_state(config, TRAIN, params, optimizer=optimizer)
            parts = StepFunctions.of("step", config, TRAIN, optimizer, mesh=mesh)
            tokens = parts.count(given)
            loss, gradients = parts.gradients(state, given, tokens, parts.dropout_key(state))
            new, _ = parts.update(state, loss, tokens, cut(gradients, is_weight=False))
            logits = functional.apply(config, params, given.source_ids, given.decoder_input_ids)
        named = {"gradient of ": gradients, "after a step: ": new.params}
        leaves = {start + path: leaf for start, tree in named.items() for path, leaf in flatten(tree).items()}
        compared = {path: leaf for path, leaf in leaves.items() if not path.endswith(ZERO_GRADIENTS)}
        return {"logits": logits, "loss": loss, **compared}

    return step


def shapes_of(config: TransformerConfig) -> Shapes:
    return {path: leaf.shape for path, leaf in flatten(functional.abstract_params(config)).items()}


# --- programs that say themselves what each device does

GRID = AbstractMesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
RING = AbstractMesh((4,), ("ring",), axis_types=(AxisType.Auto,))
LAYERS: Shapes = {"x": (4, 3), "up": (3, 4), "down": (4, 3)}


def on_grid(body: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=GRID, in_specs=in_specs, out_specs=out_specs, **options)


def on_ring(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Without JAX's check of what is one for all devices: a ring's sums round in another order on each."""
    return jax.shard_map(body, mesh=RING, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def feed_forward(w: Weights) -> jax.Array:
    return jax.nn.relu(w["x"] @ w["up"]) @ w["down"]


def megatron(w: Weights) -> jax.Array:
    """Each device has some of the hidden units, and sums the outputs (Shoeybi et al., 2019)."""

    def body(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return lax.psum(jax.nn.relu(x @ up) @ down, "tensor")

    specs = P("data"), P(None, "tensor"), P("tensor")
    return on_grid(body, specs, P("data"))(w["x"], w["up"], w["down"])


def sequence_parallel(w: Weights) -> jax.Array:
    """Between layers, each device has some of the positions (Korthikanti et al., 2022)."""

    def body(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        whole = lax.all_gather(x, "tensor", axis=0, tiled=True)
        return lax.psum_scatter(jax.nn.relu(whole @ up) @ down, "tensor", scatter_dimension=0, tiled=True)

    specs = P("tensor"), P(None, "tensor"), P("tensor")
    return on_grid(body, specs, P("tensor"))(w["x"], w["up"], w["down"])


def with_gradients(function: Function) -> Function:
    def both(w: Weights) -> dict[str, Any]:
        value, pull = jax.vjp(function, dict(w))
        (gradients,) = pull(jnp.sin(value))
        return {"output": value, **{f"gradient of {name}": each for name, each in gradients.items()}}

    return both


def averaged(w: Weights) -> dict[str, Any]:
    """Each device has some of the rows; the gradients are averaged."""
    weights = {name: w[name] for name in ("up", "down")}

    def body(weights: Weights, x: jax.Array) -> Any:
        varying = jax.tree.map(lambda weight: lax.pcast(weight, "data", to="varying"), weights)
        return lax.pmean(jax.value_and_grad(mean_square)(varying, x), "data")

    loss, gradients = on_grid(body, (P(), P("data")), (P(), P()))(weights, w["x"])
    return {"loss": loss, **gradients}


def whole_batch(w: Weights) -> dict[str, Any]:
    weights = {name: w[name] for name in ("up", "down")}
    loss, gradients = jax.value_and_grad(mean_square)(weights, w["x"])
    return {"loss": loss, **gradients}


def mean_square(weights: Weights, x: jax.Array) -> jax.Array:
    return jnp.square(feed_forward({**weights, "x": x})).mean()


NEXT = [(place, (place + 1) % 4) for place in range(4)]


def ring_gathered(x: jax.Array) -> jax.Array:
    """Passes the blocks on, and puts each where it belongs."""

    def pass_on(step: Any, held: Any) -> Any:
        found, block = held
        place = (lax.axis_index("ring") - step) % 4
        found = lax.dynamic_update_slice_in_dim(found, block, place * block.shape[0], axis=0)
        return found, lax.ppermute(block, "ring", NEXT)

    return lax.fori_loop(0, 4, pass_on, (jnp.zeros((4 * x.shape[0], *x.shape[1:]), x.dtype), x))[0]


def ring_summed(x: jax.Array) -> jax.Array:
    """Adds what the others pass on: each device in another order."""

    def pass_on(held: Any, nothing: None) -> Any:
        total, block = held
        block = lax.ppermute(block, "ring", NEXT)
        return (total + block, block), None

    return lax.scan(pass_on, (x, x), None, length=3)[0][0]


def looked_up(w: Weights) -> jax.Array:
    """Each device has some rows of a table [V, D]."""
    ids = np.array([[0, 3, 5], [7, 2, 2]])

    def body(table: jax.Array, ids: jax.Array) -> jax.Array:
        own = ids - lax.axis_index("ring") * table.shape[0]
        is_here = (own >= 0) & (own < table.shape[0])
        return lax.psum(jnp.where(is_here[..., None], table[jnp.where(is_here, own, 0)], 0), "ring")

    return on_ring(body, (P("ring"), P()), P())(w["table"], jnp.asarray(ids))


LABELS = np.array([0, 3, 7, 5])


def cross_entropy_of_vocabulary(w: Weights) -> jax.Array:
    """Each device has some columns of the head [D, V] and their logits alone (Shoeybi et al., 2019)."""

    def body(x: jax.Array, head: jax.Array) -> jax.Array:
        logits = x @ head
        largest = lax.stop_gradient(lax.pmax(lax.stop_gradient(logits).max(-1, keepdims=True), "ring"))
        total = lax.psum(jnp.exp(logits - largest).sum(-1), "ring")
        own = LABELS - lax.axis_index("ring") * head.shape[1]
        is_here = (own >= 0) & (own < head.shape[1])
        found = jnp.take_along_axis(logits, jnp.where(is_here, own, 0)[:, None], 1)[:, 0]
        return (jnp.log(total) + largest[:, 0] - lax.psum(jnp.where(is_here, found, 0), "ring")).mean()

    return on_ring(body, (P(), P(None, "ring")), P())(w["x"], w["head"])


def cross_entropy(w: Weights) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(w["x"] @ w["head"], LABELS).mean()


def ring_attention(w: Weights) -> jax.Array:
    """Each device has the queries of some positions; keys and values are passed on (Liu et al., 2023)."""

    def body(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        largest, total, context = (jnp.full((*query.shape[:-1], 1), number) for number in (-1e30, 0.0, 0.0))

        def attend(held: Any, nothing: None) -> Any:
            largest, total, context, key, value = held
            logits = query @ key.T
            new = jnp.maximum(largest, logits.max(-1, keepdims=True))
            weights, scale = jnp.exp(logits - new), jnp.exp(largest - new)
            passed = (lax.ppermute(each, "ring", NEXT) for each in (key, value))
            total = total * scale + weights.sum(-1, keepdims=True)
            return (new, total, context * scale + weights @ value, *passed), None

        start = largest, total, context * jnp.zeros(value.shape[-1]), key, value
        _, total, context, _, _ = lax.scan(attend, start, None, length=4)[0]
        return context / total

    return on_ring(body, P("ring"), P("ring"))(w["query"], w["key"], w["value"])


def attention(w: Weights) -> jax.Array:
    return jax.nn.softmax(w["query"] @ w["key"].T) @ w["value"]


def pipelined(w: Weights) -> jax.Array:
    """Each device has one layer [D, D], and microbatches [M, D] pass from device to device (Huang et al., 2019)."""

    def body(kernel: jax.Array, x: jax.Array) -> jax.Array:
        place, count = lax.axis_index("ring"), x.shape[0]

        def step(held: jax.Array, number: jax.Array) -> Any:
            fed = jnp.where(place == 0, x[jnp.minimum(number, count - 1)], held)
            done = jnp.tanh(fed @ kernel[0])
            return lax.ppermute(done, "ring", NEXT[:3]), done

        _, every = lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), jnp.arange(count + 3))
        return lax.psum(jnp.where(place == 3, every[3:], 0), "ring")

    return on_ring(body, (P("ring"), P()), P())(w["kernels"], w["x"])


def one_after_another(w: Weights) -> jax.Array:
    x = w["x"]
    for kernel in w["kernels"]:
        x = jnp.tanh(x @ kernel)
    return x


def exchanged(w: Weights) -> jax.Array:
    """Sends each row to the device of its expert and back: rows k mod 4 of every device are those of expert k."""

    def body(x: jax.Array, kernel: jax.Array) -> jax.Array:
        sent = lax.all_to_all(x, "ring", 0, 0, tiled=True)
        return lax.all_to_all(jnp.tanh(sent @ kernel[0]), "ring", 0, 0, tiled=True)

    return on_ring(body, (P("ring"), P("ring")), P("ring"))(w["x"], w["kernels"])


PROGRAMS: Mapping[str, tuple[Function, Function, Shapes, tuple[Any, ...]]] = {
    **{
        f"our training step on eight devices, and on one: {name}": (
            training_step(config, MESH),
            training_step(config, None),
            shapes_of(config),
            (),
        )
        for name, config in {
            "one table": PLAIN,
            "relative biases": T5_LIKE,
        }.items()
    },
    "virtual shards' sum over devices, and a plain sum": (
        lambda w: _tree_over_devices(make_abstract_mesh(MeshConfig(data=4)))(w["sums"]),
        lambda w: jnp.broadcast_to(w["sums"].sum(0), (4, 3)),
        {"sums": (4, 3)},
        (),
    ),
    "a feed-forward network divided by its units, and whole": (
        with_gradients(megatron), with_gradients(feed_forward), LAYERS, (),
    ),
    "a feed-forward network divided by units and positions, and whole": (
        with_gradients(sequence_parallel), with_gradients(feed_forward), LAYERS, (),
    ),
    "gradients averaged over devices, and of the whole batch": (averaged, whole_batch, LAYERS, ()),
    "blocks passed around a ring, and gathered": (
        lambda w: on_ring(ring_gathered, P("ring"), P())(w["x"]),
        lambda w: on_ring(partial(lax.all_gather, axis_name="ring", tiled=True), P("ring"), P())(w["x"]),
        {"x": (8, 3)}, (),
    ),
    "blocks summed around a ring, and by psum": (
        lambda w: on_ring(ring_summed, P("ring"), P())(w["x"]),
        lambda w: on_ring(partial(lax.psum, axis_name="ring"), P("ring"), P())(w["x"]),
        {"x": (8, 3)}, (),
    ),
    "reduce_scatter and all_gather, and psum": (
        lambda w: on_ring(
            lambda x: lax.all_gather(lax.psum_scatter(x, "ring", tiled=True), "ring", tiled=True), P(None, "ring"), P()
        )(w["x"]),
        lambda w: on_ring(lambda x: lax.psum(x, "ring"), P(None, "ring"), P())(w["x"]),
        {"x": (8, 4)}, (),
    ),
    "a table divided by its vocabulary, and whole": (
        looked_up, lambda w: w["table"][np.array([[0, 3, 5], [7, 2, 2]])], {"table": (8, 3)}, (),
    ),
    "a cross-entropy divided by its vocabulary, and whole": (
        with_gradients(cross_entropy_of_vocabulary), with_gradients(cross_entropy), {"x": (4, 3), "head": (3, 8)}, (),
    ),
    "attention around a ring, and at once": (
        with_gradients(ring_attention), with_gradients(attention),
        {"query": (4, 3), "key": (8, 3), "value": (8, 3)}, (),
    ),
    "layers in a pipeline, and one after another": (
        with_gradients(pipelined), with_gradients(one_after_another), {"kernels": (4, 3, 3), "x": (3, 3)}, (),
    ),
    "experts on four devices, and on one": (
        exchanged,
        lambda w: jnp.tanh(jnp.einsum("ned,edf->nef", w["x"].reshape(4, 4, 3), w["kernels"])).reshape(16, 3),
        {"kernels": (4, 3, 3), "x": (16, 3)}, (),
    ),
}  # fmt: skip
"""A name → a program of a mesh, the one of one device, the shapes of their weights, and their other arguments."""
PAIRS = tuple(Pair(name, shapes, in_jax(ours), in_jax(theirs)) for name, (ours, theirs, shapes, _) in PROGRAMS.items())
