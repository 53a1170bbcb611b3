"""Different PyTorch programs that look alike are never proven equal."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import to_dlpack

from jax_transformer.proof import Program, Result, Task, UnknownOperation, decide, torch_programs
from jax_transformer.proof.torch_reruns import check_again

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),  # torch.compile imports it
    pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8"),
    pytest.mark.filterwarnings("ignore:.*degrees of freedom"),
]

W = (3, 4)
VALUE = 0.7
FIRST = torch.tensor([[True], [False], [False]])
ALL = torch.ones(W, dtype=torch.bool)
Function = Callable[[torch.Tensor], torch.Tensor]


def lower(function: Function) -> Program:
    weight = torch.full(W, VALUE, dtype=torch.float64)
    return torch_programs.lower(lambda: {"output": function(weight)}, {"w": weight})


def compared(ours: Function, theirs: Function) -> Result:
    def draw(one: Any) -> Any:
        drawn = {"w": one(W)}
        return drawn, drawn

    return decide(Task(lower(ours), lower(theirs), draw))


def changed(x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """Returns a copy of a tensor after a change in place."""
    copy = x.clone()
    change(copy)
    return copy


class Doubled(torch.autograd.Function):
    """Computes 2 x, with another derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def gradient(function: Function) -> Function:
    def of(w: torch.Tensor) -> torch.Tensor:
        leaf = w.clone().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0]

    return of


DIFFERENT: dict[str, tuple[Function, Function]] = {
    "what fills a pad": (
        lambda w: functional.pad(w, (1, 1), value=2.0),
        lambda w: functional.pad(w, (1, 1), value=0.0),
    ),
    "a ReLU that is at least 0": (
        lambda w: torch.where(torch.relu(w) >= 0, w, 2 * w),
        lambda w: torch.where(torch.relu(w) > 0, w, 2 * w),
    ),
    "both not zero, and their product": (
        lambda w: torch.logical_and(w, w + 1).double(),
        lambda w: w * (w + 1),
    ),
    "zero or not": (lambda w: torch.logical_not(w).double(), lambda w: 1 - w),
    "logsumexp over two axes": (lambda w: w.logsumexp((0, 1)), lambda w: w.logsumexp(1)[0]),
    "a safe softmax of rows of −∞": (
        lambda w: torch.ops.aten._safe_softmax(w.masked_fill(ALL, -torch.inf), -1),
        lambda w: 0 * w + 0.25,
    ),
    "the order of bounds": (lambda w: w.clamp(2, 1), lambda w: w.clamp(1, 2)),
    "a window of another stride": (lambda w: w.as_strided((3, 2), (4, 2)), lambda w: w[:, :2]),
    "an own derivative": (gradient(Doubled.apply), gradient(lambda x: 2 * x)),
    "a change through a view": (lambda w: changed(w, lambda x: x[0].mul_(2)), lambda w: w),
    "a change through an alias": (lambda w: changed(w, lambda x: x.data.t()[0].add_(1)), lambda w: w),
    "a compiled function, and what it returned": (
        lambda w: torch.compile(lambda x: x * 2)(w),
        lambda w: torch.full(W, 2 * VALUE, dtype=torch.float64),
    ),
}


def in_inference_mode(function: Function) -> Function:
    return torch.inference_mode()(function)


