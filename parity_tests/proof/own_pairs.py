"""All pairs of whole programs of this library that are one function."""

from __future__ import annotations

from proof import own_batches, own_decoding, own_layers, own_training
from proof.own_models import OwnPair

SUBJECTS: dict[str, tuple[OwnPair, ...]] = {
    "layers and attention": own_layers.PAIRS,
    "batches": own_batches.PAIRS,
    "training": own_training.PAIRS,
    "decoding": own_decoding.PAIRS,
}
PAIRS = tuple(pair for pairs in SUBJECTS.values() for pair in pairs)
