# ruff: noqa: E501 (a program is one line)
"""Pairs by hand against the newest rules: choices and ties, complex numbers, convolutions and pooling, masks, undefined
values, multiples of π, and numbers that cancel."""

from __future__ import annotations

from proof.adversary_pairs import DIFFERENT, NEITHER, NOWHERE, OTHER, SAME
from proof.adversary_written import (
    CAUSAL_J,
    CAUSAL_T,
    CONV_J,
    CONV_T,
    NINE,
    PARTLY,
    add,
    alike,
    four,
    masked,
    written_pairs,
)

__all__ = ["written_pairs"]

# --- choices

CHOOSES = "places"
for other, truth in (
    ("2 * w + v.sum()", SAME),
    ("w * v.sum()", DIFFERENT),
    ("w * v.sum() ** 2", SAME),
    ("w / (1 + v.sum() ** 2)", SAME),
    ("w + w", SAME),
    ("w ** 3", SAME),
    ("w * w * w", SAME),
    ("np.exp(w / 2)", SAME),
    ("np.log(1 + np.exp(w))", SAME),
    ("np.floor(w)", DIFFERENT),
    ("np.round(w * 8)", DIFFERENT),
    ("np.clip(w, -1.0, 1.0)", DIFFERENT),
    ("np.maximum(w, 0 * w)", DIFFERENT),
    ("w - w.max()", SAME),
    ("np.flip(w, (0,))", DIFFERENT),
    ("np.sin(w)", DIFFERENT),
    ("-np.exp(-w)", SAME),
    ("1 / (1 + np.exp(w))", DIFFERENT),
    ("-1 / (1 + np.exp(w))", SAME),
    ("w * np.sqrt(1 + (v * v).sum())", SAME),
    ("w * np.tanh(v.sum())", DIFFERENT),
    ("w + np.exp(v.sum())", SAME),
    ("w + np.exp(v)", DIFFERENT),
):
    add(CHOOSES, truth, *four(alike("v[np.argmax(w)] + 0 * w"), alike(f"v[np.argmax({other})] + 0 * w")))
for one, two, truth in (
    ("v[np.argmin(w)] + 0 * w", "v[np.argmax(-w)] + 0 * w", SAME),
    ("v[np.argmin(w)] + 0 * w", "v[np.argmax(w)] + 0 * w", DIFFERENT),
    ("v[3 - np.argmax(np.flip(w, (0,)))] + 0 * w", "v[np.argmax(w)] + 0 * w", SAME),
    ("v[(np.argmax(w) + 1) % 4] + 0 * w", "np.roll(v, -1, 0)[np.argmax(w)] + 0 * w", SAME),
    ("v[(np.argmax(w) + 1) % 4] + 0 * w", "v[np.argmax(w)] + 0 * w", DIFFERENT),
    ("np.where(w == w.max(), v, 0 * v).sum() + 0 * w", "v[np.argmax(w)] + 0 * w", SAME),
    ("np.argsort(np.argsort(w)) * v", "(w[:, None] > w[None]).sum(1) * v", SAME),
    ("np.argsort(np.argsort(w)) * v", "np.argsort(w) * v + 0 * w", DIFFERENT),
    ("m[np.argmax(w)] + v", "m[:, np.argmax(w)] + v", DIFFERENT),
    ("m[np.argmax(w)] + v", "(m * (w == w.max())[:, None]).sum(0) + v", SAME),
    ("v[np.argsort(w)][np.argsort(np.argsort(w))]", "v + 0 * w", SAME),
    ("v[np.argsort(w)].sum() + w", "v.sum() + w", SAME),
    ("v[np.argsort(w)] * w", "v[np.argsort(-w)] * w", DIFFERENT),
    ("v[np.argsort(w)] * w", "np.flip(v[np.argsort(-w)], (0,)) * w", SAME),
    ("np.where(w > v, w, v) + np.where(w > v, v, w)", "w + v", SAME),
    ("np.where(w > v, w, v) - np.where(w > v, v, w)", "np.abs(w - v)", SAME),
    ("np.where(w > v, w, v) - np.where(w > v, v, w)", "w - v", DIFFERENT),
    ("np.where((w > 0) & (v > 0), w, v)", "np.where(w > 0, np.where(v > 0, w, v), v)", SAME),
    ("np.where((w > 0) | (v > 0), w, v)", "np.where(w > 0, w, np.where(v > 0, w, v))", SAME),
    ("np.where((w > 0) | (v > 0), w, v)", "np.where((w > 0) & (v > 0), w, v)", DIFFERENT),
    ("np.where((w > 0) == (v > 0), w, v)", "np.where(w * v > 0, w, v)", SAME),
    ("np.where(w * v > 0, w, v)", "np.where(w + v > 0, w, v)", DIFFERENT),
):
    add(CHOOSES, truth, *four(alike(one), alike(two)))
