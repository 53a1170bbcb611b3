"""Proofs with a loss and an optimizer of a user's, as comparisons take them."""

from __future__ import annotations

from functools import cache
from typing import Any

import optax
import pytest
import torch
import user_programs
from torch import nn

from jax_transformer import TrainConfig
from jax_transformer.parity import Certificate, ParityError, Side, prove
from jax_transformer.parity.backends import lowering
from jax_transformer.parity.backends.proof_torch import _exact_corrections
from jax_transformer.porting import import_checkpoint
from jax_transformer.storage.model_directory import Model
from torch_reference.pytorch import PytorchTransformer

SIZES = {"source_vocab_size": 7, "target_vocab_size": 8, "d_model": user_programs.D_MODEL, "num_heads": 3, "d_ff": 5}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 4, "source_pad_id": 1}
RULE = TrainConfig(**user_programs.CONFIG)


def build() -> Any:
    torch.manual_seed(0)
    return PytorchTransformer(**SIZES, target_pad_id=user_programs.PAD).eval()


@cache
def model() -> Model:
    hints = {"num_heads": 3, "source_pad_id": 1, "target_pad_id": 2, "norm_placement": "post", "activation": "relu"}
    return import_checkpoint(build().state_dict(), "pytorch", **hints)


NONE: dict[str, Any] = {}


def proof(*stages: str, ours: dict[str, Any] = NONE, theirs: dict[str, Any] = NONE, **options: Any) -> Certificate:
    return prove(Side(model(), **ours), Side(build(), **theirs), dialect="pytorch", stages=stages, **options)


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes one step instead of three, for time."""
    monkeypatch.setattr(lowering, "STEPS", (1,))


@pytest.mark.usefixtures("one_step")
def test_an_optimizer_is_proven_at_its_own_rates() -> None:
    """Its float corrections and rates become tensors, so that no rounding of them counts."""
    certificate = proof("steps", train=RULE, theirs={"optimizer": user_programs.optimizer})
    assert certificate.stages[0].verdict == "proven", str(certificate)
    assert "learning rates" not in certificate.tasks[0].candidate.inputs  # it isn't proven for all rates


@pytest.mark.usefixtures("one_step")
def test_a_wrong_optimizer_is_refuted_and_shown() -> None:
    certificate = proof("steps", train=RULE, theirs={"optimizer": user_programs.optimizer_a_step_ahead})
    assert certificate.verdict == "refuted"
    assert certificate.difference["name"].startswith("after step 1: ")
    assert certificate.difference["witness"]["found"]


@pytest.mark.usefixtures("one_step")
@pytest.mark.nightly
def test_both_optimizers_may_be_of_a_user() -> None:
    def sgd(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), 0.01)

    proofs = [proof("steps", theirs={"optimizer": sgd}, ours={"optimizer": optax.sgd(rate)}) for rate in (0.01, 0.02)]
    assert [one.stages[0].verdict for one in proofs] == ["proven", "refuted"]


@pytest.mark.usefixtures("one_step")
@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        (lambda logits: 1.0, "proven"),  # which no gradient shows
        (lambda logits: torch.log(-1 - (logits**2).sum()).detach(), "unknown"),
    ],
)
def test_steps_are_defined_where_the_loss_is(more: Any, verdict: str) -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return user_programs.loss(logits, labels) + more(logits)

    def sgd(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), 0.01)

    ours = {"loss": user_programs.jax_loss, "optimizer": optax.sgd(0.01)}
    (stage,) = proof("steps", ours=ours, theirs={"loss": loss, "optimizer": sgd}).stages[:1]
    assert stage.verdict == verdict, stage.reason


def test_both_losses_may_be_of_a_user() -> None:
    ours = {"loss": user_programs.jax_loss}
    assert proof("loss", ours=ours, theirs={"loss": user_programs.loss}).verdict == "proven"
    wrong = proof("loss", ours=ours, theirs={"loss": user_programs.loss_without_smoothing})
    assert wrong.verdict == "refuted"


def test_an_operation_of_a_loss_without_a_rule_is_unknown() -> None:
    certificate = proof("loss", train=RULE, theirs={"loss": user_programs.loss_of_odd_power})
    assert certificate.verdict == "unknown"
    assert "user_programs.py:" in certificate.stages[0].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": user_programs.failing_loss}, "loss failing_loss: raised"),
        ({"loss": user_programs.losses_of_tokens}, "loss losses_of_tokens: expected"),
        ({"optimizer": user_programs.no_optimizer}, "optimizer no_optimizer: expected"),
    ],
)
def test_a_program_that_is_none_is_one_clear_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParityError, match=message):
        proof("loss" if "loss" in options else "steps", train=RULE, theirs=options)


def test_an_optimizer_has_its_own_options_after_each_step() -> None:
    """Also after one that raises."""
    weight = torch.ones(2, requires_grad=True)
    inner = torch.optim.Adam([weight], 0.1)
    usual = dict(inner.param_groups[0])

    def fail() -> float:
        assert inner.param_groups[0]["capturable"]
        raise ArithmeticError

    with _exact_corrections():
        weight.sum().backward()
        inner.step()
        assert inner.param_groups[0] == usual
        assert not torch.compiler.is_compiling()
        with pytest.raises(ArithmeticError):
            inner.step(fail)
    assert inner.param_groups[0] == usual
    assert not torch.compiler.is_compiling()
    assert torch.get_default_dtype() == torch.float32
