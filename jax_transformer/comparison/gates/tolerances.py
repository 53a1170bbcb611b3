"""The gates within which two implementations count as the same. Each has its reason; none is ever loosened to pass.

Measured on post-norm encoders (d_model 64–512, 2–12 layers), JAX against PyTorch on a CPU: float64 logits differ by
7e-16 … 3e-15 of their RMS, float32 logits by 4e-7 … 1.4e-6. The smallest of the usual mistakes, an ε of 1e-6 for 1e-5
in a norm, moves them by 3e-6.
"""

from __future__ import annotations

FLOAT64_RELATIVE_RMS = 1e-12
"""The gate of activations, logits, loss, gradients and one optimizer step in float64: hundreds of times the effect of
another order of summation, and a millionth of the smallest mistake's."""

LEAST_FAULT_RELATIVE_RMS = 1e-9
"""The least change of an activation that the self-test counts as a fault: a thousand times the gate above, and less
than computing anything in float32 changes."""

FACTOR_RMS = 3.0
"""In lower precision, the largest ratio of the candidate's RMS distance from the float64 truth to the reference's.
Programs that only sum in another order stay below it."""

FACTOR_ROUNDING = 8.0
"""The most times that gradients or steps outside their gate may differ between the sides, relative to how much each
side differs from itself when it rounds otherwise: when its weights change in the last bit, and its loss by a factor.
Measured on a Marian of 6+6 layers, whose deep layers' queries have gradients that are off by up to 2e-10, as their keys
are nearly the same: JAX and PyTorch differ by 0.5 to 2.2 times that. It scatters as FACTOR_MAX does. The same holds of
activations, such as weights that a program computes as exp(s − logsumexp(s)): they are as uncertain as s is large."""

ROUNDING_DRAWS = 8
"""The most times that a side runs rounded otherwise. A softmax that picks another key in one of four draws is seen to
do so in nine of ten such series. So is a gradient whose terms cancel to the last bit in three of four draws, in
float64."""

MASKED_BELOW = -5000.0
"""Attention logits below this are masked: known fill values are at most -1e4 (-inf included), computed logits far
above."""

MOST_FOR_ROUNDING = 1e-6
"""The most that is allowed for rounding: less than the smallest of the usual mistakes changes. Beyond it, the result is
inconclusive."""

FACTOR_LAST_BIT = 1.0
"""The most that two programs' replays in float64 may differ by, relative to how far the less sensitive one moves when
its weights move in their last bit. Programs round tables and constants to their own dtype before they use them: on a
Llama in JAX and in PyTorch, rotary tables made in float32 move its layers by 4e-9 to 2e-8, a scale of 8^-½ rounded to
bfloat16 by 1e-5 to 6e-5; the last bits of all weights move them by 1e-7 to 3e-7 in float32, and by 65,536 times that in
bfloat16. Another ε moves them by 3e-6."""

FACTOR_MAX = 8.0
"""The same for the largest single error, which scatters more than the RMS."""

FLOOR_ROUNDOFFS = 4.0
"""The least error of a reference, in unit roundoffs: if it happens to be exact, the candidate needn't be."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number of the dtype."""

COMPUTED_IN = {"float32": 1e-5, "bfloat16": 3e-2}
"""The largest relative RMS distance from the float64 truth of a node that counts as computed in the dtype, given that
all its values are numbers of that dtype: 170, or 8, unit roundoffs. Sums of some hundred products stay below, and so do
norms unless the mean is large."""

SUM_OF_PROBABILITIES_ROUNDOFFS = 64.0
"""The most roundoffs, times √V, by which the sum of a row's V probabilities may differ from 1, for a module's outputs
to count as probabilities or their logarithms: several times what rounding them costs, logarithms of 1e-13 among them,
and far less than any row of logits is off by."""

DROPOUT_SCATTER_DEVIATIONS = 10.0
"""The most standard deviations by which the squared distances between the share of dropped values at each index of an
axis and the dropout rate may exceed their mean in sum. For four indices chance exceeds it once in 500,000 times;
dropping whole columns exceeds it by far."""

TRAJECTORY_STEPS = 50
"""The optimizer steps of a trajectory, in float64 only: float32 trajectories diverge by rounding, by 7e-3 in the
weights when a batch is permuted."""

TRAJECTORY_LOSS_RELATIVE = 1e-10
"""The gate of each loss of a trajectory. Training amplifies rounding: 4e-15 was measured, and harder problems need
more room."""

TRAJECTORY_PARAMETERS_RELATIVE_RMS = 1e-10
"""The gate of each parameter at the end of a trajectory, except key biases."""

FEW_STEPS_FLOAT32_LOSS_RELATIVE = 1e-6
"""The gate of each loss of three steps in float32, after three others: 8 units of its rounding. 1.6e-7 was measured."""

LONG_TRAJECTORY_LOSS_RELATIVE = 1e-8
"""The gate of each loss of 300 steps at a width of 4, which amplifies rounding more: in the seed compared, PyTorch
differs from itself by 2e-9 when its first weights change in the last bit, and JAX differs from PyTorch by 9e-11."""

DECODING_MARGIN_FLOORS = 2.0
"""The largest margin, in error floors of the logits, between the reference's two best logits at which a different token
is accepted, and printed: rounding chose it."""

DECODED_OTHERWISE = 3
"""The least number of sentences whose tokens must differ to name a fault without scores. Among 960 decodings with
faults of no catalogue, one sentence alone named a dozen wrongly, two named one wrongly, and three named none, except
for the power of a length penalty."""

HYPOTHESIS_SCORE = 1e-5
"""The gate of hypotheses' scores in float32, relative or, below 1, absolute. Scores are sums of log-probabilities, each
with the error of its logits; 7e-6 was measured."""

ZERO_GRADIENTS = ("key/bias", "key_norm/bias")
"""Suffixes of the paths of parameters whose gradient is analytically zero: a bias of keys adds the same to all logits
of a query, which softmax ignores. The computed gradient is rounding, and Adam turns it into steps. It isn't zero where
keys are rotated, or normed, after the bias, or logits capped; a path doesn't tell, so callers that have a config ask it
too."""


def has_zero_gradient(path: str) -> bool:
    """Returns whether the parameter's gradient is zero but for rounding, and so isn't compared."""
    return path.endswith(ZERO_GRADIENTS)


UPDATE_ROUNDOFFS = 4.0
"""The largest error of an update in float64 roundoffs of its parameter, beside FLOAT64_RELATIVE_RMS of the update: an
update is a thousandth or less of the parameter, and known no better than the parameter before and after it. Measured on
PyTorch's and optax's Adam, AdamW and SGD, at rates of 1e-7 … 0.1: up to 1.9."""

FLOAT64_ROUNDOFF = 2.0**-53
"""Half the distance from 1 to the next number."""
