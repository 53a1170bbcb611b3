"""The parts of a model as nested, frozen data: what a stack, a sublayer, a norm can differ in.

A part holds its own options and no others, each with its default. A `TransformerConfig` puts the parts together and
checks them; `dataclasses.replace` makes a part with other values.

Axes, as in the package `model`: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, G
heads of keys and values, H head_dim, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from jax_transformer.config.positions import Index, Learned, PositionKind, Positions, Rotary, Sinusoidal
from jax_transformer.config.validation import Spec

PaddingCover = Literal["keys", "queries", "both", "none"]
EmbeddingNorm = Literal["none", "before_positions", "after_positions"]
NormPlacement = Literal["pre", "post", "none"]
Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "none", "leaky_relu", "prelu", "elu", "selu", "mish", "quick_gelu",
    "relu_squared", "tanh", "sigmoid", "softplus",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tokens(Spec):
    """Configures the ids of one side, the source or the target.

    Example:
      >>> from jax_transformer.config import Tokens
      >>> Tokens(vocab_size=32_000, pad_id=1).trains_pad
      True
    """

    vocab_size: int = 0
    """Rows of the embedding and, of the target, columns of the logits. 0: not known yet; training takes it from the
    tokenizer."""
    pad_id: int = 0
    """Id of padding, from which masks are derived."""
    trains_pad: bool = True
    """Send gradients to the embedding row of the pad. False: the row gets none, as with torch's padding_idx."""


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Spec):
    """Configures (x - mean) / deviation · scale + bias over the features (Ba et al. 2016).

    Example:
      >>> from jax_transformer.config import LayerNorm
      >>> LayerNorm(eps=1e-6).bias
      True
    """

    kind: Literal["layer_norm"] = field(default="layer_norm", init=False)
    eps: float = 1e-5
    """Added to the variance, or to the standard deviation with eps_outside."""
    eps_outside: bool = False
    """Divide by (standard deviation + eps) instead of sqrt(variance + eps)."""
    unbiased: bool = False
    """Divide the sum of squares by D - 1 instead of D."""
    scale: bool = True
    """Give the norm a scale of each feature. False: as if it were 1 (elementwise_affine=False, without bias)."""
    scale_offset: float = 0.0
    """Add this number to the scales as they are stored: 1 where a checkpoint holds scale - 1 (Gemma)."""
    bias: bool = True
    """Give the norm a bias."""


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Spec):
    """Configures x / root mean square · scale over the features, without a mean or a bias (Zhang & Sennrich 2019).

    Example:
      >>> from jax_transformer.config import RmsNorm
      >>> RmsNorm(eps=1e-6).bias
      False
    """

    kind: Literal["rms_norm"] = field(default="rms_norm", init=False)
    eps: float = 1e-5
    """Added to the mean square, or to its root with eps_outside."""
    eps_outside: bool = False
    """Divide by (root mean square + eps) instead of sqrt(mean square + eps)."""
    unbiased: bool = False
    """Divide the sum of squares by D - 1 instead of D."""
    scale: bool = True
    """Give the norm a scale of each feature. False: as if it were 1."""
    scale_offset: float = 0.0
    """Add this number to the scales as they are stored: 1 where a checkpoint holds scale - 1 (Gemma)."""

    @property
    def bias(self) -> bool:
        """Whether the norm has a bias: never."""
        return False


Norm: TypeAlias = LayerNorm | RmsNorm


@dataclass(frozen=True)
class HeadShape:
    """Holds the sizes of an attention, none left open."""

    num_heads: int
    """Heads of queries (N)."""
    num_kv_heads: int
    """Heads of keys and values (G)."""
    head_dim: int
    """Width of one head's queries and keys (H)."""
    value_dim: int
    """Width of one head's values."""


