"""Ways in which our training step computes the same: accumulated batches, losses in chunks, moving averages, adapters,
frozen parameters and narrow products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model.functional import Params
from jax_transformer.proof.jax_programs import cut
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.training.losses import Criterion, cross_entropy
from jax_transformer.training.state import TrainState, all_params, init_state, stored_params
from jax_transformer.training.step import make_train_step, summed_loss
from proof.own_models import (
    BATCH,
    MODELS,
    SIZES,
    TRAIN,
    Computation,
    Outputs,
    OwnPair,
    first_state,
    for_models,
    gradients_by_name,
    logits,
    loss_and_gradients,
    pair,
    whole,
)

STEPS = 3
L2 = replace(
    TRAIN, weight_decay_kind="l2", no_decay=("*bias", "*norm/*"), smoothing="others", optimizer="sgd", momentum=0.9
)
PADS = replace(TRAIN, loss_counts_pads=True, clip_norm=0.0)

# --- optimizer steps


def steps(config: TransformerConfig, train: TrainConfig = TRAIN, batches: tuple[Batch, ...] = (BATCH,)) -> Computation:
    """Returns the computation of the loss, of the parameters and their moving average after one step, and after three.

    Gradients and parameters pass a cut between the steps: programs whose steps are equal for any parameters and any
    gradients are equal.
    """

    def computed(params: Params) -> Outputs:
        step, state = first_state(config, params, train)
        found: dict[str, Any] = {}
        for number in range(1, STEPS + 1):
            batch = batches[(number - 1) % len(batches)]
            tokens = step.count(batch)
            mean, gradients = step.gradients(state, batch, tokens, step.dropout_key(state))
            state, _ = step.update(state, mean, tokens, cut(gradients, is_weight=False))
            found |= after(number, state) if number in (1, STEPS) else {}
            found |= {"loss": mean} if number == 1 else {}
            state = state._replace(params=cut(state.params, is_weight=True))
        return found

    return computed


def after(number: int, state: TrainState) -> dict[str, Any]:
    trained = {path: leaf for path, leaf in flatten(stored_params(state)).items() if not path.startswith("constants/")}
    average = {f"average of {path}": leaf for path, leaf in flatten(state.average).items()}
    return {f"after step {number}: {path}": leaf for path, leaf in (trained | average).items()}


def of_train_step(config: TransformerConfig, train: TrainConfig) -> Computation:
    """Returns the compiled step as a function: one step without a cut."""

    def computed(params: Params) -> Outputs:
        state, metrics = make_train_step(config, train)(init_state(config, train, params), BATCH)
        return {"loss": metrics["loss"], **after(1, state)}

    return computed


def accumulated(parts: int, train: TrainConfig = TRAIN) -> Callable[[TransformerConfig], Computation]:
    return lambda config: steps(config, replace(train, accumulate=parts))


# --- moving averages


def averaged_by_hand(config: TransformerConfig, train: TrainConfig = TRAIN) -> Computation:
    """Returns the computation of training steps whose moving averages are taken afterwards."""

    def computed(params: Params) -> Outputs:
        step, state = first_state(config, params, replace(train, ema_decay=0.0))
        averages, found = flatten(state.params), {}
        for number in range(STEPS):
            tokens = step.count(BATCH)
            mean, gradients = step.gradients(state, BATCH, tokens, step.dropout_key(state))
            state, _ = step.update(state, mean, tokens, cut(gradients, is_weight=False))
            kept = min(train.ema_decay, (1 + number) / (10 + number))
            averages = {path: kept * averages[path] + (1 - kept) * leaf for path, leaf in flatten(state.params).items()}
            if number + 1 in (1, STEPS):
                found |= after(number + 1, state._replace(average=unflatten(averages)))
            found |= {"loss": mean} if number == 0 else {}
            state = state._replace(params=cut(state.params, is_weight=True))
        return found

    return computed


# --- frozen parameters and adapters

FROZEN = "encoder/*"
ADAPTED = replace(
    TRAIN, lora=LoraConfig(rank=2, alpha=6.0, targets=("*_attention/query/kernel", "*/feed_forward/output/kernel"))
)


def with_frozen(config: TransformerConfig) -> Computation:
    return of_train_step(config, replace(TRAIN, clip_norm=0.0, freeze=(FROZEN,)))


def put_back(config: TransformerConfig) -> Computation:
    """Returns the computation of a step of all parameters, of which the frozen ones are then put back."""

    def computed(params: Params) -> Outputs:
        found = dict(of_train_step(config, replace(TRAIN, clip_norm=0.0))(params))
        for path, leaf in flatten(params).items():
            if fnmatchcase(path, FROZEN):
                found[f"after step 1: {path}"] = leaf
                del found[f"after step 1: average of {path}"]
        return found

    return computed


def adapted(config: TransformerConfig) -> Computation:
    """Returns the computation of a model with adapters, and of the adapters' gradients in a training step."""

    def computed(params: Params) -> Outputs:
        _, state = first_state(config, params, ADAPTED)
        return {"logits": logits(config, all_params(state), BATCH), **loss_and_gradients(config, params, train=ADAPTED)}

    return computed


