"""The catalogue's faults (`jax_transformer.parity.faults`) as changed lines."""

from __future__ import annotations

from proof.faults import Fault

NORMS = (
    Fault("ε is 1e-6", "norm_alone", "EPS = 1e-5", "EPS = 1e-6", "add", "torch.sqrt(variance + EPS)"),
    Fault("ε is outside the root", "norm_alone", "torch.sqrt(variance + EPS)", "torch.sqrt(variance) + EPS", "sqrt"),
    Fault("ε is added twice", "encoder_alone", "torch.sqrt(variance + EPS)", "torch.sqrt(variance + EPS) + EPS", "add"),
    Fault(
        "the deviation is unbiased",
        "norm_alone",
        "centred.square().mean(dim=-1, keepdim=True)",
        "centred.square().sum(dim=-1, keepdim=True) / (D - 1)",
        "div",
    ),
    Fault("the mean isn't subtracted", "norm_alone", "centred = x - mean", "centred = x", "pow", "centred.square()"),
    Fault("the variance isn't centred", "norm_alone", "centred.square()", "x.square()", "pow"),
    Fault("scale and bias are swapped", "norm_alone", 'normed * w[f"{name}.scale"]\n    return scaled + w[f"{name}.bias"]', 'normed * w[f"{name}.bias"]\n    return scaled + w[f"{name}.scale"]', "mul"),
    Fault("the scale is dropped", "norm_alone", 'normed * w[f"{name}.scale"]', "normed", "add", 'scaled + w[f"{name}.bias"]'),
    Fault("the bias is dropped", "norm_alone", 'scaled + w[f"{name}.bias"]', "scaled", "mul", 'normed * w[f"{name}.scale"]'),
)
BLOCKS = (
    Fault(
        "post-norm for pre-norm",
        "encoder_alone",
        'x + feed_forward(w, h, "encoder.feed_forward")\n    return norm(w, x, "encoder.norm3")',
        'norm(w, x + feed_forward(w, x, "encoder.feed_forward"), "encoder.norm2")\n    return norm(w, x, "encoder.norm3")',
        "addmm",
        'functional.linear(x, w[f"{name}.hidden"]',
    ),
    Fault("the final norm is missing", "encoder_alone", 'return norm(w, x, "encoder.norm3")', "return x", "add", 'x = x + feed_forward(w, h, "encoder.feed_forward")'),
    Fault("a residual is dropped", "encoder_alone", 'x = x + attention(w, h, h, source_mask, "encoder.self")', 'x = attention(w, h, h, source_mask, "encoder.self")', "mean", "mean = x.mean(dim=-1"),
    Fault("a residual is doubled", "encoder_alone", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = x + x + feed_forward(w, h, "encoder.feed_forward")', "add"),
    Fault("the residual is taken after the norm", "encoder_alone", 'x = x + feed_forward(w, h, "encoder.feed_forward")', 'x = h + feed_forward(w, h, "encoder.feed_forward")', "add"),
)
EMBEDDINGS = (
    Fault("√D is missing", "model", "tokens * math.sqrt(D)", "tokens", "add", "scaled + positions"),
    Fault("√D multiplies positions, too", "model", "return scaled + positions", "return (tokens + positions) * math.sqrt(D)", "add"),
    Fault("pads are embedded as zeros", "encoder_alone", "functional.embedding(ids, w[name])", "functional.embedding(ids, w[name]) * (ids != PAD)[..., None]", "mul"),
    Fault("the tables are swapped", "model", 'embed(w, SOURCE, "source")', 'embed(w, SOURCE, "target")', "embedding", "functional.embedding(ids"),
    Fault("positions begin at 1", "encoder_alone", "[: ids.shape[1]]", "[1 : ids.shape[1] + 1]", "add", "scaled + positions"),
    Fault("positions are the batch's rows", "encoder_alone", "[: ids.shape[1]]", "[: ids.shape[0], None]", "add", "scaled + positions"),
    Fault("sines and cosines are halves", "positions", "torch.cos(angles)], dim=-1)\n    return waves.flatten(1)", "torch.cos(angles)], dim=1)\n    return waves.flatten(1)", "add", 'w["x"] + sinusoids()'),
    Fault("the exponents are doubled", "positions", "torch.arange(0, D, 2, dtype=torch.float64) / D", "torch.arange(0, D, 2, dtype=torch.float64) * 2 / D", "mul"),
    Fault("sinusoids begin at 1", "positions", "torch.arange(T)", "torch.arange(1, T + 1)", "mul"),
)
PROJECTIONS = (
    Fault("a kernel is transposed", "attention_alone", 'functional.linear(y, w[f"{name}.key"],', 'functional.linear(y, w[f"{name}.key"].T,', "addmm"),
    Fault("queries have the keys' kernel", "attention_alone", 'w[f"{name}.query"], w', 'w[f"{name}.key"], w', "addmm"),
    Fault("keys and values are swapped", "model", 'w[f"{name}.value"], w[f"{name}.value_bias"]', 'w[f"{name}.key"], w[f"{name}.key_bias"]', "bmm", "weights @ value"),
    Fault("values have no bias", "attention_alone", ', w[f"{name}.value_bias"]', "", "bmm", "weights @ value"),
    Fault("the output has no bias", "attention_alone", ', w[f"{name}.output_bias"])\n\n\ndef feed_forward', ")\n\n\ndef feed_forward", "mm", "functional.linear(merged"),
)
HEADS = (
    Fault("heads aren't transposed", "attention_alone", "heads = x.unflatten(-1, (N, H))\n    return heads.transpose(1, 2)", "return x.reshape(B, N, -1, H)", "bmm", "query @ key.mT"),
    Fault("features come before heads", "attention_alone", "x.unflatten(-1, (N, H))\n    return heads.transpose(1, 2)", "x.unflatten(-1, (H, N))\n    return heads.permute(0, 3, 1, 2)", "bmm", "query @ key.mT"),
    Fault("heads are merged without a transposition", "attention_alone", "context.transpose(1, 2).flatten(2)", "context.reshape(B, T, D)", "addmm", 'functional.linear(merged'),
)
ATTENTION = (
    Fault("the scale is missing", "attention_alone", "products * SCALE", "products", "masked_fill", "logits.masked_fill"),
    Fault("logits are scaled by √D", "attention_alone", "SCALE = 1 / math.sqrt(H)", "SCALE = 1 / math.sqrt(D)", "mul", "products * SCALE"),
    Fault("the softmax is over queries", "attention_alone", "torch.softmax(masked, dim=-1)", "torch.softmax(masked, dim=-2)", "_softmax"),
    Fault("the fill is -9999", "attention_alone", "FILL = -1e9", "FILL = -9999.0", "masked_fill", "logits.masked_fill"),
    Fault("the fill is 0", "attention_alone", "FILL = -1e9", "FILL = 0.0", "masked_fill", "logits.masked_fill"),
    Fault("a mask is added, where a row is masked as a whole", "attention_alone", "logits.masked_fill(~mask, FILL)", "logits + FILL * ~mask", "mul"),
    Fault("a mask multiplies logits", "attention_alone", "logits.masked_fill(~mask, FILL)", "logits * mask", "mul"),
    Fault("a row that is masked as a whole gets no weights", "attention_alone", "torch.softmax(masked, dim=-1)", "torch.softmax(masked, dim=-1) * mask.any(-1, keepdim=True)", "mul"),
)
MASKS = (
    Fault("the padding mask is inverted", "encoder_alone", "(SOURCE != PAD)", "(SOURCE == PAD)", "masked_fill", "logits.masked_fill"),
    Fault("the padding mask is of queries", "encoder_alone", "(SOURCE != PAD)[:, None, None, :]", "(SOURCE != PAD)[:, None, :, None]", "masked_fill", "logits.masked_fill"),
    Fault("the causal mask is one token late", "model", ".tril()", ".tril(1)", "masked_fill", "logits.masked_fill"),
    Fault("the causal mask is one token early", "model", ".tril()", ".tril(-1)", "masked_fill", "logits.masked_fill"),
    Fault("the causal mask is missing", "model", "target & causal", "target", "masked_fill", "logits.masked_fill"),
    Fault("the target's padding isn't masked", "model", "target & causal", "causal", "masked_fill", "logits.masked_fill"),
    Fault("cross-attention masks nothing", "model", 'memory, source_mask, "decoder.cross"', 'memory, source_mask | True, "decoder.cross"', "_softmax", "torch.softmax(masked"),
    Fault("cross-attention reads the decoder", "model", 'attention(w, h, memory, source_mask', 'attention(w, h, torch.cat([h, h[:, :1]], 1), source_mask', "addmm", 'functional.linear(y, w[f"{name}.key"]'),
    Fault("cross-attention reads the encoder before its final norm", "model", 'return norm(w, x, "encoder.norm3")', "return x", "addmm", 'functional.linear(y, w[f"{name}.key"]'),
)
FEED_FORWARD = (
    Fault("GELU by tanh for GELU", "feed_forward_alone", "functional.gelu(hidden)", 'functional.gelu(hidden, approximate="tanh")', "gelu"),
    Fault("ReLU for GELU", "feed_forward_alone", "functional.gelu(hidden)", "functional.relu(hidden)", "relu"),
    Fault("SiLU for GELU", "encoder_alone", "functional.gelu(hidden)", "functional.silu(hidden)", "silu"),
    Fault("the activation is missing", "feed_forward_alone", "functional.gelu(hidden)", "hidden", "addmm", "functional.linear(active"),
)
HEAD = (
    Fault("the head isn't tied", "model", 'x @ w["target"].T', 'x @ w["source"][:8].T', "mm"),
    Fault("the head has no bias", "model", 'return projected + w["head_bias"]', "return projected", "mm", 'x @ w["target"].T'),
    Fault("targets aren't shifted", "model", 'embed(w, shifted(LABELS), "target")', 'embed(w, LABELS, "target")', "embedding", "functional.embedding(ids"),
    Fault("targets begin with a pad", "model", "torch.full((B, 1), BOS)", "torch.full((B, 1), PAD)", "embedding", "functional.embedding(ids"),
)
LOSS = (
    Fault("pads are counted", "loss", "counts = LABELS != PAD", "counts = torch.ones_like(LABELS)", "sum", "(losses * counts).sum()"),
    Fault("the mean is over sentences", "loss", "return (losses * counts).sum() / counts.sum()", "return ((losses * counts).sum(1) / counts.sum(1)).mean()", "sum"),
    Fault("the sum is over all tokens' number", "loss", "/ counts.sum()", "/ counts.numel()", "div"),
    Fault("smoothing is shared by V - 1 classes", "loss", "of_all = log_probabilities.mean(dim=-1)", "of_all = (log_probabilities.sum(dim=-1) - picked) / (log_probabilities.shape[-1] - 1)", "sub"),
    Fault("smoothing is shared by V - 2 classes", "loss", "log_probabilities.mean(dim=-1)", "log_probabilities.sum(dim=-1) / (log_probabilities.shape[-1] - 2)", "div"),
    Fault("smoothing doesn't lower the label's share", "loss", "-(1 - SMOOTHING) * picked", "-picked", "neg"),
)
UPDATE = (
    Fault("gradients are clipped with their norm + 1e-6", "update", "LARGEST_NORM / length", "LARGEST_NORM / (length + 1e-6)", "add"),
    Fault("Adam's ε is inside the root", "update", "torch.sqrt(v_hat) + ADAM_EPS", "torch.sqrt(v_hat + ADAM_EPS)", "add"),
    Fault("Adam corrects no bias", "update", "m_hat = m / (1 - BETA1**3)", "m_hat = m", "mul", "RATE * m_hat / denominator"),
    Fault("Adam corrects the bias of the step before", "update", "1 - BETA2**3", "1 - BETA2**2", "div"),
    Fault("decoupled decay for L2", "update", "clipped + DECAY * w[\"p\"]", "clipped", "mul", "BETA1 * w[\"m\"] + (1 - BETA1) * decayed"),
    Fault("the rate is of another step", "update", "RATE * m_hat", "RATE * 2 * m_hat", "mul"),
)
DECODING = (
    Fault("the cache is written one step late", "decoding", 'keys[:, step] = functional.linear(x, w["key"])[:, 0]', 'keys[:, max(step - 1, 0)] = functional.linear(x, w["key"])[:, 0]', "bmm", "query @ keys"),
    Fault("the newest key isn't seen", "decoding", "query @ keys[:, : step + 1].mT * SCALE\n    weights = torch.softmax(logits, dim=-1)\n    return weights @ values[:, : step + 1]", "query @ keys[:, : max(step, 1)].mT * SCALE\n    weights = torch.softmax(logits, dim=-1)\n    return weights @ values[:, : max(step, 1)]", "_softmax", "torch.softmax(logits, dim=-1)"),
    Fault("the cache isn't reordered with the beams", "decoding", "    return torch.cat(outputs, dim=1)", "    return torch.cat(outputs, dim=1).flip(0)", "flip"),
)
FAULTS = (*NORMS, *BLOCKS, *EMBEDDINGS, *PROJECTIONS, *HEADS, *ATTENTION, *MASKS, *FEED_FORWARD, *HEAD, *LOSS, *UPDATE, *DECODING)
