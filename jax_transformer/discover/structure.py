"""Put sublayers together: stacks, streams and norms, embeddings and the head, as options of a config and leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_transformer.discover.attention_numerics import read_attentions
from jax_transformer.discover.embeddings import Embedding, read_embedding
from jax_transformer.discover.findings import Structure, with_conclusions
from jax_transformer.discover.graph import Graph, Linear, distance
from jax_transformer.discover.masks import padding_fields
from jax_transformer.discover.norms import Norm, norms
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.residuals import EXACT, Residuals, Step
from jax_transformer.discover.sublayers import AttentionSublayer, FeedForward, Parts, Sublayer, parts
from jax_transformer.discover.sums import Sum, Sums
from jax_transformer.programs.trace import Value


def read_structure(graph: Graph, source_pad_id: int | None, target_pad_id: int | None) -> Structure:
    """Reads the graph of a recording as an encoder-decoder Transformer.

    Args:
      graph: a recording with small attention scores (`with_small_scores`).
      source_pad_id, target_pad_id: the ids of padding; None where no id is.

    Raises:
      DiscoverError: no config expresses it; names the operation, its line and layer.
    """
    found_norms = norms(graph)
    ids = {value.op: value.array for value in graph.recording.values if value.op in ("source_ids", "target_ids")}
    pads = [ids["source_ids"] == source_pad_id, ids["target_ids"] == target_pad_id]
    sums = Sums(graph, found_norms, pads)
    found = parts(graph, sums, found_norms)
    builder = _Builder(graph, sums, found, found_norms)
    with with_conclusions(builder.result):
        builder.stack("encoder")
        builder.stack("decoder")
        builder.head()
        builder.result.is_normalised = found.is_log_softmax
        read_attentions(graph, found, builder.result)
        builder.result.fields |= padding_fields(
            graph, found, builder.ids(), source_pad_id, target_pad_id, builder.result.notes
        )
    if sums.zeroed:
        builder.result.notes.append(
            f"padding is zeroed ({sums.zeroed[0].described()}), which real tokens don't read: logits of padding differ"
        )
    return builder.result


class _Builder:
    """Collects options and leaves."""

    def __init__(self, graph: Graph, sums: Sums, found: Parts, found_norms: dict[Value, Norm]) -> None:
        self.graph, self.sums, self.parts, self.norms = graph, sums, found, found_norms
        self.result = Structure()
        self.embeddings: dict[str, Embedding] = {}
        self.residuals = Residuals(graph, sums, found_norms)
        self.head_factor = 1.0
        """Multiplies the stream before the head."""

    def ids(self) -> dict[str, np.ndarray]:
        """Returns the ids that the embeddings look up."""
        return {"source_ids": self.embeddings["encoder"].ids, "target_ids": self.embeddings["decoder"].ids}

    # --- stacks

    def stack(self, stack: str) -> None:
        """Reads a stack from its embedding to the readers of its output."""
        sublayers = [one for one in self.parts.sublayers if one.is_target == (stack == "decoder")]
        layers = self._layers(stack, sublayers)
        readers = self._readers(stack)
        stream = self.residuals.start(layers[0])
        self.embeddings[stack] = read_embedding(self.graph, self.sums, stream, self.norms, stack, self.result)
        for number, layer in enumerate(layers):
            parallel = self.residuals.are_parallel(layer, stream)
            self.result.agree(f"{stack}.residual.parallel", parallel, layer[0].result)
            if parallel:
                steps = self.residuals.parallel_steps(layer, stream)
                stream = steps[-1].after
            else:
                steps = []
                following = [one for other in layers[number + 1 :] for one in other[:1]]
                for one, after in zip(layer, [*layer[1:], following[0] if following else None], strict=True):
                    steps.append(self.residuals.step(one, stream, readers, after))
                    stream = steps[-1].after
            for one, step in zip(layer, steps, strict=True):
                self._sublayer(stack, one, step, number)
        self._end(stack, stream, readers)
        self.result.fields[f"{stack}.num_layers"] = len(layers)

    def _sublayer(self, stack: str, sublayer: Sublayer, step: Step, layer: int) -> None:
        """Names the leaves of one sublayer, and sets the options of its norms and residual."""
        path, where, addition = sublayer.path, step.addition.root, step.addition
        name = path.rpartition("/")[2]
        self.result.agree(f"{stack}.norm_placement", step.placement, where)
        self.result.agree(f"{stack}.residual.stream_factor", step.stream_factor, where)
        self.result.agree(f"{stack}.residual.output_factor", addition.factor, where)
        if step.norm is not None:
            self.result.norm(f"{path}_norm", step.norm, layer)
        self.result.agree(f"{stack}.{name}.output_norm", addition.norm is not None, where)
        if addition.norm is not None:
            self.result.norm(f"{path}_output_norm", addition.norm, layer)
        for kind, elements in (("residual", step.stream_scale), ("output", addition.scale)):
            size = 0 if elements is None else len(elements)
            self.result.scaled.setdefault((stack, kind, name), {}).setdefault(size, where)
            if elements is not None:
                leaf = "factor" if kind == "output" and len(elements) == 1 else "scale"
                self.result.leaf(f"{path}_{kind}_scale/{leaf}", elements, layer)
        if isinstance(sublayer, FeedForward):
            self._feed_forward(path, sublayer, layer)
        else:
            self._attention(path, sublayer, layer)

    def _layers(self, stack: str, sublayers: Sequence[Sublayer]) -> list[list[Sublayer]]:
        """Returns the sublayers of each layer.

        Raises:
          Unknown: layers differ, or have other sublayers.
        """
        kinds = [one.kind for one in sublayers]
        orders = (
            [["encoder_self", "feed_forward"], ["encoder_self"]]
            if stack == "encoder"
            else [["decoder_self", "cross", "feed_forward"], ["decoder_self", "cross"]]
        )
        for order in orders:
            if kinds and kinds == order * (len(kinds) // len(order)):
                return [list(sublayers[start : start + len(order)]) for start in range(0, len(kinds), len(order))]
        odd = next(
            (one for number, one in enumerate(sublayers) if one.kind != orders[0][number % len(orders[0])]), None
        )
        where = self.graph.recording.output if not sublayers else (odd or sublayers[-1]).result
        found = ", ".join(kinds) or "nothing"
        raise Unknown(where, f"{stack} layers that aren't of {', '.join(orders[0])} each ({found})")

    def _readers(self, stack: str) -> list[Sum]:
        """Returns the inputs of a stack's readers."""
        if stack == "decoder":
            return [self.parts.head_inputs]
        return [
            self.sums.of(part.inputs)
            for one in self.parts.sublayers
            if isinstance(one, AttentionSublayer) and one.kind == "cross"
            for part in (one.attention.key, one.attention.value)
        ]

    def _end(self, stack: str, stream: Sum, readers: list[Sum]) -> None:
        """Reads the norm or scale between a stack and its readers."""
        for reading in readers:
            scale = 1.0
            if stack == "decoder" and len(reading.terms) == 1 and not reading.tables and reading.only is None:
                scale = next(iter(reading.terms.values()))
                reading = Sum(dict.fromkeys(reading.terms, 1.0))
            if reading.same_as(stream):
                has_norm = False
            else:
                norm = self.residuals.norm_of(reading)
                if norm is None or not self.sums.of(norm.inputs).same_as(stream):
                    (where, *_) = (*reading.terms, self.graph.recording.output)
                    apart = distance(self.sums.values(stream), self.sums.values(reading))
                    what = f"the {stack}'s output is read neither directly nor through a norm"
                    raise Unknown(where, what, ("the stream", apart))
                has_norm = True
                self.result.norm(f"{stack}/final_norm", norm, None)
            self.result.agree(f"{stack}.final_norm", has_norm, next(iter(reading.terms)))
            if stack == "decoder":
                self.head_factor = scale

    # --- leaves

    def _linear(self, path: str, linear: Linear, layer: int, channels: np.ndarray, bias_field: str) -> None:
        self.result.leaf(f"{path}/kernel", linear.kernel[:, channels], layer)
        self.result.agree(bias_field, linear.bias is not None, linear.value)
        if linear.bias is not None:
            self.result.leaf(f"{path}/bias", linear.bias[channels], layer)

    def _feed_forward(self, path: str, one: FeedForward, layer: int) -> None:
        options = one.options
        self._linear(f"{path}/hidden", one.hidden, layer, one.hidden_channels, f"{options}.bias")
        if one.gate is not None and one.gate_channels is not None:
            self._linear(f"{path}/gate", one.gate, layer, one.gate_channels, f"{options}.bias")
        width = np.arange(one.output.kernel.shape[1])
        self._linear(f"{path}/output", one.output, layer, width, f"{options}.output_bias")
        self.result.agree(f"{options}.gated", one.gate is not None, one.result)
        self.result.agree(f"{options}.activation", one.activation, one.result)
        if isinstance(one.slope, float):
            self.result.agree(f"{options}.slope", one.slope, one.result)
        elif one.slope is not None:
            self.result.leaf(f"{path}/slope", one.slope, layer)
        self.result.agree(f"{options}.hidden_norm", one.hidden_norm is not None, one.result)
        if one.hidden_norm is not None:
            self.result.norm(f"{path}/hidden_norm", one.hidden_norm, layer)
        self.result.agree(f"{options}.width", len(one.hidden_channels), one.result)
        self.result.conclude(f"{path}[{layer}]", one.activation, one.residual, one.runner_up)

    def _attention(self, path: str, one: AttentionSublayer, layer: int) -> None:
        attention, options = one.attention, one.options
        for name in ("query", "key", "value"):
            projection = getattr(attention, name)
            self.result.leaf(f"{path}/{name}/kernel", projection.kernel, layer)
            self.result.agree(f"{options}.bias", projection.bias is not None, projection.linears[0].value)
            if projection.bias is not None:
                self.result.leaf(f"{path}/{name}/bias", projection.bias, layer)
        heads, width = attention.query.elements.shape[1::2]
        groups = {attention.key.groups, attention.value.groups}
        if groups not in ({heads}, {attention.key.groups} - {0}):
            raise Unknown(one.result, "heads of keys and values that are shared in another order than by neighbours")
        self.result.agree(f"{options}.num_heads", heads, one.result)
        self.result.agree(f"{options}.num_kv_heads", attention.key.groups, one.result)
        self.result.agree(f"{options}.head_scale", one.head_scale is not None, one.result)
        if one.head_scale is not None:
            self.result.leaf(f"{path}/head_scale/scale", one.head_scale, layer)
        self.result.agree(f"{options}.context_norm", one.context_norm is not None, one.result)
        if one.context_norm is not None:
            self.result.norm(f"{path}/context_norm", one.context_norm, layer)
        self.result.agree(f"{options}.head_dim", width, one.result)
        self.result.agree(f"{options}.value_dim", attention.value.elements.shape[3], one.result)
        self.result.agree(f"{options}.output", one.output is not None, one.result)
        if one.output is not None and one.kernel is not None:
            self.result.leaf(f"{path}/output/kernel", one.kernel, layer)
            self.result.agree(f"{options}.output_bias", one.output.bias is not None, one.result)
            if one.output.bias is not None:
                self.result.leaf(f"{path}/output/bias", one.output.bias, layer)

    def head(self) -> None:
        head = self.parts.head
        width = head.kernel.shape[0]
        tied = any(
            embedding.table.shape == head.kernel.T.shape and np.array_equal(embedding.table, head.kernel.T)
            for name, embedding in self.embeddings.items()
            if name == "decoder"
        )
        self.result.fields |= {f"{stack}.d_model": width for stack in ("encoder", "decoder")}
        self.result.fields |= {"target.vocab_size": head.kernel.shape[1], "head.tied": tied}
        self.result.places["target.vocab_size"] = head.value
        if not tied:
            self.result.leaf("head/kernel", head.kernel, None)
        self._head_factors(head, self.head_factor, self.parts.head_factor)
        if head.bias is None:
            self.result.fields["head.bias"] = "none"
            return
        roots = self.graph.recording.roots(head.bias)
        is_parameter = all(root.op == "parameter" for root in roots)
        self.result.fields["head.bias"] = "parameter" if is_parameter else "buffer"
        path = ("head_bias" if tied else "head/bias") if is_parameter else "constants/head_bias"
        self.result.leaf(path, head.bias, None)

    def _head_factors(self, head: Linear, before: float, after: float) -> None:
        """Sets the factors that multiply the stream before the head, and the logits after it."""
        if head.bias is None:  # they are one
            before, after = before * after, 1.0
        root = head.kernel.shape[0] ** -0.5
        scales = abs(before / root - 1) <= EXACT
        if not scales and abs(before - 1) > EXACT:
            if head.bias is not None:
                raise Unknown(head.value, f"logits of a stream scaled by {before:.6g}, with a bias that isn't")
            after = before
        self.result.fields |= {"head.scales_input": scales, "head.factor": 1.0 if abs(after - 1) <= EXACT else after}
