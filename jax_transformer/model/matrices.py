"""Which parameters are matrices, one for each layer of a stack: optimizers that factor or orthogonalise ask for it."""

from __future__ import annotations

import math

import jax

from jax_transformer.model.lora import KERNEL, A, B


def matrix_axes(path: str, leaf: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the input and output axes of a layer's kernel; None for any other parameter.

    The first axis is the layer. Kernels of query, key and value are [layers, in, heads, head_dim], those of the
    attentions' outputs [layers, heads, head_dim, out]; each is one matrix over all heads. LoRA's A is [layers, *in,
    rank], and its B [layers, rank, *out].
    """
    return _axes(path, leaf.ndim) if _is_kernel(path) else None


def matrix_size(path: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the inputs and outputs of a parameter that is a matrix, in each layer or as a whole; None for any other.

    Embeddings are matrices too, [vocabulary, features]; biases aren't, even with several heads.
    """
    if _is_kernel(path):
        inputs, outputs = (math.prod(shape[axis] for axis in side) for side in _axes(path, len(shape)))
        return inputs, outputs
    matrix = shape[1:] if "/layers/" in path else shape
    return (matrix[0], matrix[1]) if len(matrix) == 2 and not path.endswith("/bias") else None


def _is_kernel(path: str) -> bool:
    return "/layers/" in path and path.rsplit("/", 1)[-1] in (KERNEL, A, B)


def _axes(path: str, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes = tuple(range(1, rank))
    split = -1 if path.endswith((f"/{A}", f"attention/output/{KERNEL}")) else 1
    return axes[:split], axes[split:]
