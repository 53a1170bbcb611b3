# ruff: noqa: E501 (a program is one line)
"""Pairs by hand against rules for layers and types: sums of masks, bounds of types, norms by stored statistics and by
groups, interpolation, tiles, tables that are rounded differently, casts, and constants that depend on a type."""

from __future__ import annotations

from proof.adversary_newest import written_pairs
from proof.adversary_pairs import DIFFERENT, NEITHER, SAME
from proof.adversary_written import PARTLY, add, alike, four

__all__ = ["written_pairs"]

# --- sums of masks, and bounds of types

BOUNDS = "layers, bounds of types"
MIN_J, MIN_T = "jnp.finfo(jnp.float32).min", "torch.finfo(torch.float32).min"
C_J, C_T = "jnp.tril(jnp.ones((4, 4), bool))", "torch.tril(torch.ones(4, 4, dtype=torch.bool))"
PAD_J, PAD_T = "(jnp.arange(4) < 3)", "(torch.arange(4) < 3)"


def masks(one: str, two: str, truth: str, **options: str) -> None:
    """Adds softmaxes of m with masks C (causal) and P (padding), whose fill is LOW."""
    texts = []
    for text in (one, two):
        for c, p, low, softmax in (
            (C_J, PAD_J, MIN_J, "jax.nn.softmax"),
            (C_T, PAD_T, MIN_T, "torch.softmax"),
        ):
            found = text.replace("CAUSAL", c).replace("PAD", p).replace("LOW", low).replace("SOFTMAX", softmax)
            texts.append(found.replace("np.", "jnp." if low == MIN_J else "torch."))
    add(BOUNDS, truth, texts[0], texts[2], texts[1], texts[3], **options)


masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) + np.where(PAD, 0.0, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL & PAD, m, LOW), -1) @ v",
    SAME,
)
masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) + np.where(PAD, 0.0, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v",
    DIFFERENT,
)
masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) + np.where(PAD, 0.0, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL | PAD, m, LOW), -1) @ v",
    DIFFERENT,
)
masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) + np.where(CAUSAL, 0.0, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v",
    SAME,
)
masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) / 2 + np.where(PAD, 0.0, LOW) / 2, -1) @ v",
    "SOFTMAX(np.where(CAUSAL & PAD, m, LOW), -1) @ v",
    SAME,
)
masks(
    "SOFTMAX(m + np.where(CAUSAL, 0.0, LOW) - np.where(PAD, 0.0, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL & PAD, m, LOW), -1) @ v",
    DIFFERENT,
)
masks(
    "SOFTMAX(np.maximum(m + np.where(CAUSAL, 0.0, LOW), LOW + 0 * m), -1) @ v",
    "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v",
    SAME,
)
masks("SOFTMAX(m * np.where(CAUSAL, 1.0, LOW), -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", DIFFERENT)
masks("SOFTMAX(np.where(CAUSAL, m, -1e4), -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", SAME)
masks("SOFTMAX(np.where(CAUSAL, m, -1e2), -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", DIFFERENT)
masks("SOFTMAX(np.where(CAUSAL, m, LOW) / 1e36, -1) @ v", "SOFTMAX(np.where(CAUSAL, m / 1e36, LOW), -1) @ v", DIFFERENT)
masks(
    "SOFTMAX(np.where(CAUSAL & (np.arange(4) > 0)[:, None], m, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL & (np.arange(4) > 0)[:, None], m, -1e9), -1) @ v",
    NEITHER,
)
masks(
    "SOFTMAX(np.where(CAUSAL & (np.arange(4) > 0)[:, None], m, LOW), -1) @ v",
    "SOFTMAX(np.where(CAUSAL & (np.arange(4) > 0)[:, None], m, -np.inf), -1) @ v",
    NEITHER,
)
masks("SOFTMAX(np.where(CAUSAL, m, LOW) + 0 * v, -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", SAME)
masks("SOFTMAX(np.where(CAUSAL, m, LOW) + v[:, None], -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", SAME)
masks("SOFTMAX(np.where(CAUSAL, m, LOW) + v, -1) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", DIFFERENT)
masks("SOFTMAX(np.where(CAUSAL, m, LOW), 0) @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", DIFFERENT)
masks("SOFTMAX(np.where(CAUSAL, m, LOW), -1) * CAUSAL @ v", "SOFTMAX(np.where(CAUSAL, m, LOW), -1) @ v", SAME)
masks("np.where(CAUSAL, m, LOW).sum(-1) * 0 + v", "v + 0 * m.sum(-1)", NEITHER)
masks("np.where(CAUSAL, m, LOW) @ v", "np.where(CAUSAL, m, -1e38) @ v", DIFFERENT)
masks("np.where(np.where(CAUSAL, m, LOW) > -1e30, m, 0.0) @ v", "np.where(CAUSAL, m, 0.0) @ v", SAME)
masks("np.where(np.where(CAUSAL, m, LOW) < -1e30, v, m) @ v", "m @ v", DIFFERENT)
for value, truth in (("finfo.max", DIFFERENT), ("finfo.tiny", DIFFERENT), ("finfo.eps", DIFFERENT)):
    low = value.replace("finfo", "np.finfo(np.float32)")
    add(BOUNDS, truth, *four(alike(f"w / (1 + v * v * {low})"), alike("w / (1 + v * v)")))
