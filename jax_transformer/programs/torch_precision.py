"""Sets the precision in which PyTorch computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Switches off TF32 and the fast path of attention layers, and restores them afterwards."""
    import torch

    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.mha.get_fastpath_enabled(),
    )
    _set_precision(False, False, False)
    try:
        yield
    finally:
        _set_precision(*before)


def _set_precision(matmul: bool, cudnn: bool, fast_path: bool) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    torch.backends.mha.set_fastpath_enabled(fast_path)
