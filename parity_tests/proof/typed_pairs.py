"""JAX functions beside PyTorch modules in the types in which they run, and whether they are one function.

Axes: B batch, T tokens, D model, F frequencies, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor, nn
from torch.nn import functional

Arrays = Mapping[str, np.ndarray]
T, D = 6, 8
X = {"x": np.ones((1, T, D), np.float32)}
IDS = {"ids": np.arange(6) + 100_000}
LOWEST = float(jnp.finfo(jnp.float32).min)


class Computes(nn.Module):
    """Computes a function of itself and its inputs."""

    def __init__(
        self,
        function: Callable[..., Any],
        dtype: torch.dtype = torch.float32,
        buffers: Mapping[str, Tensor] | None = None,
        **shapes: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.ones(shape, dtype=dtype)))
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor, persistent=False)
        self.eval()

    def forward(self, **inputs: Tensor) -> Any:
        return self.function(self, **inputs)


def last_two() -> Tensor:
    """Returns a mask of the last two of six entries, as transformers writes it."""
    return torch.where(torch.arange(6) > 3, LOWEST, 0.0)


@dataclass(frozen=True)
class TypedPair:
    """Two programs, and what is true of them."""

    name: str
    verdict: Literal["proven", "refuted", "unknown"]
    candidate: Callable[..., Any]
    reference: nn.Module
    inputs: Arrays = field(default_factory=dict)
    needs_tables: bool | None = None
    """Whether the proof needs the axiom on rounded constants; None: it may."""
    is_wide: bool = False
    """Whether JAX has 64 bits."""


# --- norms


def norm(eps: float) -> Callable[..., Any]:
    return lambda p, i: i["x"] * lax.rsqrt((i["x"] ** 2).mean(-1, keepdims=True) + eps) * p["w"]


def norm_of_type(p: Any, i: Any) -> Any:
    return norm(float(jnp.finfo(i["x"].dtype).eps))(p, i)


def torch_norm(eps: float | None, dtype: torch.dtype = torch.float32) -> nn.Module:
    return Computes(lambda m, x: functional.rms_norm(x, (D,), m.w, eps), dtype, w=(D,))


def written(eps: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    return Computes(lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * m.w, dtype, w=(D,))


NARROW, WIDE = (float(np.finfo(dtype).eps) for dtype in (np.float32, np.float64))
NORMS = [
    TypedPair("ε of float32", "proven", norm(NARROW), torch_norm(None), X),
    TypedPair("ε of float64 in float32", "refuted", norm(WIDE), torch_norm(None), X),
    TypedPair("ε of float64", "proven", norm(WIDE), torch_norm(None, torch.float64), X),
    TypedPair("ε of float32 in float64", "refuted", norm(NARROW), torch_norm(None, torch.float64), X),
    TypedPair("ε of the input's type", "proven", norm_of_type, torch_norm(None), X),
    TypedPair("ε of the input's type in float64", "proven", norm_of_type, torch_norm(None, torch.float64), X),
    TypedPair("a decimal ε", "proven", norm(1e-6), written(1e-6), X, False),
    TypedPair("an ε of many digits", "proven", norm(1.23456789e-5), written(1.23456789e-5), X, False),
    TypedPair("another ε", "refuted", norm(1e-6), written(1.001e-6), X),
    TypedPair("the next ε", "refuted", norm(float(np.nextafter(np.float32(1e-6), 1))), written(1e-6), X),
    TypedPair("an ε that rounding hides", "refuted", norm(1e-6), written(1e-6 * (1 + 2**-50), torch.float64), X),
    TypedPair(
        "the same, with 64 bits", "refuted", norm(1e-6), written(1e-6 * (1 + 2**-50), torch.float64), X, None, True
    ),
]


# --- tables


def frequencies_in_jax(style: str, base: float) -> Any:
    exponents = jnp.arange(0, D, 2, dtype=jnp.float32) / D
    if style == "exponentials":
        return jnp.exp(-np.log(base) * exponents)
    if style == "NumPy":
        return jnp.asarray(base ** -(np.arange(0, D, 2) / D))
    return 1.0 / (base**exponents)


def rotary(style: str, base: float = 10000.0, first: int = 0, sign: float = 1.0) -> Callable[..., Any]:
    def tables() -> tuple[Any, Any]:
        angles = jnp.arange(first, first + T, dtype=jnp.float32)[:, None] * frequencies_in_jax(style, base)
        return jnp.cos(angles), sign * jnp.sin(angles)

    def function(p: Any, i: Any) -> Any:
        a, b = jnp.split(i["x"] @ p["w"], 2, -1)
        if style == "eager":
            with jax.ensure_compile_time_eval():
                cos, sin = tables()
        else:
            cos, sin = tables()
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    return function


def frequencies_in_torch(style: str) -> Tensor:
    exponents = torch.arange(0, D, 2).float() / D
    return torch.exp(-np.log(10000.0) * exponents) if style == "exponentials" else 1.0 / (10000.0**exponents)


def torch_rotary(style: str) -> nn.Module:
    """Rotates halves; a style "twice" repeats the tables for both halves, "buffer" keeps the frequencies."""

    def function(m: Any, x: Tensor) -> Tensor:
        q = x @ m.w
        angles = torch.outer(torch.arange(T).float(), m.kept if style == "buffer" else frequencies_in_torch(style))
        if style == "twice":
            whole = torch.cat([angles, angles], -1)
            turned = torch.cat([-q[..., D // 2 :], q[..., : D // 2]], -1)
            return q * whole.cos() + turned * whole.sin()
        a, b = q.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    return Computes(function, buffers={"kept": frequencies_in_torch("")}, w=(D, D))


def sinusoids(scale: float = 1.0) -> Callable[..., Any]:
    angles = np.arange(T)[:, None] * np.exp(np.arange(0, D, 2) * (-np.log(10000.0) / D))
    table = scale * np.stack([np.sin(angles), np.cos(angles)], -1).reshape(T, D)
    return lambda p, i: (i["x"] + jnp.asarray(table)) @ p["w"]


def torch_sinusoids(m: Any, x: Tensor) -> Tensor:
    table, places = torch.zeros(T, D), torch.arange(T).unsqueeze(1).float()
    factors = torch.exp(torch.arange(0, D, 2).float() * (-np.log(10000.0) / D))
    table[:, 0::2], table[:, 1::2] = torch.sin(places * factors), torch.cos(places * factors)
    return (x + table) @ m.w


def at_table(table: Callable[[], Any]) -> Callable[..., Any]:
    return lambda p, i: p["w"] * table()


def torch_table(table: Callable[[], Tensor]) -> nn.Module:
    return Computes(lambda m: m.w * table(), w=(16,))


TABLES_OF_POSITIONS = [
    *(
        TypedPair(f"rotary: {ours}, {theirs}", "proven", rotary(ours), torch_rotary(theirs), X)
        for ours in ("powers", "exponentials", "NumPy", "eager")
        for theirs in ("powers", "exponentials", "buffer", "twice")
    ),
    TypedPair("rotary of another base", "refuted", rotary("eager", 10010.0), torch_rotary("powers"), X),
    TypedPair("rotary of another base, traced", "refuted", rotary("powers", 10010.0), torch_rotary("powers"), X),
    TypedPair("rotary from the second position on", "refuted", rotary("eager", first=1), torch_rotary("powers"), X),
    TypedPair("rotary backwards", "refuted", rotary("eager", sign=-1.0), torch_rotary("powers"), X),
    TypedPair("sinusoids", "proven", sinusoids(), Computes(torch_sinusoids, w=(D, D)), X, True),
    TypedPair("scaled sinusoids", "refuted", sinusoids(1.0001), Computes(torch_sinusoids, w=(D, D)), X),
    TypedPair(
        "a window",
        "proven",
        at_table(lambda: jnp.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(16) / 16))),
        torch_table(lambda: torch.hann_window(16)),
        needs_tables=True,
    ),
    TypedPair(
        "a symmetric window", "refuted", at_table(lambda: jnp.hanning(16)), torch_table(lambda: torch.hann_window(16))
    ),
    TypedPair(
        "products of a schedule",
        "proven",
        at_table(lambda: jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 16))),
        torch_table(lambda: torch.cumprod(1 - torch.linspace(1e-4, 0.02, 16), 0)),
    ),
    TypedPair(
        "a Fourier transform of known numbers",
        "proven",
        at_table(lambda: jnp.real(jnp.fft.fft(jnp.arange(16.0)))),
        torch_table(lambda: torch.fft.fft(torch.arange(16.0)).real),
    ),
    TypedPair(
        "numbers that are rounded down",
        "refuted",
        at_table(lambda: jnp.floor(jnp.arange(16) / 3)),
        torch_table(lambda: torch.floor(torch.arange(16) / 3 - 1e-6)),
    ),
    TypedPair(
        "a product of tables that the other side has apart",
        "unknown",
        lambda p, i: p["w"] * jnp.asarray((np.float32(0.7) * np.cos(np.arange(16, dtype=np.float32))).astype("f")),
        Computes(lambda m: m.w * torch.from_numpy(np.cos(np.arange(16, dtype=np.float32))) * 0.7, w=(16,)),
    ),
]


# --- integers, weak types, branches


def hashed(p: Any, i: Any) -> Any:
    return p["w"][(i["ids"] * 50021) % 6]


def torch_hashed(m: Any, ids: Tensor) -> Tensor:
    return m.w[(ids * 50021) % 6]


def by_type(narrow: float, wide: float) -> Callable[..., Any]:
    return lambda p, i: p["w"] * (narrow if p["w"].dtype == jnp.float32 else wide)


def torch_by_type(m: Any) -> Tensor:
    return m.w * (2.0 if m.w.dtype is torch.float32 else 3.0)


KINDS_OF_NUMBERS = [
    TypedPair("hashes of 32 and of 64 bits", "refuted", hashed, Computes(torch_hashed, w=(6,)), IDS),
    TypedPair("hashes of 64 bits", "proven", hashed, Computes(torch_hashed, w=(6,)), IDS, is_wide=True),
    TypedPair("hashes of 32 bits", "proven", hashed, Computes(lambda m, ids: torch_hashed(m, ids.int()), w=(6,)), IDS),
    TypedPair(
        "a sign that wraps around",
        "proven",
        lambda p, i: p["w"] * jnp.sign(i["ids"] * 30000),
        Computes(lambda m, ids: -m.w, torch.float64, w=(6,)),
        IDS,
    ),
    TypedPair(
        "integers that need 64 bits",
        "proven",
        lambda p, i: p["w"] * ((i["ids"] * 2**33) % 7),
        Computes(lambda m, ids: m.w * ((ids * 2**33) % 7), w=(6,)),
        IDS,
    ),
    TypedPair(
        "bytes that wrap around",
        "proven",
        lambda p, i: p["w"] * (i["ids"].astype(jnp.uint8) + jnp.uint8(200)),
        Computes(lambda m, ids: m.w * (ids.to(torch.uint8) + torch.tensor(200, dtype=torch.uint8)), w=(6,)),
        IDS,
    ),
    TypedPair("a branch by type", "proven", by_type(2.0, 3.0), Computes(torch_by_type, w=(6,))),
    TypedPair("a branch by float64", "proven", by_type(2.0, 3.0), Computes(torch_by_type, torch.float64, w=(6,))),
    TypedPair("the other branch", "refuted", by_type(3.0, 2.0), Computes(torch_by_type, w=(6,))),
    TypedPair(
        "a number in bfloat16",
        "proven",
        lambda p, i: p["w"] * 0.1,
        Computes(lambda m: m.w * 0.1, torch.bfloat16, w=(6,)),
        needs_tables=True,
    ),
    TypedPair(
        "a root in float32",
        "proven",
        lambda p, i: p["w"] * jnp.float32(24) ** -0.5,
        Computes(lambda m: m.w / np.sqrt(24), w=(6,)),
    ),
    TypedPair(
        "GELU by tanh",
        "proven",
        lambda p, i: jax.nn.gelu(p["w"]),
        Computes(lambda m: functional.gelu(m.w, approximate="tanh"), w=(6,)),
        needs_tables=True,
    ),
    TypedPair(
        "what underflows",
        "proven",
        lambda p, i: p["w"] * (1 + 1e-30 * jnp.float32(1e-20)),
        Computes(lambda m: m.w * 1.0, w=(6,)),
    ),
    TypedPair(
        "a mask that overflows",
        "proven",
        lambda p, i: jax.nn.softmax(jnp.where(np.arange(6) > 3, jnp.float32(-3e38) * 10, p["w"])),
        Computes(lambda m: torch.softmax(m.w.masked_fill(torch.arange(6) > 3, -torch.inf), -1), w=(6,)),
    ),
    TypedPair(
        "a mask that is added twice",
        "proven",
        lambda p, i: jax.nn.softmax(p["w"] + jnp.where(np.arange(6) > 3, LOWEST, 0)),
        Computes(lambda m: torch.softmax(m.w + last_two() + last_two(), -1), w=(6,)),
    ),
    TypedPair(
        "a mask that is added twice and bounded",
        "proven",
        lambda p, i: jax.nn.softmax(p["w"] + jnp.where(np.arange(6) > 3, LOWEST, 0)),
        Computes(lambda m: torch.softmax(torch.max(m.w + last_two() + last_two(), torch.tensor(LOWEST)), -1), w=(6,)),
    ),
    TypedPair(
        "a bound of another type",  # random weights don't reach it
        "unknown",
        lambda p, i: p["w"],
        Computes(lambda m: torch.max(m.w, torch.tensor(-65504.0)), w=(6,)),
    ),
    TypedPair(
        "a row that is masked twice",  # finfo.min + finfo.min is −∞, and −∞ − −∞ is NaN
        "unknown",
        lambda p, i: jax.nn.softmax(p["w"] + jnp.full(6, LOWEST) + jnp.full(6, LOWEST)),
        Computes(lambda m: torch.softmax(m.w, -1), w=(6,)),
    ),
    TypedPair(
        "known exponents",
        "proven",
        lambda p, i: p["w"] ** jnp.arange(6),
        Computes(lambda m: torch.stack([m.w[k] ** k for k in range(6)]), w=(6,)),
    ),
    TypedPair(
        "sorted numbers that nothing reads",
        "proven",
        lambda p, i: 2 * p["w"],
        Computes(lambda m: (m.w + m.w, m.w.sort()[0] * 2)[0], w=(6,)),
    ),
    TypedPair(
        "a count of positive weights",
        "unknown",
        lambda p, i: 6 * p["w"],
        Computes(lambda m: m.w * m.w[m.w > 0].numel(), w=(6,)),
    ),
]


# --- numbers that meet tensors of another type, and tables that were rounded


TENTHS = np.array([0.1, 0.2, 0.3, 0.7, 0.45, 0.9])


def tenths(dtype: Any) -> Any:
    return jnp.asarray(TENTHS, dtype)


def torch_tenths(dtype: torch.dtype) -> Tensor:
    return torch.tensor(TENTHS, dtype=dtype)


def on_six(function: Callable[[Any], Any], dtype: torch.dtype = torch.float32) -> nn.Module:
    return Computes(function, dtype, w=(6,))


def third(dtype: torch.dtype) -> Tensor:
    return torch.tensor(1 / 3, dtype=dtype)


def written_at(place: Any, value: Any) -> Callable[[Any], Tensor]:
    def function(m: Any) -> Tensor:
        found = m.w * 1
        found[place] = value
        return found

    return function


NARROW_TYPES = ((torch.bfloat16, jnp.bfloat16), (torch.float16, jnp.float16))
SCALARS = [
    TypedPair(name, "proven", *map(on_six, programs), needs_tables=False)
    for name, programs in {
        "a sum with a number": (lambda m: m.w * m.w + 1e-5, lambda m: m.w * m.w + 1e-5 * (1 + 2**-50)),
        "a product with a number": (lambda m: m.w * (1 / 3), lambda m: m.w * 0.33333334),
        "a difference from a number": (lambda m: 1 / 3 - m.w, lambda m: 0.33333334 - m.w),
        "a quotient of a number": (lambda m: np.pi / m.w, lambda m: 3.1415927 / m.w),
        "a number that both types hold apart": (lambda m: m.w + 16777217.0, lambda m: m.w + 16777216.0),
        "a factor of what is added": (lambda m: torch.add(m.w, m.w, alpha=1 / 3), lambda m: m.w + m.w * 0.33333334),
        "a number that limits": (lambda m: m.w.clamp(min=1 / 3), lambda m: torch.maximum(m.w, third(torch.float32))),
        "a number that is compared": (lambda m: torch.where(m.w > 1 / 3, m.w, 0), lambda m: m.w * (m.w > 0.33333334)),
        "a number that is written": (written_at(2, 1 / 3), written_at(2, 0.33333334)),
        "a norm's number": (
            lambda m: functional.layer_norm(m.w, (6,), eps=1e-5),
            lambda m: functional.layer_norm(m.w, (6,), eps=1e-5 * (1 + 2**-50)),
        ),
        "a slope": (lambda m: functional.leaky_relu(m.w, 1 / 3), lambda m: functional.leaky_relu(m.w, 0.33333334)),
        "an operation that consists of others": (
            lambda m: functional.softplus(m.w, 1 / 3),
            lambda m: functional.softplus(m.w, 0.33333334),
        ),
        "a tensor without axes": (lambda m: m.w * third(torch.float64), lambda m: m.w * third(torch.float32)),
        "a complex number's factor": (
            lambda m: torch.view_as_real(torch.view_as_complex(m.w.view(3, 2)) * (1 / 3)),
            lambda m: torch.view_as_real(torch.view_as_complex(m.w.view(3, 2)) * 0.33333334),
        ),
    }.items()
] + [
    TypedPair(
        "a number of JAX's that is kept as it is written",
        "proven",
        lambda p, i: lax.mul(p["w"], 1 / 3),
        on_six(lambda m: m.w * 0.33333334),
        needs_tables=False,
    ),
    TypedPair("a number near another one", "refuted", lambda p, i: p["w"] * 0.3333333, on_six(lambda m: m.w * (1 / 3))),
    TypedPair(
        "a number of 64 bits",
        "refuted",
        lambda p, i: p["w"] * (1 / 3),
        on_six(lambda m: m.w * 0.33333334, torch.float64),
        is_wide=True,
    ),
    TypedPair(
        "a table in bfloat16 throughout",
        "proven",
        lambda p, i: p["w"] * tenths(p["w"].dtype),
        on_six(lambda m: m.w * torch_tenths(torch.float32).to(m.w.dtype), torch.bfloat16),
    ),
    TypedPair(
        "one narrow table in float32",
        "proven",
        lambda p, i: p["w"] * tenths(jnp.bfloat16),
        on_six(lambda m: m.w * torch_tenths(torch.bfloat16).float()),
        needs_tables=False,
    ),
    TypedPair(
        "a number in bfloat16 before a sum in float32",
        "proven",
        lambda p, i: (p["w"] * 0.1 + 0.3).astype(jnp.float32).sum() * p["w"],
        on_six(lambda m: ((m.w * 0.1 + 0.3).float().sum() * m.w).to(m.w.dtype), torch.bfloat16),
        needs_tables=True,
    ),
    TypedPair(
        "narrow tables that both choose",
        "proven",
        lambda p, i: p["w"] * jnp.where(p["w"] > 0, tenths(jnp.bfloat16), -tenths(jnp.bfloat16)),
        on_six(lambda m: m.w * torch.where(m.w > 0, torch_tenths(torch.bfloat16), -torch_tenths(torch.bfloat16))),
        needs_tables=False,
    ),
    TypedPair(
        "a precision that is reduced",
        "refuted",
        lambda p, i: p["w"] * lax.reduce_precision(tenths(jnp.float32), 8, 7),
        on_six(lambda m: m.w * torch_tenths(torch.float32)),
    ),
    *(
        TypedPair(f"{name} in {narrow}", "refuted", candidate, on_six(reference))
        for narrow, of_jax in NARROW_TYPES
        for name, candidate, reference in [
            (
                "a table that JAX rounds",
                lambda p, i, t=of_jax: p["w"] * tenths(t).astype(jnp.float32),
                lambda m: m.w * torch_tenths(torch.float32),
            ),
            (
                "a table that JAX promotes",
                lambda p, i, t=of_jax: p["w"] * tenths(t),
                lambda m: m.w * torch_tenths(torch.float32),
            ),
            (
                "a number that JAX rounds",
                lambda p, i, t=of_jax: p["w"] * jnp.asarray(0.1, t).astype(jnp.float32),
                lambda m: m.w * 0.1,
            ),
            (
                "a table that PyTorch rounds",
                lambda p, i: p["w"] * tenths(jnp.float32),
                lambda m, t=narrow: m.w * torch_tenths(t).float(),
            ),
            (
                "a table that PyTorch promotes",
                lambda p, i: p["w"] * tenths(jnp.float32),
                lambda m, t=narrow: m.w * torch_tenths(t),
            ),
            (
                "a table that is copied",
                lambda p, i: p["w"] * tenths(jnp.float32),
                lambda m, t=narrow: m.w * torch.zeros(6).copy_(torch_tenths(t)),
            ),
            (
                "a table that is added in place",
                lambda p, i: p["w"] + tenths(jnp.float32),
                lambda m, t=narrow: (m.w * 1).add_(torch_tenths(t)),
            ),
            (
                "a table beside weights",
                lambda p, i: jnp.concatenate([p["w"], tenths(jnp.float32)]),
                lambda m, t=narrow: torch.cat([m.w, torch_tenths(t)]),
            ),
            (
                "tables that are chosen by weights",
                lambda p, i: p["w"] * jnp.where(p["w"] > 0, tenths(jnp.float32), -tenths(jnp.float32)),
                lambda m, t=narrow: m.w * torch.where(m.w > 0, torch_tenths(t), -torch_tenths(t)),
            ),
            (
                "a table that is looked up by weights",
                lambda p, i, t=of_jax: p["w"] * tenths(t)[jnp.argmax(p["w"])],
                lambda m: m.w * torch_tenths(torch.float32).gather(0, m.w.argmax(keepdim=True)),
            ),
            (
                "a tensor without axes, rounded",
                lambda p, i: p["w"] * 0.1,
                lambda m, t=narrow: m.w * torch.tensor(0.1, dtype=t),
            ),
        ]
    ),
]


# --- convolutions


def convolution(padding: Any, *, stride: int = 1, dilation: int = 1, groups: int = 1, flips: bool = False) -> Any:
    def function(p: Any, i: Any) -> Any:
        kernel = p["layer.weight"][..., ::-1] if flips else p["layer.weight"]
        rank = kernel.ndim - 2
        options = {"rhs_dilation": (dilation,) * rank, "feature_group_count": groups}
        found = lax.conv_general_dilated(i["x"], kernel, (stride,) * rank, padding, **options)
        return found + p["layer.bias"].reshape(-1, *[1] * rank)

    return function


class Layer(nn.Module):
    """Applies a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


