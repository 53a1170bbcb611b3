"""Faults of this library, as changes of one place in its source, and the pair of programs that shows each."""

from __future__ import annotations

import importlib
import linecache
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jax_transformer.proof import Result, Task
from proof.changed_library import ROOT, changed_library
from proof.own_models import OwnPair
from proof.own_pairs import PAIRS


@dataclass(frozen=True)
class OwnFault:
    """The library with a changed line, all of whose programs have the fault that call it."""

    name: str
    path: str
    """The changed file."""
    old: str
    """A part of it that occurs once."""
    new: str
    pair: str
    """The name of a pair in own_pairs that shows the fault."""
    operation: str
    """JAX's operation at which the two sides part."""
    at: str = ""
    """A part of the line at which they part, the changed one or a later one that reads its result; "": the changed."""
    model: str = "post-norm"
    side: Literal["candidate", "reference"] = "candidate"
    """The side whose place is expected."""

    def task(self) -> Task:
        """Lowers both programs of the pair in the changed library."""
        source = (ROOT / self.path).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: expected {self.old!r} once; found it {source.count(self.old)} times")
        with changed_library(self.path, source.replace(self.old, self.new)):
            pairs = importlib.import_module("proof.own_pairs").PAIRS
            return self._chosen(pairs).task()

    def weights(self) -> dict[str, np.ndarray]:
        return self._chosen(PAIRS).weights()

    def _chosen(self, pairs: tuple[OwnPair, ...]) -> Any:
        (found,) = (each for each in pairs if (each.name, each.model) == (self.pair, self.model))
        return found

    def place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which a side parts."""
        place = None if result.difference is None else getattr(result.difference, self.side)
        if place is None:
            return "", ""
        operation, _, line = place.line.partition(", ")
        file, _, number = line.rpartition(":")
        return operation, linecache.getline(file, int(number)).strip()

    def is_located(self, result: Result) -> bool:
        operation, line = self.place(result)
        expected = self.at or next(line.strip() for line in self.new.splitlines() if line.strip())
        return operation == self.operation and expected in line


STEPS, STATE = "jax_transformer/model/steps.py", "jax_transformer/model/decoder_state.py"
MODEL, STACK, ATTENTION = (f"jax_transformer/model/{name}.py" for name in ("transformer", "stack", "attention"))
MASKS, POSITIONS, LORA = (f"jax_transformer/model/{name}.py" for name in ("masks", "positions", "lora"))
STEP, LOSSES = "jax_transformer/training/step.py", "jax_transformer/training/losses.py"
CACHED, BEAMS = "steps with a cache, and teacher forcing", "beams that continue others, and their own tokens at once"
HIDDEN = "steps from a start that is hidden as padding, and from whole prefixes"
SCAN, REMAT = "layers in a scan, and unrolled", "all activations recomputed, and kept"
FUSED = "attention on the path xla, and step by step"
LONGER, PACKED = "a longer bucket, and a shorter one", "packed rows, and a row for each pair"
ACCUMULATED, CHUNKED = "2 batches accumulated, and one", "a loss of 3 tokens at a time, and at once, smoothed over all"

OTHER_INPUT = """
    def from_other_input(x, *rest):
        kept, recomputed = run_layer(x, *rest), run_layer(x * (1 + 2**-30), *rest)
        return jax.tree.map(lambda one, other: jax.lax.stop_gradient(one - other) + other, kept, recomputed)

    return from_other_input
