"""How far PyTorch is from itself after 300 steps of stepwise on 50 real pairs, its first weights changed in the last
bit.

    python parity_tests/stepwise_drift.py [--seeds 20]

In float64, with the batches of test_memorising.py; the data is Multi30k under JAX_TRANSFORMER_SHARED.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from test_memorising import BATCH, EOS, PAIRS, SHARED, STEPS, as_ids, first_sentences, padded
from torch.nn import functional as torch_functional

from torch_reference.stepwise import StepwiseTransformer


def train(seed: int, nudged: bool) -> np.ndarray:
    """The losses of 300 steps."""
    source, source_size = as_ids(first_sentences("de"))
    target, target_size = as_ids(first_sentences("en"))
    arrays = (padded(source), padded([[EOS, *ids] for ids in target]), padded([[*ids, EOS] for ids in target]))
    source_ids, inputs, labels = map(torch.from_numpy, arrays)
    torch.manual_seed(seed)
    model = StepwiseTransformer(source_vocab_size=source_size, target_vocab_size=target_size, dtype=torch.float64)
    if nudged:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, torch.inf)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for number in range(STEPS):
        rows = slice(BATCH) if number % 2 == 0 else slice(BATCH, PAIRS)
        optimizer.zero_grad()
        loss = torch_functional.cross_entropy(
            model(source_ids[rows], inputs[rows]).flatten(0, 1), labels[rows].flatten()
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    if SHARED is None:
        parser.error("expected JAX_TRANSFORMER_SHARED in the environment; received none")
    for seed in range(options.seeds):
        losses, others = train(seed, nudged=False), train(seed, nudged=True)
        apart = np.abs(others / losses - 1.0)
        print(
            f"seed {seed}: relative difference at most {apart.max():.0e}, in the last step {apart[-1]:.0e}; loss "
            f"{losses[-1]:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
