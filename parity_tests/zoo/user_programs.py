"""A user's own training and decoding programs in PyTorch and Optax: right ones, and each usual mistake in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax
import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD, D_MODEL = 2, 12
CONFIG = {
    "label_smoothing": 0.2,
    "optimizer": "adam",
    "adam_b1": 0.8,
    "adam_b2": 0.95,
    "adam_eps": 1e-6,
    "weight_decay": 0.3,
    "clip_norm": 0.5,
    "schedule": "paper",
    "learning_rate": 0.5,
    "warmup_steps": 10,
}
"""The training that the programs follow."""

# --- losses


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Written out, as programs do that smooth their labels themselves."""
    log_probabilities = logits.log_softmax(dim=-1)
    smoothed = 0.8 * log_probabilities.gather(-1, labels[..., None])[..., 0] + 0.2 * log_probabilities.mean(dim=-1)
    counts = labels != PAD
    return -(smoothed * counts).sum() / counts.sum()


def loss_counting_pads(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)


def loss_without_smoothing(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


def loss_per_sentence(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=PAD, label_smoothing=0.2, reduction="none")
    lengths = (labels != PAD).sum(dim=1)
    return (losses.sum(dim=1) / lengths.clamp(min=1)).sum() / (lengths > 0).sum()


def loss_late_by_one(logits: Tensor, labels: Tensor) -> Tensor:
    return loss(logits[:, :-1], labels[:, 1:])


def loss_of_odd_power(logits: Tensor, labels: Tensor) -> Tensor:
    return loss(logits, labels) ** 1.1


def losses_of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=PAD, reduction="none")


def failing_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


# --- optimizers


def rate(step: int) -> float:
    return 0.5 * D_MODEL**-0.5 * min(step**-0.5, step * 10**-1.5)


class Optimizer:
    """Clips, moves by Adam with L2 decay as torch does it, and counts its own steps for the warm-up."""

    def __init__(
        self, module: nn.Module, *, first: int = 1, clip: Callable[..., Any] | None = None, **other: Any
    ) -> None:
        self.parameters, self.number = list(module.parameters()), first
        self.clip = clip or partial(nn.utils.clip_grad_norm_, max_norm=0.5)
        kind = other.pop("kind", torch.optim.Adam)
        self.adam = kind(self.parameters, **{"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3} | other)

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        self.clip(self.parameters)
        for group in self.adam.param_groups:
            group["lr"] = rate(self.number)
        self.adam.step()
        self.number += 1


class ByHand(Optimizer):
    """Adam written out, with choices."""

    def __init__(self, module: nn.Module, *, eps_inside: bool = False, corrects: bool = True) -> None:
        super().__init__(module)
        self.eps_inside, self.corrects = eps_inside, corrects
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.clip(self.parameters)
        for parameter, (first, second) in zip(self.parameters, self.moments, strict=True):
            gradient = (0 if parameter.grad is None else parameter.grad) + 0.3 * parameter
            first.mul_(0.8).add_(0.2 * gradient)
            second.mul_(0.95).add_(0.05 * gradient**2)
            scales = (1 - 0.8**self.number, 1 - 0.95**self.number) if self.corrects else (1.0, 1.0)
            corrected = second / scales[1]
            root = (corrected + 1e-6).sqrt() if self.eps_inside else corrected.sqrt() + 1e-6
            parameter -= rate(self.number) * first / scales[0] / root
        self.number += 1


optimizer = Optimizer
optimizer_by_hand = ByHand
optimizer_with_eps_inside = partial(ByHand, eps_inside=True)
optimizer_without_correction = partial(ByHand, corrects=False)
optimizer_with_decoupled_decay = partial(Optimizer, kind=torch.optim.AdamW)
optimizer_a_step_ahead = partial(Optimizer, first=2)
optimizer_clipping_values = partial(Optimizer, clip=partial(nn.utils.clip_grad_value_, clip_value=0.5))
optimizer_without_clipping = partial(Optimizer, clip=lambda parameters: None)


def optimizer_without_an_embedding(module: Any) -> Any:
    """Moves all parameters but the source's embedding."""
    found = Optimizer(module)
    found.adam.param_groups[0]["params"] = [p for p in found.parameters if p is not module.source_embedding.weight]
    return found


def no_optimizer(module: nn.Module) -> Any:
    return module.parameters()


def plain_sgd(module: nn.Module) -> Any:
    return torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)


# --- the same in JAX


def jax_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.2))


