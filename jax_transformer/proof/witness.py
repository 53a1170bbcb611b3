"""Weights on which two programs differ in float64, for users to load into both."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.files import atomic_write
from jax_transformer.runtime.trees import unflatten

CANDIDATE, REFERENCE, INPUTS = "candidate/", "reference/", "inputs/"
"""Prefixes of the names of arrays in a file."""
NOTES = "__notes__"
"""Array of a file that holds JSON: how the weights were found."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Witness:
    """Holds the weights of both programs, the same under two names, and the inputs on which outputs differ.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import prove
      >>> arrays = {"inputs": {"x": np.ones((2, 3))}, "weights": {"w": np.ones(3)}, "stages": ["forward"]}
      >>> certificate = prove(lambda p, i: i["x"] * p["w"], lambda p, i: i["x"] * abs(p["w"]), **arrays)
      >>> witness = certificate.witness
      >>> bool((witness.params["w"] < 0).any()), list(witness.inputs)
      (True, ['x'])
    """

    candidate: Arrays
    """All parameters of the candidate: of a model, by path."""
    reference: Arrays
    """All tensors of the reference: of a module, by the names of its state_dict."""
    inputs: Arrays
    """Ids or other inputs of the comparison."""
    facts: Mapping[str, Any]
    """How the weights were found, as in the certificate's `difference["witness"]`."""

    @property
    def params(self) -> dict[str, Any]:
        """Returns the candidate's parameters in its own form: a nested dict."""
        return unflatten(self.candidate)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz with arrays candidate/NAME, reference/NAME and inputs/NAME, and notes in JSON.

        Raises:
          OSError: the file can't be written; an old file is left unchanged.
        """
        parts = {CANDIDATE: self.candidate, REFERENCE: self.reference, INPUTS: self.inputs}
        arrays = {prefix + name: array for prefix, part in parts.items() for name, array in part.items()}
        with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez(file, **{NOTES: np.array(json.dumps(dict(self.facts)))}, **arrays)  # type: ignore[arg-type]
