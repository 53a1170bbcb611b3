"""Faults that no float test can see, or that only gradients have, as changed lines of either side."""

from __future__ import annotations

from proof.faults import Fault

NUMBERS = (
    Fault("ε · (1 + 2⁻⁵⁰)", "norm_alone", "variance + EPS", "variance + EPS * (1 + 2**-50)", "add"),
    Fault("ε · (1 + 10⁻¹⁵)", "encoder_alone", "variance + EPS", "variance + EPS * (1 + 1e-15)", "add"),
    Fault("1/√H · (1 + 10⁻¹⁵)", "attention_alone", "products * SCALE", "products * (SCALE * (1 + 1e-15))", "mul"),
    Fault("a fill of -9999.999999999998", "attention_alone", "FILL = -1e9", "FILL = -9999.999999999998", "masked_fill", "logits.masked_fill"),
    Fault("√½ · (1 + 10⁻¹⁵) in GELU", "feed_forward_alone", "functional.gelu(hidden)", "0.5 * hidden * (1 + torch.erf(hidden * (math.sqrt(0.5) * (1 + 1e-15))))", "mul"),
    Fault("½ · (1 + 10⁻¹⁵) in GELU", "feed_forward_alone", "functional.gelu(hidden)", "(0.5 * (1 + 1e-15)) * hidden * (1 + torch.erf(hidden * math.sqrt(0.5)))", "mul"),
    Fault("smoothing by 0.1 · (1 + 10⁻¹⁵)", "loss", "SMOOTHING = 0.1", "SMOOTHING = 0.1 * (1 + 1e-15)", "mul", "losses = -(1 - SMOOTHING) * picked"),
    Fault("β₁ · (1 + 10⁻¹⁵) in Adam", "update", "BETA1 * w[\"m\"]", "(BETA1 * (1 + 1e-15)) * w[\"m\"]", "mul"),
    Fault("β₂ · (1 + 10⁻¹⁵) in Adam", "update", "BETA2 * w[\"root_v\"]", "(BETA2 * (1 + 1e-15)) * w[\"root_v\"]", "mul"),
    Fault("ε · (1 + 10⁻¹⁵) in Adam", "update", "+ ADAM_EPS", "+ ADAM_EPS * (1 + 1e-15)", "add"),
    Fault("decay · (1 + 10⁻¹⁵)", "update", "DECAY * w", "(DECAY * (1 + 1e-15)) * w", "mul"),
    Fault("√D · (1 + 10⁻¹⁵)", "encoder_alone", "tokens * math.sqrt(D)", "tokens * (math.sqrt(D) * (1 + 1e-15))", "mul"),
    Fault("sinusoids of the base 10000 · (1 + 10⁻¹⁵)", "positions", "-math.log(10000.0)", "-math.log(10000.0) * (1 + 1e-15)", "mul"),
    Fault("our ε · (1 + 2⁻⁵⁰)", "norm_alone", "rsqrt(variance + EPS)", "rsqrt(variance + EPS * (1 + 2**-50))", "add", framework="jax"),
    Fault("our 1/√H · (1 + 10⁻¹⁵)", "attention_alone", "/ math.sqrt(H)\n    masked", "/ (math.sqrt(H) * (1 + 1e-15))\n    masked", "div", framework="jax"),
)
TOO_SMALL = (
    Fault("10⁻³⁰ of the query is added", "encoder_alone", "scaled + positions", "scaled + positions + 1e-30 * scaled.square()", "pow"),
    Fault("10⁻³⁰⁰ is added to the variance", "norm_alone", "variance + EPS", "variance + EPS + 1e-300", "add"),
    Fault("the mean of all logits is added to each loss, times 10⁻⁴⁰", "loss", "- SMOOTHING * of_all", "- SMOOTHING * of_all + 1e-40 * logits.mean()", "mean"),
    Fault("a token sees the future through 10⁻²⁵ of its neighbour", "model", "merged = context.transpose(1, 2).flatten(2)", "merged = context.transpose(1, 2).flatten(2)\n    merged = merged + 1e-25 * merged.roll(-1, 1)", "mul", "1e-25 * merged.roll"),
)
NOT_ON_THESE_NUMBERS = (
    Fault("hidden units are clipped at 65504", "feed_forward_alone", "functional.gelu(hidden)", "functional.gelu(hidden).clamp(max=65504)", "clamp"),
    Fault("logits are clipped at 1000", "attention_alone", "products * SCALE", "(products * SCALE).clamp(max=1000)", "clamp"),
    Fault("a norm's variance is at least 10⁻¹²", "norm_alone", "torch.sqrt(variance + EPS)", "torch.sqrt((variance - 1e-12).relu() + 1e-12 + EPS)", "sub"),
    Fault("GELU is x from 40 on, and 1 more", "feed_forward_alone", "functional.gelu(hidden)", "torch.where(hidden > 40, hidden + 1, functional.gelu(hidden))", "gt"),
    Fault("log-probabilities are at least -100", "loss", "torch.log_softmax(logits, dim=-1)", "torch.log_softmax(logits, dim=-1).clamp(min=-100)", "clamp"),
    Fault("gradients are clipped only if they are long", "update", "LARGEST_NORM / length", "(LARGEST_NORM / length).clamp(max=1)", "clamp"),
    Fault("our hidden units are clipped at 65504", "feed_forward_alone", "jax.nn.gelu(hidden, approximate=False)", "jnp.minimum(jax.nn.gelu(hidden, approximate=False), 65504)", "min", framework="jax"),
)
GRADIENTS = (
    Fault("the mean of a norm is a constant to its gradient", "gradients", "centred = x - mean", "centred = x - mean.detach()", "add", "backward of"),
    Fault("the deviation of a norm is a constant to its gradient", "gradients", "normed = centred / deviation", "normed = centred / deviation.detach()", "add", "backward of"),
    Fault("attention weights have no gradient", "gradients", "context = weights @ value", "context = weights.detach() @ value", "add", "backward of"),
    Fault("keys have no gradient", "gradients", "products = query @ key.mT", "products = query @ key.mT.detach()", "add", "backward of"),
    Fault("a residual has no gradient", "gradients", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = x.detach() + feed_forward(w, h, "encoder.feed_forward")', "native_layer_norm_backward", "backward of"),
    Fault("the gradient of GELU is that of ReLU", "gradients", "active = functional.gelu(hidden)", "active = functional.gelu(hidden).detach() + functional.relu(hidden) - functional.relu(hidden).detach()", "relu"),
    Fault("the smoothed part has no gradient", "gradients", "of_all = log_probabilities.mean(dim=-1)", "of_all = log_probabilities.mean(dim=-1).detach()", "_log_softmax_backward_data", "backward of"),
    Fault("a token has no gradient", "gradients", "tokens = functional.embedding(ids, w[name])", "tokens = functional.embedding(ids, w[name], padding_idx=3)", "embedding_dense_backward", "backward of"),
    Fault("our mean of a norm is a constant to its gradient", "gradients", "centred = x - x.mean(axis=-1, keepdims=True)", "centred = x - jax.lax.stop_gradient(x.mean(axis=-1, keepdims=True))", "add_any", "", "jax"),
    Fault("our activation has no gradient", "gradients", "active = jax.nn.gelu(hidden, approximate=False)", "active = jax.lax.stop_gradient(jax.nn.gelu(hidden, approximate=False))", "add_any", "", "jax"),
)
FAULTS = (*NUMBERS, *TOO_SMALL, *NOT_ON_THESE_NUMBERS, *GRADIENTS)
