"""A repair names the line at which a difference arises, or the lines between which something is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_transformer.proof import Task
from jax_transformer.proof.repair import Repair, find_repair, finding
from jax_transformer.proof.repair.search import Search
from proof.pairs import Pair, in_jax
from proof.repaired_layers import OF_LAYER, B, D, T, Written, attention, layer_norm, line, one_more, pair


def repaired(pair: Pair) -> Repair:
    with jax.enable_x64(True):
        found = find_repair(pair.task())
    assert found is not None
    assert found.log2_error < -80
    return found


def test_keys_made_with_the_kernel_of_values_are_named_though_their_bias_does_not_matter() -> None:
    (cause,) = repaired(pair(Written(keys=lambda number: "value"))).causes
    assert cause.kind == "weight"
    assert re.findall(r" reads (\S+?)(?:,|$)", cause.text) == ["0.value.kernel", "0.key.kernel"]
    assert cause.candidate == line("keys")


def test_a_line_that_runs_another_module_is_named_rather_than_its_caller() -> None:
    found = repaired(pair(Written(keys=lambda number: "value" if number == 1 else "key"), 2))
    assert [cause.candidate for cause in found.causes] == [line("keys")]


def test_the_same_edit_in_further_layers_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Any] = []
    edits = Search._edits

    def counted(search: Any) -> Iterator[Any]:
        searched.append(search)
        return edits(search)

    monkeypatch.setattr(Search, "_edits", counted)
    assert len(repaired(pair(Written(keys=lambda number: "value"), 2)).causes) == 2
    assert len(searched) == 1


def test_an_offset_of_positions_is_named_where_they_are_looked_up() -> None:
    (cause,) = repaired(pair(Written(positions=one_more))).causes
    assert cause.kind == "order"
    assert cause.candidate == line("one more")
    assert cause.text.startswith(f"{line('one more')} reads other elements of positions than ")


@pytest.mark.parametrize("has_positions", [True, False])
def test_a_missing_norm_is_above_the_line_that_reads_the_value(has_positions: bool) -> None:
    (cause,) = repaired(pair(Written(norm=False), has_positions=has_positions)).causes
    assert cause.kind == "missing"
    assert cause.text.endswith(f"and no line of layer above {line('attention')} does so to its input")
    assert cause.modules == ("layers.0",)


@pytest.mark.parametrize(
    ("how", "lines"),
    [
        (Written(residual=False), ("attention", "out_norm")),
        (Written(out_norm=False), ("residual", "feed forward")),
    ],
)
def test_what_is_missing_between_two_lines_is_between_them(how: Written, lines: tuple[str, str]) -> None:
    (cause,) = repaired(pair(how)).causes
    first, last = map(line, lines)
    assert cause.kind == "missing"
    assert cause.text.endswith(
        f"no line of layer from {first} to :{last.rpartition(':')[2]} does so to the value between"
    )


def test_a_fault_of_more_layers_than_causes_are_searched_for_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST_EDITS", 2)
    count = 4

    def chain(w: Any, scale: Any) -> Any:
        x = w["x"]
        for layer in range(count):
            x = jnp.tanh(x * scale(w[f"{layer}"]))
        return x

    shapes = {"x": (2, 3), **{f"{layer}": (3,) for layer in range(count)}}
    sides = (in_jax(lambda w: chain(w, lambda scale: 1 + scale)), in_jax(lambda w: chain(w, lambda scale: scale)))
    (cause,) = repaired(Pair("", shapes, *sides)).causes
    assert cause.kind == "left out"


def split(x: Any) -> Any:
    """Returns heads of the width 2 in front of tokens."""
    return jnp.swapaxes(x.reshape(3, 2, 2), 0, 1)


def scores(w: Any, scale: float | None) -> Any:
    q = w["x"] @ w["q"]  # made
    if scale is not None:
        q = q * scale
    q, k = split(q), split(w["x"] @ w["k"])
    return jax.nn.softmax(q @ k.swapaxes(-1, -2), -1)  # read


def test_what_is_missing_may_be_behind_the_move_that_splits_heads() -> None:
    sides = in_jax(lambda w: scores(w, None)), in_jax(lambda w: scores(w, 0.5))
    (cause,) = repaired(Pair("", {"x": (3, 4), "q": (4, 4), "k": (4, 4)}, *sides)).causes
    first, last = (line(comment, __file__) for comment in ("made", "read"))
    last = last.rpartition(":")[2]
    assert cause.text.endswith(f"no line of scores from {first} to :{last} does so to the value between")


def flattened(w: Any, residual: bool) -> Any:
    a = attention(w["x"], w, "key")  # attended
    if residual:
        a = w["x"] + a
    rows = a.reshape(-1, D)
    return layer_norm(rows, w, "norm") @ w["outer.kernel"]  # normed


def test_what_is_missing_may_be_before_the_move_whose_result_is_replaced() -> None:
    sides = in_jax(lambda w: flattened(w, False)), in_jax(lambda w: flattened(w, True))
    (cause,) = repaired(Pair("", {"x": (B, T, D), **OF_LAYER}, *sides)).causes
    first, last = (line(comment, __file__) for comment in ("attended", "normed"))
    last = last.rpartition(":")[2]
    assert cause.text.endswith(f"no line of flattened from {first} to :{last} does so to the value between")


def looked_up(table: Any, places: Any) -> Any:
    return table[places]  # looked up


def test_lines_that_compute_where_a_table_is_read_are_named() -> None:
    def rows(w: Any, first: int) -> Any:
        places = jnp.arange(3) + first  # places
        return jnp.tanh(looked_up(w["table"], places) @ w["kernel"])

    shapes = {"table": (6, 4), "kernel": (4, 4)}
    sides = in_jax(lambda w: rows(w, 2)), in_jax(lambda w: rows(w, 1))
    (cause,) = repaired(Pair("", shapes, *sides)).causes
    assert cause.candidate == line("looked up", __file__)
    made = re.search(r"reads other elements of table than .*, at places made in lines? ([\d, ]+)$", cause.text)
    assert made is not None
    assert line("places", __file__).rpartition(":")[2] in made[1].split(", ")


def pooled(w: Any, token: int) -> Any:
    x = jnp.tanh(w["x"] @ w["kernel"])
    first = x[:, token]  # pooled
    return jnp.concatenate([first, x[:, 1:].mean(1)], -1) @ w["head"]


def test_another_token_of_joined_values_is_named_where_it_is_taken() -> None:
    shapes = {"x": (2, 3, 4), "kernel": (4, 4), "head": (8, 2)}
    sides = in_jax(lambda w: pooled(w, 1)), in_jax(lambda w: pooled(w, 0))
    (cause,) = repaired(Pair("", shapes, *sides)).causes
    assert (cause.kind, cause.candidate) == ("order", line("pooled", __file__))
    assert "reads other elements than" in cause.text


def test_a_weight_that_is_read_and_not_drawn_has_no_value() -> None:
    sides = in_jax(lambda w: w["x"] * w["mask"]), in_jax(lambda w: w["x"] + w["mask"])
    task = Pair("", {"x": (2, 3), "mask": (3,)}, *sides).task()

    def without_mask(draw: Any) -> Any:
        drawn = {"x": task.draw(draw)[0]["x"]}
        return drawn, drawn

    with jax.enable_x64(True):
        assert find_repair(Task(task.candidate, task.reference, without_mask)) is None


def test_a_weight_that_neither_program_reads_does_not_hinder_the_search() -> None:
    def scaled(w: Any, number: float) -> Any:
        return jnp.tanh(w["x"] * number)

    sides = in_jax(lambda w: scaled(w, 2.0)), in_jax(lambda w: scaled(w, 3.0))
    task = Pair("", {"x": (2, 3), "mask": (3,)}, *sides).task()

    def without_mask(draw: Any) -> Any:
        drawn = {"x": task.draw(draw)[0]["x"]}
        return drawn, drawn

    with jax.enable_x64(True):
        found = find_repair(Task(task.candidate, task.reference, without_mask))
    assert found is not None
    assert [cause.kind for cause in found.causes] == ["constant"]


@pytest.mark.parametrize("is_scaled", [True, False])
def test_either_of_two_equal_factors_is_named(is_scaled: bool) -> None:
    """The reference divides by one of them, or multiplies by one."""

    def ours(w: Any) -> Any:
        x = (w["x"] @ w["kernel"]) * 3.0  # first factor
        y = x.reshape(3, 2, 2) * 3.0  # second factor
        return jnp.tanh(y if is_scaled else y / 3.0)

    def theirs(w: Any) -> Any:
        x = (w["x"] @ w["kernel"]).reshape(3, 2, 2)
        return jnp.tanh(x * 3.0 if is_scaled else x)

    (cause,) = repaired(Pair("", {"x": (3, 4), "kernel": (4, 4)}, in_jax(ours), in_jax(theirs))).causes
    lines = [line(comment, __file__) for comment in ("first factor", "second factor")]
    assert (cause.kind, cause.cure) == ("left out", "without one of them")
    assert sorted(re.findall(r"\S+\.py:\d+", cause.text)) == sorted(lines)


def test_one_of_two_other_factors_is_named_alone() -> None:
    def ours(w: Any) -> Any:
        x = (w["x"] @ w["kernel"]) * 3.0
        return jnp.tanh(x * 5.0)  # other factor

    sides = in_jax(ours), in_jax(lambda w: jnp.tanh((w["x"] @ w["kernel"]) * 3.0))
    (cause,) = repaired(Pair("", {"x": (3, 4), "kernel": (4, 4)}, *sides)).causes
    assert cause.candidate == line("other factor", __file__)
    assert " or " not in cause.text
