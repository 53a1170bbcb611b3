"""All pairs of programs that are written differently and are the same function."""

from __future__ import annotations

from proof import (
    mesh_pairs,
    same_activations,
    same_attention,
    same_gradients,
    same_layers,
    same_losses,
    same_models,
    same_norms,
    same_optimizers,
)
from proof.pairs import Pair

SUBJECTS: dict[str, tuple[Pair, ...]] = {
    "attention": same_attention.PAIRS,
    "norms": same_norms.PAIRS,
    "activations": same_activations.PAIRS,
    "losses and batches": same_losses.PAIRS,
    "gradients": same_gradients.PAIRS,
    "layers": same_layers.PAIRS,
    "optimizers": same_optimizers.PAIRS,
    "whole models": same_models.PAIRS,
    "meshes": mesh_pairs.PAIRS,
}
PAIRS = tuple(pair for pairs in SUBJECTS.values() for pair in pairs)
