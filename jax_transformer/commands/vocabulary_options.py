"""Options that name a checkpoint's vocabularies, and the tokenizers that `port` gives a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jax_transformer.storage.model_tokenizers import fit_tokenizer, join_tokenizers

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer
    from jax_transformer.storage.model_directory import Model


@dataclass(frozen=True)
class VocabularyOptions:
    """Names the vocabularies, and how text is split for them."""

    source_vocab: str | None = None
    """Source vocabulary: a tokenizer.json, a sentencepiece .model or .spm, or a .txt with one token per line, whose id
    is the line's number, from 0. Default: the tokenizer files of a directory of transformers."""
    target_vocab: str | None = None
    """Target vocabulary, as source_vocab."""
    source_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    """How to split text for a .txt vocabulary. Default: as the dialect's program does."""
    target_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    """As source_tokenizer, for the target."""
    source_language: str = ""
    """Language code, such as en, of a .txt vocabulary of spaCy's words."""
    target_language: str = ""
    """As source_language, for the target."""


def with_vocabularies(model: Model, options: VocabularyOptions) -> tuple[Model, str]:
    """Returns the model with the tokenizers that the options name, or else of its own files, and the ids that these
    define; and a line about them for the user.

    Raises:
      ValueError: one vocabulary without the other, or an option for a vocabulary that isn't named; a vocabulary of
        another size than the embedding, with another pad, or with an <eos> other than the option's.
    """
    files = {"source": options.source_vocab, "target": options.target_vocab}
    if not any(files.values()):
        given = [field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default]
        if given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(
                f"port: expected none of these without --source-vocab and --target-vocab; received {named}"
            )
        return _with_own_vocabularies(model)
    if not all(files.values()):
        raise ValueError(
            f"--source-vocab and --target-vocab: expected both, or neither; received {options.source_vocab} and "
            f"{options.target_vocab}"
        )
    source, target = (_tokenizer(model, side, str(file), options) for side, file in files.items())
    return join_tokenizers(model, source, target, str(options.target_vocab)), _tags(source)


def _with_own_vocabularies(model: Model) -> tuple[Model, str]:
    """Returns the model with the tokenizers of its directory's files, if it can use them, and a line about them."""
    from jax_transformer.config.program_text import TEXT
    from jax_transformer.data.tokenizers.hugging_face import cleans_up, read_tokenizers
    from jax_transformer.data.tokenizers.program_text import read_described

    files = model.tokenizer_files
    if not files:
        return model, ""
    if model.config.stem is not None:  # it has no text to encode
        return model, f"transcripts by {', '.join(files)}"
    origin = model.origin or {}
    try:
        if TEXT in files:
            source, target = read_described(files)
        elif "hugging_face" in origin:
            source, target = read_tokenizers(files, origin["hugging_face"]["config"])
        else:
            source, target = read_tokenizers(files, {"model_type": origin["tokenizer_family"]})
        source = fit_tokenizer(model, "source", source, "its tokenizer")
        target = fit_tokenizer(model, "target", target, "its tokenizer")
        model = join_tokenizers(model, source, target, "its tokenizer")
    except ValueError as error:
        return model, f"its tokenizer files are kept for export, but not used: {error}"
    lines = [f"by {', '.join(name for name in files if name != TEXT)}", _tags(source)]
    if TEXT not in files and cleans_up(files):
        lines.append("not done: clean_up_tokenization_spaces, so that spaces before punctuation stay")
    return model, "\n          ".join(filter(None, lines))


def _tags(source: Tokenizer) -> str:
    """Describes the values of --source-tag and --target-tag; "" if there are none."""
    tags = source.tags
    return f"tags {', '.join(tags[:10])}{f', … ({len(tags)})' if len(tags) > 10 else ''}" if tags else ""


def _tokenizer(model: Model, side: str, file: str, options: VocabularyOptions) -> Tokenizer:
    """Loads the tokenizer of one side, and checks that it fits the model."""
    from jax_transformer.data.tokenizers import load_tokenizer
    from jax_transformer.porting.names_of_dialects import dialect_of_origin

    usual = dialect_of_origin(model.origin or {}).text[side]
    kind, language = getattr(options, f"{side}_tokenizer"), getattr(options, f"{side}_language")
    is_list = Path(file).suffix == ".txt"
    if (kind or language) and not is_list:
        raise ValueError(
            f"--{side}-tokenizer, --{side}-language: expected with a .txt vocabulary; {file} defines how to split text"
        )
    kind = kind or usual.kind
    if language and kind != "spacy":
        raise ValueError(f"--{side}-language: expected with --{side}-tokenizer spacy; received with {kind}")
    if is_list and kind == "spacy" and not language:
        raise ValueError(f"--{side}-language: expected a language code, such as en, for spaCy's rules; received none")
    tokenizer = load_tokenizer(
        file,
        kind=kind,
        specials=None,
        lowercase=usual.lowercase and is_list,
        language=language,
        add_bos=usual.add_bos,
        add_eos=usual.add_eos,
    )
    return fit_tokenizer(model, side, tokenizer, file)