add(
    BOUNDS,
    SAME,
    *four(alike("np.clip(w, -np.finfo(np.float32).max, np.finfo(np.float32).max) * v"), alike("w * v")),
    gradients=NEITHER,
)
add(BOUNDS, DIFFERENT, *four(alike("np.clip(w, np.finfo(np.float32).min, 0.0) * v"), alike("w * v")))
add(
    BOUNDS,
    DIFFERENT,
    *four(alike("np.clip(w, np.finfo(np.float32).tiny, np.finfo(np.float32).max) * v"), alike("w * v")),
)
add(
    BOUNDS,
    DIFFERENT,
    "jnp.clip(w, -jnp.finfo(jnp.float16).max, jnp.finfo(jnp.float16).max) * v",
    "w * v",
    "torch.clamp(w, -torch.finfo(torch.float16).max, torch.finfo(torch.float16).max) * v",
    "w * v",
)
add(BOUNDS, SAME, *four(alike("np.sqrt(w * w + np.finfo(np.float32).eps)"), alike("np.sqrt(w * w + 2.0 ** -23)")))
add(BOUNDS, DIFFERENT, *four(alike("np.sqrt(w * w + np.finfo(np.float32).eps)"), alike("np.sqrt(w * w + 1.19e-7)")))
add(BOUNDS, DIFFERENT, "jnp.sqrt(w * w + jnp.finfo(jnp.bfloat16).eps)", "jnp.sqrt(w * w + jnp.finfo(jnp.float16).eps)",
    "torch.sqrt(w * w + torch.finfo(torch.bfloat16).eps)", "torch.sqrt(w * w + torch.finfo(torch.float16).eps)")  # fmt: skip

# --- norms

NORMS = "layers, norms by statistics and groups"
BN = {"w": (4,), "v": (4,), "a": (4,), "b": (4,), "x": (2, 4, 3)}
BATCH_T = "F.batch_norm(x, a, b, w, v, False, 0.1, 1e-5)"
BATCH_J = "(x - a[:, None]) / jnp.sqrt(b[:, None] + 1e-5) * w[:, None] + v[:, None]"
for one, truth in (
    (BATCH_J, SAME),
    (BATCH_J.replace("1e-5)", "1e-3)"), DIFFERENT),
    (BATCH_J.replace("jnp.sqrt(b[:, None] + 1e-5)", "(jnp.sqrt(b[:, None]) + 1e-5)"), DIFFERENT),
    (BATCH_J.replace("(x - a[:, None])", "x"), DIFFERENT),
    (BATCH_J.replace("* w[:, None] + v", "* v[:, None] + w"), DIFFERENT),
    (BATCH_J.replace("a[:, None]", "b[:, None]"), DIFFERENT),
    ("x * (w / jnp.sqrt(b + 1e-5))[:, None] + (v - a * w / jnp.sqrt(b + 1e-5))[:, None]", SAME),
    ("x * (w / jnp.sqrt(b + 1e-5))[:, None] + (v + a * w / jnp.sqrt(b + 1e-5))[:, None]", DIFFERENT),
    (
        "(x - x.mean((0, 2), keepdims=True)) / jnp.sqrt(x.var((0, 2), keepdims=True) + 1e-5) * w[:, None] + v[:, None] + 0 * a[:, None] * b[:, None]",
        DIFFERENT,
    ),
):
    add(
        NORMS, truth, one, None, None, BATCH_T, weights=BN, defined=PARTLY, gradients=NEITHER if truth == SAME else None
    )
