"""Write exponentials of differences as products: exp(x − y) = exp(x) · exp(−y), for all x and y.

A blockwise softmax subtracts the largest entry so far from each block, and rescales the sums of earlier blocks by
exp(old − new). In products, these terms cancel. They also cancel in the logarithm of such a sum, if log x + y is
written as log(x · exp(y)), and log x − y as log(x · exp(−y)).

The sine of x + π/2 is also written as the cosine of x.

In this form, a softmax is no longer invariant to adding a number to its rows, unless that is written as a difference.
So programs are first compared as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jax_transformer.proof.constants import as_read
from jax_transformer.proof.programs import Operation, Program, key_of

AXIOM, OF_TURNS = "differences", "activations"

MOVES = frozenset(("reshape", "broadcast", "transpose", "where"))
"""Operations on elements through which an exponential may pass."""


def written_out(program: Program) -> Program:
    """Returns the program with its exponentials written as products, and sines of x + π/2 as cosines of x, under the
    axioms if there were any."""
    writing = _Writing(program)
    for one in program.operations:
        writing.copy(one)
    outputs = {
        name: value if value.node is None else replace(value, node=writing.copied[value.node])
        for name, value in program.outputs.items()
    }
    axioms = dict(program.axioms)
    for axiom, lines in ((AXIOM, writing.lines), (OF_TURNS, writing.turned)):
        if lines:
            axioms[axiom] = {**axioms.get(axiom, {}), **lines}
    requirements = {
        writing.copied[node]: replace(required, of=writing.copied[required.of])
        for node, required in program.requirements.items()
    }
    tables = {writing.copied[node]: table for node, table in program.tables.items()}
    found = replace(program, operations=tuple(writing.operations), outputs=outputs, axioms=axioms)
    return replace(found, requirements=requirements, tables=tables)


class _Writing:
    """Copies operations, rewriting exponentials."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operations: list[Operation] = []
        self.copied: list[int] = []
        """The program's operations → the copies."""
        self.lines: dict[str, None] = {}
        self.turned: dict[str, None] = {}
        self._nodes: dict[Any, int] = {}

    def copy(self, one: Operation) -> None:
        if one.name == "exp":
            found = self._exp(one.inputs[0], 1, one.line)
        elif one.name == "row_exp":
            found = self._row_exp(one)
        elif (sum_with_log := self._sum_with_log(one)) is not None:
            found = sum_with_log
        elif one.name in ("sin", "cos") and (turned := self._turned(one)) is not None:
            found = turned
        else:
            found = self._emit(
                one.name, [self.copied[each] for each in one.inputs], one.shape, one.attributes, one.line
            )
        self.copied.append(found)

    def _turned(self, one: Operation) -> int | None:
        """Returns sin x, cos x or their opposites for the sine or cosine of a sum of ±x and a multiple of π/2; None for
        anything else."""
        total = self.program.operations[one.inputs[0]]
        if total.name not in ("add", "subtract"):
            return None
        for place in range(2):
            quarters = self._quarters(total.inputs[place])
            if quarters is None:
                continue
            is_subtracted = total.name == "subtract" and place == 1
            x = self.copied[total.inputs[1 - place]]
            if total.name == "subtract" and place == 0:
                x = self._emit("negate", [x], one.shape, {}, one.line)
            turns = ((-quarters if is_subtracted else quarters) + (one.name == "cos")) % 4
            found = self._emit("cos" if turns % 2 else "sin", [x], one.shape, {}, one.line)
            self.turned[one.line] = None
            return found if turns < 2 else self._emit("negate", [found], one.shape, {}, one.line)
        return None

    def _quarters(self, node: int) -> int | None:
        """Returns n if an operation of the program is n · π/2."""
        one = self.program.operations[node]
        while one.name in ("reshape", "broadcast"):
            one = self.program.operations[one.inputs[0]]
        if one.name != "constant" or one.attributes["array"].size != 1:
            return None
        (number,) = (as_read(**one.attributes) or {}).values() or (None,)
        if number is None or (number.radicand, number.half_pis) != (1, 2) or number.fraction.denominator > 2:
            return None
        return int(2 * number.fraction)

    def _sum_with_log(self, one: Operation) -> int | None:
        """Returns log(x · exp(y)) for log x + y, and ± log(x · exp(−y)) for the difference of log x and y; None for
        anything else, such as the difference of two logarithms."""
        if one.name not in ("add", "subtract"):
            return None
        logs = [self._as_log(each) for each in one.inputs]
        place = 1 if logs[0] is None else 0
        factor = logs[place]
        if factor is None or (one.name == "subtract" and self._holds_log(one.inputs[1 - place])):
            return None
        self.lines[one.line] = None
        sign = 1 if one.name == "add" else -1
        product = [factor, self._exp(one.inputs[1 - place], sign, one.line)]
        found = self._emit("log", [self._emit("multiply", product, one.shape, {}, one.line)], one.shape, {}, one.line)
        is_negative = one.name == "subtract" and place == 1
        return self._emit("negate", [found], one.shape, {}, one.line) if is_negative else found

    def _as_log(self, node: int) -> int | None:
        """Returns x if an operation of the program is log x."""
        moves, node = list[Operation](), self.copied[node]
        while self.operations[node].name in ("reshape", "broadcast"):
            moves.append(self.operations[node])
            node = self.operations[node].inputs[0]
        if self.operations[node].name != "log":
            return None
        factor = self.operations[node].inputs[0]
        for move in moves[::-1]:
            factor = self._emit(move.name, [factor], move.shape, move.attributes, move.line)
        return factor

    def _holds_log(self, node: int) -> bool:
        """Returns whether elements of an operation of the program are logarithms."""
        seen, waiting = set[int](), [node]
        while waiting:
            each = waiting.pop()
            one = self.program.operations[each]
            if self.operations[self.copied[each]].name == "log":
                return True
            if each not in seen and one.name in (*MOVES, "concatenate", "take"):
                waiting += one.inputs
            seen.add(each)
        return False

    def _row_exp(self, one: Operation) -> int:
        """Returns exp(x) · exp(−m) for exp(x − m), and 0 for entries that don't count."""
        x, mean = (self._exp(each, sign, one.line) for each, sign in zip(one.inputs, (1, -1), strict=True))
        mean = self._emit("broadcast", [mean], one.shape, {}, one.line)
        found = self._emit("multiply", [x, mean], one.shape, {}, one.line)
        counts = one.attributes.get("counts")
        if counts is None:
            return found
        zero = self._emit("constant", [], (), {"array": np.zeros(())}, one.line)
        zero = self._emit("broadcast", [zero], one.shape, {}, one.line)
        return self._emit(
            "where", [found, zero], one.shape, {"condition": np.broadcast_to(counts, one.shape)}, one.line
        )

    def _exp(self, node: int, sign: int, line: str) -> int:
        """Returns exp(x) or exp(−x) of an operation's result."""
        one = self.program.operations[node]
        if one.name == "subtract":
            self.lines[line] = None
            factors = [self._exp(one.inputs[0], sign, line), self._exp(one.inputs[1], -sign, line)]
            return self._emit("multiply", factors, one.shape, {}, line)
        if one.name == "negate":
            return self._exp(one.inputs[0], -sign, line)
        if one.name in MOVES:
            moved = [self._exp(each, sign, line) for each in one.inputs]
            return self._emit(one.name, moved, one.shape, one.attributes, line)
        argument = self.copied[node]
        if sign < 0:
            argument = self._emit("negate", [argument], one.shape, {}, line)
        return self._emit("exp", [argument], one.shape, {}, line)

    def _emit(
        self, name: str, inputs: Sequence[int], shape: tuple[int, ...], attributes: Mapping[str, Any], line: str
    ) -> int:
        key = name, tuple(inputs), shape, key_of(attributes)
        if key not in self._nodes:
            self._nodes[key] = len(self.operations)
            self.operations.append(Operation(name, tuple(inputs), shape, attributes, line))
        return self._nodes[key]
