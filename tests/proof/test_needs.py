"""What outputs don't depend on isn't compared where programs have batches of other shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.proof import jax_programs
from jax_transformer.proof.domains import Reals
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.needs import needed

SEEN = np.array([True, True, False])
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[1:2, :2].T,
    "matmul": lambda x: (x * SEEN) @ x.T[:, :1],
    "sum": lambda x: jnp.where(SEEN, x, 7.0).sum(axis=1),
    "cumsum": lambda x: jnp.cumsum(x, axis=1)[:, 1],
    "softmax": lambda x: jax.nn.softmax(jnp.where(SEEN, x, -1e9), axis=-1)[:2],
    "write": lambda x: x.at[0].set(x[1])[:, 1:],
    "add": lambda x: jnp.zeros((3, 3)).at[np.array([0, 0])].add(x[:2])[0],
    "concatenate": lambda x: jnp.concatenate([x, x * 2], axis=1)[:, 2:4],
    "broadcast": lambda x: x[:, :1] + jnp.ones((3, 3)),
    "norm": lambda x: (x / jnp.sqrt((x**2).mean(-1, keepdims=True)))[1],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_element_is_needed_if_it_changes_the_output(name: str) -> None:
    function = PROGRAMS[name]
    x = np.random.default_rng(3).uniform(0.5, 1.5, (3, 3))
    with jax.enable_x64(True):
        program = jax_programs.lower(lambda w: {"output": function(w["x"])}, {"x": x})
        changes = np.zeros(x.shape, bool)
        for place in np.ndindex(x.shape):
            other = x.copy()
            other[place] *= 1.01
            changes[place] = not np.array_equal(function(jnp.asarray(x)), function(jnp.asarray(other)))
    zeros: dict[int, np.ndarray] = {}
    evaluate(program, Reals(), {"x": x}, lambda node, array: zeros.__setitem__(node, array == 0))
    output = program.outputs["output"].node
    assert output is not None
    (of_x,) = (node for node, one in enumerate(program.operations) if one.name == "input")
    np.testing.assert_array_equal(needed(program, [output], zeros)[of_x], changes)