add(CHOOSES, SAME, "t, j = jax.lax.top_k(w, 2)\nreturn jnp.zeros(4).at[j].set(t) + v", "jnp.where(w >= jnp.sort(w)[2], w, 0.0) + v",
    "t, j = torch.topk(w, 2)\nreturn torch.zeros(4).scatter(0, j, t) + v", "torch.where(w >= torch.sort(w).values[2], w, 0.0) + v")  # fmt: skip
add(CHOOSES, DIFFERENT, "t, j = jax.lax.top_k(w, 2)\nreturn jnp.zeros(4).at[j].set(t) + v", "jnp.where(w >= jnp.sort(w)[1], w, 0.0) + v",
    "t, j = torch.topk(w, 2)\nreturn torch.zeros(4).scatter(0, j, t) + v", "torch.where(w >= torch.sort(w).values[1], w, 0.0) + v")  # fmt: skip
add(CHOOSES, DIFFERENT, "jax.lax.top_k(w, 2)[0].sum() + v", "2 * w.max() + v", "torch.topk(w, 2).values.sum() + v", "2 * w.amax() + v")  # fmt: skip

# --- ties

TIES = "ties"
for one, two, truth in (
    ("np.maximum(w, w)", "w * 1.0", SAME),
    ("np.maximum(w, 1.0 * w) + v", "w + v", SAME),
    ("np.sort(np.CAT([w, w]))SORTED[::2] + v", "np.sort(w)SORTED + v", SAME),
    ("np.sort(np.CAT([w, w]))SORTED[:4] + v", "np.sort(w)SORTED + v", DIFFERENT),
    ("np.CAT([w, w[:1]]).max() + v", "w.max() + v", SAME),
    ("np.CAT([w, 2 * w]).max() + v", "w.max() + v", DIFFERENT),
    ("v[np.argmax(np.CAT([w, w])) % 4] + 0 * w", "v[np.argmax(w)] + 0 * w", SAME),
    ("v[np.argmax(np.CAT([v, w])) % 4] + 0 * w", "v[np.argmax(w)] + 0 * w", DIFFERENT),
    ("np.abs(w - w) + v", "v + 0 * w", SAME),
    ("np.maximum(w - v, v - w)", "np.abs(w - v)", SAME),
    ("np.maximum(np.maximum(w, v), np.maximum(v, w))", "np.maximum(w, v)", SAME),
    ("np.maximum(w, np.minimum(w, v))", "w + 0 * v", SAME),
    ("np.maximum(w, np.minimum(w, v))", "np.maximum(w, v)", DIFFERENT),
    ("np.where(w >= w, v, w)", "v + 0 * w", SAME),
    ("np.where(w > w, v, w)", "w + 0 * v", SAME),
    ("np.where(np.maximum(w, v) == w, w, v)", "np.maximum(w, v)", SAME),
    ("np.where(np.maximum(w, v) > w, w, v)", "np.minimum(w, v) + 0 * w", SAME),
    ("np.where(np.maximum(w, v) >= w, w, v)", "np.minimum(w, v)", DIFFERENT),
    ("(w == v) * v + w", "w + 0 * v", SAME),
):
    texts = four(alike(one), alike(two))
    jax_texts = [text.replace("CAT", "concatenate").replace("SORTED", "") for text in texts[:2]]
    torch_texts = [
        text.replace("CAT", "cat").replace("SORTED", ".values").replace(".max()", ".amax()") for text in texts[2:]
    ]
    # where one gradient of a tie is another: [max(w, min(w, v)) ≥ w] is one, and a tie of halves for many weights
    tied = truth == SAME and ("np.minimum(w, v))" in one or "== w" in one or "np.maximum(v, w))" in one)
    add(TIES, truth, *jax_texts, *torch_texts, gradients=NEITHER if tied else None)

