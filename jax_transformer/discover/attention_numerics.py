"""Measure the numerics of attentions: their factor, and what they know of positions."""

from __future__ import annotations

import numpy as np

from jax_transformer.discover.attention import Attention, LogitsFit, fit_logits, rotated_by
from jax_transformer.discover.findings import Structure
from jax_transformer.discover.graph import Graph
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.relative import RelativeBias, read_bias
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
        self.biases: dict[str, dict[int, RelativeBias | None]] = {}
        self.rotations: dict[str, list[Rotation | None]] = {}

    def _unrotated(self, one: AttentionSublayer) -> Attention:
        """Returns the attention, with rotated queries and keys in its raw products if it rotates them."""
        attention = one.attention
        found = [read_rotation(self.graph, part, one.result) for part in (attention.query, attention.key)]
        self.rotations.setdefault(one.kind, []).append(found[0])
        if found[0] is None and found[1] is None:
            return attention
        if found[0] is None or found[1] is None or found[0].fields != found[1].fields:
            raise Unknown(one.result, "queries and keys that are rotated differently")
        for name, value in found[0].fields.items():
            self.result.agree(name, value, one.result)
        self.result.rounding = max(self.result.rounding, *(part.residual for part in found if part))
        self.result.conclude(f"{one.kind} rotation", found[0].described, max(found[0].residual, found[1].residual))
        return rotated_by(attention, found[0].rotated, found[1].rotated)

    def _bias(self, one: AttentionSublayer, fit: LogitsFit) -> None:
        """Reads the bias of an attention's logits as relative positions."""
        number = [other for other in self.parts.sublayers if other.kind == one.kind].index(one)
        if fit.bias is None:
            self.biases.setdefault(one.kind, {})[number] = None
            return
        found = read_bias(self.graph, one.attention, fit.bias)
        for name, value in found.fields.items():
            self.result.agree(name, value, one.result)
        self.result.agree(f"{one.kind.partition('_')[0]}_relative_bias_factor", found.factor, one.result)
        self.result.conclude(f"{one.kind} attention[{number}] bias", found.described, found.residual)
        self.biases.setdefault(one.kind, {})[number] = found

    def relative_positions(self) -> None:
        """Puts what attentions know of positions together: all layers of a stack the same."""
        for stack in ("encoder", "decoder"):
            self._of_stack(stack)
        self._of_cross_attention()

    def _of_stack(self, stack: str) -> None:
        """Sets what a stack's self-attentions know of positions.

        Raises:
          Unknown: it is of several kinds, or not the same in all layers.
        """
        kind, field = f"{stack}_self", f"{stack}_position_kind"
        rotations, biases = self.rotations[kind], [bias for _, bias in sorted(self.biases[kind].items())]
        names = {bias.kind for bias in biases if bias is not None} | ({"rotary"} if any(rotations) else set())
        if not names:
            return
        where = next(one for one in self.parts.sublayers if one.kind == kind).result
        if len(names) > 1 or self.result.fields[field] != "none":
            every = sorted(names | {self.result.fields[field]} - {"none"})
            raise Unknown(where, f"positions of several kinds in the {stack}: {', '.join(every)}")
        (name,) = names
        found = rotations if name == "rotary" else biases
        if any(one is None for one in found):
            raise Unknown(where, f"{name} positions in the {stack}'s self-attention of some layers alone")
        self.result.fields[field] = name
        if name == "relative_bias":
            self._tables(stack, [bias for bias in biases if bias is not None])

    def _of_cross_attention(self) -> None:
        """Sets what cross-attention knows of positions."""
        where = next(one for one in self.parts.sublayers if one.kind == "cross").result
        if any(bias is not None for bias in self.biases["cross"].values()):
            raise Unknown(where, "biases of attention logits by position in cross-attention")
        turned = [bool(found) for found in self.rotations["cross"]]
        if any(turned) and (not all(turned) or self.result.fields["decoder_position_kind"] != "rotary"):
            raise Unknown(where, "queries and keys that are rotated in the cross-attention of some layers alone")
        self.result.fields["rotary_cross_attention"] = all(turned)

    def _tables(self, stack: str, biases: list[RelativeBias]) -> None:
        """Names the tables of biases: one per stack, or one per layer."""
        tables = [bias.table for bias in biases if bias.table is not None]
        known = self.result.distances
        for bias in biases:
            known = bias.distances if known is None else known & bias.distances
        if not known:
            raise Unknown(self.parts.sublayers[0].result, "biases by distance whose buckets differ between attentions")
        self.result.distances = known
        self.result.fields["relative_max_distance"] = T5_DISTANCE if T5_DISTANCE in known else min(known)
        per_layer = any(not np.array_equal(table, tables[0]) for table in tables)
        self.result.agree("relative_bias_per_layer", per_layer, self.parts.sublayers[0].result)
        for number, table in enumerate(tables if per_layer else tables[:1]):
            place = (
                f"layers/self_attention/relative_bias/embedding[{number}]" if per_layer else "relative_bias/embedding"
            )
            self.result.leaves[f"{stack}/{place}"] = table

    def attention_numerics(self) -> None:
        """Measures the factor of all attention logits."""
        factors: list[tuple[AttentionSublayer, float, float]] = []
        for one in self.parts.sublayers:
            if not isinstance(one, AttentionSublayer):
                continue
            usual = one.attention.raw_scale
            fit = fit_logits(self._unrotated(one))
            self._bias(one, fit)
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
