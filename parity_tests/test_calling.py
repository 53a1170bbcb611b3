"""Tests modules of many styles as references: calls, captured activations, and refusals."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import user_models
import user_styles

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.parity.backends.calling import Calling
from jax_transformer.parity.backends.modules import LOGITS, ModuleReference, layers_of, names_of
from jax_transformer.parity.backends.side import NotFinite
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.problems import Problem, own_problem
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.importing import import_checkpoint
from jax_transformer.programs.calling import Known, find_direct
from jax_transformer.storage.model_directory import Model

IDS = tuple(torch.tensor(ids) for ids in ([[3, 4, 5, 1], [6, 7, 1, 1]], [[4, 5, 6], [7, 8, 2]]))


@cache
def model(dialect: str) -> Model:
    module = getattr(user_models, dialect)()
    hints = user_models.HINTS if dialect == "pytorch" else {key: user_models.HINTS[key] for key in PADS}
    return import_checkpoint(module.state_dict(), dialect, **hints)


PADS = ("num_heads", "source_pad_id", "target_pad_id")


def problem_of(dialect: str = "pytorch") -> Problem:
    return own_problem(model(dialect).config, model(dialect).params)


def reference_of(module: Any, dialect: str = "pytorch") -> ModuleReference:
    config, table = model(dialect).config, get_dialect(dialect)
    constants = {name: np.asarray(leaf) for name, leaf in model(dialect).params["constants"].items()}
    reference = ModuleReference(
        module, table, config, constants, names_of(table, config), layers=layers_of(table, config)
    )
    return reference.tried("mine", problem_of(dialect))


def side_of(name: str, dialect: str = "pytorch") -> TorchSide:
    return TorchSide("mine", model(dialect), reference_of(getattr(user_styles, name)(), dialect))


@cache
def right() -> tuple[Any, Any]:
    """The activations and gradients of a module in the usual style."""
    side = side_of("short")
    return side.forward(problem_of(), "float64"), side.gradients(problem_of())


CALLED = (
    *("target_first", "ids", "sequences", "inputs", "fairseq", "letters", "keywords_only", "anything", "options"),
    *("sequence_first", "sequence_first_in_batch_first_out", "padding_masks", "lengths", "trace_flag"),
    *("trace_printer", "trace_list", "dict", "dict_of_two", "tuple_last", "record", "flat", "vocabulary_second"),
    *(
        "log_probabilities",
        "log_probabilities_of_rows",
        "probabilities",
        "keeps_logits",
        "layers",
        "layers_sequence_first",
        "in_place",
        "in_place_head",
    ),
    *("tied_twice", "undivided", "traced_twice"),
)


@pytest.mark.parametrize("name", CALLED)
def test_the_same_function_in_another_style(name: str) -> None:
    """All that is seen of it, and all its gradients."""
    side, (forward, gradients) = side_of(name), right()
    found, of_found = side.forward(problem_of(), "float64"), side.gradients(problem_of())
    assert set(found) == set(forward)
    assert {*of_found.activations} == {*gradients.activations}
    pairs = [(found[key], forward[key]) for key in forward if not key.startswith("mask.")]
    pairs += [(of_found.activations[key], gradients.activations[key]) for key in gradients.activations]
    pairs += [
        (of_found.parameters[key], gradients.parameters[key])
        for key in gradients.parameters
        if not key.endswith(("key/bias[0]", "key/bias[1]"))
    ]
    for one, other in pairs:
        assert one.shape == other.shape
        assert compare(one, other, np.abs(other) < 1e30).within(FLOAT64_RELATIVE_RMS)
    assert not side.doubts


def test_logits_behind_log_probabilities_with_rows_of_nan() -> None:
    """A query that sees no key gives NaN in many programs."""
    logits = torch.randn(2, 3, 5)
    logits[1] = torch.nan
    normalised = logits.log_softmax(-1)
    calling = Calling(head="log_probabilities")
    found = calling.unnormalised(normalised.clone(), (logits, normalised), 2)
    assert torch.equal(found.nan_to_num(), logits.nan_to_num())
    with pytest.raises(LookupError):
        calling.unnormalised(normalised + 1.0, (logits, normalised), 2)


def _forwards() -> dict[str, Any]:
    """Returns forwards by name. Each passes on the source's ids first."""

    def letters(self: Any, x: Any, src: Any) -> Any:
        return self.logits(src, x)

    def unsaid(self: Any, context: Any, x: Any) -> Any:
        return self.logits(context, x)

    def reversed_letters(self: Any, y: Any, x: Any) -> Any:
        return self.logits(y, x)

    def states(self: Any, encoder_ids: Any, states: Any, /) -> Any:
        return self.logits(encoder_ids, states)

    def shifted(self: Any, shifted: Any, article: Any, *, mask: Any = None) -> Any:
        return self.logits(article, shifted)

    def results(self: Any, input_ids: Any = None, decoder_input_ids: Any = None, encoder_outputs: Any = None) -> Any:
        return self.logits(input_ids, decoder_input_ids)

    def keywords(self: Any, **batch: Any) -> Any:
        return self.logits(batch["src_ids"], batch["tgt_ids"])

    return {one.__name__: one for one in (letters, unsaid, reversed_letters, states, shifted, results, keywords)}