# --- complex numbers

COMPLEX = "complex numbers"
Z = {"jax": "(w + 1j * v)", "torch": "torch.complex(w, v)"}
for one, two, truth in (
    ("(np.abs(Z) ** 2)", "w * w + v * v", SAME),
    ("np.abs(Z)", "np.sqrt(w * w + v * v)", SAME),
    ("np.abs(Z)", "np.abs(w) + np.abs(v)", DIFFERENT),
    ("(Z * np.conj(Z)).real", "w * w + v * v", SAME),
    ("(Z * Z).real", "w * w - v * v", SAME),
    ("(Z * Z).real", "w * w + v * v", DIFFERENT),
    ("(Z * Z).imag", "2 * w * v", SAME),
    ("(Z * Z).imag", "w * v", DIFFERENT),
    ("(1 / Z).real", "w / (w * w + v * v)", SAME),
    ("(1 / Z).imag", "v / (w * w + v * v)", DIFFERENT),
    ("(1 / Z).imag", "-v / (w * w + v * v)", SAME),
    ("(Z / np.abs(Z)).real", "w / np.sqrt(w * w + v * v)", SAME),
    ("np.conj(np.conj(Z)).imag + 0 * w", "v + 0 * w", SAME),
    ("np.conj(Z).imag + 0 * w", "v + 0 * w", DIFFERENT),
    ("Z.sum().real + 0 * v", "w.sum() + 0 * v", SAME),
    ("(Z * (0.6 + 0.8j)).real", "0.6 * w - 0.8 * v", SAME),
    ("(Z * (0.6 + 0.8j)).real", "0.6 * w + 0.8 * v", DIFFERENT),
    ("np.exp(Z).real", "np.exp(w) * np.cos(v)", SAME),
    ("np.exp(Z).real", "np.exp(w) * np.sin(v)", DIFFERENT),
    ("(Z - np.conj(Z)).imag / 2 + 0 * w", "v + 0 * w", SAME),
    ("(Z + 1).imag + w", "v + 1 + w", DIFFERENT),
    ("((Z * Z) * Z).real", "w ** 3 - 3 * w * v * v", SAME),
    ("np.where(Z.real > 0, Z.imag, Z.real)", "np.where(w > 0, v, w)", SAME),
):
    texts = [
        text.replace("Z", Z[kind])
        for kind, pair in zip(("jax", "torch"), zip(alike(one), alike(two), strict=True), strict=True)
        for text in pair
    ]
    add(COMPLEX, truth, *texts)

# --- convolutions and pooling

CONVOLVED = "convolutions and pooling"
PLAIN_J, PLAIN_T = CONV_J.format(s=1, pad='"VALID"', more=""), CONV_T.format(more="")
add(CONVOLVED, SAME, PLAIN_J.replace(" k,", " 2 * k,"), "2 * " + PLAIN_J, PLAIN_T.replace("k.perm", "(2 * k).perm"), "2 * " + PLAIN_T, inputs=NINE)  # fmt: skip
add(CONVOLVED, DIFFERENT, PLAIN_J.replace(" k,", " k * k,"), PLAIN_J, PLAIN_T.replace("k.perm", "(k * k).perm"), PLAIN_T, inputs=NINE)  # fmt: skip
add(CONVOLVED, SAME, PLAIN_J.replace(" k,", " k[:1],"), "x @ k[0]", PLAIN_T.replace("k.perm", "k[:1].perm"), "x @ k[0]", inputs=NINE)  # fmt: skip
add(CONVOLVED, DIFFERENT, PLAIN_J.replace(" k,", " k[:1],"), "x @ k[1]", PLAIN_T.replace("k.perm", "k[:1].perm"), "x @ k[1]", inputs=NINE)  # fmt: skip
add(CONVOLVED, SAME, PLAIN_J.replace("(x, k,", "(x[:, ::-1], k[::-1],"), PLAIN_J + "[:, ::-1]",
    PLAIN_T.replace("(x.tr", "(x.flip(1).tr").replace("k.perm", "k.flip(0).perm"), f"({PLAIN_T}).flip(1)", inputs=NINE)  # fmt: skip
