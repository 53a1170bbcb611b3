"""Ways to write one function, and functions that look alike: a list for the adversary, each checked with 60 digits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proof.adversary_expressions import Expr, Truth, lift, source, truth_of, weights_in

NOWHERE = "nowhere"

X = Callable[..., Expr]


@dataclass(frozen=True)
class Rule:
    area: str
    base: X
    equal: tuple[X, ...] = ()
    different: tuple[X, ...] = ()
    """Functions of x, y (2 × 4) and the matrix m."""
    has_traps: bool = False
    """Whether gradients are NaN where the function isn't, through a branch that isn't taken."""


RULES = (
    Rule(
        "exponentials",
        lambda x, y, m: x,
        (lambda x, y, m: x.exp().log(), lambda x, y, m: x.log().exp(), lambda x, y, m: x.expm1().log1p()),
        (lambda x, y, m: x.abs().log().exp(), lambda x, y, m: (x + 1e-3).exp().log(), lambda x, y, m: x.exp().log1p()),
    ),
    Rule(
        "exponentials",
        lambda x, y, m: (x + y).exp(),
        (lambda x, y, m: x.exp() * y.exp(), lambda x, y, m: x.exp() / (-y).exp(), lambda x, y, m: 1 / (-(x + y)).exp()),
        (lambda x, y, m: x.exp() + y.exp(), lambda x, y, m: x.exp() / y.exp(), lambda x, y, m: (x + y).expm1()),
    ),
    Rule(
        "exponentials",
        lambda x, y, m: (2 * x).exp(),
        (lambda x, y, m: x.exp().square(), lambda x, y, m: x.exp() * x.exp(), lambda x, y, m: x.exp().power(value=2)),
        (lambda x, y, m: 2 * x.exp(), lambda x, y, m: x.square().exp(), lambda x, y, m: (2.000001 * x).exp()),
    ),
    Rule(
        "logarithms",
        lambda x, y, m: (1 + x * x).log() + (2 + y * y).log(),
        (
            lambda x, y, m: ((1 + x * x) * (2 + y * y)).log(),
            lambda x, y, m: (x * x).log1p() + (1 + y * y).log1p(),
            lambda x, y, m: -(1 / ((1 + x * x) * (2 + y * y))).log(),
        ),
        (
            lambda x, y, m: ((1 + x * x) + (2 + y * y)).log(),
            lambda x, y, m: ((1 + x * x) / (2 + y * y)).log(),
            lambda x, y, m: (x * x).log1p() + (2 + y * y).log1p(),
        ),
    ),
    Rule(
        "logarithms",
        lambda x, y, m: (x * x).log(),
        (lambda x, y, m: 2 * x.abs().log(), lambda x, y, m: 2 * x.log(), lambda x, y, m: (-x).log() * 2),
        (lambda x, y, m: x.log() / 2, lambda x, y, m: (x * x).log1p(), lambda x, y, m: (x * x + 1e-6).log()),
    ),
    Rule(
        "logarithms",
        lambda x, y, m: (x * y).log(),
        (lambda x, y, m: x.log() + y.log(), lambda x, y, m: x.abs().log() + y.abs().log()),
        (lambda x, y, m: x.log() * y.log(), lambda x, y, m: x.log() - y.log(), lambda x, y, m: (x * x * y).log()),
    ),
    Rule(
        "logarithms",
        lambda x, y, m: (1 + x * x).log2(),
        (lambda x, y, m: (1 + x * x).log() / math.log(2), lambda x, y, m: (1 + x * x).log() * 1.4426950408889634),
        (lambda x, y, m: (1 + x * x).log() * math.log(2), lambda x, y, m: (1 + x * x).log() * 1.4427),
    ),
    Rule(
        "roots",
        lambda x, y, m: x,
        (lambda x, y, m: x.sqrt().square(), lambda x, y, m: x.sqrt() * x.sqrt(), lambda x, y, m: x * x / x),
        (lambda x, y, m: x.square().sqrt(), lambda x, y, m: x.abs().sqrt().square(), lambda x, y, m: x.square() / 2),
    ),
    Rule(
        "roots",
        lambda x, y, m: x.abs(),
        (
            lambda x, y, m: x.square().sqrt(),
            lambda x, y, m: x.max(-x),
            lambda x, y, m: x * x.sign(),
            lambda x, y, m: x.relu() + (-x).relu(),
            lambda x, y, m: x.where_gt(0, x, -x),
            lambda x, y, m: (x * x).power(value=0.5),
        ),
        (
            lambda x, y, m: x,
            lambda x, y, m: (x * x + 1e-6).sqrt(),
            lambda x, y, m: x.min(-x),
            lambda x, y, m: x.relu(),
            lambda x, y, m: x.where_gt(1, x, -x),
        ),
    ),
    Rule(
        "roots",
        lambda x, y, m: (1 + x * x).rsqrt(),
        (
            lambda x, y, m: 1 / (1 + x * x).sqrt(),
            lambda x, y, m: (1 / (1 + x * x)).sqrt(),
            lambda x, y, m: (1 + x * x).power(value=-0.5),
            lambda x, y, m: (1 + x * x).sqrt() / (1 + x * x),
            lambda x, y, m: ((1 + x * x).log() * -0.5).exp(),
        ),
        (
            lambda x, y, m: 1 / (1 + x * x),
            lambda x, y, m: (1.00001 + x * x).rsqrt(),
            lambda x, y, m: (1 + x * x).power(value=-0.25),
            lambda x, y, m: 1 / (1 + x.abs()),
        ),
    ),
    Rule(
        "roots",
        lambda x, y, m: (x * y).sqrt(),
        (lambda x, y, m: x.sqrt() * y.sqrt(), lambda x, y, m: (-x).sqrt() * (-y).sqrt()),
        (lambda x, y, m: x.sqrt() + y.sqrt(), lambda x, y, m: (x * x * y).sqrt(), lambda x, y, m: (x + y).sqrt()),
    ),
    Rule(
        "roots",
        lambda x, y, m: ((1 + x * x) * (4 + y * y)).sqrt(),
        (
            lambda x, y, m: (1 + x * x).sqrt() * (4 + y * y).sqrt(),
            lambda x, y, m: 2 * ((1 + x * x) * (1 + y * y / 4)).sqrt(),
        ),
        (lambda x, y, m: 2 * ((1 + x * x) * (1 + y * y)).sqrt(), lambda x, y, m: (1 + x * x) * (4 + y * y).sqrt()),
    ),
    Rule(
        "hyperbolic",
        lambda x, y, m: x.tanh(),
        (
            lambda x, y, m: 2 * (2 * x).sigmoid() - 1,
            lambda x, y, m: x.sinh() / x.cosh(),
            lambda x, y, m: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
            lambda x, y, m: 1 - 2 / ((2 * x).exp() + 1),
            lambda x, y, m: -(-x).tanh(),
        ),
        (
            lambda x, y, m: 2 * x.sigmoid() - 1,
            lambda x, y, m: x.clip(value=(-1.0, 1.0)),
            lambda x, y, m: x.atan(),
            lambda x, y, m: x / (1 + x.abs()),
        ),
    ),
    Rule(
        "hyperbolic",
        lambda x, y, m: x.sigmoid(),
        (
            lambda x, y, m: 1 / (1 + (-x).exp()),
            lambda x, y, m: x.exp() / (1 + x.exp()),
            lambda x, y, m: 1 - (-x).sigmoid(),
            lambda x, y, m: 0.5 * (1 + (0.5 * x).tanh()),
            lambda x, y, m: x.log_sigmoid().exp(),
        ),
        (
            lambda x, y, m: (-x).sigmoid(),
            lambda x, y, m: (1.702 * x).sigmoid(),
            lambda x, y, m: (0.2 * x + 0.5).clip(value=(0.0, 1.0)),
            lambda x, y, m: 1 / (1 + x.exp()),
        ),
    ),
    Rule(
        "trigonometry",
        lambda x, y, m: x.sin() * x.sin() + y,
        (
            lambda x, y, m: 1 - x.cos() * x.cos() + y,
            lambda x, y, m: (1 - (2 * x).cos()) / 2 + y,
            lambda x, y, m: y + (-x).sin() * (-x).sin(),
        ),
        (
            lambda x, y, m: x.cos() * x.cos() + y,
            lambda x, y, m: (x * x).sin() + y,
            lambda x, y, m: (-x).sin() * x.sin() + y,
        ),
    ),
    Rule(
        "trigonometry",
        lambda x, y, m: (x + y).sin(),
        (
            lambda x, y, m: x.sin() * y.cos() + x.cos() * y.sin(),
            lambda x, y, m: -(-x - y).sin(),
            lambda x, y, m: (x + y - math.pi / 2).cos(),
        ),
        (
            lambda x, y, m: x.sin() * y.cos() - x.cos() * y.sin(),
            lambda x, y, m: (x + y).cos(),
            lambda x, y, m: x.sin() + y.sin(),
        ),
    ),
    Rule(
        "trigonometry",
        lambda x, y, m: x.tan(),
        (lambda x, y, m: x.sin() / x.cos(), lambda x, y, m: -(-x).tan()),
        (lambda x, y, m: x.cos() / x.sin(), lambda x, y, m: x.tanh()),
    ),
    Rule(
        "domains",
        lambda x, y, m: x.asin(),
        (lambda x, y, m: math.pi / 2 - x.acos(), lambda x, y, m: -(-x).asin()),
        (lambda x, y, m: x.acos(), lambda x, y, m: x.clip(value=(-0.5, 0.5)).asin()),
    ),
    Rule(
        "domains",
        lambda x, y, m: x.asin().sin(),
        (lambda x, y, m: x, lambda x, y, m: x.acos().cos(), lambda x, y, m: x.clip(value=(-1.0, 1.0))),
        (lambda x, y, m: x.abs(), lambda x, y, m: x.sin()),
    ),
    Rule(
        "domains",
        lambda x, y, m: x * y / y,
        (lambda x, y, m: x, lambda x, y, m: x * (y * y.reciprocal()), lambda x, y, m: x / (1 / y) / y),
        (lambda x, y, m: x * y, lambda x, y, m: x * y / (y + 1e-6), lambda x, y, m: x * y / y.abs()),
    ),
    Rule(
        "domains",
        lambda x, y, m: x.power(value=1.5),
        (
            lambda x, y, m: x * x.sqrt(),
            lambda x, y, m: x.sqrt().power(value=3),
            lambda x, y, m: x.abs().power(value=1.5),
            lambda x, y, m: (1.5 * x.log()).exp(),
        ),
        (lambda x, y, m: x * x, lambda x, y, m: x.power(value=2.5), lambda x, y, m: x.power(value=1.4375)),
    ),
    Rule(
        "domains",
        lambda x, y, m: x.power_of(y),
        (lambda x, y, m: (y * x.log()).exp(), lambda x, y, m: x.power_of(y - 1) * x),
        (lambda x, y, m: y.power_of(x), lambda x, y, m: x.power_of(-y)),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: (-1 - x * x).sqrt() + y,
        (
            lambda x, y, m: (-1 - x * x).sqrt() + y,
            lambda x, y, m: (-1 - x * x).sqrt() * 0 + y,
            lambda x, y, m: y,
            lambda x, y, m: y + 1,
        ),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: (-1 - x * x).log().exp() + y,
        (
            lambda x, y, m: -1 - x * x + y,
            lambda x, y, m: y,
            lambda x, y, m: (-1 - x * x).sqrt().square() + y,
            lambda x, y, m: (-2 - x * x).log().exp() + y,
        ),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: y + 0 * (2 + x * x).asin(),
        (
            lambda x, y, m: y,
            lambda x, y, m: y + 1,
            lambda x, y, m: y + 0 * (2 + x * x).acos(),
            lambda x, y, m: y + (2 + x * x).asin().sin(),
        ),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: y + x / (x - x),
        (lambda x, y, m: y, lambda x, y, m: y + (x - x).reciprocal(), lambda x, y, m: y + (x - x).rsqrt() * 0),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: y * (x.tanh() - 2).rsqrt(),
        (
            lambda x, y, m: y / (x.tanh() - 2).sqrt(),
            lambda x, y, m: y,
            lambda x, y, m: y * (x.sigmoid() - 1).power(value=-0.5),
            lambda x, y, m: y * (x.tanh() - 3).rsqrt(),
        ),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: y * (-x.exp()).log(),
        (lambda x, y, m: y * x, lambda x, y, m: y * (-(2 * x).exp()).log(), lambda x, y, m: y * (-(x.square())).log()),
    ),
    Rule(
        "defined nowhere",
        lambda x, y, m: y + (-x.softmax()).log(),
        (lambda x, y, m: y + x.log_softmax(), lambda x, y, m: y + (-x.softmax()).sqrt(), lambda x, y, m: y),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.relu(),
        (
            lambda x, y, m: (x + x.abs()) / 2,
            lambda x, y, m: x.max(0),
            lambda x, y, m: x.where_gt(0, x, 0.0),
            lambda x, y, m: x - x.min(0),
            lambda x, y, m: x * (1 + x.sign()) / 2,
            lambda x, y, m: x + (-x).relu(),
        ),
        (
            lambda x, y, m: x.relu6(),
            lambda x, y, m: x.leaky(),
            lambda x, y, m: x.elu(),
            lambda x, y, m: x.clip(value=(0.0, 1e6)),
            lambda x, y, m: x.max(1e-3),
            lambda x, y, m: x,
            lambda x, y, m: x.where_gt(1e-2, x, 0.0),
        ),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.silu(),
        (
            lambda x, y, m: x * x.sigmoid(),
            lambda x, y, m: x / (1 + (-x).exp()),
            lambda x, y, m: x - x * (-x).sigmoid(),
            lambda x, y, m: 0.5 * x * (1 + (x / 2).tanh()),
            lambda x, y, m: x + (-x).silu(),
        ),
        (
            lambda x, y, m: x.gelu(),
            lambda x, y, m: x * (1.702 * x).sigmoid(),
            lambda x, y, m: x / (1 + x.exp()),
            lambda x, y, m: 0.5 * x * (1 + x.tanh()),
        ),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.gelu(),
        (
            lambda x, y, m: 0.5 * x * (1 + (x / math.sqrt(2)).erf()),
            lambda x, y, m: x * (1 - 0.5 * (x * math.sqrt(0.5)).erfc()),
            lambda x, y, m: 0.5 * x * (-x / math.sqrt(2)).erfc(),
            lambda x, y, m: x + (-x).gelu(),
        ),
        (
            lambda x, y, m: x.gelu_tanh(),
            lambda x, y, m: 0.5 * x * (1 + x.erf()),
            lambda x, y, m: 0.5 * x * (x / math.sqrt(2)).erfc(),
            lambda x, y, m: x.silu(),
            lambda x, y, m: x.relu(),
        ),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.gelu_tanh(),
        (
            lambda x, y, m: 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh()),
            lambda x, y, m: x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x.power(value=3))).sigmoid(),
        ),
        (
            lambda x, y, m: 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044716 * x * x * x)).tanh()),
            lambda x, y, m: 0.5 * x * (1 + (0.7978 * (x + 0.044715 * x * x * x)).tanh()),
        ),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.softplus(),
        (
            lambda x, y, m: x.exp().log1p(),
            lambda x, y, m: (1 + x.exp()).log(),
            lambda x, y, m: x.relu() + (-x.abs()).exp().log1p(),
            lambda x, y, m: -(-x).log_sigmoid(),
            lambda x, y, m: x + (-x).softplus(),
            lambda x, y, m: x.logaddexp(lift(0.0) * x),
        ),
        (
            lambda x, y, m: x.relu(),
            lambda x, y, m: x.exp(),
            lambda x, y, m: x.relu() + x.abs().exp().log1p(),
            lambda x, y, m: (1.0001 + x.exp()).log(),
        ),
    ),
    Rule(
        "activations",
        lambda x, y, m: x.silu() * y,
        (lambda x, y, m: y * x / (1 + (-x).exp()), lambda x, y, m: y * x * x.sigmoid()),
        (lambda x, y, m: x * y.silu(), lambda x, y, m: (x * y).silu()),
    ),
    Rule(
        "choices",
        lambda x, y, m: x.max(y),
        (
            lambda x, y, m: (x + y + (x - y).abs()) / 2,
            lambda x, y, m: x + (y - x).relu(),
            lambda x, y, m: -((-x).min(-y)),
            lambda x, y, m: x.where_gt(y, x, y),
            lambda x, y, m: x + y - x.min(y),
            lambda x, y, m: y.max(x),
            lambda x, y, m: y.where_ge(x, y, x),
        ),
        (
            lambda x, y, m: x.min(y),
            lambda x, y, m: x.where_gt(y, y, x),
            lambda x, y, m: x.logaddexp(y),
            lambda x, y, m: x.abs().max(y.abs()),
            lambda x, y, m: x + (x - y).relu(),
            lambda x, y, m: x.where_gt(-y, x, y),
        ),
    ),
    Rule(
        "choices",
        lambda x, y, m: x.clip(value=(-1.0, 2.0)),
        (
            lambda x, y, m: x.max(-1).min(2),
            lambda x, y, m: x.min(2).max(-1),
            lambda x, y, m: (x + 1).relu() - 1 - (x - 2).relu(),
            lambda x, y, m: x.where_gt(2, 2.0, x.where_gt(-1, x, -1.0)),
        ),
        (
            lambda x, y, m: x.clip(value=(-1.0, 2.001)),
            lambda x, y, m: x.clip(value=(-2.0, 1.0)),
            lambda x, y, m: x.min(2),
            lambda x, y, m: (x + 1).relu() - 1,
        ),
    ),
    Rule(
        "choices",
        lambda x, y, m: x.where_gt(y, x * y, x + y),
        (lambda x, y, m: y.where_ge(x, x + y, x * y), lambda x, y, m: (x - y).where_gt(0, y * x, y + x)),
        (
            lambda x, y, m: y.where_gt(x, x * y, x + y),
            lambda x, y, m: x.where_gt(y + 1, x * y, x + y),
            lambda x, y, m: (2 * x).where_gt(y, x * y, x + y),
            lambda x, y, m: x.square().where_gt(y.square(), x * y, x + y),
        ),
    ),
    Rule(
        "choices",
        lambda x, y, m: x.where_gt(0, x.sqrt(), y),
        (lambda x, y, m: x.where_gt(0, x.relu().sqrt(), y), lambda x, y, m: x.where_gt(0, x.abs().sqrt(), y)),
        (
            lambda x, y, m: x.where_gt(0, x.sqrt(), x),
            lambda x, y, m: x.where_gt(1, x.abs().sqrt(), y),
            lambda x, y, m: x.relu().sqrt(),
        ),
        has_traps=True,
    ),
    Rule(
        "choices",
        lambda x, y, m: (1 + x * x).where_gt(0, y, 0.0),
        (lambda x, y, m: y, lambda x, y, m: x.exp().where_gt(0, y, x), lambda x, y, m: x.where_gt(2 + x * x, x, y)),
        (
            lambda x, y, m: (x * x).where_gt(1, y, 0.0),
            lambda x, y, m: (1 + x).where_gt(0, y, 0.0),
            lambda x, y, m: (x * x - 1e-4).where_gt(0, y, 0.0),
        ),
    ),
    Rule(
        "choices",
        lambda x, y, m: (x * x + y * y + 1e-3).where_gt(1e-4, x, y),
        (lambda x, y, m: x, lambda x, y, m: (x * x + y * y).where_ge(0, x, y)),
        (lambda x, y, m: y, lambda x, y, m: (x * x + y * y).where_gt(1e-2, x, y)),
    ),
    Rule(
        "steps",
        lambda x, y, m: x.floor() + y,
        (lambda x, y, m: (x + 1).floor() + y - 1, lambda x, y, m: y + x - (x - x.floor())),
        (lambda x, y, m: x + y, lambda x, y, m: x.round() + y, lambda x, y, m: (x + 0.5).floor() + y),
    ),
    Rule(
        "steps",
        lambda x, y, m: x.sign() * y,
        (lambda x, y, m: x / x.abs() * y, lambda x, y, m: x.where_gt(0, y, -y), lambda x, y, m: (3 * x).sign() * y),
        (lambda x, y, m: y, lambda x, y, m: (x + 1).sign() * y, lambda x, y, m: x.square().sign() * y),
    ),
    Rule(
        "softmax",
        lambda x, y, m: x.softmax() * y,
        (
            lambda x, y, m: (x - x.top()).softmax() * y,
            lambda x, y, m: x.exp() / x.exp().sum() * y,
            lambda x, y, m: x.log_softmax().exp() * y,
            lambda x, y, m: (x - x.logsumexp()).exp() * y,
            lambda x, y, m: (x + y.sum()).softmax() * y,
            lambda x, y, m: (x - x.first()).exp() / (x - x.first()).exp().sum() * y,
            lambda x, y, m: (x - x.mean()).exp() * y / (x - x.mean()).exp().sum(),
        ),
        (
            lambda x, y, m: (2 * x).softmax() * y,
            lambda x, y, m: (x + y).softmax() * y,
            lambda x, y, m: (x * x.top()).softmax() * y,
            lambda x, y, m: x.exp() / (1 + x.exp().sum()) * y,
            lambda x, y, m: x.exp() / x.exp().mean() * y,
            lambda x, y, m: x.sigmoid() * y,
            lambda x, y, m: (x - x.exchange().top()).exp() / x.exp().sum() * y,
        ),
    ),
    Rule(
        "softmax",
        lambda x, y, m: x.log_softmax(),
        (
            lambda x, y, m: x.softmax().log(),
            lambda x, y, m: x - x.exp().sum().log(),
            lambda x, y, m: x - x.top() - (x - x.top()).exp().sum().log(),
            lambda x, y, m: x - x.logsumexp(),
        ),
        (
            lambda x, y, m: x.softmax(),
            lambda x, y, m: x - x.exp().mean().log(),
            lambda x, y, m: (x.softmax() + 1e-7).log(),
            lambda x, y, m: x - x.top() - x.exp().sum().log(),
            lambda x, y, m: x.log_sigmoid(),
        ),
    ),
    Rule(
        "softmax",
        lambda x, y, m: x.logsumexp() + y,
        (
            lambda x, y, m: x.exp().sum().log() + y,
            lambda x, y, m: (x + y.sum()).logsumexp() - y.sum() + y,
            lambda x, y, m: x.flip().logsumexp() + y,
            lambda x, y, m: x.top() + (x - x.top()).exp().sum().log() + y,
        ),
        (
            lambda x, y, m: x.top() + y,
            lambda x, y, m: x.exp().sum().log1p() + y,
            lambda x, y, m: (2 * x).logsumexp() / 2 + y,
            lambda x, y, m: x.exchange().logsumexp() + y,
        ),
    ),
    Rule(
        "softmax",
        lambda x, y, m: x.exp() / (x.exp() + y.exp()),
        (lambda x, y, m: (x - y).sigmoid(), lambda x, y, m: 1 / (1 + (y - x).exp())),
        (lambda x, y, m: (y - x).sigmoid(), lambda x, y, m: (x + y).sigmoid()),
    ),
    Rule(
        "variance",
        lambda x, y, m: x.variance(value=0) * y,
        (
            lambda x, y, m: ((x * x).mean() - x.mean() * x.mean()) * y,
            lambda x, y, m: (x - x.mean()).square().mean() * y,
            lambda x, y, m: x.variance(value=1) * 0.75 * y,
            lambda x, y, m: (x - x.first()).variance(value=0) * y,
            lambda x, y, m: ((x.square().sum() - x.sum().square() / 4) / 4) * y,
        ),
        (
            lambda x, y, m: x.variance(value=1) * y,
            lambda x, y, m: x.square().mean() * y,
            lambda x, y, m: x.variance(value=0) * 0.75 * y,
            lambda x, y, m: x.exchange().variance(value=0) * y,
            lambda x, y, m: (x - x.top()).square().mean() * y,
        ),
    ),
    Rule(
        "norms",
        lambda x, y, m: (x - x.mean()) * (x.variance(value=0) + 1e-5).rsqrt() * y,
        (
            lambda x, y, m: y * (x - x.mean()) / (x.variance(value=0) + 1e-5).sqrt(),
            lambda x, y, m: y * (x - x.mean()) / ((x * x).mean() - x.mean().square() + 1e-5).sqrt(),
            lambda x, y, m: y * (2 * x - 2 * x.mean()) / ((2 * x).variance(value=0) + 4e-5).sqrt(),
        ),
        (
            lambda x, y, m: y * (x - x.mean()) / (x.variance(value=0) + 1e-6).sqrt(),
            lambda x, y, m: y * (x - x.mean()) / (x.variance(value=1) + 1e-5).sqrt(),
            lambda x, y, m: y * (x - x.mean()) / ((x.variance(value=0)).sqrt() + 1e-5),
            lambda x, y, m: y * x * (x.square().mean() + 1e-5).rsqrt(),
            lambda x, y, m: y * (x - x.mean()) * (x.variance(value=0) + 1.001e-5).rsqrt(),
        ),
    ),
    Rule(
        "norms",
        lambda x, y, m: x * (x.square().mean() + 1e-6).rsqrt() * (1 + y),
        (
            lambda x, y, m: (x + x * y) / (x.square().mean() + 1e-6).sqrt(),
            lambda x, y, m: x / (x.square().sum() / 4 + 1e-6).power(value=0.5) * (y + 1),
        ),
        (
            lambda x, y, m: x * (x.square().mean() + 1e-6).rsqrt() * y,
            lambda x, y, m: x * (x.square().sum() + 1e-6).rsqrt() * (1 + y),
            lambda x, y, m: x * x.square().mean().rsqrt() * (1 + y),
            lambda x, y, m: x * x.square().mean().max(1e-6).rsqrt() * (1 + y),
        ),
    ),
    Rule(
        "norms",
        lambda x, y, m: x / x.norm() * y,
        (
            lambda x, y, m: x * y / x.square().sum().sqrt(),
            lambda x, y, m: y * (2 * x) / (2 * x).norm(),
            lambda x, y, m: y * x * x.square().sum().rsqrt(),
        ),
        (
            lambda x, y, m: x / x.norm().max(1e-3) * y,
            lambda x, y, m: x / x.abs().sum() * y,
            lambda x, y, m: x / (x.norm() + 1e-6) * y,
            lambda x, y, m: x / x.deviation(value=0) * y,
        ),
    ),
    Rule(
        "norms",
        lambda x, y, m: x.deviation(value=1) + y,
        (lambda x, y, m: x.variance(value=1).sqrt() + y, lambda x, y, m: x.deviation(value=0) * math.sqrt(4 / 3) + y),
        (lambda x, y, m: x.deviation(value=0) + y, lambda x, y, m: x.deviation(value=1) * math.sqrt(4 / 3) + y),
    ),
    Rule(
        "products",
        lambda x, y, m: x.times_t(m) + y,
        (
            lambda x, y, m: x.einsum(m) + y,
            lambda x, y, m: y - (-x).times_t(m),
            lambda x, y, m: (x * 2).times_t(m) / 2 + y,
            lambda x, y, m: x.exchange().times_t(m).exchange() + y,
        ),
        (
            lambda x, y, m: x.times(m) + y,
            lambda x, y, m: x.flip().times_t(m) + y,
            lambda x, y, m: x.times_t(m).flip() + y,
            lambda x, y, m: x.times_t(m) + y.exchange(),
            lambda x, y, m: (x + y).times_t(m),
        ),
    ),
    Rule(
        "products",
        lambda x, y, m: (x + y).times(m).times_t(m),
        (
            lambda x, y, m: x.times(m).times_t(m) + y.times(m).times_t(m),
            lambda x, y, m: (x.times(m) + y.times(m)).einsum(m),
        ),
        (
            lambda x, y, m: (x + y).times_t(m).times(m),
            lambda x, y, m: (x + y).times(m).times(m),
            lambda x, y, m: x.times(m).times_t(m) + y.times(m),
        ),
    ),
    Rule(
        "algebra",
        lambda x, y, m: x * x - y * y,
        (
            lambda x, y, m: (x - y) * (x + y),
            lambda x, y, m: x.power(value=2) - y.square(),
            lambda x, y, m: (x + y).square() - 2 * y * (x + y),
        ),
        (
            lambda x, y, m: (x - y) * (x - y),
            lambda x, y, m: x.abs() * x - y * y,
            lambda x, y, m: x * x - y * y + 1e-9 * x,
            lambda x, y, m: (x - y) * (y + y),
        ),
    ),
    Rule(
        "algebra",
        lambda x, y, m: (x + y).power(value=3),
        (
            lambda x, y, m: x * x * x + 3 * x * x * y + 3 * x * y * y + y * y * y,
            lambda x, y, m: (x + y).square() * (y + x),
        ),
        (
            lambda x, y, m: x.power(value=3) + y.power(value=3),
            lambda x, y, m: (x + y).abs().power(value=3),
            lambda x, y, m: (x + y).power(value=2) * x,
        ),
    ),
    Rule(
        "algebra",
        lambda x, y, m: 1 / (1 + x.exp()) + 1 / (1 + (-x).exp()) + y,
        (lambda x, y, m: y + 1, lambda x, y, m: y + x.sigmoid() + (-x).sigmoid()),
        (lambda x, y, m: y + 1.0001, lambda x, y, m: y + 2 * x.sigmoid()),
    ),
    Rule(
        "reductions",
        lambda x, y, m: x.mean() * y,
        (
            lambda x, y, m: x.sum() / 4 * y,
            lambda x, y, m: x.sum() * 0.25 * y,
            lambda x, y, m: x.flip().mean() * y,
            lambda x, y, m: x.cumsum().last() / 4 * y,
            lambda x, y, m: x.sort().mean() * y,
            lambda x, y, m: (x - y).mean() * y + y.mean() * y,
        ),
        (
            lambda x, y, m: x.sum() / 3 * y,
            lambda x, y, m: x.mean() * y.flip(),
            lambda x, y, m: x.exchange().mean() * y,
            lambda x, y, m: x.cumsum().mean() * y,
            lambda x, y, m: (x.top() + x.bottom()) / 2 * y,
        ),
    ),
    Rule(
        "reductions",
        lambda x, y, m: x.top() + y,
        (
            lambda x, y, m: x.sort().last() + y,
            lambda x, y, m: -((-x).bottom()) + y,
            lambda x, y, m: x.roll().top() + y,
            lambda x, y, m: (x + y.sum()).top() - y.sum() + y,
            lambda x, y, m: x.flip().sort().flip().first() + y,
        ),
        (
            lambda x, y, m: x.abs().top() + y,
            lambda x, y, m: x.last() + y,
            lambda x, y, m: x.sort().first() + y,
            lambda x, y, m: x.exchange().top() + y,
            lambda x, y, m: (x - y).top() + y,
            lambda x, y, m: (2 * x).top() + y,
            lambda x, y, m: (-x).top() + y,
        ),
    ),
    Rule(
        "reductions",
        lambda x, y, m: x.prod() + y,
        (lambda x, y, m: x.flip().prod() + y, lambda x, y, m: (-x).prod() + y, lambda x, y, m: x.sort().prod() + y),
        (lambda x, y, m: x.abs().prod() + y, lambda x, y, m: x.sum() + y, lambda x, y, m: (2 * x).prod() + y),
    ),
    Rule(
        "moves",
        lambda x, y, m: x.sort() * y.sort(),
        (lambda x, y, m: x.flip().sort() * y.roll().sort(), lambda x, y, m: (-x).sort().flip() * -1 * y.sort()),
        (
            lambda x, y, m: (x * y).sort(),
            lambda x, y, m: x.sort() * y.sort().flip(),
            lambda x, y, m: x.sort() * y,
            lambda x, y, m: x.exchange().sort() * y.sort(),
        ),
    ),
    Rule(
        "moves",
        lambda x, y, m: x.cumsum() + y,
        (lambda x, y, m: (x + y).cumsum() - y.cumsum() + y, lambda x, y, m: x.sum() - x.flip().cumsum().flip() + x + y),
        (
            lambda x, y, m: x.flip().cumsum().flip() + y,
            lambda x, y, m: x.cumsum() - x + y,
            lambda x, y, m: x.sort().cumsum() + y,
        ),
    ),
    Rule(
        "moves",
        lambda x, y, m: x.roll() * y,
        (lambda x, y, m: (x * y.roll().roll().roll()).roll(), lambda x, y, m: x.flip().roll().roll().roll().flip() * y),
        (lambda x, y, m: x * y.roll(), lambda x, y, m: x.roll().roll().roll() * y, lambda x, y, m: x.flip() * y),
    ),
)


@dataclass(frozen=True)
class Made:
    """Two expressions and what is true of them."""

    area: str
    name: str
    candidate: Expr
    reference: Expr
    truth: Truth
    has_traps: bool


W, V, M = (Expr("weight", value=name) for name in ("w", "v", "m"))
ARGUMENTS: tuple[tuple[str, Expr, Expr], ...] = (
    ("w, v", W, V),
    ("w·v, w − v", W * V, W - V),
    ("w·mᵀ, v", W.times_t(M), V),
    ("w + 1/2, v·m", W + 0.5, V.times(M)),
    ("tanh(w), w + v", W.tanh(), W + V),
    ("w² − v, v", W.square() - V, V),
)
CONTEXTS: tuple[tuple[str, Callable[[Expr], Expr]], ...] = (
    ("alone", lambda e: e),
    ("·mᵀ", lambda e: e.times_t(M)),
    ("tanh, + w", lambda e: e.tanh() + W),
    ("softmax", lambda e: e.softmax()),
    ("1/(3 + e²)", lambda e: 1 / (3 + e * e)),
)


def made_pairs(seed: int) -> Iterator[Made]:
    """Yields every rule's pairs, each with arguments and a context drawn at random."""
    rng = random.Random(seed)
    for rule in RULES:
        for is_equal, others in ((True, rule.equal), (False, rule.different)):
            for number, other in enumerate(others):
                for _ in range(20):
                    shown, x, y = rng.choice(ARGUMENTS)
                    context, wrap = rng.choice(CONTEXTS)
                    one, two = (wrap(_full(each(x, y, M))) for each in (rule.base, other))
                    truth = truth_of(one, two, rng.randrange(2**30))
                    if (truth.defined == NOWHERE) != (rule.area == f"defined {NOWHERE}"):
                        continue  # too few points to say so, unless the rule says it
                    if is_equal and truth.defined != NOWHERE and not truth.same:
                        raise ValueError(f"no identity: {source(one, 'jax')}, {source(two, 'jax')}")
                    if is_equal or not truth.same:
                        break
                else:
                    raise ValueError(f"no difference: {source(one, 'jax')}, {source(two, 'jax')}")
                if rng.random() < 0.5:
                    one, two = two, one
                sort = "same" if is_equal else "other"
                yield Made(
                    rule.area, f"{rule.area} {sort} {number} of {shown}, {context}", one, two, truth, rule.has_traps
                )


def _full(expr: Expr) -> Expr:
    return expr + 0 * W if not weights_in(expr) else expr