@pytest.mark.parametrize("name", _forwards())
def test_whose_ids_a_parameter_takes(name: str) -> None:
    """Roles follow from a word in a parameter's name, or from places if no name has such a word."""

    class Named(torch.nn.Module):
        forward = _forwards()[name]

        def logits(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            assert (source.shape, target.shape) == ((2, 4), (2, 3))
            return torch.arange(2 * 3 * 5.0).reshape(2, 3, 5)

    call, logits = find_direct(Named(), Known(*IDS, 1, 1, 5))
    assert logits.shape == (2, 3, 5)
    assert torch.equal(call.logits(call.call(Named(), *IDS), 2), logits)


@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_logits_in_any_order_of_axes(axes: tuple[int, ...]) -> None:
    logits = torch.arange(2 * 3 * 5.0).reshape(2, 3, 5)

    class Turned(torch.nn.Module):
        def forward(self, src: Any, tgt: Any) -> Any:
            return {("a", "tuple"): {"hidden": logits.permute(axes)}}

    _, found = find_direct(Turned(), Known(*IDS, 1, 1, 5))
    assert torch.equal(found, logits)


UNCALLED = {
    "one_batch": "it also needs batch",
    "masked": "it also needs src_mask, tgt_mask",
    "embeds_too": "it also needs memory",
    "tokens": "it returns Tensor of [7, 9]",
    "only_last": "it returns Tensor of [7, 19]",
    "nothing": "it returns NoneType without tensors",
    "two_alike": "received 2, output[0], output[1]",
    "target_shifted": "expected logits [7, 9, 19] [B, T, V]; it returns Tensor of [7, 8, 19]",
    "fixed_length": "raised RuntimeError: The size of tensor a (12) must match the size of tensor b (11)",
    "fixed_batch": "raised RuntimeError: The size of tensor a (7) must match",
    "checks": "raised ValueError: a sentence is empty",
    "raises": "raised KeyError: 'hidden'",
    "raises_inside": "mat1 and mat2 shapes cannot be multiplied (77x5 and 12x19), in head (Linear)",
    "exits": "raised SystemExit: 1",
    "normalises_itself": "log-probabilities that no softmax of PyTorch's computes last",
}


@pytest.mark.parametrize("name", UNCALLED)
def test_a_module_that_needs_an_adapter_gets_one_line(name: str) -> None:
    with pytest.raises(ParityError, match="reference mine: ") as raised:
        side_of(name)
    message = str(raised.value)
    assert UNCALLED[name] in message
    assert "write an adapter" in message
    assert "\n" not in message


PARTLY = {
    "float32inside": ("bfloat16", "in bfloat16: its forward raised RuntimeError: expected m1 and m2 to have the same"),
    "casts_to_float32": ("float64", "in float64: its forward raised RuntimeError"),
    "bfloat16fails": ("bfloat16", "in transformer.encoder.layers.0.self_attn (MultiheadAttention)"),
    "no_copies": ("float64", "a copy of it in float64: raised TypeError: cannot pickle"),
}


@pytest.mark.parametrize("name", PARTLY)
def test_a_precision_in_which_it_fails(name: str) -> None:
    dtype, message = PARTLY[name]
    with pytest.raises(CannotRun) as raised:
        side_of(name).forward(problem_of(), dtype)  # type: ignore[arg-type]
    assert message in str(raised.value)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("without_gradients", "has no gradients: no parameter leads to its logits"),
        ("inference", "has no gradients"),
        ("writes_inputs", "backwards: raised RuntimeError: one of the variables needed for gradient computation"),
        ("traced", "is it of torch.jit?"),
    ],
)
def test_a_module_without_gradients_still_runs_forward(name: str, message: str) -> None:
    side = side_of(name)
    found = side.forward(problem_of(), "float64")[LOGITS]
    assert compare(found, right()[0][LOGITS]).within(FLOAT64_RELATIVE_RMS)
    for train in (side.gradients, lambda problem: side.train(problem, 2, keep_all=False)):
        with pytest.raises(CannotRun) as raised:
            train(problem_of())
        assert message in str(raised.value)
    assert not side.doubts


