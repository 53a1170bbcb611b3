"""Measure the numerics of attentions: their factor, and what they know of positions."""

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
"""relative_max_distance of T5, chosen where several fit."""
ROUNDED = 1e-6
"""How far a number may be from 1/sqrt(head_dim) that a module computed in float32."""


def read_attentions(graph: Graph, found: Parts, result: Structure) -> None:
    """Sets the fields and leaves that follow from how attentions compute their logits.

    Raises:
      Unknown: logits follow from nothing that a config expresses, or not everywhere from the same.
    """
    reader = _Reader(graph, found, result)
    reader.attention_numerics()
    reader.relative_positions()


class _Reader:
    """Collects what attentions know of positions."""

    def __init__(self, graph: Graph, found: Parts, result: Structure) -> None:
        self.graph, self.parts, self.result = graph, found, result
        self.by_distance: dict[str, list[ByDistance | None]] = {}
        self.rotations: dict[str, list[Rotation | None]] = {}

    def _normed(self, one: AttentionSublayer, layer: int) -> Attention:
        """Returns the attention, with normed queries and keys as what is rotated and multiplied, if it norms them."""
        attention = one.attention
        parts = {"query": attention.query, "key": attention.key}
        found = {name: normed for name, part in parts.items() if (normed := read_head_norm(self.graph, part))}
        if len(found) == 1:
            raise Unknown(one.result, f"a norm of each {next(iter(found))} alone, not of queries and keys")
        self.result.agree("query_key_norm", bool(found), one.result)
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
        for name, value in found[0].fields.items():
            self.result.agree(name, value, one.result)
        self.result.rounding = max(self.result.rounding, *(part.residual for part in found if part))
        second = "no rotation", min(found[0].unrotated, found[1].unrotated)
        residual = max(found[0].residual, found[1].residual)
        self.result.conclude(f"{one.kind} rotation", found[0].described, residual, second)
        return with_products(attention, found[0].rotated, found[1].rotated)

    def _with_vectors(self, one: AttentionSublayer, attention: Attention) -> tuple[Attention, ByDistance | None]:
        """Returns the attention, with what vectors by distance add in its raw products, and these."""
        table, values = key_vectors(self.graph, attention), one.value_vectors
        if values is not None and (table is None or len(table) != len(values)):
            keys = "none" if table is None else str(len(table))
            raise Unknown(one.result, f"{len(values)} vectors by distance of values, and {keys} of keys")
        if table is None:
            return attention, None
        leaves = {"relative_vectors/keys": table} | ({} if values is None else {"relative_vectors/values": values})
        fields = {"relative_value_vectors": values is not None}
        without, attention = fit_scale(attention), with_key_vectors(self.graph, attention, table)
        found = ByDistance(
            "relative_vectors", leaves, fields, fit_scale(attention)[1], ("no vectors", without[1]),
            distances=frozenset({len(table) // 2}),
        )  # fmt: skip
        return attention, found

    def _by_distance(
        self, one: AttentionSublayer, attention: Attention, fit: LogitsFit, vectors: ByDistance | None
    ) -> None:
        """Keeps what an attention adds by distance: vectors, or a bias of its logits."""
        known = self.by_distance.setdefault(one.kind, [])
        found = vectors if fit.bias is None else read_bias(self.graph, one.attention, fit.bias)
        known.append(found)
        if found is None:
            return
        for name, value in found.fields.items():
            self.result.agree(name, value, one.result)
        if found.kind == "relative_bias":
            self.result.agree(f"{one.kind.partition('_')[0]}_relative_bias_factor", found.factor, one.result)
        what = f"{one.kind} attention[{len(known) - 1}] by distance"
        second = found.runner_up or ("no bias", fit_scale(attention)[1])
        self.result.conclude(what, found.described, found.residual, second)

    def relative_positions(self) -> None:
        """Puts what attentions know of positions together: all layers of a stack the same."""
        tables = {stack: self._of_stack(stack) for stack in ("encoder", "decoder")}
        self._of_cross_attention()
        self._tables({stack: found for stack, found in tables.items() if found})

    def _of_stack(self, stack: str) -> list[ByDistance]:
        """Sets what a stack's self-attentions know of positions. Returns what they add by distance from tables.

        Raises:
          Unknown: it is of several kinds, or not the same in all layers.
        """
        kind, field = f"{stack}_self", f"{stack}_position_kind"
        rotations, added = self.rotations[kind], self.by_distance[kind]
        names = {one.kind for one in added if one is not None} | ({"rotary"} if any(rotations) else set())
        if not names:
            return []
        where = next(one for one in self.parts.sublayers if one.kind == kind).result
        if len(names) > 1 or self.result.fields[field] != "none":
            every = sorted(names | {self.result.fields[field]} - {"none"})
            raise Unknown(where, f"positions of several kinds in the {stack}: {', '.join(every)}")
        (name,) = names
        found = rotations if name == "rotary" else added
        if any(one is None for one in found):
            raise Unknown(where, f"{name} positions in the {stack}'s self-attention of some layers alone")
        self.result.fields[field] = name
        return [one for one in added if one is not None and one.leaves]

    def _of_cross_attention(self) -> None:
        """Sets what cross-attention knows of positions."""
        where = next(one for one in self.parts.sublayers if one.kind == "cross").result
        for one in self.by_distance["cross"]:
            if one is not None:
                what = "vectors" if one.kind == "relative_vectors" else "biases of attention logits"
                raise Unknown(where, f"{what} by position in cross-attention")
        turned = [bool(found) for found in self.rotations["cross"]]
        if any(turned) and (not all(turned) or self.result.fields["decoder_position_kind"] != "rotary"):
            raise Unknown(where, "queries and keys that are rotated in the cross-attention of some layers alone")
        self.result.fields["rotary_cross_attention"] = all(turned)

    def _tables(self, tables: dict[str, list[ByDistance]]) -> None:
        """Names the tables of each stack's layers: one per stack, or one per layer.

        Raises:
          Unknown: the rows of two tables mean different distances.
        """
        if not tables:
            return
        known = frozenset.intersection(*(one.distances for found in tables.values() for one in found))
        if not known:
            raise Unknown(self.parts.sublayers[0].result, "distances that have rows of their own in some tables alone")
        self.result.distances = known
        self.result.fields["relative_max_distance"] = T5_DISTANCE if T5_DISTANCE in known else min(known)
        per_layer = any(
            not np.array_equal(elements, found[0].leaves[path])
            for found in tables.values()
            for one in found
            for path, elements in one.leaves.items()
        )
        self.result.fields["relative_bias_per_layer"] = per_layer
        for stack, found in tables.items():
            for number, one in enumerate(found if per_layer else found[:1]):
                for path, elements in one.leaves.items():
                    place = f"layers/self_attention/{path}[{number}]" if per_layer else path
                    self.result.leaves[f"{stack}/{place}"] = elements

    def attention_numerics(self) -> None:
        """Measures the factor of all attention logits."""
        factors: list[tuple[AttentionSublayer, float, float]] = []
        for one in self.parts.sublayers:
            if not isinstance(one, AttentionSublayer):
                continue
            usual = one.attention.raw_scale
            layer = len(self.by_distance.get(one.kind, []))
            attention, vectors = self._with_vectors(one, self._rotated(one, self._normed(one, layer)))
            fit = fit_logits(attention)
            self._by_distance(one, attention, fit, vectors)
            factors.append((one, fit.scale, usual))
            known = {"1/sqrt(head_dim)": usual, "1/sqrt(d_model)": self.result.fields["d_model"] ** -0.5, "1": 1.0}
            ranked = sorted((abs(value / fit.scale - 1), name) for name, value in known.items())
            named = ranked[0][1] if ranked[0][0] <= ROUNDED else f"{fit.scale:.9g}"
            residual = ranked[0][0] if ranked[0][0] <= ROUNDED else fit.residual
            self.result.conclude(f"{one.kind} attention", f"scale {named}", residual, ranked[1][::-1])
        self._attention_scale(factors)

    def _attention_scale(self, factors: list[tuple[AttentionSublayer, float, float]]) -> None:
        """Sets attention_scale: one number everywhere, or each attention's 1/sqrt(head_dim)."""
        errors = [abs(scale / usual - 1) for _, scale, usual in factors]
        if max(errors) <= EXACT:
            self.result.fields["attention_scale"] = None
            return
        first = factors[0][1]
        if all(abs(scale / first - 1) <= EXACT for _, scale, _ in factors):
            exact = (1.0, self.result.fields["d_model"] ** -0.5)
            self.result.fields["attention_scale"] = next((one for one in exact if abs(first / one - 1) <= EXACT), first)
        elif max(errors) <= ROUNDED:
            self.result.fields["attention_scale"] = None
            self.result.rounding = max(self.result.rounding, *errors)
        else:
            where, scale, _ = next(one for one in factors if abs(one[1] / first - 1) > EXACT)
            raise Unknown(where.result, f"attention logits multiplied by {scale:.9g} here and {first:.9g} elsewhere")
