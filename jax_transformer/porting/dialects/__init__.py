"""A dialect is how one family of PyTorch models names and shapes its parameters: one table file each, with a `DIALECT` in it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.config import TransformerConfig
from jax_transformer.porting.rules import PortingError, Rule, Tensors
from jax_transformer.trees import nearest

NAMES = ("pytorch",)
"""The modules of this package that hold a `DIALECT`."""


def _nothing_computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    return {}


def _nothing_refused(config: TransformerConfig) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One family's table.

    A config is made of `fixed`, of what `read` finds in a checkpoint, and of hints for the rest. The other way round, a config whose values
    differ from `fixed`, or are none of the `choices`, has no checkpoint in this dialect.
    """

    name: str
    title: str
    recognises: Callable[[Collection[str]], bool]
    """Whether a state_dict with these names could be one of the family's."""
    fixed: Mapping[str, Any]
    """Config fields that all of its models agree in."""
    choices: Mapping[str, tuple[Any, ...]]
    """Config fields in which they differ, and the values that occur."""
    read: Callable[[Tensors], dict[str, Any]]
    """The config fields that a checkpoint tells by its names, shapes and equal tensors. Raises PortingError where it can't."""
    asks: Mapping[str, str]
    """The config fields that it does not tell, or not always: what to say about them when they are asked for."""
    rules: Callable[[TransformerConfig], list[Rule]]
    """The correspondence of names, for models of this config."""
    refuses: Callable[[TransformerConfig], list[str]] = _nothing_refused
    """What else stands in the way of a config."""
    computed: Callable[[TransformerConfig], dict[str, np.ndarray]] = _nothing_computed
    """Leaves by path that its checkpoints don't hold, because the program computes them."""
    aliases: Mapping[str, tuple[str, Mapping[Any, Any]]] | None = None
    """The family's own words for a config field: {"norm_first": ("norm_placement", {True: "pre", False: "post"})}."""

    def refusals(self, config: TransformerConfig) -> list[str]:
        """Why a model of this config can't be written in this dialect: each field with the value received and what is allowed."""
        allowed = {field: (value,) for field, value in self.fixed.items()} | dict(self.choices)
        problems = [
            f"{field} must be {' or '.join(map(repr, values))}; received {getattr(config, field)!r}"
            for field, values in allowed.items()
            if getattr(config, field) not in values
        ]
        return problems + self.refuses(config)


def get_dialect(name: str) -> Dialect:
    """The dialect of this name. Raises PortingError, naming the known ones, if there is none."""
    if name not in NAMES:
        raise PortingError(f"dialect must be one of {', '.join(NAMES)}; received {name!r}{nearest(str(name), NAMES)}")
    return importlib.import_module(f"{__name__}.{name}").DIALECT


def detect(names: Collection[str]) -> Dialect:
    """The one dialect that recognises these tensor names.

    Raises:
      PortingError: no dialect does, or several do; the message lists them, to choose from by name.
    """
    candidates = [name for name in NAMES if get_dialect(name).recognises(names)]
    if len(candidates) == 1:
        return get_dialect(candidates[0])
    some = ", ".join(list(names)[:3]) or "none"
    if candidates:
        titles = [f"dialect={name!r}: {get_dialect(name).title}" for name in candidates]
        raise PortingError("several dialects have tensors of these names; say which this is", titles)
    titles = [f"{name}: {get_dialect(name).title}" for name in NAMES]
    raise PortingError(f"no known dialect has tensors of these names ({len(names)}: {some}, …); known are", titles)


class Reader:
    """Reads sizes off a checkpoint's shapes, and collects what is missing."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.problems: list[str] = []

    def size(self, name: str, axis: int, rank: int) -> int:
        """The length of one axis of the tensor `name`, which must have `rank` axes; 1 where it can't be told."""
        if name not in self.tensors:
            self._add(f"missing tensor {name}, which tells the model's size{nearest(name, self.tensors)}")
            return 1
        shape = self.tensors[name].shape
        if len(shape) != rank:
            self._add(f"tensor {name}: expected {rank} axes; received shape {tuple(shape)}")
            return 1
        return int(shape[axis])

    def layers(self, pattern: str) -> int:
        """How many layers have tensors that start with `pattern`, in which {i} is the layer's number; 1 where there are none."""
        expression = re.compile(re.escape(pattern).replace(re.escape("{i}"), r"(\d+)"))
        found = [int(match[1]) for match in map(expression.match, self.tensors) if match]
        if not found:
            self._add(f"no tensor starts with {pattern.replace('{i}', '0')}, so the number of layers can't be told")
        return max(found, default=0) + 1

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are there and hold the same values."""
        if first not in self.tensors or second not in self.tensors:
            return False
        return np.array_equal(self.tensors[first], self.tensors[second])

    def finish(self, what: str) -> None:
        """Raises PortingError with what was found missing, if anything."""
        if self.problems:
            raise PortingError(f"this is no {what} checkpoint", self.problems)

    def _add(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
