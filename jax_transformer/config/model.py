"""The model's configuration: numerics as data.

One frozen dataclass holds everything in which two Transformers can differ. A new family is a new combination of values,
never a subclass. Values are validated once, when a config is created, and never change afterwards;
`dataclasses.replace` makes a new config.

Axes, as in the package `model`: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, H
head_dim, V vocabulary, L layers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from jax_transformer.config.guarantees import Guarantees
from jax_transformer.config.model_validation import model_problems
from jax_transformer.config.stack import (
    Activation,
    EmbeddingNorm,
    NormPlacement,
    PaddingCover,
    PositionKind,
    StackConfig,
    decoder_stack,
    encoder_stack,
)
from jax_transformer.config.validation import check_field_types, require


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Guarantees):
    """Configures an encoder-decoder Transformer. The defaults are the base model of Vaswani et al. 2017.

    Raises:
      ConfigError (a ValueError): a value is unknown, out of range, or contradicts another. The message names the field,
        the value received and the values allowed. All problems are reported together.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> config = TransformerConfig(d_model=256, num_heads=4, decoder_d_ff=512)
      >>> config.encoder.head_dim, config.decoder.d_ff
      (64, 512)
      >>> TransformerConfig(dropout_rate=1.0)
      Traceback (most recent call last):
      ...
      jax_transformer.config.validation.ConfigError: TransformerConfig: dropout_rate must be in [0, 1); received 1.0
    """

    # --- sizes
    source_vocab_size: int = 0
    """Rows of the source embedding. 0: not known yet; training takes it from the tokenizer."""
    target_vocab_size: int = 0
    """Rows of the target embedding and columns of the logits. 0: not known yet."""
    d_model: int = 512
    """Width of the residual stream (D)."""
    num_heads: int = 8
    """Attention heads (N), in both stacks unless decoder_num_heads is set."""
    num_kv_heads: int | None = None
    """Heads of keys and values (G), each shared by num_heads / num_kv_heads neighbouring heads of queries (Ainslie et
    al. 2023); 1: one for all (Shazeer 2019). In both stacks unless decoder_num_kv_heads is set. None: as many as of
    queries."""
    head_dim: int | None = None
    """Width of one head (H). None: d_model / num_heads."""
    value_dim: int | None = None
    """Width of one head's values, d_v beside the d_k of Vaswani et al. 2017. In both stacks unless decoder_value_dim is
    set. None: head_dim."""
    d_ff: int = 2048
    """Width of the feed-forward's hidden layer (F), in both stacks unless decoder_d_ff is set."""
    num_encoder_layers: int = 6
    """Layers of the encoder (L)."""
    num_decoder_layers: int = 6
    """Layers of the decoder (L)."""
    share_layers: bool = False
    """Run one layer, with one set of parameters, in all places of a stack, each stack its own (Universal Transformer,
    Dehghani et al. 2019; ALBERT, Lan et al. 2020)."""
    max_length: int = 512
    """Longest sentence, in tokens, that the position tables allow; in both stacks unless decoder_max_length is set."""
    decoder_num_heads: int | None = None
    """num_heads of the decoder. None: as in the encoder."""
    decoder_num_kv_heads: int | None = None
    """num_kv_heads of the decoder's attentions, over the source too. None: num_kv_heads, or the decoder's number of
    heads."""
    decoder_head_dim: int | None = None
    """head_dim of the decoder. None: head_dim, or d_model / the decoder's number of heads."""
    decoder_value_dim: int | None = None
    """value_dim of the decoder's attentions, over the source too. None: value_dim, or the decoder's head_dim."""
    decoder_d_ff: int | None = None
    """d_ff of the decoder. None: as in the encoder."""
    decoder_max_length: int | None = None
    """max_length of the decoder. None: as in the encoder."""

    # --- the ids that masks are derived from
    source_pad_id: int = 0
    """Id of padding in the source."""
    target_pad_id: int = 0
    """Id of padding in the target."""
    decoder_padding_id: int | None = None
    """Id that the decoder's self-attention mask treats as padding. None: target_pad_id."""

    # --- embeddings and head
    share_embeddings: bool = False
    """Use one embedding for both sides, which need equal vocabularies."""
    tie_head: bool = False
    """Use the target embedding as the head's kernel."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(d_model) before adding positions, unless embedding_factor is set."""
    embedding_factor: float | None = None
    """Multiply token embeddings by this number. None: sqrt(d_model) with scale_embedding, otherwise 1. In both stacks
    unless decoder_embedding_factor is set. A shared or tied table itself stays unscaled."""
    decoder_embedding_factor: float | None = None
    """embedding_factor of the decoder. None: as in the encoder."""
    trains_pad_embedding: bool = True
    """Send gradients to the embedding row of the pad. False: the row gets none, as with torch's padding_idx."""
    encoder_embedding_norm: EmbeddingNorm = "none"
    """A norm of the encoder's embeddings, before or after positions are added."""
    decoder_embedding_norm: EmbeddingNorm = "none"
    """The same in the decoder."""
    scale_head: bool = False
    """Multiply the decoder's output by 1/sqrt(d_model) before the head (T5)."""
    logits_factor: float = 1.0
    """Multiply the logits, their bias included, by this number."""
    head_bias: Literal["parameter", "buffer", "none"] = "parameter"
    """Bias of the logits: trained, a fixed buffer (Marian's final_logits_bias), or absent."""

    # --- positions
    position_kind: PositionKind = "sinusoidal"
    """sinusoidal: a fixed table; learned: a trained table. The others are of self-attention: rotary rotates queries and
    keys by angles that grow with the position (Su et al. 2021); alibi lowers logits with the distance, by slopes that
    differ between heads (Press et al. 2022); relative_bias: learned biases by distance (T5); relative_vectors: learned
    vectors by distance, added to keys and values (Shaw et al. 2018). In both stacks unless decoder_position_kind is
    set; the options of a kind are those of every stack that has it."""
    decoder_position_kind: PositionKind | None = None
    """position_kind of the decoder. None: as in the encoder."""
    position_layout: Literal["interleaved", "halves"] = "interleaved"
    """Order of a sinusoidal table's columns: sines and cosines alternate, or all sines come first. Of rotary positions:
    neighbouring features are rotated as a pair, or each of the first half with one of the second."""
    position_frequency: Literal["standard", "inclusive", "doubled"] = "standard"
    """Exponent of column pair i of P: standard i/P, inclusive i/(P-1) (fairseq), doubled: twice each column's own
    number / D (floydhub)."""
    position_index: Literal["column", "batch_row", "non_pad_count"] = "column"
    """A token's position number: its column, its row in the batch, or the number of real tokens up to and including it
    (0 for pads)."""
    position_offset: int = 0
    """Added to the position number before the table lookup or rotation."""
    position_factor: float = 1.0
    """Multiply the position table's rows by this number before they are added."""
    learned_position_scale: bool = False
    """Multiply them by a trained number of each stack, which begins at 1 (SpeechT5, Ao et al. 2022)."""
    rotary_base: float = 10000.0
    """With position_kind="rotary", pair i of a head turns by rotary_base^(-2i / rotary_dim) for each position."""
    rotary_dim: int | None = None
    """Features of a head that are rotated, from the first on. None: all."""
    rotary_cross_attention: bool = False
    """In a decoder with rotary positions, rotate the queries of cross-attention by the target's positions, and its keys
    by the source's."""
    relative_buckets: int = 32
    """Biases per head with position_kind="relative_bias" (T5): one for each of the nearest distances, then one for each
    of ever longer ranges of distances. In a stack that isn't causal, half of them are for later positions."""
    relative_max_distance: int = 128
    """Distances from here on share one bias, or in each direction one vector."""
    relative_bias_factor: float = 1.0
    """Multiply relative-position biases by this number; some programs scale them by sqrt(head_dim). In both stacks
    unless decoder_relative_bias_factor is set."""
    decoder_relative_bias_factor: float | None = None
    """relative_bias_factor of the decoder. None: as in the encoder."""
    relative_bias_per_layer: bool = False
    """Give every layer its own relative-position biases (UMT5) or vectors, instead of one set per stack (T5)."""
    relative_value_vectors: bool = True
    """With position_kind="relative_vectors", add vectors to the values too, not only to the keys."""

    # --- norms
    norm_kind: Literal["layer_norm", "rms_norm", "none"] = "layer_norm"
    """rms_norm subtracts no mean and has no bias."""
    norm_placement: NormPlacement = "post"
    """pre: x + sublayer(norm(x)); post: norm(x + sublayer(x)), as in the paper; none: x + sublayer(x). In both stacks
    unless decoder_norm_placement is set."""
    decoder_norm_placement: NormPlacement | None = None
    """norm_placement of the decoder. None: as in the encoder."""
    norm_eps: float = 1e-5
    """Added to the variance, or to the standard deviation with norm_eps_outside."""
    norm_eps_outside: bool = False
    """Divide by (standard deviation + eps) instead of sqrt(variance + eps)."""
    norm_unbiased: bool = False
    """Divide the sum of squares by D - 1 instead of D."""
    norm_scale: bool = True
    """Give norms a scale of each feature. False: as if it were 1 (elementwise_affine=False, without norm_bias)."""
    norm_scale_offset: float = 0.0
    """Add this number to the scales as they are stored: 1 where a checkpoint holds scale - 1 (Gemma)."""
    norm_bias: bool = True
    """Give norms a bias."""
    output_norm: Literal["none", "self_attention", "attention", "all"] = "none"
    """Norm the outputs of these sublayers before they are added to the residual stream: of self-attention alone or of
    both attentions (NormFormer, Shleifer et al. 2021), or of all sublayers, which with norm_placement="pre" is the
    sandwich norm of CogView (Ding et al. 2021) and Gemma 2."""
    final_norm: bool = False
    """Add a norm after the last layer of each stack, unless decoder_final_norm is set."""
    decoder_final_norm: bool | None = None
    """final_norm of the decoder. None: as in the encoder."""

    share_norms: bool = False
    """Norm by norm_placement with one norm for all sublayers of a layer, instead of one for each."""

    # --- residuals: x + sublayer(x), in which both terms may be scaled
    parallel_residual: bool = False
    """Let all sublayers of a layer read its input, side by side, and add all their outputs to it: self-attention and
    feed-forward, and in the decoder cross-attention beside them. Each norms the input by itself (GPT-NeoX), or with
    share_norms it is normed once (GPT-J)."""
    residual_factor: float = 1.0
    """Multiply x by this number: DeepNorm's alpha (Wang et al. 2022). In both stacks unless decoder_residual_factor is
    set."""
    decoder_residual_factor: float | None = None
    """residual_factor of the decoder. None: as in the encoder."""
    sublayer_factor: float = 1.0
    """Multiply the sublayer's output by this number. In both stacks unless decoder_sublayer_factor is set."""
    decoder_sublayer_factor: float | None = None
    """sublayer_factor of the decoder. None: as in the encoder."""
    learned_residual_scale: Literal["none", "feed_forward", "all"] = "none"
    """Multiply x by a trained scale of each feature, which begins at 1: at the feed-forward (ResScale, Shleifer et al.
    2021) or at every sublayer."""
    learned_sublayer_scale: Literal["none", "channel", "scalar"] = "none"
    """Multiply every sublayer's output by a trained scale of each feature (LayerScale, Touvron et al. 2021) or by one
    trained number (ReZero, Bachlechner et al. 2020)."""
    sublayer_scale_init: float | None = None
    """First value of that scale. None: 0.1 of each feature, 0 of a number."""

    # --- attention
    attention_scale: float | None = None
    """Factor of the attention logits. None: 1/sqrt(head_dim)."""
    attention_bias: bool = True
    """Give the query, key and value projections biases."""
    attention_output: bool = True
    """Project the merged heads back to d_model."""
    attention_output_bias: bool = True
    """Give that projection a bias."""
    query_key_norm: bool = False
    """Norm queries and keys over the features of each head, before any rotation (Henry et al. 2020), as the config's
    norms do."""
    head_scale: bool = False
    """Multiply each head's context by a learned factor (NormFormer, Shleifer et al. 2021)."""
    context_norm: Literal["none", "self_attention", "attention"] = "none"
    """Norm the merged contexts of all heads before they are projected, in self-attention alone or in both attentions
    (Sub-LN, Wang et al. 2022)."""
    masked_value: float | None = None
    """Replaces masked logits. None: the lowest finite number of the dtype."""

    # --- feed-forward
    feed_forward: bool = True
    """Whether layers have a feed-forward sublayer."""
    activation: Activation = "relu"
    """gelu is exact; gelu_tanh is its tanh approximation, and quick_gelu is x sigmoid(1.702 x). prelu is a leaky_relu
    whose slope is trained. softplus is the identity above 20, as in PyTorch. In both stacks unless decoder_activation
    is set."""
    decoder_activation: Activation | None = None
    """activation of the decoder. None: as in the encoder."""
    activation_slope: float = 0.01
    """Slope of leaky_relu where its input is negative."""
    feed_forward_gated: bool = False
    """Multiply the hidden layer by an activated gate: activation(gate(x)) * hidden(x) (Shazeer 2020)."""
    feed_forward_hidden_norm: bool = False
    """Norm the activated hidden layer (NormFormer)."""
    feed_forward_bias: bool = True
    """Give the feed-forward's projections biases."""
    feed_forward_output_bias: bool | None = None
    """Give the projection of its hidden layer back to d_model a bias. None: as feed_forward_bias says."""

    # --- masks: the axes of the attention matrix on which padding is hidden
    encoder_padding: PaddingCover = "keys"
    """In the encoder's self-attention."""
    decoder_padding: PaddingCover = "keys"
    """In the decoder's self-attention."""
    cross_padding: PaddingCover = "keys"
    """In cross-attention. keys: the source's pads; queries: the target's."""
    decoding_decoder_padding: PaddingCover | None = None
    """decoder_padding while decoding. None: as in training."""
    decoding_cross_padding: PaddingCover | None = None
    """cross_padding while decoding. None: as in training."""
    decoder_causal: bool = True
    """Hide later positions from the decoder's self-attention."""

    # --- dropout
    dropout_rate: float = 0.1
    """Rate on each sublayer's output; the default of the next three."""
    embedding_dropout_rate: float | None = None
    """Rate on embeddings, after positions and norm. None: dropout_rate."""
    attention_dropout_rate: float | None = None
    """Rate on attention weights. None: dropout_rate."""
    feed_forward_dropout_rate: float | None = None
    """Rate inside the feed-forward, after its activation. None: dropout_rate."""
    output_dropout_rate: float = 0.0
    """Rate on each stack's output, after the final norm (T5)."""

    # --- initial weights
    initializer: Literal["xavier_uniform", "torch", "kaiming_uniform", "fairseq"] = "xavier_uniform"
    """Policy for initial weights; `jax_transformer.model.initializers` describes each."""

    # --- how the function is computed; these change only rounding, speed and memory
    compute_dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """dtype of matrix products. None: the dtype of the parameters. Norms, softmax and loss use at least float32."""
    attention_path: Literal["auto", "reference", "flash", "xla", "cudnn"] = "auto"
    """reference: step by step, with all weights in memory. flash: in blocks, by kernels for TPUs and GPUs, with the
    same weights dropped. auto: flash for long sentences on TPUs and GPUs, reference otherwise. xla, cudnn:
    jax.nn.dot_product_attention, which drops no weights."""
    layer_loop: Literal["scan", "unrolled"] = "scan"
    """scan: one compiled layer under lax.scan; unrolled: every layer compiled on its own."""
    remat: Literal["none", "all_but_products", "all"] = "all_but_products"
    """Activations that the backward pass recomputes instead of storing. all_but_products: all in a layer except its
    products with weights, which costs next to nothing; all: each whole layer from its input, for a third more
    arithmetic. (On a CPU, XLA undoes it in unrolled layers.)"""

    def __post_init__(self) -> None:
        check_field_types(self)
        require(self, model_problems(self))

    # --- resolved values

    @property
    def encoder(self) -> StackConfig:
        """The sizes of the encoder."""
        return encoder_stack(self)

    @property
    def decoder(self) -> StackConfig:
        """The sizes of the decoder, with its overrides."""
        return decoder_stack(self)

    @property
    def normed_outputs(self) -> tuple[str, ...]:
        """The sublayers whose outputs are normed, by the names of their parameters."""
        attentions = ("self_attention", "cross_attention")
        count = {"none": 0, "self_attention": 1, "attention": 2, "all": 3}[self.output_norm]
        return (*attentions, "feed_forward")[:count]

    @property
    def normed_contexts(self) -> tuple[str, ...]:
        """The attentions whose contexts are normed, by the names of their parameters."""
        return ("self_attention", "cross_attention")[
            : {"none": 0, "self_attention": 1, "attention": 2}[self.context_norm]
        ]

    def while_decoding(self) -> TransformerConfig:
        """Returns the config with the padding masks that apply while decoding."""
        return dataclasses.replace(
            self,
            decoder_padding=self.decoding_decoder_padding or self.decoder_padding,
            cross_padding=self.decoding_cross_padding or self.cross_padding,
        )