add(CONVOLVED, DIFFERENT, PLAIN_J.replace("(x, k,", "(x[:, ::-1], k,"), PLAIN_J + "[:, ::-1]",
    PLAIN_T.replace("(x.tr", "(x.flip(1).tr"), f"({PLAIN_T}).flip(1)", inputs=NINE)  # fmt: skip
GROUPS_J = PLAIN_J.replace(" k,", " k[:, :2],").replace('"NWC"))', '"NWC"), feature_group_count=2)')
GROUPS_T = "F.conv1d(x.transpose(1, 2), k[:, :2].permute(2, 1, 0), groups=2).transpose(1, 2)"
PARTS_J = 'jnp.concatenate([lax.conv_general_dilated(x[..., {a}], k[:, :2, :1], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")), lax.conv_general_dilated(x[..., {b}], k[:, :2, 1:], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))], -1)'
PARTS_T = "torch.cat([F.conv1d(x[..., {a}].transpose(1, 2), k[:, :2, :1].permute(2, 1, 0)), F.conv1d(x[..., {b}].transpose(1, 2), k[:, :2, 1:].permute(2, 1, 0))], 1).transpose(1, 2)"
for a, b, truth in ((":2", "2:", SAME), ("::2", "1::2", DIFFERENT)):
    add(CONVOLVED, truth, GROUPS_J, PARTS_J.format(a=a, b=b), GROUPS_T, PARTS_T.format(a=a, b=b), inputs=NINE)
TRANSPOSED = "F.conv_transpose1d(x.transpose(1, 2), k.permute(1, 2, 0)).transpose(1, 2)"
add(CONVOLVED, SAME, None, None, TRANSPOSED, "F.conv1d(F.pad(x.transpose(1, 2), (2, 2)), k.permute(2, 1, 0).flip(-1)).transpose(1, 2)", inputs=NINE)  # fmt: skip
add(CONVOLVED, DIFFERENT, None, None, TRANSPOSED, "F.conv1d(F.pad(x.transpose(1, 2), (2, 2)), k.permute(2, 1, 0)).transpose(1, 2)", inputs=NINE)  # fmt: skip
add(CONVOLVED, SAME, CONV_J.format(s=2, pad="((1, 1),)", more=""), CONV_J.format(s=1, pad="((1, 1),)", more="") + "[:, ::2]",
    CONV_T.format(more=", stride=2, padding=1"), f"({CONV_T.format(more=', padding=1')})[:, ::2]", inputs=NINE)  # fmt: skip
add(CONVOLVED, DIFFERENT, CONV_J.format(s=2, pad='"VALID"', more=""), CONV_J.format(s=1, pad="((1, 1),)", more="") + "[:, 1::2]" + "[:, :2] * 1.5",
    CONV_T.format(more=", stride=2"), f"({CONV_T.format(more=', padding=1')})[:, 1::2][:, :2] * 1.5", inputs=NINE)  # fmt: skip
POOL = "lax.reduce_window(w, {start}, lax.{name}, (2,), (2,), 'VALID')"
add(CONVOLVED, SAME, POOL.format(start="0.0", name="add") + " / 2 + v[:2]", "(w[0::2] + w[1::2]) / 2 + v[:2]",
    "F.avg_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]", "F.conv1d(w[None, None], torch.full((1, 1, 2), 0.5), stride=2)[0, 0] + v[:2]")  # fmt: skip
add(CONVOLVED, SAME, POOL.format(start="-jnp.inf", name="max") + " + v[:2]", "jnp.maximum(w[0::2], w[1::2]) + v[:2]",
    "F.adaptive_max_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]", "torch.stack([w[:2].amax(), w[2:].amax()]) + v[:2]")  # fmt: skip
add(CONVOLVED, DIFFERENT, POOL.format(start="-jnp.inf", name="max") + " + v[:2]", "jnp.maximum(w[:2], w[2:]) + v[:2]",
    "F.max_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]", "torch.maximum(w[:2], w[2:]) + v[:2]")  # fmt: skip