def patches(p: Any, i: Any) -> Any:
    """Multiplies patches of two by two pixels by the kernel."""
    blocks = i["x"].reshape(1, 3, 3, 2, 3, 2).transpose(0, 2, 4, 1, 3, 5).reshape(1, 9, 12)
    found = blocks @ p["layer.weight"].reshape(6, 12).T + p["layer.bias"]
    return found.transpose(0, 2, 1).reshape(1, 6, 3, 3)


def transposed(p: Any, i: Any) -> Any:
    kernel = jnp.flip(p["layer.weight"], 2).transpose(1, 0, 2)
    return lax.conv_general_dilated(i["x"], kernel, (1,), [(2, 2)], lhs_dilation=(2,)) + p["layer.bias"][:, None]


SOUND = {"x": np.ones((2, 4, 9), np.float32)}
IMAGE = {"x": np.ones((1, 3, 6, 6), np.float32)}
CONVOLUTIONS = [
    TypedPair("a convolution", "proven", convolution([(1, 1)]), Layer(nn.Conv1d(4, 6, 3, padding=1)), SOUND),
    TypedPair("to the same size", "proven", convolution("SAME"), Layer(nn.Conv1d(4, 6, 3, padding="same")), SOUND),
    TypedPair(
        "strides, groups and dilation",
        "proven",
        convolution([(2, 2)], stride=2, dilation=2, groups=2),
        Layer(nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2)),
        SOUND,
    ),
    TypedPair(
        "each channel alone",
        "proven",
        convolution([(1, 1)] * 2, groups=3),
        Layer(nn.Conv2d(3, 6, 3, padding=1, groups=3)),
        IMAGE,
    ),
    TypedPair("patches", "proven", patches, Layer(nn.Conv2d(3, 6, 2, 2)), IMAGE),
    TypedPair("a transposed convolution", "proven", transposed, Layer(nn.ConvTranspose1d(4, 6, 3, 2)), SOUND),
    TypedPair(
        "a flipped kernel",
        "refuted",
        convolution([(1, 1)], flips=True),
        Layer(nn.Conv1d(4, 6, 3, padding=1)),
        SOUND,
    ),
    TypedPair("causal padding", "refuted", convolution([(2, 0)]), Layer(nn.Conv1d(4, 6, 3, padding=1)), SOUND),
    TypedPair(
        "padding in a circle",
        "refuted",
        convolution([(1, 1)]),
        Layer(nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular")),
        SOUND,
    ),
]


