"""Faults that the catalogue doesn't have (`selftest.open_world`), as changed lines of either side."""

from __future__ import annotations

from proof.faults import Fault

ATTENTION = (
    Fault("one head is dropped", "attention_alone", "context = weights @ value", "context = weights @ value * torch.tensor([1.0, 0.0])[:, None, None]", "mul"),
    Fault("one weight of two is the other head's", "attention_alone", "context = weights @ value", "context = weights[:, :1] @ value", "bmm"),
    Fault("heads have each other's biases", "attention_alone", 'w[f"{name}.query_bias"]', 'w[f"{name}.query_bias"].roll(H)', "addmm"),
    Fault("a temperature of 1.01", "attention_alone", "products * SCALE", "products * SCALE / 1.01", "div"),
    Fault("logits are soft-capped at 30", "attention_alone", "products * SCALE", "30 * torch.tanh(products * SCALE / 30)", "div"),
    Fault("logits are clipped", "attention_alone", "products * SCALE", "(products * SCALE).clamp(-2, 2)", "clamp"),
    Fault("logits fall with the distance", "encoder_alone", "products * SCALE", "products * SCALE - 0.5 * (torch.arange(S)[:, None] - torch.arange(S)).abs()", "mul"),
    Fault("logits of a token with itself are too low", "encoder_alone", "products * SCALE", "products * SCALE - torch.eye(S)", "sub"),
    Fault("queries are normed", "attention_alone", "products = query @ key.mT", "products = query / query.square().mean(-1, keepdim=True).sqrt() @ key.mT", "pow"),
    Fault("all heads have the first one's keys", "attention_alone", "query @ key.mT", "query @ key[:, :1].mT", "bmm"),
    Fault("softmax has 1 more in its denominator", "attention_alone", "torch.softmax(masked, dim=-1)", "masked.exp() / (1 + masked.exp().sum(-1, keepdim=True))", "sum"),
    Fault("softmax takes powers of two", "attention_alone", "torch.softmax(masked, dim=-1)", "torch.softmax(masked * math.log(2.0), dim=-1)", "mul"),
    Fault("weights are smoothed by a hundredth", "attention_alone", "torch.softmax(masked, dim=-1)", "0.99 * torch.softmax(masked, dim=-1) + 0.01 / S", "mul"),
    Fault("one head attends to all keys alike", "attention_alone", "torch.softmax(masked, dim=-1)", "torch.softmax(masked * torch.tensor([1.0, 0.0])[:, None, None], dim=-1)", "mul"),
    Fault("weights are of the neighbour's mask", "encoder_alone", "(SOURCE != PAD)[:, None, None, :]", "(SOURCE != PAD)[:, None, None, :].roll(1, 0)", "masked_fill", "logits.masked_fill"),
    Fault("the last key is always seen", "attention_alone", "logits.masked_fill(~mask, FILL)", "logits.masked_fill(~mask & (torch.arange(S) < S - 1), FILL)", "masked_fill"),
    Fault("attention reads the value before", "attention_alone", "context = weights @ value", "context = weights @ value.roll(1, 2)", "bmm"),
    Fault("values are averaged with their neighbours", "attention_alone", "context = weights @ value", "context = weights @ ((value + value.roll(1, 2)) / 2)", "add"),
)
NORMS = (
    Fault("a variance is 1 % too small", "norm_alone", "torch.sqrt(variance + EPS)", "torch.sqrt(0.99 * variance + EPS)", "mul"),
    Fault("a variance is of half of the features", "norm_alone", "centred.square().mean", "centred[..., :3].square().mean", "mean"),
    Fault("a variance is of all tokens", "norm_alone", "centred.square().mean(dim=-1, keepdim=True)", "centred.square().mean(dim=(1, 2), keepdim=True)", "mean"),
    Fault("a norm divides by the mean absolute value", "norm_alone", "torch.sqrt(variance + EPS)", "centred.abs().mean(-1, keepdim=True)", "abs"),
    Fault("a norm divides by the length", "norm_alone", "torch.sqrt(variance + EPS)", "torch.sqrt(D * variance + EPS)", "add"),
    Fault("a gain is squared", "norm_alone", 'normed * w[f"{name}.scale"]', 'normed * w[f"{name}.scale"].square()', "pow"),
    Fault("a bias is added before the gain", "norm_alone", 'normed * w[f"{name}.scale"]\n    return scaled + w[f"{name}.bias"]', '(normed + w[f"{name}.bias"]) * w[f"{name}.scale"]\n    return scaled', "add"),
    Fault("a mean leaves out the last feature", "norm_alone", "x.mean(dim=-1, keepdim=True)", "x[..., :-1].mean(dim=-1, keepdim=True)", "mean"),
    Fault("a residual branch is 1 % too small", "encoder_alone", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = x + 0.99 * feed_forward(w, h, "encoder.feed_forward")', "mul"),
    Fault("a residual branch is the token before's", "encoder_alone", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = x + feed_forward(w, h, "encoder.feed_forward").roll(1, 1)', "add"),
    Fault("a residual sum is divided by √2", "encoder_alone", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = (x + feed_forward(w, h, "encoder.feed_forward")) / math.sqrt(2)', "div"),
)
PRODUCTS = (
    Fault("a feature is read from its neighbour", "feed_forward_alone", "active = functional.gelu(hidden)", "active = functional.gelu(hidden)[..., [0, 1, 2, 3, 3]]", "addmm", "functional.linear(active"),
    Fault("a quarter of the features isn't summed", "feed_forward_alone", 'hidden = functional.linear(x, w', 'hidden = functional.linear(x * (torch.arange(D) < 4), w', "mul"),
    Fault("a bias is added twice", "feed_forward_alone", 'w[f"{name}.hidden_bias"])', 'w[f"{name}.hidden_bias"]) + w[f"{name}.hidden_bias"]', "add"),
    Fault("a bias is added after the activation", "feed_forward_alone", ', w[f"{name}.hidden_bias"])\n    active = functional.gelu(hidden)', ')\n    active = functional.gelu(hidden) + w[f"{name}.hidden_bias"]', "gelu"),
    Fault("a leaky ReLU of slope 0.05", "feed_forward_alone", "functional.gelu(hidden)", "functional.leaky_relu(hidden, 0.05)", "leaky_relu"),
    Fault("a softsign", "feed_forward_alone", "functional.gelu(hidden)", "hidden / (1 + hidden.abs())", "abs"),
    Fault("a hard swish", "feed_forward_alone", "functional.gelu(hidden)", "hidden * (hidden / 6 + 0.5).clamp(0, 1)", "div"),
    Fault("a hidden unit is dead", "feed_forward_alone", "functional.gelu(hidden)", "functional.gelu(hidden) * (torch.arange(F) != 2)", "mul"),
    Fault("two tokens of the head are exchanged", "model", 'return projected + w["head_bias"]', 'return (projected + w["head_bias"])[..., [1, 0, 2, 3, 4, 5, 6, 7]]', "index"),
    Fault("pads can't be predicted", "model", 'return projected + w["head_bias"]', 'return (projected + w["head_bias"]).masked_fill(torch.arange(8) == PAD, -50.0)', "masked_fill"),
    Fault("the head's bias is the token's before", "model", 'return projected + w["head_bias"]', 'return projected + w["head_bias"].roll(1)', "add"),
)
INPUTS = (
    Fault("ids beyond some are read as that", "encoder_alone", "functional.embedding(ids, w[name])", "functional.embedding(ids.clamp(max=5), w[name])", "embedding"),
    Fault("the embedding is rolled by one row", "encoder_alone", "functional.embedding(ids, w[name])", "functional.embedding((ids + 1) % 9, w[name])", "embedding"),
    Fault("positions are added 1 % too small", "encoder_alone", "return scaled + positions", "return scaled + 0.99 * positions", "mul"),
    Fault("half of the features get no positions", "encoder_alone", "return scaled + positions", "return scaled + positions * (torch.arange(D) < 3)", "mul"),
    Fault("a hundredth of each token leaks into the next", "encoder_alone", "return scaled + positions", "return scaled + positions + 0.01 * scaled.roll(1, 1)", "mul"),
    Fault("positions are counted from the end", "encoder_alone", "[: ids.shape[1]]", "[: ids.shape[1]].flip(0)", "add", "scaled + positions"),
    Fault("every position is counted twice", "encoder_alone", '["positions"][: ids.shape[1]]', '["positions"][torch.arange(ids.shape[1]) // 2]', "index"),
    Fault("sinusoids have the base 9999", "positions", "math.log(10000.0)", "math.log(9999.0)", "mul"),
    Fault("one column of the sinusoids is negated", "positions", "torch.sin(angles)", "-torch.sin(angles)", "neg"),
    Fault("sentences are exchanged", "encoder_alone", 'x = embed(w, SOURCE, "source")', 'x = embed(w, SOURCE, "source").flip(0)', "masked_fill", "logits.masked_fill"),
)
LOSS = (
    Fault("a logit's share is 1 % too large", "loss", "torch.log_softmax(logits, dim=-1)", "torch.log_softmax(1.01 * logits, dim=-1)", "mul"),
    Fault("labels are one too far", "loss", "LABELS[..., None])", "(LABELS + 1)[..., None])", "gather"),
    Fault("a token is left out", "loss", "counts = LABELS != PAD", "counts = (LABELS != PAD) & (LABELS != 6)", "mul", "(losses * counts).sum()"),
    Fault("the loss has a quadratic term", "loss", "- SMOOTHING * of_all", "- SMOOTHING * of_all + 1e-4 * logits.logsumexp(-1) ** 2", "logsumexp"),
    Fault("labels are smoothed by 0.11", "loss", "SMOOTHING = 0.1", "SMOOTHING = 0.11", "mul", "losses = -(1 - SMOOTHING) * picked"),
)
OF_JAX = (
    Fault("our ε is outside the root", "norm_alone", "jax.lax.rsqrt(variance + EPS)", "(1 / (jnp.sqrt(variance) + EPS))", "sqrt", framework="jax"),
    Fault("our norm isn't centred", "norm_alone", "jnp.square(centred)", "jnp.square(x)", "square", framework="jax"),
    Fault("our scale is √D", "attention_alone", "/ math.sqrt(H)\n    masked", "/ math.sqrt(D)\n    masked", "div", framework="jax"),
    Fault("our softmax is over queries", "attention_alone", "softmax(masked, axis=-1)", "softmax(masked, axis=-2)", "reduce_max", framework="jax"),
    Fault("our mask is of queries", "encoder_alone", "source = (SOURCE != PAD)[:, None, None, :]", "source = (SOURCE != PAD)[:, None, :, None]", "select_n", "jnp.where(mask, logits", "jax"),
    Fault("our mask is one token late", "model", "np.tril(np.ones((T, T), bool))\n\n\ndef embed", "np.tril(np.ones((T, T), bool), 1)\n\n\ndef embed", "select_n", "jnp.where(mask, logits", "jax"),
    Fault("our heads are in another order", "attention_alone", 'kernel = w[name].reshape(N, H, D)', 'kernel = w[name].reshape(H, N, D).swapaxes(0, 1)', "add", "jnp.einsum(\"btd,nhd->btnh\"", "jax"),
    Fault("our activation is approximate", "feed_forward_alone", "approximate=False", "approximate=True", "integer_pow", framework="jax"),
    Fault("our embedding isn't scaled", "model", "w[name][ids] * math.sqrt(D)", "w[name][ids]", "add", "return tokens + w", "jax"),
    Fault("our head isn't tied", "model", 'x, w["target"])', 'x, w["source"][:8])', "dot_general", framework="jax"),
    Fault("our pads are counted", "loss", "jnp.where(LABELS != PAD, losses, 0)", "jnp.where(LABELS >= 0, losses, 0)", "reduce_sum", "jnp.where(LABELS >= 0", "jax"),
    Fault("our Adam has its ε inside", "update", "jnp.sqrt(v_hat) + ADAM_EPS", "jnp.sqrt(v_hat + ADAM_EPS)", "add", framework="jax"),
    Fault("our cross-attention reads the decoder", "model", "memory, source_mask", "x[:, [0, 1, 2, 0]], source_mask", "dot_general", 'jnp.einsum("btd,nhd->btnh"', "jax"),
    Fault("our second residual is missing", "encoder_alone", 'x = x + feed_forward(w, norm(w, x, "encoder.norm2")', 'x = feed_forward(w, norm(w, x, "encoder.norm2")', "reduce_sum", "centred = x - x.mean", "jax"),
)
FAULTS = (*ATTENTION, *NORMS, *PRODUCTS, *INPUTS, *LOSS, *OF_JAX)
