"""The gates: when two implementations count as the same. Each has its reason; none is ever loosened to pass.

Measured on post-norm encoders (d_model 64–512, 2–12 layers), JAX against PyTorch on a CPU: float64 logits differ by
7e-16 … 3e-15 of their RMS, float32 logits by 4e-7 … 1.4e-6. The smallest of the usual mistakes, an ε of 1e-6 for 1e-5
in a norm, moves them by 3e-6.
"""

from __future__ import annotations

FLOAT64_RELATIVE_RMS = 1e-12
"""Activations, logits, loss, gradients and one optimizer step in float64. Hundreds of times above what orders of
summation do, and a million times below the smallest mistake."""

LEAST_FAULT_RELATIVE_RMS = 1e-9
"""What a fault put into one activation must change of it, for the self-test to count it as one: a thousand times the
gate above, and less than computing anything in float32 does."""

FACTOR_RMS = 3.0
"""In lower precision: how much farther from the float64 truth, in RMS, the candidate may be than the reference is. Two
programs that sum in other orders differ in their luck by less."""

FACTOR_ROUNDING = 8.0
"""How many times as far from the reference as either side is from itself, once its weights move in the last bit, an
array of gradients or steps may be that fails its gate. Measured on a Marian of 6+6 layers, whose deep layers' queries
have gradients that are off by up to 2e-10, as their keys are nearly the same: JAX and PyTorch differ by 0.5 to 2.2
times what each does from itself. It scatters as FACTOR_MAX does."""

MOST_FOR_ROUNDING = 1e-6
"""What is allowed an array for rounding at most: less than the smallest of the usual mistakes changes. Beyond it
nothing can be told."""

FACTOR_MAX = 8.0
"""The same for the largest single error, which scatters more than the RMS."""

FLOOR_ROUNDOFFS = 4.0
"""The reference's error counts as at least this many unit roundoffs: a reference that happens to be exact asks for
nothing exact."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number of the dtype."""

COMPUTED_IN = {"float32": 1e-5, "bfloat16": 3e-2}
"""How far (relative RMS) a node may be from the truth in float64 to count as computed in the dtype, given that all its
values are numbers of it: 170, or 8, unit roundoffs. Sums of some hundred products stay below, and so do norms where the
mean isn't large."""

DROPOUT_SCATTER_DEVIATIONS = 10.0
"""By how many standard deviations the squared distances between the shares of dropped values, at each index of an axis,
and the rate of dropout may sum to more than their mean. Of four indices they do once in 500,000 times; whole columns
dropped do many times more."""

TRAJECTORY_STEPS = 50
"""Optimizer steps of a trajectory. In float64 only: float32 trajectories part by themselves, by 7e-3 in the weights
when a batch is permuted."""

TRAJECTORY_LOSS_RELATIVE = 1e-10
"""Each loss of a trajectory. Training amplifies rounding: 4e-15 was measured, the gate leaves room for less tame
problems."""

TRAJECTORY_PARAMETERS_RELATIVE_RMS = 1e-10
"""Each parameter at the end of a trajectory, but for key biases."""

LONG_TRAJECTORY_LOSS_RELATIVE = 1e-8
"""Each loss of 300 steps at a width of 4, which amplifies rounding more: in the seed compared PyTorch differs from
itself by 2e-9 when its first weights change in the last bit, and JAX from it by 9e-11."""

DECODING_MARGIN_FLOORS = 2.0
"""A token that differs is forgiven, and printed, only if the reference's two best logits are closer than this many
times the logits' error
floor: then both are rounding's choice."""

DECODED_OTHERWISE = 3
"""Sentences of which the tokens must differ, where no scores are known, before a fault is named by them. Of 960
decodings with faults of no catalogue, a dozen were given a wrong name by one sentence alone, one by two, and none by
three, but for the power of a length penalty."""

HYPOTHESIS_SCORE = 1e-5
"""Scores of hypotheses in float32, relative and, below 1, absolute: sums of log-probabilities, each with the error of
its logits. 7e-6 was measured."""

ZERO_GRADIENTS = ("key/bias",)
"""Ends of the paths of parameters whose gradient is analytically zero: a key bias adds the same to all logits of a
query, which softmax ignores. What is computed there is rounding, and Adam makes steps of it."""


def has_zero_gradient(path: str) -> bool:
    """Whether the parameter's gradient is zero but for rounding, so that it is compared with nothing."""
    return path.endswith(ZERO_GRADIENTS)


UPDATE_ROUNDOFFS = 4.0
"""By how many float64 roundoffs of a parameter its update may be off, beside FLOAT64_RELATIVE_RMS of the update itself:
what a parameter gains in a step is known no better than the parameter before and after it, of which it is a thousandth
or less. Measured on PyTorch's and optax's Adam, AdamW and SGD, at rates of 1e-7 … 0.1: up to 1.9."""

FLOAT64_ROUNDOFF = 2.0**-53
"""Half the distance from 1 to the next number."""
