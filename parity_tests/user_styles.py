"""One model, `PytorchTransformer`'s, called and written as programs of several schools do it: other arguments, layouts
and outputs; operations in place; numbers of other precision inside; traces that show something else."""

from __future__ import annotations

import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import user_models
from torch import Tensor, nn
from torch.nn import functional as F

from torch_reference.harvard import Attention, HarvardTransformer
from torch_reference.hyunwoongko import HyunwoongkoTransformer
from torch_reference.pytorch import PytorchTransformer
from torch_reference.trace import Tap

STYLES: dict[str, type[nn.Module]] = {}
"""By name, the classes that take PytorchTransformer's arguments."""


def style(kind: type[nn.Module]) -> type[nn.Module]:
    """Registers a class under its name in snake case."""
    STYLES[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()] = kind
    return kind


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Returns the factory of a style's module."""
    if name not in STYLES:
        raise AttributeError(name)
    return partial(made, STYLES[name])


def made(kind: type[nn.Module], **others: Any) -> Any:
    return user_models.randomised(kind(**{**user_models.SIZES, **others}))


class Base(PytorchTransformer):
    """Without the argument `trace`."""

    def logits_of(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        return PytorchTransformer.forward(self, source_ids, decoder_input_ids)


# --- how it is called


@style
class Short(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class TargetFirst(Base):
    def forward(self, trg: Tensor, src: Tensor) -> Tensor:
        return self.logits_of(src, trg)


@style
class Ids(Base):
    def forward(self, decoder_input_ids: Tensor, input_ids: Tensor) -> Tensor:
        return self.logits_of(input_ids, decoder_input_ids)


@style
class Sequences(Base):
    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        return self.logits_of(src_seq, trg_seq)


@style
class Inputs(Base):
    def forward(self, enc_inputs: Tensor, dec_inputs: Tensor) -> Tensor:
        return self.logits_of(enc_inputs, dec_inputs)


@style
class Fairseq(Base):
    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None, prev_output_tokens: Tensor) -> tuple[Any, Any]:
        return self.logits_of(src_tokens, prev_output_tokens), {"attn": [None], "inner_states": None}


@style
class Letters(Base):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.logits_of(x, y)


@style
class KeywordsOnly(Base):
    def forward(self, *, source: Tensor, target: Tensor) -> Tensor:
        return self.logits_of(source, target)


@style
class Anything(Base):
    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        return self.logits_of(*args)


@style
class Options(Base):
    def forward(self, src: Tensor, tgt: Tensor, teacher_forcing_ratio: float = 0.5, src_mask: Any = None) -> Tensor:
        return self.logits_of(src, tgt)


@style
class SequenceFirst(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src.T, tgt.T).transpose(0, 1)


@style
class SequenceFirstInBatchFirstOut(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src.T, tgt.T)


@style
class OneBatch(Base):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.logits_of(batch["src"], batch["tgt"])


@style
class Masked(Base):
    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        assert src_mask.shape[-1] == src.shape[1]
        return self.logits_of(src, tgt)


@style
class PaddingMasks(Base):
    def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor) -> Tensor:
        assert torch.equal(src_key_padding_mask, src == self.source_pad_id)
        return self.logits_of(src, tgt)