add(NORMS, DIFFERENT, None, None, "F.batch_norm(x, a, b, w, v, True, 0.1, 1e-5)", BATCH_T, weights=BN, defined=PARTLY)
add(
    NORMS,
    DIFFERENT,
    None,
    None,
    "F.batch_norm(x, None, None, w, v, True, 0.1, 1e-5) + 0 * a[:, None] * b[:, None]",
    BATCH_T,
    weights=BN,
    defined=PARTLY,
)
add(NORMS, DIFFERENT, None, None, "F.batch_norm(x, a, b, w, v, False, 0.1, 1e-6)", BATCH_T, weights=BN, defined=PARTLY)
add(NORMS, SAME, None, None, "F.batch_norm(x, a, b, w, v, False, 0.9, 1e-5)", BATCH_T, weights=BN, defined=PARTLY)
GN = {"w": (4,), "v": (4,), "x": (2, 4, 6)}
GROUP_T = "F.group_norm(x, 2, w, v, 1e-5)"
GROUP_J = "g = x.reshape(2, 2, 2, 6)\ng = (g - g.mean((2, 3), keepdims=True)) / jnp.sqrt(g.var((2, 3), keepdims=True) + 1e-5)\nreturn g.reshape(2, 4, 6) * w[:, None] + v[:, None]"
for one, truth in (
    (GROUP_J, SAME),
    (GROUP_J.replace("(2, 2, 2, 6)", "(2, 2, 12)").replace("(2, 3)", "2"), SAME),
    (GROUP_J.replace("(2, 3)", "(1, 3)"), DIFFERENT),
    (GROUP_J.replace("(2, 3)", "(3,)"), DIFFERENT),
    (GROUP_J.replace("2, 2, 2, 6", "2, 1, 4, 6"), DIFFERENT),
    (GROUP_J.replace("2, 2, 2, 6", "2, 4, 1, 6"), DIFFERENT),
    (GROUP_J.replace("g.var((2, 3), keepdims=True)", "g.var((2, 3), keepdims=True, ddof=1)"), DIFFERENT),
    (
        GROUP_J.replace(
            "jnp.sqrt(g.var((2, 3), keepdims=True) + 1e-5)",
            "jnp.sqrt((g * g).mean((2, 3), keepdims=True) - g.mean((2, 3), keepdims=True) ** 2 + 1e-5)",
        ),
        SAME,
    ),
    (
        GROUP_J.replace("x.reshape(2, 2, 2, 6)", "x.reshape(2, 2, 2, 6).swapaxes(1, 2)").replace(
            "g.reshape(", "g.swapaxes(1, 2).reshape("
        ),
        DIFFERENT,
    ),
    (GROUP_J.replace("* w[:, None]", "* w.mean()"), DIFFERENT),
):
    add(NORMS, truth, one, None, None, GROUP_T, weights=GN)
add(
    NORMS,
    SAME,
    None,
    None,
    "F.group_norm(x, 4, w, v, 1e-5)",
    "F.instance_norm(x, None, None, w, v, True, 0.1, 1e-5)",
    weights=GN,
)
add(
    NORMS,
    SAME,
    None,
    None,
    "F.group_norm(x, 1, None, None) * w[:, None] + v[:, None]",
    "F.layer_norm(x, (4, 6)) * w[:, None] + v[:, None]",
    weights=GN,
)
add(
    NORMS,
    DIFFERENT,
    None,
    None,
    "F.group_norm(x, 1, None, None) * w[:, None] + v[:, None]",
    "F.layer_norm(x, (6,)) * w[:, None] + v[:, None]",
    weights=GN,
)

# --- interpolation, tiles

RESIZE = "layers, interpolation"
IMAGE = {"x": (1, 2, 4, 4)}


def resized(method: str, shape: str, **options: object) -> str:
    more = "".join(f", {name}={value}" for name, value in options.items())
    return f'jax.image.resize(x, {shape}, "{method}"{more})'


