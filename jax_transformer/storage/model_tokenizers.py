"""Gives a model tokenizers that fit its embeddings and its special ids."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer
    from jax_transformer.data.tokenizers.objects import AnyTokenizer


def with_tokenizers(model: Model, source: AnyTokenizer, target: AnyTokenizer) -> Model:
    """Returns the model with the tokenizers that `translate`, `serve` and `save_model` use.

    Args:
      model: a model with any tokenizers, or none.
      source, target: tokenizers of transformers or of `tokenizers`; see `as_tokenizer`. One object may be both.

    Returns:
      The model with them and with the decoder's start and end that it lacked.

    Raises:
      ValueError: see `as_tokenizer`; a vocabulary of another size than the embedding (with a model of transformers, a
        larger one), with another padding, or with another <eos> than the model's.

    Example:
      >>> import jax
      >>> from tokenizers import Tokenizer, models, pre_tokenizers
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params, translate
      >>> words = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "who": 4, "sleeps": 5}
      >>> tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
      >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
      >>> config = TransformerConfig(source_vocab_size=6, target_vocab_size=6, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, GenerationConfig())
      >>> len(translate(with_tokenizers(model, tokenizer, tokenizer), ["who sleeps"], max_new_tokens=2))
      1
    """
    from jax_transformer.data.tokenizers.objects import as_tokenizer

    ours = fit_tokenizer(model, "source", as_tokenizer(source), "source_tokenizer")
    theirs = fit_tokenizer(model, "target", as_tokenizer(target, side="target"), "target_tokenizer")
    return join_tokenizers(model, ours, theirs, "target_tokenizer")


def join_tokenizers(model: Model, source: Tokenizer, target: Tokenizer, file: str) -> Model:
    """Returns the model with these tokenizers and the ids that `target` defines.

    Raises:
      ValueError: the model already has other ids.
    """
    generation = model.generation
    specials = {index for index in (target.bos_id, target.eos_id, target.unk_id, target.pad_id) if index >= 0}
    if generation.decoder_start_id not in {None, *specials, *target.tag_ids.values()}:
        raise ValueError(
            f"--decoder-start-id: expected a special token of {file}, {' or '.join(map(str, sorted(specials)))}; "
            f"received {generation.decoder_start_id}"
        )
    if generation.decoder_start_id is None and max(target.bos_id, target.eos_id) >= 0 and not target.tag_is_last:
        start_id = target.bos_id if target.bos_id >= 0 else target.eos_id
        generation = dataclasses.replace(generation, decoder_start_id=start_id)
    if generation.eos_id is None and target.eos_id >= 0:
        generation = dataclasses.replace(generation, eos_id=target.eos_id)
    elif generation.eos_id != target.eos_id >= 0:
        raise ValueError(f"--eos-id: expected {target.eos_id}, as {file} says; received {generation.eos_id}")
    return dataclasses.replace(model, source_tokenizer=source, target_tokenizer=target, generation=generation)


def fit_tokenizer(model: Model, side: str, tokenizer: Tokenizer, file: str) -> Tokenizer:
    """Returns the tokenizer with as many ids as the side's embedding has rows. Models of transformers have more rows
    than tokens.

    Raises:
      ValueError: another size, or another padding.
    """
    size, pad_id = (getattr(model.config, f"{side}_{name}") for name in ("vocab_size", "pad_id"))
    may_be_fewer = "hugging_face" in (model.origin or {})
    if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not may_be_fewer):
        at_most = "at most " if may_be_fewer else ""
        raise ValueError(
            f"{file}: expected {at_most}{size} tokens, the rows of the {side} embedding; received "
            f"{tokenizer.vocab_size}"
        )
    if pad_id not in (tokenizer.pad_id, tokenizer.unk_id):  # some programs pad with <unk>, whatever else their list has
        received = "without any" if tokenizer.pad_id < 0 else f"whose padding is {tokenizer.pad_id}"
        raise ValueError(f"{file}: expected {side}_pad_id={pad_id} to be its padding; received a list {received}")
    return tokenizer.filled(size)