@dataclass(frozen=True, kw_only=True)
class Attention(Spec):
    """Configures multi-head attention (Vaswani et al. 2017, §3.2), over the stack itself or the encoder's output.

    Example:
      >>> from jax_transformer.config import Attention
      >>> Attention(num_heads=8, num_kv_heads=2).shape(d_model=512).head_dim
      64
    """

    num_heads: int = 8
    """Heads of queries (N)."""
    num_kv_heads: int | None = None
    """Heads of keys and values (G), each shared by num_heads / num_kv_heads neighbouring heads of queries (Ainslie et
    al. 2023); 1: one for all (Shazeer 2019). None: as many as of queries."""
    head_dim: int | None = None
    """Width of one head (H). None: d_model / num_heads."""
    value_dim: int | None = None
    """Width of one head's values, the d_v of Vaswani et al. 2017. None: head_dim."""
    scale: float | None = None
    """Factor of the attention logits. None: 1/sqrt(head_dim)."""
    logits_cap: float | None = None
    """Bend the scaled logits x to cap · tanh(x / cap), before biases and masks (Gemma 2). None: leave them."""
    bias: bool = True
    """Give the query, key and value projections biases."""
    key_bias: bool | None = None
    """Give the key projection a bias. None: as bias says. (Whisper's has none.)"""
    output: bool = True
    """Project the merged heads back to d_model."""
    output_bias: bool = True
    """Give that projection a bias."""
    query_key_norm: bool = False
    """Norm queries and keys over the features of each head, before any rotation (Henry et al. 2020), as the stack's
    norms do."""
    head_scale: bool = False
    """Multiply each head's context by a learned factor (NormFormer, Shleifer et al. 2021)."""
    context_norm: bool = False
    """Norm the merged contexts of all heads before they are projected (Sub-LN, Wang et al. 2022)."""
    output_norm: bool = False
    """Norm the output before it is added to the residual stream (NormFormer, Shleifer et al. 2021); with
    norm_placement="pre", and at all sublayers, the sandwich norm of CogView (Ding et al. 2021) and Gemma 2."""
    causal: bool = False
    """Hide later positions."""
    window: int | None = None
    """In self-attention: hide positions at this distance or farther, so that a query sees itself and the window - 1
    positions before it, and without causal as many after it (Beltagy et al. 2020). None: hide none."""
    full_every: int | None = None
    """Let layers n, 2n, … counted from 1, see beyond the window (Gemma 2: 2; Gemma 3: 6). None: no layer does."""
    padding: PaddingCover = "keys"
    """Axes of the attention matrix on which padding is hidden: keys, queries or both."""
    decoding_padding: PaddingCover | None = None
    """The same while decoding. None: as in training."""
    padding_id: int | None = None
    """Id that counts as padding in the decoder's self-attention. None: the target's pad_id."""
    masked_value: float | None = None
    """Replaces masked logits. None: the lowest finite number of the dtype."""

    @property
    def has_key_bias(self) -> bool:
        """Whether the key projection has a bias."""
        return self.bias if self.key_bias is None else self.key_bias

    @property
    def path_obstacle(self) -> str:
        """The option with which only the reference path computes the attention. Empty: every path does."""
        return "logits_cap" if self.logits_cap is not None else ""

    def while_decoding(self) -> Attention:
        """Returns the attention with the padding that it hides while decoding."""
        return replace(self, padding=self.decoding_padding or self.padding)

    def shape(self, d_model: int) -> HeadShape:
        """Returns the sizes in a stack of this width.

        Example:
          >>> from jax_transformer.config.specs import Attention
          >>> Attention(num_heads=8, num_kv_heads=2).shape(512)
          HeadShape(num_heads=8, num_kv_heads=2, head_dim=64, value_dim=64)
        """
        head_dim = self.head_dim or d_model // self.num_heads
        return HeadShape(self.num_heads, self.num_kv_heads or self.num_heads, head_dim, self.value_dim or head_dim)


@dataclass(frozen=True, kw_only=True)
class FeedForward(Spec):
    """Configures two linear maps with an activation between them (Vaswani et al. 2017, §3.3).

    Example:
      >>> from jax_transformer.config import FeedForward
      >>> FeedForward(width=1024, activation="silu", gated=True).width
      1024
    """

    width: int = 2048
    """Units of the hidden layer (F)."""
    activation: Activation = "relu"
    """gelu is exact; gelu_tanh is its tanh approximation, and quick_gelu is x sigmoid(1.702 x). prelu is a leaky_relu
    whose slope is trained. softplus is the identity above 20, as in PyTorch."""
    slope: float = 0.01
    """Slope of leaky_relu where its input is negative."""
    gated: bool = False
    """Multiply the hidden layer by an activated gate: activation(gate(x)) * hidden(x) (Shazeer 2020)."""
    hidden_norm: bool = False
    """Norm the activated hidden layer (NormFormer)."""
    bias: bool = True
    """Give the projections biases."""
    output_bias: bool | None = None
    """Give the projection of the hidden layer back to d_model a bias. None: as bias says."""
    output_norm: bool = False
    """Norm the output before it is added to the residual stream, as of an attention."""


