"""Faults of a stem: of its two convolutions over feature vectors, and of the activations after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.feed_forward import ACTIVATIONS
from jax_transformer.parity.faults.replay import Replay, Variant, in_float64
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.activations import FORMULAS
from jax_transformer.parity.oracle.graph import FEATURE_INPUTS, Kind, place


def stem() -> Iterator[Variant]:
    convolutions: tuple[Kind, ...] = ("convolution",)
    yield Variant("bias missing", convolutions, lambda replay: replay.own - replay.parameters["bias"])
    for name, change in KERNELS.items():
        yield Variant(name, convolutions, partial(_with_kernel, change=change))
    yield Variant("reads no later vector: all zeros before the source", convolutions, partial(_padded, before=True))
    yield Variant("reads no earlier vector: all zeros after the source", convolutions, partial(_padded, before=False))
    yield Variant("the last vector repeated instead of zeros", convolutions, _edges_repeated)
    yield Variant("skips the even vectors instead of the odd ones", convolutions, _other_phase)
    yield Variant("vectors of padding aren't zeros", convolutions, _padding_read)
    yield Variant("vectors of padding are zeros", convolutions, _padding_zeroed)
    yield Variant("order of the bands reversed", convolutions, _bands_reversed)
    for name, label in ACTIVATIONS.items():
        yield Variant(label, ("convolution", "stem_output"), partial(_activated, name=name))
    yield Variant("activated twice", ("stem_output",), _activated_twice)


KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "kernel reversed in time": lambda kernel: kernel[::-1],
    "kernel transposed": lambda kernel: kernel.swapaxes(1, 2),
    "kernel of [K, I, O] read as [O, I, K]": lambda kernel: kernel.reshape(kernel.shape[::-1]).T,
}
"""Fault's name → the kernel [K, I, O] with it."""


def _is_second(replay: Replay) -> bool:
    return place(replay.node.name).path[-1] == "second"


def _with_kernel(replay: Replay, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    kernel = replay.parameters["kernel"]
    changed = change(kernel)
    if changed.shape != kernel.shape:
        raise LookupError("another shape")
    return replay.compute(parameters={**replay.parameters, "kernel": changed})


def _read(replay: Replay) -> np.ndarray:
    """Returns what the convolution reads: activated by the first one's activation, and without padding."""
    x = replay.inputs["x"]
    if _is_second(replay):
        x = FORMULAS[replay.option("activation")](x)
    real = replay.inputs.get("is_real")
    return x if real is None else x * real[..., None]


def _convolved(replay: Replay, x: np.ndarray, stride: int | None = None) -> np.ndarray:
    if stride is None:
        stride = replay.option("stride") if _is_second(replay) else 1
    return formulas.convolution(x, replay.parameters["kernel"], replay.parameters["bias"], stride)


def _padded(replay: Replay, *, before: bool) -> np.ndarray:
    """Moves what is read by half a kernel, as if all zeros stood on one side."""
    around, x = len(replay.parameters["kernel"]) // 2, _read(replay)
    zeros = np.zeros_like(x[:, :around])
    moved = np.concatenate([zeros, x], axis=1) if before else np.concatenate([x, zeros], axis=1)
    return _convolved(replay, moved[:, : x.shape[1]] if before else moved[:, around:])


def _edges_repeated(replay: Replay) -> np.ndarray:
    x, kernel = _read(replay), replay.parameters["kernel"]
    around = len(kernel) // 2
    padded = np.pad(x, ((0, 0), (around, around), (0, 0)), mode="edge")
    whole = formulas.convolution(padded, kernel, replay.parameters["bias"])[:, around : around + x.shape[1]]
    return whole[:, :: replay.option("stride")] if _is_second(replay) else whole


def _other_phase(replay: Replay) -> np.ndarray:
    stride = replay.option("stride")
    if not _is_second(replay) or stride == 1:
        raise LookupError("skips none")
    return _convolved(replay, _read(replay), 1)[:, 1::stride]


def _padding_read(replay: Replay) -> np.ndarray:
    if "is_real" not in replay.inputs:
        raise LookupError("reads it anyway")
    return replay.compute({"is_real": np.ones_like(replay.inputs["is_real"])})


def _padding_zeroed(replay: Replay) -> np.ndarray:
    if "is_real" in replay.inputs:
        raise LookupError("zeros anyway")
    return _convolved(replay, _read(replay) * in_float64(replay.captured[FEATURE_INPUTS[1]])[..., None])


def _bands_reversed(replay: Replay) -> np.ndarray:
    if _is_second(replay):
        raise LookupError("no bands")
    return replay.compute({"x": replay.inputs["x"][..., ::-1]})


def _activated(replay: Replay, name: str) -> np.ndarray:
    if replay.option("activation") == name or (replay.node.kind == "convolution" and not _is_second(replay)):
        raise LookupError("its own, or none before it")
    return replay.under(activation=name)


def _activated_twice(replay: Replay) -> np.ndarray:
    return replay.compute({"x": FORMULAS[replay.option("activation")](replay.inputs["x"])})