def merged(config: TransformerConfig) -> Computation:
    """Returns the computation of the model with the sums of kernels and adapters as its kernels. The kernels' gradients
    give those of the adapters."""

    def computed(params: Params) -> Outputs:
        leaves, scale = flatten(params), ADAPTED.lora.scale
        targets = [path.removesuffix("lora_a") for path in leaves if path.endswith("lora_a")]
        kernels = {f"{path}kernel": leaves[f"{path}kernel"] + scale * _product(leaves, path) for path in targets}
        rest = {path: leaf for path, leaf in leaves.items() if "/lora_" not in path}
        found = dict(whole(config)({"constants": {}, **unflatten(rest | kernels)}))
        adapters: dict[str, Any] = {}
        for path in targets:
            of_kernel = found[f"gradient of {path}kernel"]
            a, b = leaves[f"{path}lora_a"], leaves[f"{path}lora_b"]
            inputs, outputs = "de"[: a.ndim - 2], "nh"[: b.ndim - 2]
            kernel = f"l{inputs}{outputs}"
            adapters |= {
                f"gradient of {path}lora_a": scale * jnp.einsum(f"{kernel},lr{outputs}->l{inputs}r", of_kernel, b),
                f"gradient of {path}lora_b": scale * jnp.einsum(f"{kernel},l{inputs}r->lr{outputs}", of_kernel, a),
            }
        return {"logits": found["logits"], "loss": found["loss"], **adapters}

    return computed


def _product(leaves: Params, path: str) -> jax.Array:
    """Returns A · B in the kernel's shape, layer by layer."""
    a, b = leaves[f"{path}lora_a"], leaves[f"{path}lora_b"]
    return jnp.stack([jnp.tensordot(one, other, axes=1) for one, other in zip(a, b, strict=True)])


