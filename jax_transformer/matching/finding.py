"""Finds the map between the weights of two programs of any architecture, and proves it right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.matching.search import Search, State
from jax_transformer.matching.sides import LoweredSide, lowered, without_others
from jax_transformer.matching.values import Reference
from jax_transformer.matching.weights import NONE, Elements
from jax_transformer.proof import tables
from jax_transformer.proof.deciding import Result, Task, decide
from jax_transformer.proof.constants import radicands
from jax_transformer.proof.domains import Residues
from jax_transformer.proof.fields import NoInverse, draw_field


def search_map(candidate: LoweredSide, reference: LoweredSide, seed: int = 0):
    ours, theirs = without_others(candidate), without_others(reference)
    both = tables.unified(ours.program, theirs.program) or (ours.program, theirs.program)
    own, other = Elements(both[0], candidate.shapes), Elements(both[1], reference.shapes)
    generator = np.random.default_rng(seed)
    for _ in range(8):
        field_ = draw_field(generator, radicands(both[0]) | radicands(both[1]))
        domain = Residues(field_, int(generator.integers(2**63)))
        weights = {name: field_.draw(generator, shape) for name, shape in {**reference.shapes, **reference.data}.items()}
        try:
            evaluated = Reference(other, domain, weights)
            break
        except NoInverse:
            continue
    data = {name: weights.get(name) if name in weights else field_.draw(generator, shape) for name, shape in candidate.data.items()}
    search = Search(own, evaluated, data)
    state = search.run()
    return search, state, both