@dataclass(frozen=True, kw_only=True)
class Residual(Spec):
    """Configures how sublayers join the residual stream: x · stream_factor + sublayer(x) · output_factor.

    Example:
      >>> from jax_transformer.config import Residual
      >>> Residual(stream_factor=2.0).output_factor
      1.0
    """

    parallel: bool = False
    """Let all sublayers of a layer read its input, and add all their outputs to it: self-attention and feed-forward,
    and in the decoder cross-attention. Each norms the input for itself (GPT-NeoX), or with the stack's share_norms it
    is normed once (GPT-J)."""
    stream_factor: float = 1.0
    """Multiply x by this number: DeepNorm's alpha (Wang et al. 2022)."""
    output_factor: float = 1.0
    """Multiply the sublayer's output by this number."""
    stream_scale: Literal["none", "feed_forward", "all"] = "none"
    """Multiply x by a trained scale of each feature, which begins at 1: at the feed-forward (ResScale, Shleifer et al.
    2021) or at every sublayer."""
    output_scale: Literal["none", "channel", "scalar"] = "none"
    """Multiply every sublayer's output by a trained scale of each feature (LayerScale, Touvron et al. 2021) or by one
    trained number (ReZero, Bachlechner et al. 2020)."""
    output_scale_init: float | None = None
    """First value of that scale. None: 0.1 of each feature, 0 of a number."""


@dataclass(frozen=True, kw_only=True)
class Dropout(Spec):
    """Configures the rates of dropout in a stack.

    Example:
      >>> from jax_transformer.config import Dropout
      >>> Dropout(rate=0.3, attention=0.0).at("feed_forward")
      0.3
    """

    rate: float = 0.1
    """Rate on each sublayer's output; the default of the next three."""
    embedding: float | None = None
    """Rate on embeddings, after positions and norm. None: rate."""
    attention: float | None = None
    """Rate on attention weights. None: rate."""
    feed_forward: float | None = None
    """Rate inside the feed-forward, after its activation. None: rate."""
    output: float = 0.0
    """Rate on the stack's output, after the final norm (T5)."""

    def at(self, place: Literal["embedding", "attention", "feed_forward"]) -> float:
        """Returns the rate at a place: its own, or the general one."""
        own: float | None = getattr(self, place)
        return self.rate if own is None else own


