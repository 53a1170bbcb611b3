"""Whispers of transformers with random weights."""

from __future__ import annotations

import numpy as np
import torch
import transformers


def drawn(
    config: transformers.WhisperConfig, rng: np.random.Generator, *, embedding: float, matrix: float
) -> transformers.WhisperForConditionalGeneration:
    """Returns a model whose weights are drawn, its fixed positions apart.

    Args:
      embedding: the deviation of embeddings.
      matrix: that of matrices, times the root of their inputs.
    """
    module = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for path, tensor in module.named_parameters():
            if tensor.requires_grad:
                of_matrix = embedding if "embed" in path else matrix / float(np.sqrt(tensor[0].numel()))
                spread = of_matrix if tensor.ndim > 1 else 0.3
                values = spread * rng.standard_normal(tuple(tensor.shape)) + ("norm.weight" in path)
                tensor.copy_(torch.from_numpy(values))
    return module