def test_rows_without_finite_logits_have_no_gradients() -> None:
    side, problem = side_of("harvard_nan", "harvard"), problem_of("harvard")
    with pytest.raises(NotFinite) as raised:
        side.train(problem, 1, keep_all=False)
    assert [*raised.value.rows] == [1, 5], "a target that begins with a pad, and a source of nothing but padding"


def test_gradients_that_are_not_finite_are_reported() -> None:
    side = side_of("nan_gradients")
    with pytest.raises(CannotRun, match=r"has a gradient of head\.weight that isn't finite"):
        side.gradients(problem_of())
    with pytest.raises(CannotRun, match=r"has a trained value of source_embedding\.weight that isn't finite"):
        side.train(problem_of(), 1, keep_all=False)


# --- what is watched is what runs


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sees_hooks",
            "its logits (own weights, float64, source_ids [7, 11] and decoder_input_ids [7, 9]) are off by a",
        ),
        ("other_with_gradients", "its logits (own weights, with gradients, source_ids [7, 11]"),
    ],
)
def test_a_module_that_computes_something_else_when_it_is_watched(name: str, message: str) -> None:
    side = side_of(name)
    side.forward(problem_of(), "float64")
    side.gradients(problem_of())
    assert any(message in doubt and doubt.endswith("relative RMS of 1.0e-03") for doubt in side.doubts), side.doubts


@pytest.mark.parametrize("name", ["flipped_norms", "swapped_queries"])
def test_a_trace_of_something_else_is_not_used(name: str) -> None:
    """Hooks watch the module instead."""
    side = side_of(name)
    assert "with a trace its logits are others" in side.in_force("float64")["watching"]
    found = side.forward(problem_of(), "float64")
    with torch.no_grad():
        plain = getattr(user_styles, name)().double()(
            *(torch.from_numpy(ids.astype(np.int64)) for ids in problem_of().ids)
        )
    np.testing.assert_array_equal(found[LOGITS], plain.numpy())
    np.testing.assert_array_equal(found["encoder.embedding"], right()[0]["encoder.embedding"])
    assert not side.doubts


def test_an_honest_trace_is_used() -> None:
    side = side_of("honest_trace")
    assert "watching" not in side.in_force("float64")
    assert "encoder.layers.0.self_attention.query" in side.forward(problem_of(), "float64")


def test_a_name_that_is_recorded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    side = side_of("harvard_doubled", "harvard")
    assert (
        "with a trace it raised ValueError: trace: encoder.layers.0.self_attention.query is recorded already"
        in (side.in_force("float64")["watching"])
    )
    assert LOGITS in side.forward(problem_of("harvard"), "float64")


def test_in_place_changes_after_a_trace_recorded_them() -> None:
    """The trace of a module that fills one itself holds copies."""
    found, honest = (side_of(name).forward(problem_of(), "float64") for name in ("traced_in_place", "honest_trace"))
    for key in ("encoder.token_embedding", "encoder.embedding"):
        np.testing.assert_allclose(found[key], honest[key], rtol=1e-13, atol=1e-13)
    gradients = [side_of(name).gradients(problem_of()).activations for name in ("traced_in_place", "honest_trace")]
    for key in ("encoder.token_embedding", "encoder.embedding"):
        np.testing.assert_allclose(*(one[key] for one in gradients), rtol=1e-10, atol=1e-13)


def test_tied_tensors_that_are_listed_twice_stay_equal() -> None:
    reference = reference_of(user_styles.tied_twice())
    given = reference.state_dict(model("pytorch").params, reference.own().keys())
    np.testing.assert_array_equal(given["decoder.output_projection.weight"], given["head.weight"])


def decoded(name: str) -> np.ndarray:
    reference = reference_of(getattr(user_styles, name)())
    with torch.no_grad():
        return reference.greedy(reference.module, *IDS[:1], 0, 3, 5).numpy()


@pytest.mark.parametrize("name", ["sequence_first", "flat", "vocabulary_second", "log_probabilities", "probabilities"])
def test_greedy_decoding_in_another_style(name: str) -> None:
    np.testing.assert_array_equal(decoded(name), decoded("short"))