@dataclass(frozen=True, kw_only=True)
class Stack(Spec):
    """Configures an encoder or a decoder: embedded tokens, equal layers in a row, and a final norm.

    Example:
      >>> from jax_transformer.config import Attention, FeedForward, Stack
      >>> Stack(num_layers=2, self_attention=Attention(num_heads=4), feed_forward=FeedForward(width=64)).d_model
      512
    """

    d_model: int = 512
    """Width of the residual stream (D)."""
    num_layers: int = 6
    """Layers (L)."""
    share_layers: bool = False
    """Run one layer, with one set of parameters, in all places (Universal Transformer, Dehghani et al. 2019; ALBERT,
    Lan et al. 2020)."""
    max_length: int = 512
    """Longest sentence, in tokens, that the position tables allow."""
    self_attention: Attention = Attention()
    """Attention over the stack's own positions."""
    cross_attention: Attention | None = None
    """Attention over the encoder's output, which a decoder has."""
    feed_forward: FeedForward | None = FeedForward()
    """The last sublayer. None: layers have attention only."""
    norm: Norm | None = LayerNorm()
    """Every norm of the stack. None: it has none."""
    norm_placement: NormPlacement = "post"
    """pre: x + sublayer(norm(x)); post: norm(x + sublayer(x)), as in the paper; none: x + sublayer(x)."""
    share_norms: bool = False
    """Norm by norm_placement with one norm for all sublayers of a layer, instead of one for each."""
    final_norm: bool = False
    """Add a norm after the last layer."""
    embedding_norm: EmbeddingNorm = "none"
    """A norm of the embeddings, before or after positions are added."""
    embedding_scale: float | Literal["sqrt_d_model"] = "sqrt_d_model"
    """Factor of the token embeddings before positions are added: a number, or the root of d_model. A shared or tied
    table itself stays unscaled."""
    token_types: int = 0
    """Rows of a trained table of token types, of which the first is added to every embedding (BERT, Devlin et al.
    2019); only programs for sentence pairs read the others. 0: there is none."""
    positions: Positions | None = Sinusoidal()
    """How the stack knows the order of its tokens. None: not at all."""
    residual: Residual = Residual()
    """How sublayers join the residual stream."""
    dropout: Dropout = Dropout()
    """Rates of dropout."""

    @property
    def embedding_factor(self) -> float:
        """The factor of the token embeddings as a number."""
        return math.sqrt(self.d_model) if self.embedding_scale == "sqrt_d_model" else self.embedding_scale

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attentions of a layer, in order."""
        return (self.self_attention, *((self.cross_attention,) if self.cross_attention else ()))

    @property
    def heads(self) -> HeadShape:
        """The sizes of self-attention, none left open."""
        return self.self_attention.shape(self.d_model)

    @property
    def position_kind(self) -> PositionKind:
        """Kind of positions."""
        return "none" if self.positions is None else self.positions.kind

    @property
    def numbering(self) -> tuple[Index, int]:
        """The numbering of positions, and its offset; columns from 0 if nothing reads the numbers."""
        kind = self.positions
        return (kind.index, kind.offset) if isinstance(kind, Sinusoidal | Learned | Rotary) else ("column", 0)

    @property
    def table_rows(self) -> int:
        """The number of rows of the position table: one for every number that a position may have."""
        index, offset = self.numbering
        return self.max_length + offset + (index == "non_pad_count")


DECODER = Stack(self_attention=Attention(causal=True), cross_attention=Attention())
"""The decoder of Vaswani et al. 2017, as `Stack()` is its encoder."""


@dataclass(frozen=True, kw_only=True)
class Head(Spec):
    """Configures what computes the logits from the decoder's output.

    Example:
      >>> from jax_transformer.config import Head
      >>> Head(tied=True, bias="none").factor
      1.0
    """

    tied: bool = False
    """Use the target embedding as the kernel."""
    bias: Literal["parameter", "buffer", "none"] = "parameter"
    """Bias of the logits: trained, a fixed buffer (Marian's final_logits_bias), or absent."""
    transform: Activation | None = None
    """Before all else, map the decoder's output to D features, activate them, and norm them as the decoder's norms do
    (BERT, Devlin et al. 2019). None: leave it."""
    scales_input: bool = False
    """Multiply the decoder's output by 1/sqrt(d_model) first (T5)."""
    factor: float = 1.0
    """Multiply the logits, their bias included, by this number."""
    cap: float | None = None
    """Bend the logits x to cap · tanh(x / cap) (Gemma 2). None: leave them."""


@dataclass(frozen=True, kw_only=True)
class Stem(Spec):
    """Configures what maps a source's feature vectors to the encoder's width: two convolutions over time, each followed
    by an activation, of which the second one skips positions (Whisper, Radford et al. 2022).

    Example:
      >>> from jax_transformer.config import Stem
      >>> Stem(features=128).stride
      2
    """

    features: int = 80
    """Width of the vectors, such as the number of mel bands."""
    kernel: int = 3
    """Vectors that a position of either convolution sees, an odd number; zeros stand before and after the source."""
    stride: int = 2
    """Vectors from one position of the second convolution to the next."""
    activation: Activation = "gelu"
    """Activation after each convolution."""

    def positions(self, length: int) -> int:
        """Returns the number of the encoder's positions for so many vectors.

        Example:
          >>> from jax_transformer.config import Stem
          >>> Stem().positions(3000)
          1500
        """
        return (length - 1) // self.stride + 1


AttentionPath = Literal["auto", "reference", "flash", "xla", "cudnn"]


@dataclass(frozen=True, kw_only=True)
class Compute(Spec):
    """Configures how the function is computed; these options change only rounding, speed and memory.

    Example:
      >>> from jax_transformer.config import Compute
      >>> Compute(dtype="bfloat16").layers
      'scan'
    """

    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """dtype of matrix products. None: the dtype of the parameters. Norms, softmax and loss use at least float32."""
    attention: AttentionPath = "auto"
    """reference: step by step, with all weights in memory. flash: in blocks, by kernels for TPUs and GPUs, with the
    same weights dropped. auto: flash for long sentences on TPUs and GPUs, reference otherwise. xla, cudnn:
    jax.nn.dot_product_attention, which drops no weights."""
    layers: Literal["scan", "unrolled"] = "scan"
    """scan: one compiled layer under lax.scan; unrolled: every layer compiled on its own."""
    remat: Literal["none", "all_but_products", "all"] = "all_but_products"
    """Activations that the backward pass recomputes instead of storing. all_but_products: all in a layer except its
    products with weights, which costs next to nothing; all: each whole layer from its input, for a third more
    arithmetic. (On a CPU, XLA undoes it in unrolled layers.)"""


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """The parts of an encoder-decoder Transformer, which `TransformerConfig` checks."""

    source: Tokens = Tokens()
    """The source's ids."""
    target: Tokens = Tokens()
    """The target's ids."""
    encoder: Stack = Stack()
    """The stack that reads the source."""
    decoder: Stack = DECODER
    """The stack that writes the target."""
    head: Head = Head()
    """What computes the logits."""
    share_embeddings: bool = False
    """Use one embedding for both sides, which need equal vocabularies."""
    initializer: Literal["xavier_uniform", "torch", "kaiming_uniform", "fairseq"] = "xavier_uniform"
    """Policy for initial weights; `jax_transformer.model.initializers` describes each."""
    compute: Compute = Compute()
    """How the function is computed; these change only rounding, speed and memory."""
    stem: Stem | None = None
    """What maps feature vectors of the source to the encoder's width. None: the source is tokens, which an embedding
    maps."""

    @property
    def vocabularies(self) -> tuple[str, ...]:
        """The options with the sizes of the vocabularies that the model has."""
        return ("source_vocab_size", "target_vocab_size") if self.stem is None else ("target_vocab_size",)
