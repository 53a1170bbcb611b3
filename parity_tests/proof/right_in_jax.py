"""The Transformer of `right_in_torch.py` in JAX, whose lines are changed one at a time, too.

Axes: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

B, S, T, N, H, D, F = 2, 4, 3, 2, 3, 6, 5
PAD, BOS = 2, 1
SOURCE = np.array([[3, 7, 5, 4], [6, 3, 2, 2]])
TARGET = np.array([[4, 6, 3], [5, 2, 2]])
LABELS = np.array([[6, 3, 0], [3, 2, 2]])
EPS = 1e-5
FILL = -1e9
SMOOTHING = 0.1
RATE, BETA1, BETA2, ADAM_EPS, DECAY, LARGEST_NORM = 2**-10, 0.875, 0.9375, 1e-9, 0.01, 1.5


def norm(w, x, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + EPS)
    return normed * w[f"{name}.scale"] + w[f"{name}.bias"]


def project(w, x, name):
    kernel = w[name].reshape(N, H, D)
    return jnp.einsum("btd,nhd->btnh", x, kernel) + w[f"{name}_bias"].reshape(N, H)


def attention(w, x, y, mask, name):
    query = project(w, x, f"{name}.query")
    key = project(w, y, f"{name}.key")
    value = project(w, y, f"{name}.value")
    logits = jnp.einsum("bqnh,bknh->bnqk", query, key) / math.sqrt(H)
    masked = jnp.where(mask, logits, FILL)
    weights = jax.nn.softmax(masked, axis=-1)
    context = jnp.einsum("bnqk,bknh->bqnh", weights, value)
    return jnp.einsum("bqnh,dnh->bqd", context, w[f"{name}.output"].reshape(D, N, H)) + w[f"{name}.output_bias"]


def feed_forward(w, x, name):
    hidden = x @ w[f"{name}.hidden"].T + w[f"{name}.hidden_bias"]
    active = jax.nn.gelu(hidden, approximate=False)
    return active @ w[f"{name}.output"].T + w[f"{name}.output_bias"]


def masks():
    source = (SOURCE != PAD)[:, None, None, :]
    target = (TARGET != PAD)[:, None, None, :]
    return source, target & np.tril(np.ones((T, T), bool))


def embed(w, ids, name):
    tokens = w[name][ids] * math.sqrt(D)
    return tokens + w["positions"][: ids.shape[1]]


def encoder(w):
    source_mask, _ = masks()
    x = embed(w, SOURCE, "source")
    h = norm(w, x, "encoder.norm1")
    x = x + attention(w, h, h, source_mask, "encoder.self")
    x = x + feed_forward(w, norm(w, x, "encoder.norm2"), "encoder.feed_forward")
    return norm(w, x, "encoder.norm3")


def decoder(w, memory):
    source_mask, target_mask = masks()
    ids = np.concatenate([np.full((B, 1), BOS), LABELS[:, :-1]], axis=1)
    x = embed(w, ids, "target")
    h = norm(w, x, "decoder.norm1")
    x = x + attention(w, h, h, target_mask, "decoder.self")
    x = x + attention(w, norm(w, x, "decoder.norm2"), memory, source_mask, "decoder.cross")
    x = x + feed_forward(w, norm(w, x, "decoder.norm3"), "decoder.feed_forward")
    return norm(w, x, "decoder.norm4")


def unembed(w, x):
    return jnp.einsum("btd,vd->btv", x, w["target"]) + w["head_bias"]


def loss_of(logits):
    log_probabilities = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.take_along_axis(log_probabilities, LABELS[..., None], axis=-1)[..., 0]
    losses = -(1 - SMOOTHING) * picked - SMOOTHING * log_probabilities.mean(axis=-1)
    return jnp.where(LABELS != PAD, losses, 0).sum() / (LABELS != PAD).sum()


def step_of_adam(w):
    clipped = w["g"] * (LARGEST_NORM / jnp.sqrt(jnp.sum(jnp.square(w["g"]))))
    decayed = clipped + DECAY * w["p"]
    m = BETA1 * w["m"] + (1 - BETA1) * decayed
    v = BETA2 * w["root_v"] ** 2 + (1 - BETA2) * decayed**2
    m_hat = m / (1 - BETA1**3)
    v_hat = v / (1 - BETA2**3)
    return w["p"] - RATE * m_hat / (jnp.sqrt(v_hat) + ADAM_EPS)


# --- programs, by name


def norm_alone(w):
    return norm(w, w["x"], "norm")


def attention_alone(w):
    seen = np.array([[1, 1, 1, 1], [1, 0, 1, 0]], bool)[:, None, None, :]
    return attention(w, w["x"], w["y"], seen & np.array([True, True, False])[:, None], "attention")


def feed_forward_alone(w):
    return feed_forward(w, w["x"], "feed_forward")


def encoder_alone(w):
    return encoder(w)


def model(w):
    return unembed(w, decoder(w, encoder(w)))


def loss(w):
    return loss_of(w["logits"])


def gradients(w):
    found = jax.grad(lambda v: loss_of(unembed(v, encoder(v)[:, :T])))(w)
    return {f"gradient of {name}": each for name, each in found.items()}


def update(w):
    return step_of_adam(w)


def decoding(w):
    query, key, value = (w["x"] @ w[name].T for name in ("query", "key", "value"))
    logits = query @ key.mT / math.sqrt(H)
    return jax.nn.softmax(jnp.where(np.tril(np.ones((T, T), bool)), logits, FILL), axis=-1) @ value


def positions(w):
    frequencies = jnp.exp(-math.log(10000.0) * (jnp.arange(0, D, 2) / D))
    angles = jnp.arange(T)[:, None] * frequencies
    return w["x"] + jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(T, D)
