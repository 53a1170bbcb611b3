"""Modules that `prove` copies, watches and names are compared as what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jax_transformer.parity import Certificate, prove

INPUTS = {"x": np.ones((2, 3), np.float32)}
Function = Callable[[Tensor, Any], Any]


class Scaled(nn.Module):
    """Computes a function of x and of itself, whose weight is w."""

    def __init__(self, function: Function, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w, self.function = nn.Parameter(torch.ones(3, dtype=dtype)), function
        self.kept: Tensor | None = None
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self)


class Holding(nn.Module):
    """Passes what a submodule of this name returns to a function."""

    def __init__(self, name: str, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(3, 3))
        self.name, self.function = name, function
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(getattr(self, self.name)(x))


def of(certificate: Certificate, stage: str) -> str:
    return next(one.verdict for one in certificate.stages if one.name == stage)


def forward(ours: Any, theirs: Any, names: dict[str, str] | None = None) -> str:
    return of(prove(ours, theirs, inputs=INPUTS, names=names, stages=["forward"]), "forward")


def gradients(ours: Any, theirs: Any, names: dict[str, str] | None = None) -> str:
    return of(prove(ours, theirs, inputs=INPUTS, names=names), "gradients")


def test_a_part_named_output_is_not_the_output() -> None:
    names = {"hidden.weight": "output.weight", "hidden.bias": "output.bias"}
    twice, once = Holding("output", lambda y: 2 * y), Holding("hidden", lambda y: y)
    assert forward(twice, once, names) == "refuted"
    assert forward(Holding("output", lambda y: y + y), twice) == "proven"

    def linear(params: Any, inputs: Any) -> Any:
        return inputs["x"] @ params["output.weight"].T + params["output.bias"]

    assert forward(linear, twice) == "refuted"
    assert forward(linear, Holding("output", lambda y: y)) == "proven"


@pytest.mark.parametrize("name", ["logits", "output"])
def test_a_part_stands_for_no_output(name: str) -> None:
    ours, theirs = Holding(name, lambda y: (2 * y,)), Holding(name, lambda y: {"a": 3 * y})
    assert forward(ours, theirs) == "unknown"


def test_an_output_that_changed_after_a_part_returned_it() -> None:
    def doubled(y: Tensor) -> Tensor:
        y.data.mul_(2)
        return y

    assert forward(Holding("hidden", doubled), Holding("hidden", lambda y: y)) == "refuted"


def test_weights_in_bfloat16_are_weights() -> None:
    first, second = (Scaled(lambda x, m, n=n: x * m.w**n, torch.bfloat16) for n in (1, 2))
    assert forward(first, second) == "refuted"


def test_hooks_of_weights_change_gradients() -> None:
    hooked, plain = (Scaled(lambda x, m: x * m.w) for _ in range(2))
    hooked.w.register_hook(lambda gradient: 2 * gradient)
    assert gradients(hooked, plain) == "refuted"


def test_a_function_that_holds_the_module_reads_no_copy() -> None:
    """Its copy computes with the weights of the module that was copied."""
    held = Scaled(lambda x, m: x * held.w)
    assert forward(held, Scaled(lambda x, m: x * 1.0)) == "unknown"


def test_an_attribute_that_shares_memory_is_another_one_in_a_copy() -> None:
    sharing = Scaled(lambda x, m: x * m.kept)
    sharing.kept = sharing.w.data
    assert forward(sharing, Scaled(lambda x, m: x * 1.0)) == "unknown"


class Interleaved(nn.Module):
    """Holds weights and buffers that are parts of the same memory, and have no element in common."""

    def __init__(self) -> None:
        super().__init__()
        (first, second), table = torch.ones(2, 6).chunk(2, -1), torch.arange(12.0).reshape(2, 6)
        self.a, self.b = nn.Parameter(first), nn.Parameter(second)
        self.register_buffer("even", table[:, 0::2])
        self.register_buffer("odd", table[:, 1::2])
        self.sparse = torch.eye(3).to_sparse()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a * self.even + self.b * self.odd


def test_weights_may_be_parts_of_one_memory() -> None:
    assert forward(Interleaved(), Interleaved()) == "proven"


def test_hooks_of_frozen_weights_change_nothing() -> None:
    frozen = Scaled(lambda x, m: x * m.w)
    frozen.w.register_hook(lambda gradient: 2 * gradient)
    frozen.w.requires_grad_(False)
    assert forward(frozen, Scaled(lambda x, m: x * m.w)) == "proven"


def test_weights_that_share_memory_are_one() -> None:
    sharing = Two()
    sharing.b = nn.Parameter(sharing.a.data)
    certificate = prove(sharing, Two(), inputs=INPUTS, stages=["forward"])
    assert certificate.verdict == "proven"
    assert certificate.conditions == ("a and b of the reference are equal, as they are one in the candidate",)
    sharing.a = sharing.b  # one weight by two names
    assert forward(sharing, sharing) == "proven"


def test_complex_weights_are_no_constants() -> None:
    first, second = (Scaled(lambda x, m, n=n: x * m.w.real**n, torch.complex64) for n in (1, 2))
    assert forward(first, second) == "unknown"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_the_output_of_a_script_is_compared() -> None:
    script = torch.jit.script(nn.Linear(3, 3).eval())
    certificate = prove(script, nn.Linear(3, 3).eval(), inputs={"input": INPUTS["x"]})
    assert certificate.verdict == "proven", str(certificate)


def test_a_state_dict_of_copies_names_no_weights() -> None:
    module = Scaled(lambda x, m: x * m.w)
    module._register_state_dict_hook(lambda m, held, *rest: {name: one.clone() for name, one in held.items()})
    assert forward(module, Scaled(lambda x, m: x * 1.0)) == "unknown"


def test_what_is_kept_from_an_earlier_run_is_no_function_of_weights() -> None:
    def keeping(x: Tensor, m: Scaled) -> Tensor:
        m.kept = m.w * m.w if m.kept is None else m.kept
        return x * m.kept

    assert forward(Scaled(keeping), Scaled(keeping)) == "unknown"


def test_each_run_reads_its_inputs_as_they_were() -> None:
    def look_up(x: Tensor, m: Any) -> Tensor:
        x.add_(1)
        return torch.cat([m.w, m.w**2, m.w**3])[x]

    ours, theirs = Scaled(look_up), Scaled(lambda x, m: torch.cat([m.w, m.w**2, m.w**3])[x + 1])
    assert prove(ours, theirs, inputs={"x": np.array([1, 4])}).verdict == "proven"


class Two(nn.Module):
    """Multiplies by one weight, and the square by another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.b + x * x * self.a