for one, two, truth in (
    (resized("bilinear", "(1, 2, 8, 8)"), "F.interpolate(x, size=(8, 8), mode='bilinear')", SAME),
    (
        resized("bilinear", "(1, 2, 8, 8)"),
        "F.interpolate(x, size=(8, 8), mode='bilinear', align_corners=True)",
        DIFFERENT,
    ),
    (resized("bilinear", "(1, 2, 2, 2)", antialias=False), "F.interpolate(x, size=(2, 2), mode='bilinear')", SAME),
    (resized("bilinear", "(1, 2, 2, 2)"), "F.interpolate(x, size=(2, 2), mode='bilinear')", DIFFERENT),
    (resized("bilinear", "(1, 2, 3, 5)", antialias=False), "F.interpolate(x, size=(3, 5), mode='bilinear')", SAME),
    (resized("bilinear", "(1, 2, 8, 8)"), "F.interpolate(x, scale_factor=2, mode='bilinear')", SAME),
    (resized("bilinear", "(1, 2, 5, 5)"), "F.interpolate(x, scale_factor=1.3, mode='bilinear')", DIFFERENT),
    (
        resized("bilinear", "(1, 2, 5, 5)"),
        "F.interpolate(x, scale_factor=1.3, mode='bilinear', recompute_scale_factor=True)",
        SAME,
    ),
    (resized("cubic", "(1, 2, 8, 8)"), "F.interpolate(x, size=(8, 8), mode='bicubic')", DIFFERENT),
    (resized("bicubic", "(1, 2, 4, 4)"), "F.interpolate(x, size=(4, 4), mode='bicubic')", SAME),
    ("x", "F.interpolate(x, size=(4, 4), mode='bilinear', align_corners=True)", SAME),
    ("x", "F.interpolate(x, scale_factor=1.2, mode='bilinear')", DIFFERENT),
    (resized("bilinear", "(1, 2, 8, 8)"), "F.interpolate(x, size=(8, 8), mode='bicubic')", DIFFERENT),
    (resized("nearest", "(1, 2, 8, 8)"), "F.interpolate(x, size=(8, 8), mode='nearest')", SAME),
    (resized("nearest", "(1, 2, 3, 3)"), "F.interpolate(x, size=(3, 3), mode='nearest-exact')", SAME),
    (resized("nearest", "(1, 2, 3, 3)"), "F.interpolate(x, size=(3, 3), mode='nearest')", DIFFERENT),
    ("jnp.repeat(jnp.repeat(x, 2, 2), 2, 3)", "F.interpolate(x, scale_factor=2, mode='nearest')", SAME),
    ("jnp.tile(x, (1, 1, 2, 2))", "F.interpolate(x, scale_factor=2, mode='nearest')", DIFFERENT),
    ("jnp.tile(x, (1, 1, 2, 2))", "x.repeat(1, 1, 2, 2)", SAME),
    ("x.reshape(1, 2, 2, 2, 2, 2).mean((3, 5))", "F.interpolate(x, size=(2, 2), mode='area')", SAME),
    ("x.reshape(1, 2, 2, 2, 2, 2).mean((3, 5))", "F.interpolate(x, size=(2, 2), mode='bilinear')", SAME),
    ("x.reshape(1, 2, 2, 2, 2, 2).mean((3, 5))", "F.interpolate(x, size=(2, 2), mode='bicubic')", DIFFERENT),
    ("x.reshape(1, 2, 2, 2, 2, 2).max((3, 5))", "F.interpolate(x, size=(2, 2), mode='bilinear')", DIFFERENT),
):
    add(RESIZE, truth, one, None, None, two, weights=IMAGE)
