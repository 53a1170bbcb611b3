"""Writes a model for CTranslate2: its weights, vocabularies and special tokens, and how the model decodes.

model.bin, config.json                          as CTranslate2's own converters write them
shared_vocabulary.json                          or source_vocabulary.json and target_vocabulary.json
decoding.json                                   options of Translator.translate_batch
source_tokenizer.json, target_tokenizer.json    the tokenizers; or the files of transformers
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.padding import limit
from jax_transformer.exporting.ctranslate2_limits import problems_of
from jax_transformer.exporting.options import ExportError, Quantization, refuse
from jax_transformer.exporting.vocabularies import token_list
from jax_transformer.runtime.directories import check_free, new_directory
from jax_transformer.runtime.json_text import indented_json
from jax_transformer.storage.model_directory import Model

DECODING = "decoding.json"
OPTIONS = {
    "beam_size": "beam_size",
    "length_penalty": "length_penalty",
    "min_new_tokens": "min_decoding_length",
    "no_repeat_ngram": "no_repeat_ngram_size",
}
"""Our decoding options → the equivalent ones of `translate_batch`."""
SAMPLING = {"top_k": "sampling_topk", "top_p": "sampling_topp", "temperature": "sampling_temperature"}


def export_ctranslate2(model: Model, path: str | os.PathLike[str], quantization: Quantization = "float32") -> list[str]:
    """Writes a new directory for `ctranslate2.Translator`.

    Its vocabularies have the tokens of the tokenizer files in the same directory. The tokenizers add the special tokens
    of a sentence; CTranslate2 adds none.

    Args:
      model: the model.
      path: the directory to write: a free name, or an empty directory.
      quantization: how weights are stored.

    Returns:
      The lines to print.

    Raises:
      ExportError: CTranslate2 isn't installed, or can't express the model; the path can't be written.
    """
    path = Path(path)
    check_free(path, ExportError)
    refuse("ctranslate2", problems_of(model))
    spec = _load_spec_module(quantization)
    translation = spec.transformer_spec(model)
    single = [word[0] for word in model.generation.bad_words or () if len(word) == 1]
    if single:
        spec.forbid(translation, single)
    source, target = _vocabularies(model)
    translation.register_source_vocabulary(source)
    translation.register_target_vocabulary(target)
    for name, token in _special_tokens(model, source, target).items():
        setattr(translation.config, name, token)
    translation.validate()
    translation.optimize(quantization=quantization)
    decoding = decoding_options(model, target)
    with new_directory(path, ExportError) as temporary:
        translation.save(str(temporary))
        (temporary / DECODING).write_text(indented_json(decoding), encoding="utf-8")
        _write_tokenizers(model, temporary)
    lines = [f"weights:  {quantization}, {(path / 'model.bin').stat().st_size:,} bytes"]
    lines.append(f"decoding: {', '.join(f'{name}={value}' for name, value in decoding['translate_batch'].items())}")
    if decoding["target_prefix"]:
        lines.append(f"          target_prefix={decoding['target_prefix']} for every sentence")
    if left_out := decoding["not_in_ctranslate2"]:
        lines.append(f"          not in CTranslate2: {', '.join(f'{k}={v}' for k, v in left_out.items())}")
    return lines


def _load_spec_module(quantization: Quantization) -> Any:
    """Imports `ctranslate2_spec`. Raises ExportError if a library isn't installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, of other libraries
            from jax_transformer.exporting import ctranslate2_spec
    except ImportError as error:
        if (error.name or "").split(".")[0] != "ctranslate2":
            raise
        hint = "pip install 'jax-transformer[ctranslate2]'"
        raise ExportError(
            f"--to ctranslate2: expected CTranslate2, whose own writer is used; install it ({hint})"
        ) from None
    if "bfloat16" in quantization:
        try:
            import torch  # noqa: F401
        except ImportError:
            raise ExportError(
                f"--quantization {quantization}: CTranslate2 rounds to bfloat16 with PyTorch; install torch "
                "(pip install 'jax-transformer[parity]')"
            ) from None
    return ctranslate2_spec


def _vocabularies(model: Model) -> tuple[list[str], list[str]]:
    """Returns the tokens of source and target."""
    as_shown, config = model.tokenizer_files is not None, model.config
    source = token_list(model.source_tokenizer, config.source_vocab_size, as_shown=as_shown)
    return source, token_list(model.target_tokenizer, config.target_vocab_size, as_shown=as_shown)


def _special_tokens(model: Model, source: list[str], target: list[str]) -> dict[str, Any]:
    """Returns the special tokens that CTranslate2's config.json names.

    Words that a vocabulary lacks become `unk_token`. Without an <unk>, it is the padding, which has a row at least.
    """
    start, end = model.generation.decoder_start_id, model.generation.eos_id or 0  # it has one: see `problems_of`
    tokenizer = model.source_tokenizer
    unknown = -1 if tokenizer is None else tokenizer.unk_id
    begin = -1 if model.target_tokenizer is None else model.target_tokenizer.bos_id
    return {
        "unk_token": source[model.config.source_pad_id if unknown < 0 else unknown],
        "bos_token": target[end if begin < 0 else begin],  # which CTranslate2 adds nowhere, as add_source_bos is false
        "eos_token": target[end],
        "decoder_start_token": None if start is None else target[start],
        "add_source_bos": False,
        "add_source_eos": False,
    }


def decoding_options(model: Model, target: list[str]) -> dict[str, Any]:
    """Returns the model's decoding options in CTranslate2's terms.

    Args:
      target: the target's tokens.

    Returns:
      `translate_batch`: keyword arguments of `Translator.translate_batch`; `target_prefix`: the tokens that every
        target begins with; `not_in_ctranslate2`: the model's other settings, by our names.
    """
    own = model.generation.decoding
    decoding: Mapping[str, Any] = vars(DecodingConfig().resolved(model.generation))
    options = {theirs: decoding[ours] for ours, theirs in OPTIONS.items()}
    most = limit(model, "target")
    options["max_decoding_length"] = min(decoding["max_new_tokens"] or most, most)
    options["max_input_length"] = 0  # which cuts nothing off
    if decoding["sampling"]:
        options |= {theirs: decoding[ours] for ours, theirs in SAMPLING.items()}
    sequences = [[target[index] for index in word] for word in decoding["bad_words"] if len(word) > 1]
    if sequences:
        options["suppress_sequences"] = sequences
    forced = decoding["forced_bos_id"]
    expressed = {*OPTIONS, *SAMPLING, "max_new_tokens", "sampling", "bad_words", "forced_bos_id"}
    left_out = {name: value for name, value in own.items() if name not in expressed}
    if "semantics" in own and own["semantics"] == "huggingface":
        del left_out["semantics"]
    return {
        "translate_batch": options,
        "target_prefix": [target[forced]] if forced >= 0 else [],
        "not_in_ctranslate2": left_out,
    }


def _write_tokenizers(model: Model, directory: Path) -> None:
    """Writes the tokenizers of the vocabularies."""
    for name, data in (model.tokenizer_files or {}).items():
        (directory / name).write_bytes(data)
    if model.tokenizer_files is not None:
        return
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        if tokenizer is not None:
            (directory / f"{side}_tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