add(CONVOLVED, DIFFERENT, POOL.format(start="0.0", name="max") + " + v[:2]", "jnp.maximum(w[0::2], w[1::2]) + v[:2]")
add(CONVOLVED, DIFFERENT, None, None, "F.avg_pool1d(w[None, None] * 1.0, 3, 1, 1)[0, 0] + v", "F.avg_pool1d(w[None, None] * 1.0, 3, 1, 1, count_include_pad=False)[0, 0] + v")  # fmt: skip
add(CONVOLVED, SAME, None, None, "F.avg_pool1d(w[None, None] * 1.0, 3, 1, 1)[0, 0] + v", "F.avg_pool1d(F.pad(w, (1, 1))[None, None], 3, 1)[0, 0] + v")  # fmt: skip
add(CONVOLVED, DIFFERENT, None, None, "F.max_pool1d(w[None, None] * 1.0, 3, 1, 1)[0, 0] + v", "F.max_pool1d(F.pad(w, (1, 1))[None, None], 3, 1)[0, 0] + v")  # fmt: skip
add(CONVOLVED, SAME, None, None, "F.max_pool1d(w[None, None] * 1.0, 3, 1, 1)[0, 0] + v", "F.max_pool1d(F.pad(w, (1, 1), value=-math.inf)[None, None], 3, 1)[0, 0] + v")  # fmt: skip

# --- masks

MASKS = "masks of softmax"
INF = masked("-jnp.inf", "jax"), masked("-math.inf", "torch")


def against_inf(truth: str, one_j: str | None, one_t: str | None) -> None:
    add(MASKS, truth, one_j, INF[0] if one_j else None, one_t, INF[1] if one_t else None)


against_inf(SAME, f"jax.nn.softmax(m, -1, where={CAUSAL_J}) @ w", None)
against_inf(SAME, f"q = jax.nn.softmax(m, -1) * {CAUSAL_J}\nreturn (q / q.sum(-1, keepdims=True)) @ w",
            f"q = torch.softmax(m, -1) * {CAUSAL_T}\nreturn (q / q.sum(-1, keepdim=True) * w).sum(-1)")  # fmt: skip
against_inf(DIFFERENT, f"jax.nn.softmax(m * {CAUSAL_J}, -1) @ w", f"(torch.softmax(m * {CAUSAL_T}, -1) * w).sum(-1)")
against_inf(DIFFERENT, masked("-5e3", "jax"), masked("-5e3", "torch"))
against_inf(
    DIFFERENT, masked("-1e9", "jax").replace(", -1) @", ", 0) @"), masked("-1e9", "torch").replace(", -1) *", ", 0) *")
)
against_inf(SAME, f"jax.nn.softmax(m + 2 * jnp.where({CAUSAL_J}, 0.0, -1e4), -1) @ w", f"(torch.softmax(m + 2 * torch.where({CAUSAL_T}, 0.0, -1e4), -1) * w).sum(-1)")  # fmt: skip
against_inf(DIFFERENT, f"jax.nn.softmax(m + jnp.where({CAUSAL_J}, 0.0, -1e9) / 1e6, -1) @ w", f"(torch.softmax(m + torch.where({CAUSAL_T}, 0.0, -1e9) / 1e6, -1) * w).sum(-1)")  # fmt: skip
against_inf(SAME, f"x = jnp.where({CAUSAL_J}, m, -1e9)\nreturn jnp.exp(x - jax.nn.logsumexp(x, -1, keepdims=True)) @ w",
            f"x = torch.where({CAUSAL_T}, m, -1e9)\nreturn (torch.exp(x - torch.logsumexp(x, -1, keepdim=True)) * w).sum(-1)")  # fmt: skip
against_inf(DIFFERENT, f"x = jnp.where({CAUSAL_J}, m, -1e9)\nreturn jnp.exp(x - jax.nn.logsumexp(m, -1, keepdims=True)) @ w",
            f"x = torch.where({CAUSAL_T}, m, -1e9)\nreturn (torch.exp(x - torch.logsumexp(m, -1, keepdim=True)) * w).sum(-1)")  # fmt: skip