def with_adapters(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's parameters and adapters."""
    state = jax.eval_shape(lambda: init_state(config, ADAPTED))
    return {path: leaf.shape for path, leaf in flatten(stored_params(state)).items() if not path.endswith("lora_scale")}


# --- losses

CRITERIA = {
    "no smoothing": Criterion(0),
    "smoothed over all": Criterion(0, 0.1),
    "smoothed over others": Criterion(0, 0.1, "others"),
    "smoothed over others but the pad": Criterion(0, 0.1, "others_but_pad"),
    "pads count": Criterion(0, 0.1, counts_pads=True),
}


def in_chunks(criterion: Criterion, chunk: int) -> Callable[[TransformerConfig], Computation]:
    """Returns the computation of the loss by chunks of tokens, whose logits are never all in memory."""

    def of(config: TransformerConfig) -> Computation:
        return differentiated(lambda params: summed_loss(config, params, BATCH, criterion, chunk=chunk)[0])

    return of


def of_all_logits(criterion: Criterion) -> Callable[[TransformerConfig], Computation]:
    def of(config: TransformerConfig) -> Computation:
        labels = np.asarray(BATCH.labels)
        return differentiated(lambda params: cross_entropy(logits(config, params, BATCH), labels, criterion)[0])

    return of


def by_definition(criterion: Criterion) -> Callable[[TransformerConfig], Computation]:
    """Returns the computation of −Σ q log p with the target distribution q as a table, less the entropy of q if the
    loss is a divergence."""
    table, epsilon = targets_of(criterion), criterion.label_smoothing
    entropy = 0.0
    if criterion.smoothing == "others_but_pad":
        others = SIZES["target_vocab_size"] - 2
        entropy = -(1.0 - epsilon) * math.log(1.0 - epsilon) - epsilon * math.log(epsilon / others)

    def of(config: TransformerConfig) -> Computation:
        def loss(params: Params) -> jax.Array:
            log_probs = jax.nn.log_softmax(logits(config, params, BATCH))
            return -((table * log_probs).sum(axis=-1) + entropy * table.any(axis=-1)).sum()

        return differentiated(loss)

    return of


def targets_of(criterion: Criterion) -> np.ndarray:
    """Returns the target distribution of each label, [B, T, V]; 0 where it doesn't count."""
    labels, size, epsilon = BATCH.labels, SIZES["target_vocab_size"], criterion.label_smoothing
    is_label = labels[..., None] == np.arange(size)
    others = {"all": size, "others": size - 1, "others_but_pad": size - 2}[criterion.smoothing]
    shares = np.full(is_label.shape, epsilon / others)
    if criterion.smoothing != "all":
        shares[is_label] = 0.0
    if criterion.smoothing == "others_but_pad":
        shares[..., criterion.pad_id] = 0.0
    table = (1.0 - epsilon) * is_label + shares
    return table if criterion.counts_pads else table * (labels != criterion.pad_id)[..., None]


def own_loss(config: TransformerConfig) -> Computation:
    """Returns the computation of a training step with a user's loss, which sees all logits."""

    def computed(params: Params) -> Outputs:
        step, state = first_state(config, params, TRAIN)
        step = replace(step, loss=lambda logits, labels: optax.softmax_cross_entropy(logits, smoothed(labels)))
        loss, gradients = step.gradients(state, BATCH, step.count(BATCH), step.dropout_key(state))
        return {"loss": loss, **gradients_by_name(gradients)}

    def smoothed(labels: jax.Array) -> jax.Array:
        return optax.smooth_labels(jax.nn.one_hot(labels, config.target_vocab_size), TRAIN.label_smoothing)

    return computed


def differentiated(loss: Callable[[Params], jax.Array]) -> Computation:
    """Returns the computation of a loss and its gradients."""

    def computed(params: Params) -> Outputs:
        constants, trained = params["constants"], {name: part for name, part in params.items() if name != "constants"}
        value, gradients = jax.value_and_grad(lambda trained: loss({**trained, "constants": constants}))(trained)
        return {"loss": value, **gradients_by_name(gradients)}

    return computed


# --- narrow products


def in_bfloat16(config: TransformerConfig) -> Computation:
    """Returns the computation whose products are of bfloat16. GELU isn't the same function in it: JAX rounds its
    constants."""
    return whole(replace(config, compute_dtype="bfloat16"))


TWO = ("post-norm", "T5")
PAIRS: tuple[OwnPair, ...] = (
    *for_models("2 batches accumulated, and one", accumulated(2), steps),
    *for_models("4 batches accumulated, and one", accumulated(4), steps, models=TWO),
    *for_models(
        "4 batches accumulated with L2 decay, and one", accumulated(4, L2), lambda config: steps(config, L2),
        models=TWO[:1],
    ),
    *for_models(
        "2 batches accumulated whose pads count, and one", accumulated(2, PADS), lambda config: steps(config, PADS),
        models=TWO,
    ),
    *for_models(
        "a compiled step of 2 batches, and of one", lambda config: of_train_step(config, replace(TRAIN, accumulate=2)),
        lambda config: of_train_step(config, TRAIN), models=TWO,
    ),
    *for_models("a moving average, and its definition", steps, averaged_by_hand, models=TWO),
    *for_models("frozen parameters, and parameters put back", with_frozen, put_back, models=TWO),
    *(
        pair(
            "adapters, and merged kernels", model, adapted(MODELS[model]), merged(MODELS[model]),
            shapes=with_adapters(MODELS[model]),
        )
        for model in MODELS
    ),
    *(
        each
        for name, criterion in CRITERIA.items()
        for each in (
            *for_models(f"a loss of 3 tokens at a time, and at once, {name}", in_chunks(criterion, 3),
                        of_all_logits(criterion), models=TWO[:1]),
            *for_models(f"a loss of 20 tokens at a time, and its definition, {name}", in_chunks(criterion, 20),
                        by_definition(criterion), models=TWO[:1]),
        )
    ),
    *for_models("a loss token by token, and at once", in_chunks(CRITERIA["smoothed over all"], 1),
                of_all_logits(CRITERIA["smoothed over all"]), models=tuple(MODELS)[1:]),
    *for_models("a user's loss, and ours", own_loss, lambda config: partial(loss_and_gradients, config), models=TWO),
    *for_models(
        "products in bfloat16, and in float32", in_bfloat16, whole,
        models=("post-norm", "rotary, shared keys", "relative vectors"), dtype="float32",
    ),
    *for_models(
        "products in bfloat16 without GELU, and in float32", in_bfloat16, whole, models=("T5", "BART"),
        dtype="float32", activation="relu",
    ),
)  # fmt: skip
