"""`flax_model.msgpack`, which the Flax models of transformers up to 4 wrote: its names and axes as PyTorch's. A large
model is in several such files, with an index.

A path such as model/encoder/layers/0/fc1/kernel is the tensor model.encoder.layers.0.fc1.weight, with its axes the
other way round; norms have a scale and embeddings an embedding where PyTorch says weight. (As transformers' own
modeling_flax_pytorch_utils.py maps them.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.tensor_files import INDEX, read_shards
from jax_transformer.storage.tensors import PortingError

FLAX_WEIGHTS = ("flax_model.msgpack", f"flax_model.msgpack{INDEX}")
LAST = {"kernel": ("weight", True), "scale": ("weight", False), "embedding": ("weight", False)}
"""The last part of a path → PyTorch's, and whether the axes are the other way round. Others (bias, weight,
final_logits_bias) are alike."""


class FlaxCheckpoint(Mapping[str, np.ndarray]):
    """Presents the arrays of a Flax model under PyTorch's names, without copies."""

    def __init__(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Stores `leaves` by path, its parts joined by "/". Raises PortingError if two leaves get one name."""
        self._places: dict[str, tuple[np.ndarray, bool]] = {}
        for path, leaf in leaves.items():
            *parts, last = path.split("/")
            name, turned = LAST.get(last, (last, False))
            torch_name = ".".join([*parts, name])
            if torch_name in self._places:
                raise PortingError(f"{path}: another array becomes {torch_name}, too")
            self._places[torch_name] = leaf, turned

    def __getitem__(self, name: str) -> np.ndarray:
        leaf, turned = self._places[name]
        return leaf.T if turned else leaf

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_flax(path: Path) -> FlaxCheckpoint:
    """Reads the tensors of a .msgpack file, or of those that an index names, by PyTorch's names.

    Raises:
      PortingError: a file is truncated, or isn't a tree of arrays; an index that `read_shards` refuses.
    """
    return FlaxCheckpoint(read_shards(path, _leaves) if path.name.endswith(INDEX) else _leaves(path))


def _leaves(path: Path) -> dict[str, np.ndarray]:
    from flax import serialization

    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        leaves = flatten(tree) if isinstance(tree, dict) else {}
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror or type(error).__name__}") from None
    except Exception as error:  # foreign bytes end in any exception
        raise PortingError(f"{path}: truncated, or no file of flax.serialization ({type(error).__name__})") from None
    odd = [name for name, leaf in leaves.items() if not isinstance(leaf, np.ndarray)]
    if odd or not leaves:
        raise PortingError(f"{path}: expected a tree of arrays; received {', '.join(odd[:3]) or type(tree).__name__}")
    return leaves