against_inf(DIFFERENT, f"x = jax.nn.softmax(jnp.where({CAUSAL_J}, m, -1e9), -1)\nreturn (x + 1e-9 * ~{CAUSAL_J}) @ w",
            f"x = torch.softmax(torch.where({CAUSAL_T}, m, -1e9), -1)\nreturn ((x + 1e-9 * ~{CAUSAL_T}) * w).sum(-1)")  # fmt: skip
for one_j, two_j, one_t, two_t, truth in (
    ("jax.nn.logsumexp(jnp.where(M, m, -1e9), -1) + w", "jax.nn.logsumexp(jnp.where(M, m, -jnp.inf), -1) + w", "torch.logsumexp(torch.where(M, m, -1e9), -1) + w", "torch.logsumexp(torch.where(M, m, -math.inf), -1) + w", SAME),
    ("jax.nn.logsumexp(jnp.where(M, m, 0.0), -1) + w", "jax.nn.logsumexp(jnp.where(M, m, -jnp.inf), -1) + w", "torch.logsumexp(torch.where(M, m, 0.0), -1) + w", "torch.logsumexp(torch.where(M, m, -math.inf), -1) + w", DIFFERENT),
    ("jax.nn.logsumexp(m, -1, b=M) + w", "jax.nn.logsumexp(jnp.where(M, m, -jnp.inf), -1) + w", "torch.log((torch.exp(m) * M).sum(-1)) + w", "torch.logsumexp(torch.where(M, m, -math.inf), -1) + w", SAME),
    ("jnp.where(M, m, -1e9).max(-1) + w", "jnp.where(M, m, -jnp.inf).max(-1) + w", "torch.where(M, m, -1e9).amax(-1) + w", "torch.where(M, m, -math.inf).amax(-1) + w", DIFFERENT),
    ("jax.nn.sigmoid(jnp.where(M, m, -1e9)) @ w", "(M * jax.nn.sigmoid(m)) @ w", "(torch.sigmoid(torch.where(M, m, -1e9)) * w).sum(-1)", "(M * torch.sigmoid(m) * w).sum(-1)", DIFFERENT),
    ("jnp.where(M, jax.nn.log_softmax(jnp.where(M, m, -1e9), -1), 0.0) @ w", "jnp.where(M, m - jax.nn.logsumexp(jnp.where(M, m, -1e9), -1, keepdims=True), 0.0) @ w", "(torch.where(M, torch.log_softmax(torch.where(M, m, -1e9), -1), 0.0) * w).sum(-1)", "(torch.where(M, m - torch.logsumexp(torch.where(M, m, -1e9), -1, keepdim=True), 0.0) * w).sum(-1)", SAME),
    ("jax.nn.log_softmax(jnp.where(M, m, -1e9), -1) @ w", "jnp.where(M, jax.nn.log_softmax(jnp.where(M, m, -1e9), -1), 0.0) @ w", "(torch.log_softmax(torch.where(M, m, -1e9), -1) * w).sum(-1)", "(torch.where(M, torch.log_softmax(torch.where(M, m, -1e9), -1), 0.0) * w).sum(-1)", DIFFERENT),
):  # fmt: skip
    add(MASKS, truth, *(text.replace("M,", f"{CAUSAL_J},").replace("(M ", f"({CAUSAL_J} ").replace("=M)", f"={CAUSAL_J})") for text in (one_j, two_j)),
        *(text.replace("M,", f"{CAUSAL_T},").replace("(M ", f"({CAUSAL_T} ").replace("* M)", f"* {CAUSAL_T})") for text in (one_t, two_t)))  # fmt: skip

# --- undefined values

