"""Which of a PyTorch model's activations are which of ours: what the rules say of parameters, said of the modules that
hold them.

A rule `decoder.layers.{i}.src_attn.linears.0.weight ↔ decoder/layers/cross_attention/query/kernel` says that what the
module `decoder.layers.0.src_attn.linears.0` returns is our `decoder.layers.0.cross_attention.query`. The rest follows
from the order in which a Transformer computes: what a sublayer reads is the residual stream before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import Sublayer, plan
from jax_transformer.config.specs import Attention, FeedForward, Stack
from jax_transformer.mapping.axes import EACH
from jax_transformer.mapping.files import OF_HEADS
from jax_transformer.mapping.rules import Rule

OWN = "output"
"""The output of the model itself, as its observer calls it; PATH and PATH@input are what a module returns and reads,
PATH@logits and PATH@weights what a softmax in it does."""


def activation_names(config: TransformerConfig, rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """Returns a map from the names under which hooks on the model's modules find activations to our names.

    Each of our names appears once. The map leaves out activations that no module reads or returns, and all that rules
    don't give: masks, positions, relative biases, scaled or shared embeddings, and the projections of attentions that
    aren't modules, as in `nn.MultiheadAttention`. In evaluation mode dropout returns its input, so its name
    isn't needed.
    """
    naming = _Naming(config, rules)
    naming.stack("encoder")
    naming.stack("decoder")
    naming.head()
    return {captured: tuple(names) for captured, names in naming.found.items()}


class _Naming:
    """Collects the names found so far, and the modules by their parameters."""

    def __init__(self, config: TransformerConfig, rules: Iterable[Rule]) -> None:
        self.config = config
        self.found: dict[str, list[str]] = {}
        self._named: set[str] = set()
        self._parts: dict[int | None, dict[str, set[str]]] = {}
        self._call = 1  # of the modules of a layer that all layers share
        self._rules = {path: rule for rule in rules for path in rule.paths}

    def add(self, captured: str | None, *names: str) -> None:
        """Maps a captured name (None: nothing) to our names, unless they are taken. Modules of single heads make
        activations of heads alone."""
        is_whole = captured is None or EACH not in captured
        new = [name for name in names if name not in self._named and (is_whole or OF_HEADS.search(name))]
        if captured and new:
            captured = _numbered_call(captured, self._call)
            self.found.setdefault(captured, []).extend(new)
            self._named.update(new)

    def stack(self, stack: Literal["encoder", "decoder"]) -> None:
        """Names the activations of a stack, from the embedding to the last norm."""
        own: Stack = getattr(self.config, stack)
        sublayers, layers = plan(own), own.num_layers
        self._token_embedding(stack)
        stream = [f"{stack}.embedding"]
        for i in range(layers):
            start = stream
            at, self._call = (0, i + 1) if own.share_layers else (i, 1)
            for sublayer in sublayers:
                ours, path = f"{stack}.layers.{i}.{sublayer.name}", f"{stack}/layers/{sublayer.name}"
                read = start if own.residual.parallel else stream
                norm = self._sublayer_norm(stack, sublayer, at)
                if sublayer.placement == "pre":
                    is_once = own.residual.parallel and own.share_norms
                    normed = f"{stack}.layers.{i}.shared_norm" if is_once else f"{ours}_norm"
                    self.add(_input(norm), *read)
                    self.add(norm, normed)
                    reader = self._reader(path, at)
                    norms_itself = (
                        reader is not None and f"{stack}/layers/{sublayer.norm}" in self._parts_in(at)[reader]
                    )
                    self.add(_input(reader), *(read if norms_itself else [normed]))
                else:
                    self.add(_input(self._reader(path, at)), *read)
                if isinstance(sublayer.part, Attention):
                    self._attention(sublayer.part, path, at, ours)
                else:
                    self._feed_forward(sublayer.part, path, at, ours)
                if sublayer.output_norm:
                    self.add(self._module(f"{stack}/layers/{sublayer.output_norm}/scale", at), f"{ours}_output_norm")
                has_sum = sublayer.name != "feed_forward" and not own.residual.parallel
                stream = [f"{ours}_residual"] if has_sum else []
                if sublayer is sublayers[-1]:
                    stream += [
                        f"{stack}.layers.{i}.output",
                        *([f"{stack}.output"] if i == layers - 1 and not own.final_norm else []),
                    ]
                if sublayer.placement == "post":
                    self.add(norm, f"{ours}_norm", *stream)
        self._call = 1
        if own.final_norm:
            norm = self._module(f"{stack}/final_norm/scale")
            self.add(_input(norm), *stream)
            self.add(norm, f"{stack}.output")
            stream = [f"{stack}.output"]
        elif stack == "encoder":
            self.add(_input(self._key_reader("decoder/layers/cross_attention", 0)), *stream)
        if stack == "decoder":
            self._head_input(stream)

    def _head_input(self, stream: list[str]) -> None:
        """Names what the head reads: the decoder's output, through the head's transform if it has one."""
        if self.config.head.transform is not None:
            self.add(_input(self._module("head_transform/kernel")), *stream)
            norm = self._module("head_norm/scale")
            self.add(_input(norm), "head_transform")
            self.add(norm, "head_norm")
        elif not self.config.head.scales_input:
            self.add(_input(self._head_module()), *stream)

    def head(self) -> None:
        """Names the logits: the head's output or, if a bias, a factor or a cap follows, the model's output of this
        name, as in transformers."""
        own, head = self.config.head, self._head_module()
        bias = {
            "none": None,
            "buffer": "constants/head_bias",
            "parameter": "head_bias" if own.tied else "head/bias",
        }[own.bias]
        is_whole = bias is None or (bias in self._rules and self._owner(bias) == head)
        is_whole &= own.factor == 1.0 and own.cap is None
        self.add(head if is_whole else f"{OWN}.logits", "logits")

    def _token_embedding(self, stack: str) -> None:
        """Names the outputs of a stem's convolutions, or of a table that is used unchanged and by one side only."""
        config = self.config
        if stack == "encoder" and config.stem is not None:
            for name in ("first", "second"):
                self.add(self._module(f"stem/{name}/kernel"), f"encoder.stem.{name}")
            return
        if getattr(config, stack).embedding_factor == 1.0 and not config.share_embeddings:
            table = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
            self.add(self._module(f"{table}/embedding"), f"{stack}.token_embedding")

    def _attention(self, attention: Attention, path: str, layer: int, ours: str) -> None:
        whole = self._attention_module(path, layer)
        number = (
            "#2" if "cross" in path and whole == self._attention_module(path.replace("cross", "self"), layer) else ""
        )
        for name in ("query", "key", "value"):
            self.add(self._module(f"{path}/{name}/kernel", layer), f"{ours}.{name}")
        softmax = self._head_of(path, layer) if self._rules[f"{path}/query/kernel"].counts else self._core(path, layer)
        softmax = softmax and f"{softmax}@{number}"
        if softmax is not None:
            module, _, number = softmax.partition("@")
            self.add(f"{module}@logits{number}", f"{ours}.logits")
            self.add(f"{module}@weights{number}", f"{ours}.weights")
        context = f"{ours}.scaled_context" if attention.head_scale else f"{ours}.context"
        if attention.context_norm:
            norm = self._module(f"{path}/context_norm/scale", layer)
            self.add(_input(norm), context)
            self.add(norm, f"{ours}.normed_context")
            context = f"{ours}.normed_context"
        if not attention.output:
            self.add(whole, context, f"{ours}.output")  # the same, its heads apart and in one
        elif self._is_fused_within(path, layer):
            self.add(f"{whole}.0", f"{ours}.output")
        else:
            output = self._module(f"{path}/output/kernel", layer)
            self.add(_input(output), context)
            self.add(output, f"{ours}.output")

    def _feed_forward(self, feed_forward: FeedForward, path: str, layer: int, ours: str) -> None:
        output, hidden = self._module(f"{path}/output/kernel", layer), f"{ours}.hidden"
        if feed_forward.hidden_norm:
            norm = self._module(f"{path}/hidden_norm/scale", layer)
            self.add(_input(norm), hidden)
            self.add(norm, f"{ours}.hidden_norm")
            hidden = f"{ours}.hidden_norm"
        self.add(_input(output), hidden)
        self.add(output, f"{ours}.output")

    # --- modules

    def _owner(self, path: str, layer: int | None = None) -> str:
        """Returns the path of the module that holds the tensor of this leaf; for the model itself, "output". {n} stays
        for the number of one of several."""
        return self._rules[path].names_of(layer)[0].rpartition(".")[0] or OWN

    def _module(self, path: str, layer: int | None = None) -> str | None:
        """Returns the module, or modules numbered {n}, with this leaf as a parameter of its own; None if the leaf is
        missing, a constant or part of a fused one, or one module has several."""
        rule = self._rules.get(path)
        if rule is None or not rule.are_copies or not rule.names_of(layer):
            return None
        owner = self._owner(path, layer)
        is_alone = self._parts_in(layer)[owner] == {_part(path)}
        return owner if is_alone and (EACH in owner) == rule.counts else None

    def _parts_in(self, layer: int | None) -> dict[str, set[str]]:
        """Returns for each module the parts of the model, such as a projection, whose parameters are in it."""
        if layer not in self._parts:
            found = self._parts[layer] = defaultdict(set)
            for path, rule in self._rules.items():
                for name in rule.names_of(layer)[:1] if (layer is not None) == rule.stacked else ():
                    owner = name.rpartition(".")[0].split(".")
                    for end in range(1, len(owner) + 1):
                        found[".".join(owner[:end])].add(_part(path))
        return self._parts[layer]

    def _sublayer_norm(self, stack: str, sublayer: Sublayer, layer: int) -> str | None:
        """Returns the module of a sublayer's norm. None: it has none of its own, or one that is called several
        times in a layer."""
        own: Stack = getattr(self.config, stack)
        if not sublayer.norm or (own.share_norms and not own.residual.parallel):
            return None
        return self._module(f"{stack}/layers/{sublayer.norm}/scale", layer)

    def _head_module(self) -> str | None:
        """Returns the head's module. A table names the head last of tied tensors."""
        if not self.config.head.tied:
            return self._module("head/kernel")
        rule = self._rules[
            "shared_embedding/embedding" if self.config.share_embeddings else "target_embedding/embedding"
        ]
        return rule.names[-1].rpartition(".")[0] if len(rule.names) > 1 else None

    def _reader(self, path: str, layer: int) -> str | None:
        """Returns the module of a sublayer that reads the residual stream."""
        if path.endswith("feed_forward"):
            hidden = self._module(f"{path}/hidden/kernel", layer)
            return hidden and _first(hidden)
        return _first(self._owner(f"{path}/query/kernel", layer))

    def _key_reader(self, path: str, layer: int) -> str | None:
        """Returns the module whose first input is projected to the keys."""
        return None if self._is_fused_within(path, layer) else _first(self._owner(f"{path}/key/kernel", layer))

    def _is_fused_within(self, path: str, layer: int) -> bool:
        """Returns whether the attention's module holds query, key and value as one parameter of its own, as
        nn.MultiheadAttention does, whose parts are no modules that are called, and which returns its output first."""
        is_fused = not self._rules[f"{path}/query/kernel"].are_copies
        return is_fused and self._owner(f"{path}/query/kernel", layer) == self._attention_module(path, layer)

    def _attention_module(self, path: str, layer: int) -> str:
        """Returns the innermost module that has all the parameters of an attention in it. (A list of modules is none
        that runs.)"""
        has_output = f"{path}/output/kernel" in self._rules
        parts = ("query", "key", "value", *(["output"] if has_output else []))
        shared = self._shared(path, layer, parts)
        heads = next((n for n, part in enumerate(shared) if EACH in part), None)
        if heads is not None:  # of single heads: the module above them, which isn't their list
            shared = shared[: heads - (shared[heads] == EACH)]
        return ".".join(shared) or OWN

    def _core(self, path: str, layer: int) -> str:
        """Returns the innermost module that has the modules of query, key and value in it, or else all of an attention:
        BERT's projects its output in another module."""
        if not self._rules[f"{path}/query/kernel"].are_copies:  # one module projects to all three
            return self._attention_module(path, layer)
        return ".".join(self._shared(path, layer, ("query", "key", "value"))) or OWN

    def _head_of(self, path: str, layer: int) -> str | None:
        """Returns the innermost modules, numbered {n}, that have all the projections of one head in them; None if there
        are none."""
        shared = ".".join(self._shared(path, layer, ("query", "key", "value")))
        return shared if EACH in shared else None

    def _shared(self, path: str, layer: int, parts: Iterable[str]) -> list[str]:
        """Returns the path of the innermost module that has the kernels of these parts in it."""
        owners = [self._owner(f"{path}/{part}/kernel", layer).split(".") for part in parts]
        length = next(
            (n for n, names in enumerate(zip(*owners, strict=False)) if len(set(names)) > 1), min(map(len, owners))
        )
        if all(len(owner) > length and owner[length].isdigit() for owner in owners):
            length -= 1
        return owners[0][:length]


def _part(path: str) -> str:
    """Returns the part of the model that a leaf belongs to."""
    return path.rpartition("/")[0]


def _first(module: str) -> str:
    """Returns the first of several modules: they read the same."""
    return module.replace(EACH, "0")


def _input(module: str | None) -> str | None:
    return module and f"{module}@input"


def _numbered_call(captured: str, number: int) -> str:
    """Returns the name of what a module reads, returns or computes in its n-th call, as observers number them."""
    if number == 1:
        return captured
    module, at, what = captured.partition("@")
    return f"{module}#{number}@input" if what == "input" else f"{module}{at}{what}#{number}"
