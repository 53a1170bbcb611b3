"""What parity is judged in: float64 available, full-precision products on both sides, few threads. Restored after every
test."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
import torch


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