TILES = "layers, tiles"
for one, two, truth in (
    ("jnp.tile(w, 2) * jnp.repeat(v, 2)", "w.repeat(2) * v.repeat_interleave(2)", SAME),
    ("jnp.tile(w, 2) * jnp.repeat(v, 2)", "w.repeat_interleave(2) * v.repeat(2)", DIFFERENT),
    ("jnp.tile(w[:1], 4) * v", "w[:1].repeat_interleave(4) * v", SAME),
    ("jnp.tile(w, (3, 1)).T @ jnp.ones(3)", "w.repeat_interleave(3).reshape(4, 3) @ torch.ones(3)", SAME),
    ("jnp.tile(w, (4, 1)) * v", "w.repeat(4, 1) * v", SAME),
    ("jnp.tile(w, (4, 1)) * v", "w.repeat_interleave(4).reshape(4, 4) * v", DIFFERENT),
    ("jnp.tile(w.reshape(2, 2), (2, 1)).reshape(-1)", "w.repeat(2)", SAME),
    ("jnp.tile(w.reshape(2, 2), (1, 2)).reshape(-1)", "w.repeat(2)", DIFFERENT),
    ("jnp.tile(w, 2)[::2]", "w.repeat(2)[1::2]", DIFFERENT),
    ("jnp.tile(w, 0).sum() + v", "v * 1.0", SAME),
):
    add(TILES, truth, one, None, None, two)

# --- tables, constants and casts

TABLES = "layers, tables that are rounded"
for one, two, truth in (
    (
        "jnp.cos(jnp.arange(4) / 10000 ** (jnp.arange(4) / 4)) * w",
        "torch.cos(torch.arange(4) / 10000 ** (torch.arange(4) / 4)) * w",
        SAME,
    ),
    (
        "jnp.cos(jnp.arange(4) / 10000 ** (jnp.arange(4) / 4)) * w",
        "torch.cos(torch.arange(4) / 10010 ** (torch.arange(4) / 4)) * w",
        DIFFERENT,
    ),
    (
        "jnp.cos(jnp.arange(4) / 10000 ** (jnp.arange(4) / 4)) * w",
        "torch.cos((torch.arange(4) + 1e-4) / 10000 ** (torch.arange(4) / 4)) * w",
        DIFFERENT,
    ),
    (
        "jnp.cos(jnp.arange(4) / 10000 ** (jnp.arange(4) / 4)) * w",
        "torch.cos(torch.arange(4) / 10000 ** (torch.arange(4) / 4)).half().float() * w",
        DIFFERENT,
    ),
    (
        "jnp.cos(jnp.arange(4) / 10000 ** (jnp.arange(4) / 4)).astype(jnp.bfloat16) * w",
        "torch.cos(torch.arange(4) / 10000 ** (torch.arange(4) / 4)).bfloat16() * w",
        SAME,
    ),
    ("jnp.asarray(np.linspace(-1, 1, 4), jnp.float32) * w", "torch.linspace(-1, 1, 4) * w", SAME),
    ("jnp.asarray(np.linspace(-1, 1, 4), jnp.float32) * w", "torch.linspace(-1, 1.0001, 4) * w", DIFFERENT),
    ("jnp.asarray([0.1, 0.2, 0.3, 0.4]) * w", "torch.tensor([0.1, 0.2, 0.3, 0.4]) * w", SAME),
    ("jnp.asarray([0.1, 0.2, 0.3, 0.4]) * w", "torch.tensor([0.1, 0.2, 0.3, 0.400001]) * w", DIFFERENT),
    ("jnp.asarray([0.1, 0.2, 0.3, 0.4]) * w", "torch.tensor([0.1, 0.2, 0.4, 0.3]) * w", DIFFERENT),
    (
        "jnp.asarray([1e-8, 1.0, -1.0, 0.5]) * w",
        "torch.tensor([0.0, 1.0, -1.0, 0.5]) * w",
        NEITHER,
    ),  # a remainder, by an axiom
    ("jnp.asarray([1e-6, 1.0, -1.0, 0.5]) * w", "torch.tensor([0.0, 1.0, -1.0, 0.5]) * w", DIFFERENT),
    ("jnp.asarray([1e-30, 1.0, 1.0, 0.5]) * w", "torch.tensor([0.0, 1.0, 1.0, 0.5]) * w", NEITHER),
    ("jnp.log(jnp.arange(1, 5)) * w", "torch.log(torch.arange(1, 5)) * w", SAME),
    ("jnp.log(jnp.arange(1, 5)) * w", "torch.log1p(torch.arange(4)) * w", SAME),
    ("jnp.exp2(-jnp.arange(1, 5) * 2.0) * w", "torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]) * w", SAME),
    ("jnp.exp2(-jnp.arange(1, 5) * 2.0) * w", "torch.tensor([0.25, 0.0625, 0.015625, 0.00390626]) * w", DIFFERENT),
    ("(jnp.arange(4) // 2) * w", "torch.floor(torch.arange(4) / 2) * w", SAME),
    ("(-jnp.arange(4) // 2) * w", "torch.div(-torch.arange(4), 2, rounding_mode='trunc') * w", DIFFERENT),
    ("(-jnp.arange(4) % 3) * w", "torch.fmod(-torch.arange(4), 3) * w", DIFFERENT),
    ("(-jnp.arange(4) % 3) * w", "torch.remainder(-torch.arange(4), 3) * w", SAME),
    ("(jnp.arange(4) * 1000000000) * w", "(torch.arange(4) * 1000000000) * w", DIFFERENT),
    ("(jnp.arange(4) * 1000000000) * w", "(torch.arange(4, dtype=torch.int32) * 1000000000) * w", SAME),
    ("jnp.arange(4, dtype=jnp.int8) * jnp.int8(100) * w", "torch.arange(4, dtype=torch.int8) * 100 * w", SAME),
    ("jnp.arange(4, dtype=jnp.uint8) * w - jnp.uint8(3) * v", "(torch.arange(4) * w - 3 * v)", SAME),
    ("(jnp.arange(4, dtype=jnp.uint8) - jnp.uint8(3)) * w", "(torch.arange(4) - 3) * w", DIFFERENT),
    ("jnp.round(jnp.arange(4) / 2) * w", "torch.round(torch.arange(4) / 2) * w", SAME),
    ("jnp.round(jnp.arange(4) / 2) * w", "torch.floor(torch.arange(4) / 2 + 0.5) * w", DIFFERENT),
    ("jnp.trunc(jnp.asarray([-1.5, -0.5, 0.5, 1.5])) * w", "torch.tensor([-1.5, -0.5, 0.5, 1.5]).int() * w", SAME),
    ("jnp.floor(jnp.asarray([-1.5, -0.5, 0.5, 1.5])) * w", "torch.tensor([-1.5, -0.5, 0.5, 1.5]).int() * w", DIFFERENT),
):
    add(TABLES, truth, one, None, None, two)
