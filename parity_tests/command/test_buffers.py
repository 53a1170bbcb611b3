"""`jax-transformer parity` on buffers that a checkpoint carries: they get random values as parameters do."""

from __future__ import annotations

from parity_command import Run


def test_a_dropped_bias_of_the_logits_is_found_though_the_checkpoint_has_zeros(run: Run) -> None:
    outcome = run("--reference", "user_marian:without_bias", stages="weights,forward")
    assert outcome.code == 1, outcome.output
    assert "bias missing" in outcome.output
    assert "at 1 node of the reference node logits (forward, random weights)" in outcome.output


def test_a_module_without_the_buffer_is_compared_without_a_bias(run: Run) -> None:
    outcome = run("--reference", "user_marian:without_buffer", stages="weights,forward,gradients")
    assert outcome.code == 0, outcome.output