# --- complex numbers


def pairs(sign: float = 1.0) -> Callable[..., Any]:
    def function(p: Any, i: Any) -> Any:
        q = i["x"] @ p["w"]
        with jax.ensure_compile_time_eval():
            angles = jnp.outer(jnp.arange(T), frequencies_in_jax("powers", 10000.0))
            cos, sin = jnp.cos(angles), sign * jnp.sin(angles)
        a, b = q[..., ::2], q[..., 1::2]
        return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(q.shape)

    return function


def turned(p: Any, i: Any) -> Any:
    q = i["x"] @ p["w"]
    angles = jnp.outer(jnp.arange(T), frequencies_in_jax("powers", 10000.0))
    z = lax.complex(q[..., ::2], q[..., 1::2]) * jnp.exp(1j * angles)
    return jnp.stack([jnp.real(z), jnp.imag(z)], -1).reshape(q.shape)


def torch_turned(m: Any, x: Tensor) -> Tensor:
    q = x @ m.w
    angles = torch.outer(torch.arange(T).float(), frequencies_in_torch("powers"))
    z = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(z).flatten(-2)


def number(p: Any) -> Any:
    return lax.complex(p["w"][:, ::2], p["w"][:, 1::2])


def torch_number(m: Any) -> Tensor:
    return torch.view_as_complex(m.w.view(4, 3, 2))


