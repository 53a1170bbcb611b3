"""A user's JAX function as a side of a parity run: what it shows must not depend on how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from fake_sides import CONFIG, GENERATION, own_params

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.parity.backends.jax_sides import FunctionSide
from jax_transformer.parity.problems import long_problem, own_problem
from jax_transformer.storage.model_directory import Model

OWN = own_problem(CONFIG, own_params())
pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = Model(CONFIG, own_params(), None, None, GENERATION)
Change = Callable[[Any, Any], tuple[Any, dict[str, Any]]]


def side_of(change: Change) -> FunctionSide:
    """Returns the side of a function that reads the target alone, with its results changed: (logits, inputs) →
    (logits, trace)."""

    def function(params: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
        embedded = params["target_embedding"]["embedding"][inputs["decoder_input_ids"]]
        return change(embedded @ params["head"]["kernel"] + params["head"]["bias"], inputs)

    return FunctionSide("mine", function, MODEL)


def right(logits: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
    return logits, {"logits": logits}


def test_a_function_that_repeats_itself_is_not_doubted() -> None:
    side = side_of(right)
    side.check(OWN)
    side.forward(OWN, "float64")
    side.gradients(OWN)
    assert not side.doubts


def test_another_output_in_the_trace() -> None:
    side = side_of(lambda logits, inputs: (logits, {"logits": logits * (1 + 1e-6)}))
    side.forward(OWN, "float64")
    (doubt,) = side.doubts
    assert "its trace shows other logits (own weights, float64), off by a relative RMS of 1.0e-06" in doubt
    side = side_of(lambda logits, inputs: (logits, {"logits": logits[:, :-1]}))
    side.forward(OWN, "float64")
    assert "of another shape" in next(iter(side.doubts))


def test_another_output_while_it_is_differentiated() -> None:
    side = side_of(lambda logits, inputs: (1.001 * logits if isinstance(logits, jax.core.Tracer) else logits, {}))
    side.forward(OWN, "float64")
    assert not side.doubts
    side.gradients(OWN)
    (doubt,) = side.doubts
    assert "they are others while JAX differentiates (own weights), off by a relative RMS of 1.0e-03" in doubt


def test_a_function_that_cannot_be_differentiated() -> None:
    side = side_of(lambda logits, inputs: (np.asarray(logits), {}))
    side.forward(OWN, "float64")
    with pytest.raises(
        CannotRun, match=r"candidate mine: raised TracerArrayConversionError: .*, on source_ids \[7, 11\]"
    ):
        side.gradients(OWN)


def test_a_function_that_raises() -> None:
    """On some inputs alone it leaves the other stages; on those that are tried first it is the user's mistake."""

    def limited_to(most: int) -> FunctionSide:
        def check(logits: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
            if logits.shape[1] > most:
                raise ValueError("too long")
            return logits, {}

        return side_of(check)

    longer = long_problem(CONFIG, own_params())
    assert longer is not None
    with pytest.raises(CannotRun, match=r"raised ValueError: too long, on source_ids \[1, 15\]"):
        limited_to(9).forward(longer, "float64")
    with pytest.raises(ParityError, match="candidate mine: raised ValueError: too long"):
        limited_to(8).check(OWN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, inputs: (logits.reshape(-1, 19), {}), r"\[7, 9, 19\] \[B, T, V\]; received \[63, 19\]"),
        (lambda logits, inputs: (logits, {"note": "text"}), "expected arrays in the trace; note is a str"),
        (lambda logits, inputs: (logits, None), r"expected \(logits, trace\), the trace a mapping"),
    ],
)
def test_a_function_that_returns_something_else(change: Change, message: str) -> None:
    with pytest.raises(ParityError, match=message):
        side_of(change).check(OWN)
