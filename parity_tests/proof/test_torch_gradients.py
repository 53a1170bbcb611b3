"""Hooks, frozen weights and stopped gradients: what a module computes forwards, its gradients, and one step.

The truth follows from a run of both modules; a verdict never contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from jax_transformer.parity import Certificate, prove

X = {"x": np.ones((2, 3), np.float32)}
RATE = 0.1


class Net(nn.Module):
    """Computes two layers, and what a function makes of the activations between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.between: Callable[[Tensor], Tensor] | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.a(x))
        hidden = hidden if self.between is None else self.between(hidden)
        result: Tensor = self.b(hidden)
        return result


class Reversed(torch.autograd.Function):
    """Computes the identity, with a derivative of −1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class InNumpy(Reversed):
    """Computes its derivative in NumPy."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.from_numpy(2.0 * gradients[0].numpy())


def stepping(p: Tensor) -> None:
    with torch.no_grad():
        p.sub_(RATE * p.grad)
    p.grad = None


def cleared(p: Tensor) -> None:
    p.grad = None


def doubled(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(2)


def between(function: Callable[[Tensor], Tensor]) -> Callable[[Net], Any]:
    return lambda m: setattr(m, "between", function)


def hooked(function: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor]:
    def of(hidden: Tensor) -> Tensor:
        hidden.register_hook(function)
        return hidden

    return of


def without_gradients(hidden: Tensor) -> Tensor:
    with torch.no_grad():
        return hidden * 1


KEPT: list[Any] = []


def on_node(m: Net) -> None:
    node: Any = m.a.weight.view_as(m.a.weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_prehook(lambda gradients: (2 * gradients[0],))
    KEPT.append([node])


def on_several(m: Net) -> None:
    def double(gradients: Any) -> None:
        for each in gradients:
            each.mul_(2)

    KEPT.append(torch.autograd.graph.register_multi_grad_hook([m.a.weight, m.b.weight], double))


def as_buffer(m: Net) -> None:
    bias = m.a.bias.data
    del m.a.bias
    m.a.register_buffer("bias", bias)


def hooked_weight(hook: Callable[[Tensor], Any]) -> Callable[[Net], Any]:
    return lambda m: m.a.weight.register_hook(hook)


def after_weight(hook: Callable[[Tensor], Any]) -> Callable[[Net], Any]:
    return lambda m: m.a.weight.register_post_accumulate_grad_hook(hook)


Setup = Callable[[Net], Any]
SETUPS: dict[str, tuple[Setup, str, str]] = {
    "nothing": (lambda m: None, "proven", "proven"),
    "a hook of a weight": (hooked_weight(lambda g: 2 * g), "proven", "refuted"),
    "a hook that removes": (hooked_weight(lambda g: 0 * g), "proven", "refuted"),
    "a hook that changes in place": (hooked_weight(lambda g: g.mul_(2)), "proven", "refuted"),
    "a hook that returns what it gets": (hooked_weight(lambda g: g), "proven", "proven"),
    "a hook that reads a number": (hooked_weight(lambda g: g * g.sum().item()), "proven", "unknown"),
    "a hook in NumPy": (hooked_weight(lambda g: torch.from_numpy(2 * g.numpy())), "proven", "unknown"),
    "a hook with a branch": (hooked_weight(lambda g: 2 * g if g.sum() > 50 else g), "proven", "unknown"),
    "a hook that makes text": (hooked_weight(lambda g: g * len(str(g))), "proven", "unknown"),
    "a hook after the sum": (after_weight(doubled), "proven", "refuted"),
    "a hook that clears": (after_weight(cleared), "proven", "refuted"),
    "a hook that takes a step": (after_weight(stepping), "proven", "unknown"),
    "a forward hook": (lambda m: m.a.register_forward_hook(lambda m, given, found: 2 * found), "refuted", "refuted"),
    "a forward hook that detaches": (
        lambda m: m.a.register_forward_hook(lambda m, given, found: found.detach()),
        "proven",
        "refuted",
    ),
    "a forward pre-hook": (lambda m: m.a.register_forward_pre_hook(lambda m, x: (2 * x[0],)), "refuted", "refuted"),
    "a backward hook": (lambda m: m.b.register_full_backward_hook(lambda m, g, of: (2 * g[0],)), "proven", "refuted"),
    "a backward pre-hook": (
        lambda m: m.b.register_full_backward_pre_hook(lambda m, g: (2 * g[0],)),
        "proven",
        "refuted",
    ),
    "a frozen bias": (lambda m: m.a.bias.requires_grad_(False), "proven", "refuted"),
    "a frozen module": (lambda m: m.requires_grad_(False), "proven", "refuted"),
    "a buffer for a bias": (as_buffer, "proven", "refuted"),
    "a hook of an activation": (between(hooked(lambda g: 2 * g)), "proven", "refuted"),
    "a hook of an activation that only looks": (between(hooked(lambda g: None)), "proven", "proven"),
    "detach": (between(lambda h: h.detach()), "proven", "refuted"),
    "half detached": (between(lambda h: h / 2 + h.detach() / 2), "proven", "refuted"),
    "no_grad": (between(without_gradients), "proven", "refuted"),
    "a function with a wrong derivative": (between(Reversed.apply), "proven", "refuted"),
    "a derivative in NumPy": (between(InNumpy.apply), "proven", "unknown"),
    "a checkpoint": (between(lambda h: checkpoint(lambda x: 1 * x, h, use_reentrant=False)), "proven", "proven"),
    "a branch on gradients being enabled": (
        between(lambda h: 2 * h if torch.is_grad_enabled() else h),
        "refuted",
        "refuted",
    ),
    "a hook of the node that sums": (on_node, "proven", "unknown"),
    "a hook of several gradients": (on_several, "proven", "unknown"),
}


def verdicts(certificate: Certificate) -> tuple[str, ...]:
    return tuple(stage.verdict for stage in certificate.stages)


def after_a_step(module: Net) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Returns the output, gradients of parameters, and parameters after a step of SGD; leaves the module as it was."""
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    output = module(torch.linspace(-1, 1, 6).reshape(2, 3))
    if output.requires_grad:
        output.square().sum().backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in module.named_parameters()}
    torch.optim.SGD(module.parameters(), RATE).step()
    after = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(before)
    module.zero_grad()
    return output, gradients, after


@pytest.mark.parametrize("name", list(SETUPS))
def test_gradients_are_those_of_the_program(name: str) -> None:
    setup, forward, gradients = SETUPS[name]
    ours, theirs = Net(), Net()
    setup(ours)
    (out, of_ours, stepped), (expected, of_theirs, stepped_too) = after_a_step(ours), after_a_step(theirs)
    if forward != "unknown":
        assert torch.allclose(out, expected) == (forward == "proven")
    if gradients != "unknown":
        zeros = {key: torch.zeros(()) for key in of_theirs.keys() - of_ours.keys()}
        same = all(torch.allclose({**zeros, **of_ours}[key], each) for key, each in of_theirs.items())
        assert same == (gradients == "proven")
        assert all(torch.allclose(stepped[key], each) for key, each in stepped_too.items()) == same
    assert verdicts(prove(ours, theirs, inputs=X)) == (forward, gradients)
    assert verdicts(prove(theirs, ours, inputs=X)) == (forward, gradients)


def net(params: Any, inputs: Any, *, stop: str = "") -> Any:
    held = {name: jax.lax.stop_gradient(each) if name == stop else each for name, each in params.items()}
    hidden = jnp.tanh(inputs["x"] @ held["a.weight"].T + held["a.bias"])
    return hidden @ held["b.weight"].T + held["b.bias"]


@jax.custom_vjp
def reversed_in_jax(x: Any) -> Any:
    return x


reversed_in_jax.defvjp(lambda x: (x, None), lambda _, g: (-g,))


def with_reversal(params: Any, inputs: Any) -> Any:
    return net({**params, "b.weight": reversed_in_jax(params["b.weight"])}, inputs)


def test_a_function_of_jax_stops_what_a_module_freezes() -> None:
    frozen = Net()
    frozen.a.bias.requires_grad_(False)
    certificate = prove(net, frozen, inputs=X)
    assert verdicts(certificate) == ("proven", "unknown")
    assert "one side alone has a gradient of a.bias" in certificate.stages[1].reason
    assert verdicts(prove(lambda p, i: net(p, i, stop="a.bias"), frozen, inputs=X)) == ("proven", "proven")
    assert verdicts(prove(lambda p, i: net(p, i, stop="a.bias"), Net(), inputs=X)) == ("proven", "refuted")
    assert verdicts(prove(with_reversal, Net(), inputs=X)) == ("proven", "refuted")


def test_buffers_are_no_question_to_a_function() -> None:
    module = Net()
    as_buffer(module)
    certificate = prove(net, module, inputs=X)
    assert verdicts(certificate) == ("proven", "proven")
    assert not any("a.bias" in name for name in certificate.stages[1].equal + certificate.stages[1].alone)


def test_a_graph_that_is_alive_has_no_hooks() -> None:
    module = Net()
    output = module(torch.ones(2, 3))
    assert output.requires_grad
    assert verdicts(prove(module, Net(), inputs=X)) == ("proven", "proven")


def test_an_array_of_numpy_that_shares_a_weight_is_no_constant() -> None:
    module = Net()
    array = module.a.bias.detach().numpy()
    module.between = lambda h: h * float(array[0])
    constant = float(array[0])
    other = Net()
    other.between = lambda h: h * constant
    certificate = prove(module, other, inputs=X)
    assert verdicts(certificate) == ("unknown", "unknown")
    assert "shares the memory of a.bias" in certificate.stages[0].reason