def on_numbers(ours: Callable[[Any], Any], theirs: Callable[[Tensor], Tensor]) -> tuple[Any, nn.Module]:
    return lambda p, i: ours(number(p)), Computes(lambda m: theirs(torch_number(m)), w=(4, 6))


COMPLEX = [
    TypedPair("rotary by complex numbers and by pairs", "proven", pairs(), Computes(torch_turned, w=(D, D)), X),
    TypedPair("rotary by complex numbers", "proven", turned, Computes(torch_turned, w=(D, D)), X),
    TypedPair("rotary by conjugates", "refuted", pairs(-1.0), Computes(torch_turned, w=(D, D)), X),
    *(
        TypedPair(name, "refuted" if "wrong" in name else "proven", *on_numbers(ours, theirs))
        for name, ours, theirs in [
            ("a square of a size", lambda z: jnp.real(z) ** 2 + jnp.imag(z) ** 2, lambda z: (z * z.conj()).real),
            ("an absolute value", jnp.abs, torch.abs),
            ("a product of matrices", lambda z: jnp.imag(z @ z.conj().T), lambda z: (z @ z.conj().T).imag),
            ("a wrong product of matrices", lambda z: jnp.imag(z @ z.T), lambda z: (z @ z.conj().T).imag),
            ("a quotient", lambda z: jnp.real(z / (2 + 1j)), lambda z: (z / (2 + 1j)).real),
            ("a power", lambda z: jnp.imag(z**3), lambda z: (z * z * z).imag),
            ("a sum", lambda z: jnp.real(1j * z.sum(0)), lambda z: -z.sum(0).imag),
        ]
    ),
]


# --- steps of an optimizer


def adam(eps: float) -> Callable[..., Any]:
    def function(p: Any, i: Any) -> Any:
        gradient = jax.grad(lambda w: (turned({"w": w}, i) ** 2).mean())(p["w"])
        mean, square = 0.1 * gradient, (1 - 0.999) * gradient * gradient
        return p["w"] - 1e-3 * (mean / 0.1) / (jnp.sqrt(square / (1 - 0.999)) + eps)

    return function


def torch_adam(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad((torch_turned(m, x) ** 2).mean(), [m.w])
    mean, square = 0.1 * gradient, (1 - 0.999) * gradient * gradient
    return m.w - 1e-3 * (mean / 0.1) / ((square / (1 - 0.999)).sqrt() + 1e-8)


STEPS = [
    TypedPair("a step of Adam", "proven", adam(1e-8), Computes(torch_adam, w=(D, D)), X),
    TypedPair("a step of Adam with another ε", "refuted", adam(2e-8), Computes(torch_adam, w=(D, D)), X),
]

PAIRS = (*NORMS, *TABLES_OF_POSITIONS, *KINDS_OF_NUMBERS, *SCALARS, *CONVOLUTIONS, *COMPLEX, *STEPS)