DIFFERENT |= {
    "a variance of half a degree of freedom": (lambda w: w.var(1, correction=0.5), lambda w: w.var(1)),
    "a copy in a decomposition": (
        lambda w: functional.pixel_shuffle(w.view(1, 4, 1, 3), 2),
        lambda w: torch.full((1, 1, 2, 6), VALUE, dtype=torch.float64),
    ),
    "a copy in inference mode": (
        in_inference_mode(lambda w: w.t().reshape(-1)),
        lambda w: torch.full((12,), VALUE, dtype=torch.float64),
    ),
    "a square that is 0 in the run": (
        lambda w: torch.where(((w - VALUE) ** 2).sum() > 0, w, 2 * w),
        lambda w: 2 * w,
    ),
    "a branch on a square that is 0 in the run": (
        lambda w: w if ((w - VALUE) ** 2).sum() > 0 else 2 * w,
        lambda w: 2 * w,
    ),
    "an inverse that is infinite in the run": (
        lambda w: torch.where(torch.isinf(1 / (w - VALUE)), 2 * w, w),
        lambda w: 2 * w,
    ),
    "a mask of bytes": (
        lambda w: w.index_put((torch.tensor([0, 1, 1], dtype=torch.uint8),), torch.tensor(1.0).double(), True),
        lambda w: w.index_put((torch.tensor([0, 1, 1]),), torch.tensor(1.0).double(), True),
    ),
}


FOR_SOME_WEIGHTS = frozenset(("the order of bounds",))
"""Pairs that differ for some weights only. Digits at one point may not show it, which is no proof."""


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_different_programs_are_not_proven(name: str) -> None:
    verdict = compared(*DIFFERENT[name]).verdict
    assert verdict in (("refuted", "unknown") if name in FOR_SOME_WEIGHTS else ("refuted",))


WHERE_DEFINED: dict[str, tuple[Function, Function]] = {
    "a square by logarithms": (lambda w: (2 * w.log()).exp(), lambda w: w * w),
    "the root of a product": (
        lambda w: (w * w.flip(0)).sqrt(),
        lambda w: w.abs().sqrt() * w.flip(0).abs().sqrt(),
    ),
}


@pytest.mark.parametrize("name", list(WHERE_DEFINED))
def test_functions_that_are_one_where_they_are_defined_are_not_refuted(name: str) -> None:
    assert compared(*WHERE_DEFINED[name]).verdict == "unknown"


SAME: dict[str, tuple[Function, Function]] = {
    "a compiled function": (lambda w: torch.compile(lambda x: x * 2)(w), lambda w: 2 * w),
    "vmap": (lambda w: torch.func.vmap(lambda x: x.sum() * x)(w), lambda w: w.sum(1, keepdim=True) * w),
    "grad": (lambda w: torch.func.grad(lambda x: (x**2).sum())(w), lambda w: 2 * w),
    "changes through .data": (lambda w: changed(w, lambda x: x.data.mul_(2)), lambda w: w * 2),
    "bounds": (lambda w: functional.hardtanh(w), lambda w: w.clamp(-1, 1)),
    "numbers that aren't finite": (torch.nan_to_num, lambda w: w),
    "a buffer that is filled": (
        lambda w: torch.cat([torch.empty_like(w[:, :2]).copy_(w[:, :2]), torch.empty(3, 2).fill_(1.0)], 1),
        lambda w: torch.cat([w[:, :2], torch.ones(3, 2)], 1),
    ),
    "out": (lambda w: torch.mul(w, 2, out=torch.empty(W, dtype=torch.float64)), lambda w: w * 2),
    "constants as they are rounded": (
        lambda w: w * torch.floor(torch.full(W, 0.3).double().round(decimals=1) / 0.1),
        lambda w: w * 2,
    ),
    "a cast to eight bits": (lambda w: w.to(torch.float8_e4m3fn).double(), lambda w: w),
    "out that is read": (lambda w: changed(w, lambda x: torch.mul(x, x, out=x)), lambda w: w * w),
    "new_tensor of numbers": (lambda w: w * w.new_tensor([1.0, 2.0, 3.0, 4.0]), lambda w: w * torch.arange(1, 5)),
    "constants without a rule": (
        lambda w: w * torch.floor(torch.tensor([1.5, 2.5, 3.5, 4.5])),
        lambda w: w * torch.tensor([1.0, 2, 3, 4]),
    ),
    "integers that follow from ones": (
        lambda w: w[:, (torch.ones_like(w[0]) * 2).long()],
        lambda w: w[:, [2, 2, 2, 2]],
    ),
    "integers changed in place": (
        lambda w: w[:, torch.tensor([0, 1, 3]).clamp_(min=2)],
        lambda w: w[:, [2, 2, 3]],
    ),
    "another overload": (lambda w: torch.var(w, 1, True), lambda w: w.var(1)),
}