UNDEFINED = "undefined values"
for one, two, truth, gradients, defined in (
    ("w / np.sqrt(w)", "np.sqrt(w)", SAME, None, PARTLY),
    ("np.log(np.sqrt(w))", "0.5 * np.log(w)", SAME, None, PARTLY),
    ("np.log(w) - np.log(w) + v", "v + 0 * w", OTHER, None, PARTLY),
    ("w + 0 / np.sqrt(v)", "w + 0 * v", OTHER, None, PARTLY),
    ("w + 0 * np.log(np.sqrt(v))", "w + 0 * v", OTHER, None, PARTLY),
    ("w + 0 / np.sqrt(v)", "w + 0 * np.sqrt(v)", SAME, None, PARTLY),
    ("np.log(w * w)", "2 * np.log(w)", OTHER, None, PARTLY),
    ("np.log(w * w)", "2 * np.log(np.abs(w))", SAME, None, "everywhere"),
    ("1 / np.sqrt(w * w)", "1 / np.abs(w)", SAME, None, "everywhere"),
    ("1 / np.sqrt(w * w)", "1 / w", DIFFERENT, None, "everywhere"),
    ("np.sqrt(np.exp(w))", "np.exp(w / 2)", SAME, None, "everywhere"),
    ("np.sqrt(np.maximum(w, 0 * w))", "np.where(w > 0, np.sqrt(np.abs(w)), 0 * w)", SAME, OTHER, "everywhere"),
    ("np.where(w > 0, np.log(w), np.log(-w))", "np.log(np.abs(w))", SAME, None, "everywhere"),
    ("np.where(w > 0, np.log(w), np.log(-w))", "np.log(w)", OTHER, None, PARTLY),
    ("(-1 - w * w) ** 0.5 + v", "v + 0 * w", NOWHERE, None, "nowhere"),
    ("v + 1 / (0 * w)", "v + 0 * w", NOWHERE, None, "nowhere"),
    ("v + np.log(0 * w)", "v + 0 * w", NOWHERE, None, "nowhere"),
    ("v + 0 * np.log(w - w)", "2 * v + 0 * w", NOWHERE, None, "nowhere"),
    ("v * (w / (w - w))", "v * w", NOWHERE, None, "nowhere"),
    ("v * np.sqrt(-np.exp(w))", "v * w", NOWHERE, None, "nowhere"),
    ("v * np.log(-np.abs(w))", "v * w", NOWHERE, None, "nowhere"),
    ("v + 0 * np.sqrt(np.minimum(w, -1.0 + 0 * w))", "v + 0 * w", NOWHERE, None, "nowhere"),
    ("v * (np.tanh(w) - 1) ** 0.5", "v * w", NOWHERE, None, "nowhere"),
    ("np.exp(np.log(0 * w)) + v", "v + 0 * w", SAME, NOWHERE, "everywhere"),
    ("w ** 0.5 * w ** 0.5", "w * 1.0", OTHER, None, PARTLY),
    ("np.sqrt(w * w - 1)", "np.sqrt(w - 1) * np.sqrt(w + 1)", OTHER, None, PARTLY),
    ("np.log(w / v)", "np.log(w) - np.log(v)", OTHER, None, PARTLY),
    ("1 / (1 / w)", "w * 1.0", SAME, None, "everywhere"),
    ("np.maximum(w, 0 * w) / np.maximum(w, 0 * w) * v", "v + 0 * w", OTHER, None, PARTLY),
    ("np.abs(w) / w * v", "np.sign(w) * v", SAME, None, "everywhere"),
    ("np.sqrt(w).sum() + 0 * w", "np.sqrt(w[:3]).sum() + 0 * w", DIFFERENT, None, PARTLY),
    ("np.sqrt(w) - np.sqrt(v)", "(w - v) / (np.sqrt(w) + np.sqrt(v))", SAME, None, PARTLY),
    ("np.sqrt(w) + 0 * np.sqrt(v)", "np.sqrt(w) + 0 * np.sqrt(w * v)", SAME, None, PARTLY),
    ("np.sqrt(w) + 0 * np.sqrt(-v)", "np.sqrt(w) + 0 * np.sqrt(v)", OTHER, None, PARTLY),
    ("np.sqrt(w) + 0 * np.sqrt(-w)", "np.sqrt(w) * 1.0", NOWHERE, None, "nowhere"),
    ("np.sqrt(w) * np.sqrt(-w) + v", "v + 0 * w", NOWHERE, None, "nowhere"),
    ("np.where(w > 0, 1 / np.sqrt(w), v)", "np.where(w > 0, 1 / np.sqrt(np.abs(w)), v)", SAME, NEITHER, "everywhere"),
    ("np.where(w > 1, 1 / np.sqrt(w - 1), v)", "np.where(w > 1, 1 / np.sqrt(w), v)", DIFFERENT, NEITHER, "everywhere"),
    ("np.where(np.isnan(1 / np.sqrt(w)), v, w)", "w + 0 * v", DIFFERENT, None, "everywhere"),
    ("np.where(np.isnan(1 / np.sqrt(w)), v, w)", "np.where(w < 0, v, w)", SAME, NEITHER, "everywhere"),
    ("np.where(np.isnan(np.log(np.sqrt(w))), v, w)", "w + 0 * v", DIFFERENT, None, "everywhere"),
    ("np.where(1 / np.sqrt(w) > 0, v, w)", "v + 0 * w", DIFFERENT, None, "everywhere"),
):  # fmt: skip
    add(UNDEFINED, truth, *four(alike(one), alike(two)), gradients=gradients, defined=defined)

