"""Attention alone, by the length of the sentences: forwards, and with the backward pass."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from parts import Context
from timing import seconds_per_call, torch_device, torch_peak_bytes, torch_wait

LENGTHS, TOKENS, HEADS, HEAD_DIM = (1024, 128, 512, 4096, 256, 2048), 16_384, 16, 64
SMALL_LENGTHS, SMALL_TOKENS, SMALL_HEADS, SMALL_HEAD_DIM = (16, 32), 64, 2, 16
PATHS = ("flash", "reference", "cudnn")
DROPOUT = 0.1


@dataclass(frozen=True)
class Case:
    """Describes an attention of a sentence over itself, causal, in bfloat16."""

    length: int
    rows: int
    heads: int
    head_dim: int
    extra: str
    """plain; bias: a learned bias of each head and pair of positions; dropout: of the weights."""
    backward: bool

    @property
    def flops(self) -> float:
        """Of the products, all pairs of positions counted."""
        forward = 4.0 * self.rows * self.heads * self.length**2 * self.head_dim
        return 3.5 * forward if self.backward else forward  # the backward pass computes the logits again


def cases(small: bool) -> list[Case]:
    lengths, tokens, *sizes = (
        (SMALL_LENGTHS, SMALL_TOKENS, SMALL_HEADS, SMALL_HEAD_DIM) if small else (LENGTHS, TOKENS, HEADS, HEAD_DIM)
    )
    kinds = itertools.product(("plain", "bias", "dropout"), (False, True))
    return [Case(length, tokens // length, *sizes, extra, backward) for extra, backward in kinds for length in lengths]


def jax(context: Context) -> None:  # named as the side is
    """Measures the paths of attention here."""
    import jax

    for length in dict.fromkeys(case.length for case in cases(context.small)):
        programs = [
            (case, path)
            for case in cases(context.small)
            for path in PATHS
            if case.length == length and _is_possible(case, path, jax.default_backend())
        ]
        with ThreadPoolExecutor(4) as pool:
            compiled = list(pool.map(lambda program: _try_to_compile(context, *program), programs))
        with context.alone():
            for (case, path), program in zip(programs, compiled, strict=True):
                if program is not None:
                    _measure(context, case, path, program)


def _is_possible(case: Case, path: str, platform: str) -> bool:
    """Returns whether a path computes a case: cuDNN's has no dropout of ours, and the reference's weights must fit."""
    if path == "cudnn":
        return case.extra != "dropout" and platform == "gpu"
    return path != "reference" or case.length <= 2048


def _try_to_compile(context: Context, case: Case, path: str) -> Any:
    try:
        return _compiled(case, path)
    except Exception as error:
        context.failed(f"compiling attention, {path}, {case}", error)
        return None


def _measure(context: Context, case: Case, path: str, program: Any) -> None:
    try:
        timed = seconds_per_call(partial(_repeat, program, _arrays(case)), context.small, most=200, least=0.1)
    except Exception as error:
        context.failed(f"attention, {path}, {case}", error)
        return
    memory = program.memory_analysis()
    context.row(
        what="attention", side="jax", path=path, flops=case.flops,
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None), **vars(case), **timed,
    )  # fmt: skip


def _compiled(case: Case, path: str) -> Any:
    import jax
    import jax.numpy as jnp

    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.model.attention import Computation, Heads, attend
    from jax_transformer.model.scope import Scope
    from jax_transformer.model.terms import AttentionTerms

    config = TransformerConfig(
        source_vocab_size=8, target_vocab_size=8, d_model=case.heads * case.head_dim, num_heads=case.heads,
        attention_path=path, dropout_rate=DROPOUT if case.extra == "dropout" else 0.0,
    )  # fmt: skip
    how = Computation.of(config, config.encoder, config.encoder.self_attention)
    causal = jnp.tril(jnp.ones((case.length, case.length), bool))[None, None]

    def forward(query: Any, key: Any, value: Any, bias: Any, seed: Any) -> Any:
        scope = Scope(dropout_key=jax.random.key(seed) if case.extra == "dropout" else None)
        terms = AttentionTerms(mask=causal, bias=bias if case.extra == "bias" else None)
        return attend(how, Heads(query, key, value), terms, scope)

    def backward(query: Any, key: Any, value: Any, bias: Any, seed: Any, gradient: Any) -> Any:
        context, pull = jax.vjp(lambda *arrays: forward(*arrays, seed), query, key, value, bias)
        return context, pull(gradient)

    function: Any = backward if case.backward else lambda *arrays: forward(*arrays[:5])
    shapes = jax.eval_shape(partial(_arrays, case))
    return jax.jit(function).lower(*shapes).compile()


def _arrays(case: Case) -> tuple[Any, ...]:
    """Returns query, key, value, bias, a seed, and the gradient of the context."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 5)
    shape = case.rows, case.length, case.heads, case.head_dim
    query, key, value, gradient = (jax.random.normal(k, shape, jnp.bfloat16) for k in keys[:4])
    side = case.length if case.extra == "bias" else 1
    bias = jax.random.normal(keys[4], (1, case.heads, side, side), jnp.bfloat16)
    return query, key, value, bias, jnp.uint32(0), gradient


def _repeat(program: Any, arrays: tuple[Any, ...], count: int) -> None:
    import jax

    for _ in range(count):
        result = program(*arrays)
    jax.block_until_ready(result)


def torch(context: Context) -> None:  # named as the side is
    """Measures PyTorch's scaled_dot_product_attention, whichever kernel it chooses."""
    import torch

    torch.zeros(1, device=torch_device())
    with context.alone():
        for case in cases(context.small):
            try:
                torch_peak_bytes(reset=True)
                timed = seconds_per_call(_torch_runner(case), context.small, most=200, least=0.1)
            except Exception as error:
                context.failed(f"attention, torch, {case}", error)
                continue
            context.row(
                what="attention", side="torch", path="SDPA", flops=case.flops, temporary_bytes=torch_peak_bytes(),
                **vars(case), **timed,
            )  # fmt: skip


def _torch_runner(case: Case) -> Any:
    import torch

    device = torch_device()
    shape = case.rows, case.heads, case.length, case.head_dim
    query, key, value, gradient = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    options: dict[str, Any] = {"is_causal": True}
    inputs = [query, key, value]
    if case.extra == "bias":  # which must hold the mask as well
        bias = torch.randn(1, case.heads, case.length, case.length, device=device, dtype=torch.bfloat16)
        future = torch.ones(case.length, case.length, dtype=torch.bool, device=device).triu(1)
        bias = bias.masked_fill(future, -torch.inf)
        options = {"attn_mask": bias}
        inputs.append(bias)
    if case.extra == "dropout":
        options["dropout_p"] = DROPOUT
    for array in inputs:
        array.requires_grad_(case.backward)

    def run(count: int) -> None:
        for _ in range(count):
            context = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
            if case.backward:
                torch.autograd.grad(context, inputs, gradient)
        torch_wait()

    return run