@pytest.mark.parametrize("name", list(SAME))
def test_the_same_program_is_proven(name: str) -> None:
    assert compared(*SAME[name]).verdict == "proven"


def _saved(w: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(w, file)
    file.seek(0)
    return torch.load(file)


def _overlapping(x: torch.Tensor) -> Any:
    return x.as_strided((2, 3), (2, 1)).add_(1.0)


def _cross(w: torch.Tensor) -> torch.Tensor:
    first, second = w.clone(), w * 3
    torch._foreach_add_([first, second], [second, first])
    return second


UNKNOWN: dict[str, Function] = {
    "a list that holds a tensor twice": lambda w: changed(w, lambda x: torch._foreach_mul_([x, x], 2.0)),
    "lists in another order": _cross,
    "a product written onto a factor": lambda w: changed(w[:, :3], lambda x: x.addmm_(x, x)),
    "a softmax written onto its input": lambda w: changed(w, lambda x: torch.softmax(x, 1, out=x)),
    "a function of Python": lambda w: changed(w.detach(), lambda x: x.apply_(lambda value: 2 * value)),
    "a function of Python on two tensors": lambda w: changed(w * 0, lambda x: x.map_(w, lambda one, other: other)),
    "a variance of no degree of freedom": lambda w: w.var(1, correction=7),
    "∞ times a weight": lambda w: w * 0 * torch.inf,
    "a power of ∞": lambda w: (w - torch.inf) ** 2 * 0,
    "a tensor of named data": lambda w: w + torch.tensor(data=[w[0, 0], w[0, 1], 1.0, 2.0]),
    "NumPy reads weights": lambda w: w + torch.from_numpy(w.numpy().copy()),
    "np.asarray reads weights": lambda w: w + torch.tensor(np.asarray(w)),
    "np.array reads a list of weights": lambda w: w + torch.from_numpy(np.array([w[0, 0], w[0, 1]])).sum(),
    "a list of numbers": lambda w: w + torch.tensor(w.tolist()),
    "a tensor of a list of weights": lambda w: w + torch.tensor([w[0, 0], w[0, 1], 1.0, 2.0]),
    "new_tensor": lambda w: w + w.new_tensor([w[0, 0], w[0, 1], 1.0, 2.0]),
    "DLPack": lambda w: w + torch.from_numpy(np.from_dlpack(w).copy()),
    "item": lambda w: w + w[0, 0].item(),
    "float": lambda w: w + float(w[0, 0]),
    "a branch": lambda w: w if w.sum() > 0 else -w,
    "full of a weight": lambda w: w + torch.full((4,), w[0, 0]),
    "a file": lambda w: w + _saved(w),
    "random numbers": lambda w: w * (torch.rand(4) < 0.999),
    "dropout": lambda w: functional.dropout(w, 1e-6, training=True),
    "numbers drawn in place": lambda w: w + torch.zeros(4).uniform_(),
    "a sum of booleans": lambda w: ((w > 0) + (w > 1)).double(),
    "a count of booleans": lambda w: (w > 0).sum() * w,
    "weights copied to integers": lambda w: torch.zeros(W, dtype=torch.long).copy_(w).double(),
    "small integers": lambda w: (w > 0).to(torch.uint8) * 200 * w,
    "bits read as another type": lambda w: w.view(torch.int64).double(),
    "the logarithm of complex numbers": lambda w: torch.view_as_real(torch.view_as_complex(w.view(3, 2, 2)).log()),
    "memory that nothing wrote": lambda w: w + torch.empty_like(w),
    "memory that is written in part": lambda w: changed(torch.empty_like(w), lambda x: x[:, :2].copy_(w[:, :2])),
    "two writes to one place": lambda w: torch.zeros(4).double().index_put((torch.tensor([1, 1]),), w[0, :2]),
    "writes that overlap": lambda w: changed(w, _overlapping),
    "a copy onto itself": lambda w: changed(w, lambda x: x[:, ::2].copy_(x[:, 1:3])),
    "another size of memory": lambda w: w.clone().resize_(2, 2),
    "a sparse tensor": lambda w: (w.to_sparse() * 2).to_dense(),
    "a quantised tensor": lambda w: torch.quantize_per_tensor(w.float(), 0.1, 0, torch.qint8).dequantize(),
    "quantised values": lambda w: torch.fake_quantize_per_tensor_affine(w.float(), 0.1, 0, 0, 255),
    "rounding": torch.round,
    "floor division": lambda w: w // 1,
    "the place of the largest of many zeros": lambda w: w.relu().argmax(-1).double(),
    "a sum of places": lambda w: (w.argmax(-1) + (2 * w + w.flip(0)).argmax(-1)).double(),
    "NaN that is replaced": lambda w: torch.nan_to_num(torch.log(-w)),
    "a row of −∞": lambda w: torch.softmax(w.masked_fill(FIRST, -torch.inf), -1),
}


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_unknown_operations_are_named(name: str) -> None:
    with pytest.raises(UnknownOperation) as error:
        lower(UNKNOWN[name])
    assert __file__ in str(error.value)


def _in_thread(w: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(w * 2))
    thread.start()
    thread.join()
    return found[0]


def _read_in_numpy(w: torch.Tensor) -> torch.Tensor:
    shared = np.zeros(W)
    torch.from_numpy(shared).copy_(w)
    return w + float(shared[0, 0])


def _written_in_numpy(w: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros_like(w)
    zeros.numpy()[:] = 1.0
    return w + zeros


def _copied(w: torch.Tensor) -> torch.Tensor:
    return torch.DoubleTensor([w[0, 0]])


def _unwatched(w: torch.Tensor) -> float:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return float(w[0, 0])


def _listed(w: torch.Tensor) -> list[float]:
    found: list[float] = w[0].tolist()
    return found


def _told(w: torch.Tensor) -> str:
    return f"{w}"


SEEN: dict[str, Function] = {
    "a factor of large numbers": lambda w: w * 1e9 * _copied(w),
    "a choice of NaN": lambda w: w * torch.where(_copied(w) == VALUE, 1.0, torch.nan),
    "an old constructor": lambda w: w + torch.DoubleTensor([w[0, 0], w[0, 1], 1.0, 2.0]),
    "an older one": lambda w: w + w.new([w[0, 0], w[0, 1], 1.0, 2.0]),
    "DLPack's capsule": lambda w: w + torch.utils.dlpack.from_dlpack(to_dlpack(w)),
    "text": lambda w: w + float(repr(w[0, 0]).removeprefix("tensor(").split(",")[0]),
    "text in a format": lambda w: w + len(f"{w}"),
    "text of PyTorch's own": lambda w: w + len(torch._tensor_str._str(w)),
    "a branch": lambda w: w if torch.DoubleTensor([w[0, 0]]).numpy()[0] > 0 else 2 * w,
    "another thread": _in_thread,
    "a list in a script": lambda w: w + torch.jit.script(_listed)(w)[0],
    "a text in a script": lambda w: w + len(torch.jit.script(_told)(w)),
    "a copy": lambda w: w + float(copy.deepcopy(w)[0, 0]),
    "shared memory": lambda w: w + len(w.clone().share_memory_()),
}


@pytest.mark.parametrize("name", list(SEEN))
def test_a_way_out_of_pytorch_is_named(name: str) -> None:
    with pytest.raises(UnknownOperation, match=r"weights|isn't seen|tensor's numbers") as error:
        lower(SEEN[name])
    assert __file__ in str(error.value)


UNSEEN: dict[str, Function] = {
    "a branch at large numbers": lambda w: w * (2 if _unwatched(w) > 50 else 1),
    "a branch at small numbers": lambda w: w * (2 if abs(_unwatched(w)) < 0.01 else 1),
    "a factor": lambda w: w * _unwatched(w),
    "a number of a tensor": lambda w: w + torch.tensor([_unwatched(w)]),
    "memory that NumPy reads": _read_in_numpy,
    "memory that NumPy writes": _written_in_numpy,
    "numbers that are drawn": lambda w: w * np.random.default_rng().random(),
}


@pytest.mark.parametrize("name", list(UNSEEN))
def test_what_isnt_seen_shows_on_other_weights(name: str) -> None:
    weight = torch.full(W, VALUE, dtype=torch.float64)
    program = lambda: {"output": UNSEEN[name](weight)}  # noqa: E731
    lowered = torch_programs.lower(program, {"w": weight})
    with pytest.raises(UnknownOperation, match="on other weights"):
        check_again(lowered, program, {"w": weight})
    assert (weight == VALUE).all()


def test_rounding_is_called_rounding() -> None:
    weight = torch.full(W, VALUE, dtype=torch.float64)
    program = lambda: {"output": ((weight + 1e7).float() - 1e7).double()}  # noqa: E731
    lowered = torch_programs.lower(program, {"w": weight})
    with pytest.raises(UnknownOperation, match=r"\(1 for 0\.\d+\): it rounds to float32"):
        check_again(lowered, program, {"w": weight})


@pytest.mark.parametrize("hidden", [0.0, 1e-4])
def test_a_rounding_error_of_zero_is_no_difference_and_a_hidden_number_is(hidden: float) -> None:
    """As with the gradient of a bias of keys, which is zero."""
    weight = torch.linspace(0.1, 0.9, 300)[None]

    def program() -> dict[str, torch.Tensor]:
        zero = weight.cumsum(1) + weight.flip(1).cumsum(1).flip(1) - weight - weight.sum()
        return {"large": weight * 3, "zero": zero + hidden * _unwatched(weight) if hidden else zero}

    lowered = torch_programs.lower(program, {"w": weight})
    assert program()["zero"].any()
    with pytest.raises(UnknownOperation, match="on other weights") if hidden else contextlib.nullcontext():
        check_again(lowered, program, {"w": weight})


@pytest.mark.parametrize("name", list(SAME))
def test_what_is_read_is_what_runs_on_other_weights(name: str) -> None:
    for function in SAME[name]:
        weight = torch.full(W, VALUE, dtype=torch.float64)
        check_again(lower(function), lambda of=function, held=weight: {"output": of(held)}, {"w": weight})


def test_weights_may_share_memory() -> None:
    flat = torch.arange(8.0, dtype=torch.float64)
    first, second = flat[:4], flat[4:]
    weights = {"first": first, "second": second}
    programs = [torch_programs.lower(lambda of=of: {"output": of * 2}, weights) for of in (first, second)]

    def draw(one: Any) -> Any:
        drawn = {name: one((4,)) for name in weights}
        return drawn, drawn

    assert decide(Task(*programs, draw)).verdict == "refuted"
    assert decide(Task(programs[0], programs[0], draw)).verdict == "proven"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("how", ["to", "copy_"])
def test_rounding_casts_are_reported(dtype: torch.dtype, how: str) -> None:
    def rounded(w: torch.Tensor) -> torch.Tensor:
        narrow = w.to(dtype) if how == "to" else torch.zeros(W, dtype=dtype).copy_(w)
        return narrow.double()

    assert str(dtype).removeprefix("torch.") in lower(rounded).narrowing[0]


def test_weights_are_as_they_were() -> None:
    weight = torch.full(W, VALUE, dtype=torch.float64)
    torch_programs.lower(lambda: {"output": weight * 2}, {"w": weight})
    assert (weight == VALUE).all()
