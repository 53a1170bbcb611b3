"""Measure the numerics of attentions: their scale, and their relative positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jax_transformer.discover.attention import Attention, LogitsFit, fit_logits, fit_scale, with_products
from jax_transformer.discover.findings import Structure
from jax_transformer.discover.graph import Graph
from jax_transformer.discover.head_norms import read_head_norm
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.relative import ByDistance, read_bias
from jax_transformer.discover.relative_vectors import key_vectors, with_key_vectors
from jax_transformer.discover.residuals import EXACT
from jax_transformer.discover.rotary import Rotation, read_rotation
from jax_transformer.discover.sublayers import AttentionSublayer, Parts

T5_DISTANCE = 128
"""T5's max_distance, preferred if several fit."""
ROUNDED = 1e-6
"""Maximum distance of a number from 1/sqrt(head_dim), which modules compute in float32."""


def read_attentions(graph: Graph, found: Parts, result: Structure) -> None:
    """Sets the fields and leaves of how attentions compute their logits.

    Raises:
      Unknown: no config expresses the logits, or layers differ.
    """
    reader = _Reader(graph, found, result)
    reader.attention_numerics()
    reader.relative_positions()


class _Reader:
    """Collects the positions that attentions use."""

    def __init__(self, graph: Graph, found: Parts, result: Structure) -> None:
        self.graph, self.parts, self.result = graph, found, result
        self.by_distance: dict[str, list[ByDistance | None]] = {}
        self.rotations: dict[str, list[Rotation | None]] = {}

    def _normed(self, one: AttentionSublayer, layer: int) -> Attention:
        """Returns the attention with normed queries and keys as the operands of rotation and product, if it norms
        them."""
        attention = one.attention
        parts = {"query": attention.query, "key": attention.key}
        found = {name: normed for name, part in parts.items() if (normed := read_head_norm(self.graph, part))}
        if len(found) == 1:
            raise Unknown(one.result, f"a norm of each {next(iter(found))} alone, not of queries and keys")
        self.result.agree(f"{one.options}.query_key_norm", bool(found), one.result)
        for name, (norm, _) in found.items():
            self.result.norm(f"{one.path}/{name}_norm", norm, layer)
        if not found:
            return attention
        query, key = (replace(parts[name], elements=found[name][1]) for name in ("query", "key"))
        attention = replace(attention, query=query, key=key)
        return with_products(attention, *(self.graph.values(part.elements) for part in (query, key)))

    def _rotated(self, one: AttentionSublayer, attention: Attention) -> Attention:
        """Returns the attention, with rotated queries and keys in its raw products if it rotates them."""
        found = [read_rotation(self.graph, part, one.result) for part in (attention.query, attention.key)]
        self.rotations.setdefault(one.kind, []).append(found[0])
        if found[0] is None and found[1] is None:
            return attention
        if found[0] is None or found[1] is None or found[0].fields != found[1].fields:
            raise Unknown(one.result, "queries and keys that are rotated differently")
        if one.kind != "cross":
            self._kind(one, "rotary")
        elif self.result.fields["decoder.positions.kind"] != "rotary":
            raise Unknown(one.result, "queries and keys that are rotated in cross-attention alone")
        for name, value in found[0].fields.items():
            self.result.agree(f"{_stack(one)}.positions.{name}", value, one.result)
        self.result.rounding = max(self.result.rounding, *(part.residual for part in found if part))
        second = "no rotation", min(found[0].unrotated, found[1].unrotated)
        residual = max(found[0].residual, found[1].residual)
        self.result.conclude(f"{one.kind} rotation", found[0].described, residual, second)
        return with_products(attention, found[0].rotated, found[1].rotated)

    def _with_vectors(self, one: AttentionSublayer, attention: Attention) -> tuple[Attention, ByDistance | None]:
        """Returns the attention with relative-position vectors included in its raw scores, and the vectors."""
        table, values = key_vectors(self.graph, attention), one.value_vectors
        if values is not None and (table is None or len(table) != len(values)):
            keys = "none" if table is None else str(len(table))
            raise Unknown(one.result, f"{len(values)} vectors by distance of values, and {keys} of keys")
        if table is None:
            return attention, None
        leaves = {"relative_vectors/keys": table} | ({} if values is None else {"relative_vectors/values": values})
        fields = {"values": values is not None}
        without, attention = fit_scale(attention), with_key_vectors(self.graph, attention, table)
        found = ByDistance(
            "relative_vectors", leaves, fields, fit_scale(attention)[1], ("no vectors", without[1]),
            distances=frozenset({len(table) // 2}),
        )  # fmt: skip
        return attention, found

    def _by_distance(
        self, one: AttentionSublayer, attention: Attention, fit: LogitsFit, vectors: ByDistance | None
    ) -> None:
        """Records the relative positions of an attention: vectors, or a bias of its logits."""
        known = self.by_distance.setdefault(one.kind, [])
        found = vectors if fit.bias is None else read_bias(self.graph, one.attention, fit.bias)
        known.append(found)
        if found is None:
            return
        if one.kind == "cross":
            what = "vectors" if found.kind == "relative_vectors" else "biases of attention logits"
            raise Unknown(one.result, f"{what} by position in cross-attention")
        self._kind(one, found.kind)
        factor = {"factor": found.factor} if found.kind == "relative_bias" else {}
        for name, value in (found.fields | factor).items():
            self.result.agree(f"{_stack(one)}.positions.{name}", value, one.result)
        what = f"{one.kind} attention[{len(known) - 1}] by distance"
        second = found.runner_up or ("no bias", fit_scale(attention)[1])
        self.result.conclude(what, found.described, found.residual, second)

    def _kind(self, one: AttentionSublayer, kind: str) -> None:
        """Sets the kind of positions of a self-attention's stack.

        Raises:
          Unknown: it has positions of another kind.
        """
        path = f"{_stack(one)}.positions.kind"
        known = self.result.fields[path]
        if known not in ("none", kind):
            every = ", ".join(sorted({known, kind}))
            raise Unknown(one.result, f"positions of several kinds in the {_stack(one)}: {every}")
        self.result.fields[path] = kind

    def relative_positions(self) -> None:
        """Sets the relative positions of each stack, which all its layers must share."""
        tables = {stack: self._stack_tables(stack) for stack in ("encoder", "decoder")}
        self._set_cross_rotation()
        self._tables({stack: found for stack, found in tables.items() if found})

    def _stack_tables(self, stack: str) -> list[ByDistance]:
        """Returns the relative-position tables of a stack's self-attentions.

        Raises:
          Unknown: only some layers use positions.
        """
        kind = f"{stack}_self"
        rotations, added = self.rotations[kind], self.by_distance[kind]
        some = (any(one is None for one in found) and any(found) for found in (rotations, added))
        if any(some):
            name = self.result.fields[f"{stack}.positions.kind"]
            where = next(one for one in self.parts.sublayers if one.kind == kind).result
            raise Unknown(where, f"{name} positions in the {stack}'s self-attention of some layers alone")
        return [one for one in added if one is not None and one.leaves]

    def _set_cross_rotation(self) -> None:
        """Sets whether cross-attention rotates queries and keys."""
        turned = [bool(found) for found in self.rotations["cross"]]
        if any(turned) and not all(turned):
            where = next(one for one in self.parts.sublayers if one.kind == "cross").result
            raise Unknown(where, "queries and keys that are rotated in the cross-attention of some layers alone")
        if self.result.fields["decoder.positions.kind"] == "rotary":
            self.result.fields["decoder.positions.cross_attention"] = all(turned)

    def _tables(self, tables: dict[str, list[ByDistance]]) -> None:
        """Names the tables of each stack's layers: one per stack, or one per layer.

        Raises:
          Unknown: the rows of two tables of a stack mean different distances.
        """
        known = {stack: frozenset.intersection(*(one.distances for one in found)) for stack, found in tables.items()}
        common = frozenset.intersection(*known.values()) if known else frozenset[int]()
        apart = {
            stack
            for stack, found in tables.items()
            for one in found
            for path, elements in one.leaves.items()
            if not np.array_equal(elements, found[0].leaves[path])
        }
        for stack, found in tables.items():
            if not known[stack]:
                where = next(one for one in self.parts.sublayers if one.kind == f"{stack}_self").result
                raise Unknown(where, "distances that have rows of their own in some tables alone")
            fits = self.result.distances[stack] = common or known[stack]
            per_layer = stack in apart or (
                len(found) == 1 and bool(apart)
            )  # a single layer follows the other stack, so that both read alike
            self.result.fields |= {
                f"{stack}.positions.max_distance": T5_DISTANCE if T5_DISTANCE in fits else min(fits),
                f"{stack}.positions.per_layer": per_layer,
            }
            for number, one in enumerate(found if per_layer else found[:1]):
                for path, elements in one.leaves.items():
                    place = f"layers/self_attention/{path}[{number}]" if per_layer else path
                    self.result.leaves[f"{stack}/{place}"] = elements

    def attention_numerics(self) -> None:
        """Measures the factor of all attention logits."""
        factors: dict[str, list[tuple[AttentionSublayer, float, float]]] = {}
        for one in self.parts.sublayers:
            if not isinstance(one, AttentionSublayer):
                continue
            usual = one.attention.raw_scale
            layer = len(self.by_distance.get(one.kind, []))
            attention, vectors = self._with_vectors(one, self._rotated(one, self._normed(one, layer)))
            fit = fit_logits(attention)
            self._by_distance(one, attention, fit, vectors)
            factors.setdefault(one.options, []).append((one, fit.scale, usual))
            known = {"1/sqrt(head_dim)": usual, "1/sqrt(d_model)": self._width_scale(), "1": 1.0}
            ranked = sorted((abs(value / fit.scale - 1), name) for name, value in known.items())
            named = ranked[0][1] if ranked[0][0] <= ROUNDED else f"{fit.scale:.9g}"
            residual = ranked[0][0] if ranked[0][0] <= ROUNDED else fit.residual
            self.result.conclude(f"{one.kind} attention", f"scale {named}", residual, ranked[1][::-1])
        for path, found in factors.items():
            self.result.fields[f"{path}.scale"] = self._attention_scale(found)

    def _width_scale(self) -> float:
        """Returns 1/sqrt(d_model)."""
        return float(self.result.fields["encoder.d_model"] ** -0.5)

    def _attention_scale(self, factors: list[tuple[AttentionSublayer, float, float]]) -> float | None:
        """Returns the scale of an attention, which is one number in all layers; None: 1/sqrt(head_dim)."""
        errors = [abs(scale / usual - 1) for _, scale, usual in factors]
        if max(errors) <= EXACT:
            return None
        first = factors[0][1]
        if all(abs(scale / first - 1) <= EXACT for _, scale, _ in factors):
            return next((one for one in (1.0, self._width_scale()) if abs(first / one - 1) <= EXACT), first)
        if max(errors) <= ROUNDED:
            self.result.rounding = max(self.result.rounding, *errors)
            return None
        where, scale, _ = next(one for one in factors if abs(one[1] / first - 1) > EXACT)
        raise Unknown(where.result, f"attention logits multiplied by {scale:.9g} here and {first:.9g} elsewhere")


def _stack(one: AttentionSublayer) -> str:
    return "decoder" if one.is_target else "encoder"
