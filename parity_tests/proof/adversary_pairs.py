"""Pairs of programs in Python's text, and what is true of them."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TITLES = {"jax": "JAX", "torch": "PyTorch"}
SAME, DIFFERENT, OTHER, NOWHERE, NEITHER = "same", "different", "same, other domains", "defined nowhere", "not judged"
"""OTHER: equal where both are defined, but one is defined for more weights. It may be refuted, and isn't proven."""
TIED = "same, where tied"
"""Equal where weights are that one program has apart. It may be refuted, and isn't proven but on that condition."""
HEADER = """import jax, jax.numpy as jnp, numpy as np, torch, math
from jax import lax
from torch import nn
from torch.nn import functional as F
from flax import nnx, linen
from jax_transformer.parity import Side
"""


@dataclass(frozen=True)
class Program:
    framework: str
    code: str
    """Python's text, which defines `program`."""

    def make(self) -> Any:
        name = f"adversary/{hash(self.code) % 2**32:08x}.py"
        text = HEADER + self.code
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # as tracebacks read it
        found: dict[str, Any] = {"__name__": "adversary_program"}
        exec(compile(text, name, "exec"), found)
        return found["program"]


@dataclass(frozen=True)
class Pair:
    area: str
    name: str
    candidate: Program
    reference: Program
    truth: Mapping[str, str]
    """Stages → SAME, DIFFERENT, NOWHERE or NEITHER."""
    defined: str = "everywhere"
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    is_wide: bool = False
    """Whether it runs in float64, with `jax_enable_x64`."""
    names: str | None = None
    """An expression for the function that converts weights."""

    @property
    def frameworks(self) -> str:
        return "–".join(TITLES[program.framework] for program in (self.candidate, self.reference))


def jax_program(body: str, names: Sequence[str], inputs: Sequence[str] = ()) -> Program:
    """Makes a function of (params, inputs) from a body that reads weights and inputs by name."""
    lines = [f'    {name} = p["{name}"]' for name in names] + [f'    {name} = i["{name}"]' for name in inputs]
    return Program("jax", "\n".join(["def program(p, i):", *lines, _indented(body, 4), ""]))


def jax_side(body: str, weights: Mapping[str, tuple[int, ...]], inputs: Sequence[str] = ()) -> Program:
    """Makes a function that holds weights, zeros, from a body that reads weights and inputs by name."""
    code = jax_program(body, list(weights), inputs).code.replace("def program(", "def function(")
    params = ", ".join(f'"{name}": np.zeros({shape}, np.float32)' for name, shape in weights.items())
    return Program("jax", f"{code}program = Side(function, params={{{params}}})\n")


def torch_program(body: str, weights: Mapping[str, tuple[int, ...]], inputs: Sequence[str] = ()) -> Program:
    """Makes a module from the body of its `forward`, which reads weights and inputs by name."""
    lines = [f"        self.{name} = nn.Parameter(torch.ones({shape}))" for name, shape in weights.items()]
    locals_ = [f"        {name} = self.{name}" for name in weights]
    head = ["class Program(nn.Module):", "    def __init__(self):", "        super().__init__()", *lines]
    signature = ", ".join(["self", *inputs])
    code = [*head, f"    def forward({signature}):", *locals_, _indented(body, 8), "program = Program().eval()", ""]
    return Program("torch", "\n".join(code))


def _indented(body: str, spaces: int) -> str:
    body = textwrap.dedent(body).strip()
    return textwrap.indent(body if "return" in body else f"return {body}", " " * spaces)
