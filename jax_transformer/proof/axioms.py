"""The axioms: assumptions of proofs about functions, masks and constants, by name.

A certificate lists the axioms of its proof. Everything else follows from field arithmetic, and from equal arguments
giving equal values.
"""

from __future__ import annotations

AXIOMS = {
    "softmax": (
        "exp(x + m) = exp(x) · exp(m) along a row. So softmax doesn't depend on a number that is subtracted from a row."
    ),
    "masks": (
        "an entry with a constant of at most −10⁴, and as far below the row's largest constant, counts for 0 in a "
        "softmax or the logarithm of a sum of exponentials: exp(−10⁴ + x) underflows while logits stay within ±10³. "
        "Rows that are masked as a whole are not covered, nor is any other use of the constant; but a constant beyond "
        "the range of a type that it is cast to is −∞ there."
    ),
    "roots": (
        "√x · √x = x, √(x · y) = √x · √y, and a constant within one unit in the last place of √n, 1/√n, or such a "
        "multiple of √π or π, is that number."
    ),
    "fractions": (
        "a constant within one unit in the last place of a short fraction or decimal is that number. 0.1 is 1/10, and "
        "1 − 0.9 in float64 is 1/10, too."
    ),
    "rounded constants": (
        "constants and tables that depend on no weight, and agree within the rounding of the types that made them, are "
        "the same: a float32 for 1e-6 and 1e-6, cosines of positions that two libraries compute. Used only where two "
        "programs differ without it; the largest difference comes first."
    ),
    "positive": (
        "a sum of squares, or of exponentials, isn't negative. It is positive almost everywhere if it follows from how "
        "it is computed that it isn't zero. So a test of its sign is decided."
    ),
    "differences": (
        "exp(x − y) = exp(x) · exp(−y) and log x ± y = log(x · exp(±y)) for all x and y. So a softmax may be computed "
        "block by block. Used only where two programs differ without it."
    ),
    "order": (
        "which entry of a row has which rank doesn't change if the row is multiplied by a positive number, or one is "
        "added to it, or all entries pass through an increasing function. Entries are equal for few weights."
    ),
    "finite": (
        "numbers that are defined are finite: none overflows. So isfinite, isnan and x == x are decided for what is "
        "defined for all weights, and a maximum with the lowest number of a type, or a minimum with the highest, "
        "changes nothing."
    ),
    "domains": (
        "weights for which an operation isn't defined, such as the root of a negative number, are left out. They are "
        "the same weights for both programs, array by array and entry by entry."
    ),
    "exponentials": "exp(log x) = x, exp(−x) = 1/exp(x), and log(1/x) = −log(x).",
    "activations": (
        "tanh(x) = (exp(2x) − 1)/(exp(2x) + 1), σ(x) = (1 + tanh(x/2))/2, erf and sin are odd, cos is even, "
        "sin(x + π/2) = cos x (where two programs differ without it), and [x > 0] + [−x > 0] = 1 unless x is zero for "
        "many weights."
    ),
}
"""Name → the assumption, and its reason."""
