"""The machine: its device, its packages, and the two ceilings, of products and of memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from parts import Context
from timing import seconds_per_call

from jax_transformer.runtime.environment import environment

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "torch",
    "transformers",
    "triton",
    "ctranslate2",
)


def ceilings(context: Context) -> None:
    """Measures a large product in bfloat16 and float32, and a copy in the device's memory."""
    import jax
    import jax.numpy as jnp

    size = 256 if context.small else 8192
    products = {}
    for dtype, precision in (("bfloat16", None), ("float32", "tensorfloat32"), ("float32", "highest")):
        a, b = (jax.random.normal(jax.random.key(k), (size, size), dtype) for k in range(2))
        product = jax.jit(lambda a, b, precision=precision: jnp.matmul(a, b, precision=precision))
        jax.block_until_ready(product(a, b))
        products[dtype if precision is None else f"{dtype}, {precision}"] = product, a, b
    words = jax.random.normal(jax.random.key(2), ((1 if context.small else 1024) * 2**20,), "float32")
    negate = jax.jit(jnp.negative)
    jax.block_until_ready(negate(words))
    device = jax.devices()[0]
    facts = {
        "device": getattr(device, "device_kind", device.platform),
        "platform": device.platform,
        "memory": (device.memory_stats() or {}).get("bytes_limit"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: found for name, found in environment(PACKAGES).items() if name in PACKAGES},
    }
    context.row(what="machine", **facts)
    with context.alone():
        _measure(context, products, size, words, negate)


def _measure(context: Context, products: Any, size: int, words: Any, negate: Any) -> None:
    import jax

    for name, (product, a, b) in products.items():

        def run(count: int, product=product, a=a, b=b) -> None:  # type: ignore[no-untyped-def]
            for _ in range(count):
                result = product(a, b)
            jax.block_until_ready(result)

        timed = seconds_per_call(run, context.small)
        context.row(what=f"product, {name}", tflops=2 * size**3 / timed["seconds"] / 1e12, **timed)

    def copy(count: int) -> None:
        for _ in range(count):
            result = negate(words)
        jax.block_until_ready(result)

    timed = seconds_per_call(copy, context.small)
    context.row(what="copy", terabytes_per_second=2 * words.nbytes / timed["seconds"] / 1e12, **timed)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
