"""A wrong argument of the model's functions is one line that names it, whether or not a program is compiled already."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

FUNCTIONS = ("apply", "encode", "decode", "hidden_states", "start_decoding", "decode_step")


@pytest.fixture
def call(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """(function, **changed arguments) → a call of it with arguments that are right but for those."""
    params = random_params(config)

    def of(function: str, **changed: Any) -> Callable[[], Any]:
        given: dict[str, Any] = {"config": config, "params": params}
        if function != "decode_step":
            given["source_ids"] = ids.source
        if function in ("decode", "start_decoding"):
            given["encoder_output"] = np.zeros((5, 6, 12))
        if function in ("apply", "decode", "hidden_states"):
            given["decoder_input_ids"] = ids.target
        if function == "start_decoding":
            given["length"] = 3
        if function == "decode_step":
            given["state"] = functional.start_decoding(config, params, jnp.zeros((5, 6, 12)), ids.source, 3)
            given["ids"] = ids.target[:, 0]
        return lambda: getattr(functional, function)(**given | changed)

    return of


def ids_of(function: str) -> tuple[str, int]:
    """The argument of a function that holds ids, and the size of its vocabulary."""
    if function == "decode_step":
        return "ids", 11
    return ("source_ids", 13) if function in ("encode", "start_decoding") else ("decoder_input_ids", 11)


@pytest.mark.parametrize("outside", [-1, 11, 13, 10**6])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_id_outside_of_the_vocabulary_is_named(call: Any, ids: Any, function: str, outside: int) -> None:
    name, size = ids_of(function)
    if 0 <= outside < size:
        pytest.skip("inside of this vocabulary")
    wrong = np.array(ids.source if name == "source_ids" else ids.target)
    wrong[2, 0] = outside
    wrong = wrong[:, 0] if name == "ids" else wrong
    call(function)()  # compiled: the check doesn't depend on tracing
    for array in (wrong, jnp.asarray(wrong)):
        with pytest.raises(
            ValueError,
            match=rf"{function}: {name}: expected ids of the vocabulary, from 0 to {size - 1}; received {outside}",
        ):
            call(function, **{name: array})()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([[4, 5]], "expected an array of integers, such as .*; received list"),
        ("Who sleeps?", "received str"),
        (None, "received NoneType"),
        (np.array([[4.0, 5.0]]), "expected integers; received an array of float64"),
        (np.array([[True]]), "expected integers; received an array of bool"),
        (np.zeros((1, 1, 1), int), r"received shape \[1, 1, 1\]"),
    ],
)
def test_something_else_than_ids_is_named(call: Any, function: str, wrong: Any, expected: str) -> None:
    name, _ = ids_of(function)
    with pytest.raises(ValueError, match=rf"{function}: {name}: .*{expected}"):
        call(function, **{name: wrong})()


def test_a_missing_batch_axis_is_explained(call: Any) -> None:
    with pytest.raises(ValueError, match=r"apply: source_ids: .*shape \[2\]: one sentence is source_ids\[None\]"):
        call("apply", source_ids=np.array([4, 5]))()


@pytest.mark.parametrize("function", ["apply", "decode", "hidden_states"])
def test_other_numbers_of_rows_are_named(call: Any, ids: Any, function: str) -> None:
    with pytest.raises(ValueError, match=rf"{function}: expected as many rows .* received 4 and 5"):
        call(function, decoder_input_ids=ids.target[:4])()


def test_swapped_arguments_are_named(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    params = random_params(config)
    model: Any = Model(config, params, None, None, GenerationConfig())
    functions: Any = functional  # whose types these calls don't have
    with pytest.raises(ValueError, match=r"apply: config: expected a TransformerConfig, .* received dict"):
        functions.apply(params, config, ids.source, ids.target)
    with pytest.raises(ValueError, match=r"received Model: pass model\.config and model\.params"):
        functions.apply(model, ids.source, ids.target)
    with pytest.raises(ValueError, match=r"apply: params: expected a nested dict of arrays, .* received ndarray"):
        functions.apply(config, ids.source, ids.target, params)
    with pytest.raises(ValueError, match=r"init_params: config: .* received PRNGKeyArray"):
        functions.init_params(jax.random.key(0), config)
    with pytest.raises(
        ValueError, match=r"init_params: key: expected a PRNG key, such as jax.random.key\(0\); received int"
    ):
        functions.init_params(config, 0)


def test_parameters_of_another_config_are_named(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    params = random_params(config)
    trained, _ = functional.split_constants(params)
    with pytest.raises(ValueError, match=r"constants/decoder_positions \[10, 12\] is missing"):
        functional.apply(config, trained, ids.source, ids.target)
    with pytest.raises(ValueError, match=r"head/more isn't one of them"):
        functional.apply(config, {**params, "head": {**params["head"], "more": np.zeros(3)}}, ids.source, ids.target)
    wider = dataclasses.replace(config, d_ff=9, decoder_d_ff=config.decoder.feed_forward.width)
    with pytest.raises(
        ValueError, match=r"encoder/layers/feed_forward/hidden/kernel is \[1, 12, 7\] instead of \[1, 12, 9\]"
    ):
        functional.encode(wider, params, ids.source)


def test_inside_of_jit_and_grad_ids_are_not_known(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """A program runs with any ids; what they are can't be checked."""
    params = random_params(config)
    outside = np.full_like(ids.source, 13)
    jax.jit(lambda source: functional.encode(config, params, source))(outside)
    with pytest.raises(ValueError, match=r"expected integers"):
        jax.jit(lambda source: functional.encode(config, params, source))(outside.astype(float))


def test_functions_keep_their_signatures_and_their_names() -> None:
    assert [*inspect.signature(functional.encode).parameters][:3] == ["config", "params", "source_ids"]
    assert functional.encode.__name__ == "encode"