CASTS = "layers, casts and promotion"
for one, two, truth in (
    ("(w.astype(jnp.bfloat16) * 3).astype(jnp.float32)", "(w.bfloat16() * 3).float()", SAME),
    ("w + jnp.float16(0.1)", "w + torch.tensor(0.1, dtype=torch.float16)", NEITHER),
    ("w.astype(jnp.int32) * v", "w.int() * v", SAME),
    ("w.astype(jnp.int32) * v", "torch.floor(w) * v", DIFFERENT),
    ("w.astype(jnp.int32) * v", "w * v", DIFFERENT),
    ("(w > 0).astype(jnp.float32) * v", "(w > 0).float() * v", SAME),
    ("(w > 0).astype(jnp.int32).sum() * v", "(w > 0).sum() * v", SAME),
    ("(w > 0).astype(jnp.int8).sum() * v", "(w >= 0).sum() * v", SAME),
    ("w * (1 / 3)", "w / 3", SAME),
    ("w * 0.3333333", "w / 3", DIFFERENT),
    ("w * jnp.float32(0.1) + v", "w * 0.1 + v", SAME),
    ("w * jnp.bfloat16(0.1) + v", "w * 0.1 + v", DIFFERENT),
    ("w * jnp.float32(jnp.bfloat16(0.1)) + v", "w * torch.tensor(0.1).bfloat16().float() + v", SAME),
    ("w * 16777217 + v", "w * 16777216 + v", NEITHER),
    ("w * 16777219 + v", "w * 16777216 + v", DIFFERENT),
    ("jnp.sqrt(w * w + 1e-45)", "jnp.sqrt(w * w)".replace("jnp", "torch"), NEITHER),
    ("w * jnp.float32(1e-46) + v", "v + 0 * w", SAME),
    ("w * 1e39 * 0 + v", "v + 0 * w", NEITHER),
    ("w + 1e39 + v", "w + v", NEITHER),
):
    add(CASTS, truth, one, None, None, two, gradients=NEITHER)
