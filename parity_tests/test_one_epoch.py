"""The first steps of `annotated_zh` on Tatoeba, in float64 and without dropout: each loss is PyTorch's. (The epoch: one_epoch.py.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from one_epoch import data_folder, differences, make_task, read_corpus, train_exactly

from jax_transformer.parity.tolerances import TRAJECTORY_LOSS_RELATIVE, TRAJECTORY_PARAMETERS_RELATIVE_RMS

FOLDER = data_folder()
STEPS = 25
SEED = 1  # its first batches all fit one shape


@pytest.mark.skipif(FOLDER is None, reason="JAX_TRANSFORMER_SHARED names no folder with data")
def test_the_first_steps_of_an_epoch(tmp_path: Path) -> None:
    assert FOLDER is not None
    corpus = read_corpus(FOLDER, str(tmp_path))
    whole = make_task(corpus, SEED, epochs=1, shapes=[(16, 32)])
    ours, theirs = train_exactly(corpus, whole._replace(train=whole.train[:STEPS], dev=whole.dev[:2]), SEED)
    assert len(theirs.losses) == STEPS
    assert theirs.losses[-1] < theirs.losses[0]
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=TRAJECTORY_LOSS_RELATIVE)
    np.testing.assert_allclose(ours.dev_losses, theirs.dev_losses, rtol=TRAJECTORY_LOSS_RELATIVE)
    errors = differences(ours, theirs).weights
    assert {path: error for path, error in errors.items() if not error <= TRAJECTORY_PARAMETERS_RELATIVE_RMS} == {}
