"""Gates that users ask for: the KL divergence of the outputs, and the agreement of their largest k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.stages import Row, Stage

STAGE = "gates"


@dataclass(frozen=True)
class TopK:
    """Asks that the largest k entries agree at a share of positions' entries, at least."""

    k: int
    least: float

    @classmethod
    def read(cls, text: str) -> TopK:
        """Reads "5:0.999". Raises ParityError for other text."""
        count, _, share = text.partition(":")
        try:
            found = cls(int(count), float(share))
        except ValueError:
            raise ParityError(f'top_k: expected k and the least share, such as "5:0.999"; received {text!r}') from None
        if found.k < 1 or not 0 <= found.least <= 1:
            raise ParityError(f"top_k: expected k of at least 1 and a share from 0 to 1; received {text!r}")
        return found


@dataclass(frozen=True)
class Gates:
    """Holds the gates that are asked for."""

    kl: float | None = None
    """The largest mean KL divergence, in nats."""
    top_k: TopK | None = None

    def stage(self, candidate: np.ndarray, reference: np.ndarray) -> Stage:
        """Judges outputs [..., V]: logits, or logarithms of probabilities."""
        if candidate.shape != reference.shape or reference.ndim < 1 or reference.shape[-1] < 2:
            shapes = f"{list(candidate.shape)} and {list(reference.shape)}"
            return Stage(STAGE, not_run=f"expected outputs [..., V] of one shape; received {shapes}")
        rows = []
        if self.kl is not None:
            mean, most = divergence(candidate, reference)
            is_within = mean <= self.kl
            figures = f"{mean:.2e} nats on average, {most:.2e} at most"
            rows.append(Row("KL divergence", "passed" if is_within else "diverged", f"≤ {self.kl:g}", reason=figures))
        if self.top_k is not None:
            if self.top_k.k > reference.shape[-1]:
                return Stage(STAGE, not_run=f"top_k: {self.top_k.k} of {reference.shape[-1]} entries")
            share = agreement(candidate, reference, self.top_k.k)
            name, gate = f"top-{self.top_k.k} agreement", f"≥ {self.top_k.least:g}"
            rows.append(Row(name, "passed" if share >= self.top_k.least else "diverged", gate, reason=f"{share:.6g}"))
        return Stage(STAGE, tuple(Row(r.name, r.verdict, r.gate, reason=f"{r.reason} (gate {r.gate})") for r in rows))


def divergence(candidate: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Returns the mean and the largest Kullback-Leibler divergence of the candidate's distributions from the
    reference's, over all positions, in nats. NaN if a number isn't finite."""
    of_candidate, of_reference = (_log_softmax(each) for each in (candidate, reference))
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(of_reference), 0.0, np.exp(of_reference) * (of_reference - of_candidate))
    found = np.maximum(terms.sum(-1), 0.0)  # rounding may leave −1e-17
    return float(found.mean()), float(found.max())


def agreement(candidate: np.ndarray, reference: np.ndarray, k: int) -> float:
    """Returns the share of the reference's largest k entries that are among the candidate's, over all positions."""
    ours, theirs = (np.argpartition(-_rows(each), k - 1, axis=-1)[:, :k] for each in (candidate, reference))
    common = [len({*a.tolist()} & {*b.tolist()}) for a, b in zip(ours, theirs, strict=True)]
    return float(np.mean(common)) / k


def _rows(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64).reshape(-1, array.shape[-1])


def _log_softmax(array: np.ndarray) -> np.ndarray:
    rows = _rows(array)
    shifted = rows - rows.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