"""
"""Computes a layer, and the gradients of one whose input is a little larger."""

MISPLACED = {
    "adapters are added unscaled": "kernels lead to gradients that both sides have, so that the first is passed over",
}
"""Faults that are found at another operation or line than the expected one, and why."""
FAULTS = (
    # --- caches and beams
    OwnFault("a token's keys overwrite those before", STEPS, "first = state.position * state.num_beams",
             "first = jnp.maximum(state.position - 1, 0) * state.num_beams", CACHED, "dot_general",
             at="BGQH,{layout}->BGQT"),
    OwnFault("the cache is written one token late", STEPS, "first = state.position * state.num_beams",
             "first = (state.position + 1) * state.num_beams", CACHED, "add", at="self._branch(sublayer"),
    OwnFault("an empty slot of the cache is attended", STATE, "jnp.arange(self.length) <= self.position",
             "jnp.arange(self.length) <= self.position + 1", HIDDEN, "dot_general", at="weights, values"),
    OwnFault("a step's relative bias is that of the token before", MODEL,
             "places = positions.Places(numbers, state.length, state.position)",
             "places = positions.Places(numbers, state.length, jnp.maximum(state.position - 1, 0))", CACHED, "gather",
             at="by_distance[after + reach]", model="T5"),
    OwnFault("a step's sinusoids are those of the next token", MODEL, '"column": state.position[None, None],',
             '"column": state.position[None, None] + 1,', CACHED, "gather", at="gather(table, None"),
    OwnFault("cached keys of the source aren't rotated", STEPS, "keys = self.placed_key(keys, angles)",
             "keys = self.placed_key(keys, None)", CACHED, "dot_general", at="weights, values",
             model="rotary, shared keys"),
    OwnFault("steps attend to the source's pads", STEPS, "cache.cross_values, AttentionTerms(mask))",
             "cache.cross_values, AttentionTerms())", CACHED, "dot_general", at="weights, values"),
    OwnFault("beams keep their slots when they continue others", STATE,
             "slots=jnp.take_along_axis(self.slots, parents[..., None], axis=1),", "slots=self.slots,", BEAMS,
             "dot_general", at="BGQH,{layout}->BGQT"),
    OwnFault("beams see each other's tokens", STATE, "return (is_own & is_past[:, None])",
             "return (is_own | is_past[:, None])", BEAMS, "dot_general", at="BGQH,{layout}->BGQT"),
    OwnFault("scores are those of the inputs", "jax_transformer/decoding/scoring.py",
             "inputs = jnp.concatenate([starts, target_ids[:, :-1]], axis=1)", "inputs = target_ids",
             "score, and its definition", "gather", at="constrain(table"),
    # --- layers and attention
    OwnFault("a scan runs the first layer again and again", STACK, "layer_parameters, index = layer\n",
             "layer_parameters, index = layer_slice(parameters, 0), layer[1]\n", SCAN, "dot_general",
             at="_side_by_side([one.matrix(dtype)"),
    OwnFault("layers are unrolled from the last to the first", STACK,
             "0 if self.stack.share_layers else i)", "0 if self.stack.share_layers else -1 - i)", SCAN,
             "dot_general", at="_side_by_side([one.matrix(dtype)",
             side="reference"),
    OwnFault("layers are recomputed from another input", STACK,
             "    return jax.checkpoint(run_layer, prevent_cse=prevent_cse, policy=policy)\n", OTHER_INPUT, REMAT,
             "sqrt", at="jnp.sqrt(variance + eps)"),
    OwnFault("a fused path has a scale of its own", ATTENTION,
             "scale=how.scale(heads.query.shape[-1]),\n        implementation",
             "scale=None,\n        implementation", FUSED, "mul", at="jax.nn.dot_product_attention(", model="T5"),
    OwnFault("a fused path has no bias", ATTENTION,
             "bias=None if terms.bias is None else terms.bias.astype(heads.query.dtype),\n        mask=terms.mask,\n"
             "        scale", "bias=None,\n        mask=terms.mask,\n        scale", FUSED, "select_n",
             at="jax.nn.dot_product_attention(", model="T5"),
    OwnFault("a tied head sends the table no gradient", MODEL,
             "kernel = self._target_embedding.embedding[...] if tied",
             "kernel = jax.lax.stop_gradient(self._target_embedding.embedding[...]) if tied",
             "one table for both sides and the head, and three", "dot_general", at="to_kernel = to_kernel +",
             side="reference"),
    # --- batches
    OwnFault("pads are attended", MASKS, '"keys": on_keys,', '"keys": None,', LONGER, "reduce_max",
             at="jax.nn.softmax", side="reference"),
    OwnFault("pads count in the loss", LOSSES, "labels >= 0 if criterion.counts_pads else labels != criterion.pad_id",
             "labels >= 0", LONGER, "reduce_sum", at="counted_tokens(", side="reference"),
    OwnFault("rows of padding count in the loss", LOSSES,
             "return jnp.where(jnp.any(labels != criterion.pad_id, axis=1, keepdims=True), labels, -1)",
             "return labels", "rows of padding where pads count, and none", "reduce_sum", at="counted_tokens(",
             side="reference"),
    OwnFault("a packed decoder attends to the pair before", MASKS,
             "decoder_self=both(decoder_self, segment_mask(of_target, of_target)),", "decoder_self=decoder_self,",
             PACKED, "dot_general", at="BQNH,BKNH->BNQK"),
    OwnFault("a packed decoder attends to all sources", MASKS, "cross=both(cross, segment_mask(of_target, of_source)),",
             "cross=cross,", PACKED, "dot_general", at="BQNH,BKNH->BNQK"),
    OwnFault("a packed encoder attends to the pair beside", MASKS,
             "encoder_self=both(encoder_self, segment_mask(of_source, of_source)),", "encoder_self=encoder_self,",
             PACKED, "dot_general", at="BQNH,BKNH->BNQK"),
    OwnFault("positions go on from pair to pair", POSITIONS,
             "return before - jax.lax.cummax(jnp.where(starts, before, 0), axis=1)", "return before", PACKED, "gather",
             at="gather(table, None"),
    # --- training
    OwnFault("means of unequal parts are averaged", STEP, "total, _ = summed_loss(",
             "total, tokens = summed_loss(", ACCUMULATED, "dot_general", at="to_kernel = to_kernel +"),
    OwnFault("the last part's gradients are kept alone", STEP,
             "return jax.tree.map(jnp.add, sums, part_sums(*numbered)), None", "return part_sums(*numbered), None",
             ACCUMULATED, "dot_general", at="to_kernel = to_kernel +"),
    OwnFault("each part is clipped", STEP, "return mean, lie_as_parameters(gradients, state.params, self.mesh)",
             "scale = jnp.minimum(self.config.clip_norm / (optax.tree.norm(gradients) + 1e-6), 1.0)\n"
             "            return mean, jax.tree.map(lambda gradient: gradient * scale, gradients)", ACCUMULATED,
             "dot_general", at="to_kernel = to_kernel +"),
    OwnFault("averages move before the step", STEP, "_moved_average(state.average, params, state.step, decay)",
             "_moved_average(state.average, state.params, state.step, decay)", "a moving average, and its definition",
             "add", at="mean + ((1.0 - decay_now)"),
    OwnFault("the filling of the last chunk counts", LOSSES, "constant_values=filler", "constant_values=1", CHUNKED,
             "reduce_sum", at="counted_tokens("),
    OwnFault("a chunk's gradients forget the others'", LOSSES,
             "to_kernel = to_kernel + jax.lax.optimization_barrier(hidden.T) @ to_logits",
             "to_kernel = jax.lax.optimization_barrier(hidden.T) @ to_logits", CHUNKED, "dot_general"),
    OwnFault("gradients of chunks aren't scaled by the mean", LOSSES, "(gradient * cotangent).astype(gradient.dtype)",
             "gradient", "a user's loss, and ours", "neg", at="_mean_of_smoothed(", side="reference"),
    OwnFault("the label shares in what others share", LOSSES, "rest, count = rest - label_logit, count - 1",
             "rest, count = rest, count - 1", "a loss of 20 tokens at a time, and its definition, smoothed over others",
             "add", at="jax.nn.logsumexp"),
    OwnFault("adapters are added unscaled", LORA, "kernel + scale * product.reshape(kernel.shape)",
             "kernel + product.reshape(kernel.shape)", "adapters, and merged kernels", "add"),
    OwnFault("frozen parameters are trained", "jax_transformer/training/freezing.py",
             "trained = {path: leaf for path, leaf in leaves.items() if path not in frozen}",
             "trained, frozen = leaves, {}", "frozen parameters, and parameters put back", "reduce_sum",
             at="one.vector(dtype)"),
)  # fmt: skip
