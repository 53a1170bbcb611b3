"""A small encoder-decoder Transformer in PyTorch, whose lines are changed one at a time: see `faults.py`.

Pre-norm blocks of one layer each, learned positions, a tied head, label smoothing, gradients, a step of Adam, and
decoding with a cache. Each line computes one thing, so that a fault has one place. Imports PyTorch and NumPy alone.

Axes: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

B, S, T, N, H, D, F = 2, 4, 3, 2, 3, 6, 5
PAD, BOS = 2, 1
SOURCE = torch.tensor([[3, 7, 5, 4], [6, 3, 2, 2]])
TARGET = torch.tensor([[4, 6, 3], [5, 2, 2]])
LABELS = torch.tensor([[6, 3, 0], [3, 2, 2]])
EPS = 1e-5
SCALE = 1 / math.sqrt(H)
FILL = -1e9
SMOOTHING = 0.1
RATE, BETA1, BETA2, ADAM_EPS, DECAY, LARGEST_NORM = 2**-10, 0.875, 0.9375, 1e-9, 0.01, 1.5


def norm(w, x, name):
    mean = x.mean(dim=-1, keepdim=True)
    centred = x - mean
    variance = centred.square().mean(dim=-1, keepdim=True)
    deviation = torch.sqrt(variance + EPS)
    normed = centred / deviation
    scaled = normed * w[f"{name}.scale"]
    return scaled + w[f"{name}.bias"]


def split(x):
    heads = x.unflatten(-1, (N, H))
    return heads.transpose(1, 2)


def attention(w, x, y, mask, name):
    query = split(functional.linear(x, w[f"{name}.query"], w[f"{name}.query_bias"]))
    key = split(functional.linear(y, w[f"{name}.key"], w[f"{name}.key_bias"]))
    value = split(functional.linear(y, w[f"{name}.value"], w[f"{name}.value_bias"]))
    products = query @ key.mT
    logits = products * SCALE
    masked = logits.masked_fill(~mask, FILL)
    weights = torch.softmax(masked, dim=-1)
    context = weights @ value
    merged = context.transpose(1, 2).flatten(2)
    return functional.linear(merged, w[f"{name}.output"], w[f"{name}.output_bias"])


def feed_forward(w, x, name):
    hidden = functional.linear(x, w[f"{name}.hidden"], w[f"{name}.hidden_bias"])
    active = functional.gelu(hidden)
    return functional.linear(active, w[f"{name}.output"], w[f"{name}.output_bias"])


def masks():
    source = (SOURCE != PAD)[:, None, None, :]
    target = (TARGET != PAD)[:, None, None, :]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    return source, target & causal


def embed(w, ids, name):
    tokens = functional.embedding(ids, w[name])
    scaled = tokens * math.sqrt(D)
    positions = w["positions"][: ids.shape[1]]
    return scaled + positions


def encoder(w):
    source_mask, _ = masks()
    x = embed(w, SOURCE, "source")
    h = norm(w, x, "encoder.norm1")
    x = x + attention(w, h, h, source_mask, "encoder.self")
    h = norm(w, x, "encoder.norm2")
    x = x + feed_forward(w, h, "encoder.feed_forward")
    return norm(w, x, "encoder.norm3")


def shifted(ids):
    start = torch.full((B, 1), BOS)
    return torch.cat([start, ids[:, :-1]], dim=1)


def decoder(w, memory):
    source_mask, target_mask = masks()
    x = embed(w, shifted(LABELS), "target")
    h = norm(w, x, "decoder.norm1")
    x = x + attention(w, h, h, target_mask, "decoder.self")
    h = norm(w, x, "decoder.norm2")
    x = x + attention(w, h, memory, source_mask, "decoder.cross")
    h = norm(w, x, "decoder.norm3")
    x = x + feed_forward(w, h, "decoder.feed_forward")
    return norm(w, x, "decoder.norm4")


def unembed(w, x):
    projected = x @ w["target"].T
    return projected + w["head_bias"]


def loss_of(logits):
    log_probabilities = torch.log_softmax(logits, dim=-1)
    picked = log_probabilities.gather(-1, LABELS[..., None])[..., 0]
    of_all = log_probabilities.mean(dim=-1)
    losses = -(1 - SMOOTHING) * picked - SMOOTHING * of_all
    counts = LABELS != PAD
    return (losses * counts).sum() / counts.sum()


def step_of_adam(w):
    length = w["g"].square().sum().sqrt()
    clipped = w["g"] * (LARGEST_NORM / length)
    decayed = clipped + DECAY * w["p"]
    m = BETA1 * w["m"] + (1 - BETA1) * decayed
    v = BETA2 * w["root_v"].square() + (1 - BETA2) * decayed.square()
    m_hat = m / (1 - BETA1**3)
    v_hat = v / (1 - BETA2**3)
    denominator = torch.sqrt(v_hat) + ADAM_EPS
    return w["p"] - RATE * m_hat / denominator


def step_with_cache(w, step, keys, values):
    x = w["x"][:, step : step + 1]
    query = functional.linear(x, w["query"])
    keys[:, step] = functional.linear(x, w["key"])[:, 0]
    values[:, step] = functional.linear(x, w["value"])[:, 0]
    logits = query @ keys[:, : step + 1].mT * SCALE
    weights = torch.softmax(logits, dim=-1)
    return weights @ values[:, : step + 1], keys, values


def sinusoids():
    exponents = torch.arange(0, D, 2, dtype=torch.float64) / D
    frequencies = torch.exp(exponents * -math.log(10000.0))
    angles = torch.arange(T)[:, None] * frequencies
    waves = torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1)
    return waves.flatten(1)


# --- programs, by name


def norm_alone(w):
    return norm(w, w["x"], "norm")


def attention_alone(w):
    seen = torch.from_numpy(np.array([[1, 1, 1, 1], [1, 0, 1, 0]], bool))[:, None, None, :]
    no_row = torch.tensor([True, True, False])[:, None]
    return attention(w, w["x"], w["y"], seen & no_row, "attention")  # the last query of all sees nothing


def feed_forward_alone(w):
    return feed_forward(w, w["x"], "feed_forward")


def encoder_alone(w):
    return encoder(w)


def model(w):
    return unembed(w, decoder(w, encoder(w)))


def loss(w):
    return loss_of(w["logits"])


def gradients(w):
    value = loss_of(unembed(w, encoder(w)[:, :T]))
    names = [name for name in w if name.startswith("encoder") or name in ("source", "positions", "target")]
    found = torch.autograd.grad(value, [w[name] for name in names], materialize_grads=True)
    return {f"gradient of {name}": each for name, each in zip(names, found, strict=True)}


def update(w):
    return step_of_adam(w)


def decoding(w):
    keys, values = torch.zeros(B, T, D, dtype=torch.float64), torch.zeros(B, T, D, dtype=torch.float64)
    outputs = []
    for step in range(T):
        output, keys, values = step_with_cache(w, step, keys, values)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def positions(w):
    return w["x"] + sinusoids()