@style
class Lengths(Base):
    def forward(self, src: Tensor, src_lengths: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class TraceFlag(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: bool = False) -> Any:
        logits = self.logits_of(src, tgt)
        return (logits, {}) if trace else logits


@style
class TracePrinter(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: Any = None) -> Tensor:
        if trace is not None:
            trace.write("forward\n")
        return self.logits_of(src, tgt)


@style
class TraceList(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: Any = None) -> Tensor:
        logits = self.logits_of(src, tgt)
        if trace is not None:
            trace["head"] = logits
        return logits


@style
class EmbedsToo(Base):
    def forward(self, src: Tensor, tgt: Tensor, memory: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


# --- what it returns


@style
class Dict(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> dict[str, Any]:
        return {"prediction": self.logits_of(src, tgt), "count": 1, "ids": tgt}


@style
class DictOfTwo(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> dict[str, Any]:
        logits = self.logits_of(src, tgt)
        return {"probabilities": logits.softmax(-1), "logits": logits}


@style
class TupleLast(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        logits = self.logits_of(src, tgt)
        return torch.zeros(3, 2), [logits, None]


@dataclass
class Output:
    """Not a mapping."""

    scores: Tensor
    hidden: Tensor


@style
class Record(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        return Output(self.logits_of(src, tgt), src)


@style
class Flat(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).flatten(0, 1)


@style
class VocabularySecond(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).transpose(1, 2)


@style
class LogProbabilities(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return F.log_softmax(self.logits_of(src, tgt), dim=-1)


@style
class Probabilities(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).softmax(dim=-1)


@style
class NormalisesItself(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits - logits.exp().sum(dim=-1, keepdim=True).log()


@style
class Tokens(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).argmax(-1)


@style
class OnlyLast(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)[:, -1]


@style
class Nothing(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> None:
        self.logits_of(src, tgt)


@style
class TwoAlike(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        logits = self.logits_of(src, tgt)
        return [2 * logits, logits]


@style
class TargetShifted(Base):
    """Drops the last token itself, as training loops do."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt[:, :-1])


# --- what it does inside


class Layers(Base):
    """Runs nn.Transformer's submodules itself."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        masks = self.make_masks(src, tgt)
        x = self.embedded(self.source_embedding, src)
        for layer in self.transformer.encoder.layers:
            x = self.encode(layer, x, masks)
        memory = self.transformer.encoder.norm(x)
        y = self.embedded(self.target_embedding, tgt)
        for layer in self.transformer.decoder.layers:
            y = self.decode(layer, y, memory, masks)
        return self.head(self.transformer.decoder.norm(y))

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids) * math.sqrt(self.d_model) + self.positions[: ids.shape[1]]

    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        sizes = len(x), x.shape[1], y.shape[1]
        return attention(x, y, y, attn_mask=self._for_every_head(mask, *sizes), need_weights=False)[0]

    def encode(self, layer: Any, x: Tensor, masks: Any) -> Tensor:
        x = layer.norm1(x + self.attend(layer.self_attn, x, x, masks.encoder_self))
        return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))

    def decode(self, layer: Any, y: Tensor, memory: Tensor, masks: Any) -> Tensor:
        y = layer.norm1(y + self.attend(layer.self_attn, y, y, masks.decoder_self))
        y = layer.norm2(y + self.attend(layer.multihead_attn, y, memory, masks.cross))
        return layer.norm3(y + layer.linear2(F.relu(layer.linear1(y))))


style(Layers)


@style
class LayersSequenceFirst(Layers):
    """Has [T, B, D] inside."""

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return super().embedded(table, ids).transpose(0, 1)

    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return super().attend(attention, x.transpose(0, 1), y.transpose(0, 1), mask).transpose(0, 1)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt).transpose(0, 1)


@style
class InPlace(Layers):
    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids)
        x *= math.sqrt(self.d_model)
        x += self.positions[: ids.shape[1]]
        return x

    def encode(self, layer: Any, x: Tensor, masks: Any) -> Tensor:
        x = x.clone()
        x += self.attend(layer.self_attn, x, x, masks.encoder_self)
        x = layer.norm1(x)
        h = F.relu(layer.linear1(x), inplace=True)
        return layer.norm2(layer.linear2(h).add_(x))


@style
class Unusual(InPlace):
    """Takes [T, B], the target first, and returns log-probabilities [T, B, V]."""

    def forward(self, trg_seq: Tensor, src_seq: Tensor) -> dict[str, Tensor]:
        return {"out": super().forward(src_seq.T, trg_seq.T).log_softmax(dim=-1).transpose(0, 1)}


@style
class DoubledLogits(Base):
    """Scales what its head returns."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return 2 * self.logits_of(src, tgt)


@style
class InPlaceHead(Base):
    """Adds to the logits in place, after the head."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        logits += 0.0
        return logits


@style
class WritesInputs(Base):
    """Writes over its arguments."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        src.fill_(0)
        tgt.fill_(0)
        return logits


@style
class WithoutGradients(Base):
    @torch.no_grad()
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class DetachedEncoder(Layers):
    def encode(self, layer: Any, x: Tensor, masks: Any) -> Tensor:
        return super().encode(layer, x, masks).detach()


@style
class Inference(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.logits_of(src, tgt)


@style
class Float32Inside(Layers):
    """A table of float32 that is no buffer."""

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids) * math.sqrt(self.d_model) + self.positions[: ids.shape[1]]
        return x + torch.zeros(1, dtype=torch.float32)


@style
class CastsToFloat32(Layers):
    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return super().embedded(table, ids).float()


@style
class Bfloat16Fails(Layers):
    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16:
            x = x.float()
        return super().attend(attention, x, y, mask)


@style
class LogitsInFloat32(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).float()


@style
class FixedLength(Base):
    """Adds the whole table."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        self.positions + self.source_embedding(src)
        return self.logits_of(src, tgt)


@style
class FixedMask(Base):
    """Takes its mask from a buffer of 10 rows, fewer than the table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("future", torch.ones(10, 10).tril().bool())

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        future = self.future[: tgt.shape[1], : tgt.shape[1]]
        assert torch.equal(future & (tgt != self.target_pad_id)[:, None], self.make_masks(src, tgt).decoder_self[:, 0])
        return self.logits_of(src, tgt)


@style
class FixedMaskOf9(Base):
    """Takes a mask of the 9 tokens of the first batch."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits + torch.zeros(9, 1, dtype=logits.dtype)[: max(9, tgt.shape[1])] if tgt.shape[1] > 1 else logits


@style
class FixedBatch(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt) + torch.zeros(2, 1, 1, dtype=self.head.weight.dtype)


@style
class Nan(Layers):
    """Masks with -inf, so that a sentence of padding alone gives NaN."""

    def additive(self, mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=self.head.weight.dtype).masked_fill(~mask, -math.inf)


@style
class NanGradients(Base):
    """Has the slope of a root at zero, times zero."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt) + 0 * (0 * self.head.weight).sqrt().sum()


@style
class Checks(Base):
    """Refuses sentences of padding alone."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if (src == self.source_pad_id).all(dim=1).any():
            raise ValueError("a sentence is empty")
        return self.logits_of(src, tgt)


@style
class Raises(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        raise KeyError("hidden")


@style
class RaisesInside(Layers):
    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return self.head(attention(x, y, y)[0][..., :5])


@style
class Exits(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        raise SystemExit(1)


@style
class TiedTwice(Base):
    """Lists the head's weight a second time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.decoder = nn.Module()
        self.decoder.output_projection = nn.Linear(1, 1, bias=False)
        self.decoder.output_projection.weight = self.head.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Undivided(Base):
    """Keeps the module that it wraps in a list, which hides it."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)

    def extra_repr(self) -> str:
        raise RuntimeError("no text")


@style
class NoCopies(Base):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Counts(Base):
    """Computes something else at every call."""

    calls = 0

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        self.calls += 1
        return self.logits_of(src, tgt) * (1 + 1e-6 * self.calls)


@style
class OtherWithGradients(Base):
    """Does otherwise when gradients are wanted."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return 1.001 * logits if torch.is_grad_enabled() else logits


@style
class SeesHooks(Base):
    """Does otherwise when it is watched."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits if self.head._forward_hooks else 1.001 * logits


@style
class SeesHooksOfLongTargets(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits if self.head._forward_hooks or tgt.shape[1] == 9 else 1.001 * logits


@style
class WithBatchNorm(Base):
    """Has buffers and a parameter that nothing names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.statistics = nn.BatchNorm1d(3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class ParameterTable(Base):
    """Has its positions as a parameter that doesn't train."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        table = self.positions
        del self.positions
        self.positions = nn.Parameter(table, requires_grad=False)  # type: ignore[assignment]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Frozen(Base):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for parameter in self.transformer.encoder.parameters():
            parameter.requires_grad = False

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Compiled(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


# --- with a trace that shows something else


class PreNormLayer(nn.TransformerEncoderLayer):
    def forward(
        self, src: Tensor, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
    ) -> Any:
        x = src
        x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask)
        return x + self._ff_block(self.norm2(x))


@style
class FlippedNorms(PytorchTransformer):
    """Norms before the sublayers in a layer's own forward, which traced_forward doesn't call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for layer in self.transformer.encoder.layers:
            layer.__class__ = PreNormLayer


class SwappedAttention(nn.MultiheadAttention):
    """Takes the queries' projection for the keys', and the reverse."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **options: Any) -> Any:
        q, k, v = self.in_proj_weight.chunk(3)
        bias = torch.cat([self.in_proj_bias.chunk(3)[part] for part in (1, 0, 2)])
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        found = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, torch.cat([k, q, v]), bias, None, None, False, 0.0,
            self.out_proj.weight, self.out_proj.bias,
            training=False, need_weights=False, attn_mask=options["attn_mask"],
        )[0]  # fmt: skip
        return found.transpose(0, 1), None


@style
class SwappedQueries(PytorchTransformer):
    """Queries and keys change places in the attention's own forward."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.transformer.encoder.layers[0].self_attn.__class__ = SwappedAttention

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Any = None) -> Tensor:
        return super().forward(source_ids, decoder_input_ids, trace)


@style
class HonestTrace(PytorchTransformer):
    """Inherits everything."""


@style
class TracedTwice(PytorchTransformer):
    """Records one name a second time, with another value."""

    def traced_forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Any) -> Tensor:
        logits = super().traced_forward(source_ids, decoder_input_ids, trace)
        return Tap(trace)("logits", logits + 0)


@style
class TracedInPlace(PytorchTransformer):
    """Goes on in place after the trace has recorded an activation."""

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Tap) -> Tensor:
        x = tap("token_embedding", embedding(ids) * math.sqrt(self.d_model))
        x += tap("positions", self.positions[None, : ids.shape[1]])
        x = tap("embedding", x)
        x += 0.0
        x *= 1.0
        return x


class DoubledLayer:
    """Adds the self-attention twice."""

    def forward(self, x: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        attention, feed_forward = self.sublayer
        h = attention.norm(x)
        x = x + self.self_attn(h, h, mask, tap.scope("self_attention"))
        x = x + self.self_attn(h, h, mask, tap.scope("self_attention"))
        h = feed_forward.norm(x)
        return x + self.feed_forward(h, tap.scope("feed_forward"))


def harvard_doubled() -> Any:
    module = user_models.harvard()
    for layer in module.encoder.layers:
        kind = type(layer)
        layer.__class__ = type("Doubled", (DoubledLayer, kind), {})
    return module


def harvard_without_a_norm() -> Any:
    """The norm of a sublayer becomes the identity, and keeps its parameters."""
    module = user_models.harvard()
    norm = module.encoder.layers[0].sublayer[0].norm
    norm.__class__ = type("Same", (type(norm),), {"forward": lambda self, x: x})
    return module


class HarvardMasked(HarvardTransformer):
    """As published: masks are arguments, and the head is apart."""

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        return super().forward(src, tgt)


def harvard_masked() -> Any:
    return made(HarvardMasked)


class HarvardLogProbabilities(HarvardTransformer):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.log_probabilities(super().forward(src, tgt))


def harvard_log_probabilities() -> Any:
    return made(HarvardLogProbabilities)


# --- other ways to hold it


def doubled() -> Any:
    return user_models.pytorch().double()


def halved() -> Any:
    return user_models.pytorch().bfloat16()


def own_float64() -> Any:
    """Weights that float32 doesn't hold."""
    module = user_models.pytorch().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1e-9 * torch.rand(
                parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
            )
    return module


def scripted() -> Any:
    return torch.jit.script(ScriptedStyle(user_models.foreign()))


class ScriptedStyle(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.model(src, tgt)


class Held(nn.Module):
    """An adapter."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.theirs = theirs
        self.register_buffer("version", torch.ones(1))

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits: Tensor = self.theirs(tgt=decoder_input_ids, src=source_ids)
        return logits


def held() -> Any:
    return Held(made(STYLES["short"])).eval()


def traced() -> Any:
    ids = torch.full((2, 5), 5), torch.full((2, 4), 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still in use
        return torch.jit.trace(made(STYLES["short"]), ids)


def compiled() -> Any:
    return torch.compile(made(STYLES["short"]), backend="eager")


def parallel() -> Any:
    return nn.DataParallel(made(STYLES["short"])).eval()


def dictionary() -> Any:
    return nn.Sequential(OrderedDict(inner=made(STYLES["short"]))).eval()


class Hyunwoongko(HyunwoongkoTransformer):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return super().forward(src, trg)


def hyunwoongko_float64() -> Any:
    """Computes its table in float64, as a program does that sets PyTorch's default dtype."""
    return made(Hyunwoongko, dtype=torch.float64)


def hyunwoongko_float64_eps() -> Any:
    module = hyunwoongko_float64()
    module.encoder.layers[0].norm1.eps = 1e-6
    return module


class InfiniteAttention(Attention):
    """Gives NaN where a query sees no key."""

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        *projections, output = self.linears
        query, key, value = (
            linear(one).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, one in zip(projections, (x, y, y), strict=True)
        )
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        weights = logits.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return output((weights @ value).transpose(1, 2).flatten(-2))


class HarvardShort(HarvardTransformer):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt)


def harvard_nan() -> Any:
    module = made(HarvardShort)
    for part in module.modules():
        if isinstance(part, Attention):
            part.__class__ = InfiniteAttention
    return module