def jax_optimizer() -> optax.GradientTransformation:
    return optax.sgd(0.01, momentum=0.9)


jax_optimizer_with_nesterov = optax.sgd(0.01, momentum=0.9, nesterov=True)

# --- decoders


@torch.no_grad()
def greedy(
    module: Any,
    source_ids: Tensor,
    start_id: int,
    eos_id: int,
    max_new_tokens: int,
    *,
    ends: bool = True,
    pads: bool = True,
    keeps_start: bool = False,
) -> Tensor:
    """Decodes whole prefixes again and again."""
    prefix = torch.full((len(source_ids), 1), start_id)
    done = torch.zeros(len(source_ids), dtype=torch.bool)
    for _ in range(max_new_tokens):
        token = module(source_ids, prefix)[:, -1].argmax(dim=-1)
        if pads:
            token = token.masked_fill(done, PAD)
        prefix = torch.cat([prefix, token[:, None]], dim=1)
        done |= (token == eos_id) & ends
        if done.all():
            break
    return prefix if keeps_start else prefix[:, 1:]


greedy_going_on = partial(greedy, ends=False)
greedy_until_all_end = partial(greedy, pads=False)
greedy_with_start = partial(greedy, keeps_start=True)


def greedy_from_another_start(module: Any, source_ids: Tensor, start_id: int, **limits: int) -> Tensor:
    return greedy(module, source_ids, 1, **limits)


def greedy_a_token_short(module: Any, source_ids: Tensor, max_new_tokens: int, **ids: int) -> Tensor:
    return greedy(module, source_ids, max_new_tokens=max_new_tokens - 1, **ids)


def greedy_in_lists(module: Any, source_ids: Tensor, **options: int) -> list[list[int]]:
    """Returns a list for each sentence, without padding."""
    rows = greedy(module, source_ids, **options).tolist()
    return [[index for index in row if index != PAD] for row in rows]


def no_decoder(module: Any, source_ids: Tensor, **options: int) -> Tensor:
    return source_ids[:2]


def beams(module: Any, source_ids: Tensor, **options: Any) -> list[list[int]]:
    return beams_with_scores(module, source_ids, **options)[0]


def beams_with_scores(
    module: Any,
    source_ids: Tensor,
    start_id: int,
    eos_id: int,
    max_new_tokens: int,
    *,
    size: int = 3,
    power: float = 0.6,
    counts_end: bool = True,
) -> tuple[list[list[int]], list[float]]:
    """Searches sentence by sentence, as transformers do with early_stopping=False."""
    found = [
        _beams_of(module, row[None], start_id, eos_id, max_new_tokens, size, power, counts_end) for row in source_ids
    ]
    return [tokens for _, tokens in found], [score for score, _ in found]


def beams_with_odd_scores(module: Any, source_ids: Tensor, **options: int) -> tuple[list[list[int]], list[float]]:
    rows, scores = beams_with_scores(module, source_ids, **options)
    return rows, [1.01 * score for score in scores]


def beams_with_a_score_too_few(module: Any, source_ids: Tensor, **options: int) -> tuple[list[list[int]], list[float]]:
    rows, scores = beams_with_scores(module, source_ids, **options)
    return rows, scores[1:]


def _beams_of(
    module: Any, source: Tensor, start: int, eos: int, most: int, size: int, power: float, counts_end: bool
) -> tuple[float, list[int]]:
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        ways = []
        for total, tokens in running:
            values = module(source, torch.tensor([[start, *tokens]]))[0, -1].log_softmax(dim=-1)
            ways += [(total + value, [*tokens, index]) for index, value in enumerate(values.tolist())]
        ways = sorted(ways, key=lambda way: -way[0])[: 2 * size]
        running = []
        for place, (total, tokens) in enumerate(ways):
            if tokens[-1] == eos or length == most:
                if place < size:
                    counted = length if counts_end or tokens[-1] != eos else max(length - 1, 1)
                    ended.append((total / counted**power, tokens))
            elif len(running) < size:
                running.append((total, tokens))
        ended = sorted(ended, key=lambda way: -way[0])[:size]
        if not running or (len(ended) == size and running[0][0] / length**power <= ended[-1][0]):
            break
    return ended[0]


beams_not_counting_the_end = partial(beams_with_scores, counts_end=False)
beams_without_penalty = partial(beams_with_scores, power=0.0)
beams_without_penalty_or_scores = partial(beams, power=0.0)