# --- multiples of π, and numbers that cancel

ANGLE = "right angles"
for one, two, truth in (
    ("np.sin(w + math.pi / 2)", "np.cos(w)", SAME),
    ("np.cos(w + v - math.pi / 2)", "np.sin(w + v)", SAME),
    ("np.sin(w + math.pi)", "-np.sin(w)", SAME),
    ("np.cos(2 * math.pi - w)", "np.cos(w)", SAME),
    ("np.sin(math.pi / 2 - w) + v", "np.cos(w) + v", SAME),
    ("np.sin(w + 3 * math.pi / 2)", "-np.cos(w)", SAME),
    ("np.sin(w + math.pi / 2)", "np.sin(w)", DIFFERENT),
    ("np.sin(w + math.pi / 2)", "-np.cos(w)", DIFFERENT),
    ("np.sin(w + 1.5708)", "np.cos(w)", DIFFERENT),
    ("np.sin(w + 22 / 7)", "-np.sin(w)", DIFFERENT),
    ("np.sin(w + math.pi / 3)", "np.cos(w - math.pi / 6)", SAME),
    ("w * (math.pi / 180)", "w * math.pi / 180", SAME),
    ("np.log(2 + 2 * w * w)", "math.log(2) + np.log(1 + w * w)", SAME),
    ("np.log(2 + 2 * w * w)", "0.69314 + np.log(1 + w * w)", DIFFERENT),
    ("np.exp(w + 1)", "math.e * np.exp(w)", SAME),
    ("np.exp(w + 1)", "2.71828 * np.exp(w)", DIFFERENT),
    ("w * w / math.sqrt(2 * math.pi)", "w * w * 0.3989422804014327", SAME),
):
    same_gradients = None if truth == SAME or "log(2 + " not in one else SAME
    add(ANGLE, truth, *four(alike(one), alike(two)), gradients=same_gradients)
CANCEL = "numbers that cancel"
for one, two, truth in (
    ("1 - np.tanh(w * v) ** 2", "4 / (np.exp(w * v) + np.exp(-w * v)) ** 2", SAME),
    ("1 - np.tanh(w * v) ** 2", "4.001 / (np.exp(w * v) + np.exp(-w * v)) ** 2", DIFFERENT),
    ("np.log(np.exp(-(w ** 2)) + 1)", "np.log(1 + np.exp(w ** 2)) - w ** 2", SAME),
    ("np.exp(w) - np.exp(v)", "np.exp(v) * (np.exp(w - v) - 1)", SAME),
    ("np.exp(w) - np.exp(v)", "np.exp(w) * (np.exp(w - v) - 1)", DIFFERENT),
    ("(w + 1e8) - 1e8 + v", "w + v", SAME),
    ("1e-25 * w * v", "1.001e-25 * w * v", DIFFERENT),
    ("np.exp(-w * w * 1e3)", "np.exp(-w * w * 1.001e3)", DIFFERENT),
    ("1 / (1 + np.exp(w)) + 1 / (1 + np.exp(-w))", "1 + 0 * w", SAME),
    ("np.tanh(w) - np.tanh(v)", "np.tanh(w - v) * (1 - np.tanh(w) * np.tanh(v))", SAME),
):
    add(CANCEL, truth, *four(alike(one), alike(two)))
