"""Takes tokenizers of the libraries `transformers` and `tokenizers` as objects, and makes ours of them.

A tokenizer with a pipeline of `tokenizers` is read from it; one without, of a class that `hugging_face` knows, from the
files that it saves. The result must encode and decode PROBES as the object does.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from jax_transformer.data.tokenizers.hugging_face import known_class, read_class
from jax_transformer.data.tokenizers.hugging_face_pipelines import with_own_template
from jax_transformer.data.tokenizers.special_tokens import BOS, EOS, NAMES, NO_TOKEN, PAD, ROLES, UNK
from jax_transformer.data.tokenizers.tokenizer import Tokenizer

AnyTokenizer: TypeAlias = Any
"""A `Tokenizer`, a `PreTrainedTokenizerBase` of transformers or a `Tokenizer` of `tokenizers`. (Neither library is
imported to say so.)"""
Side = Literal["source", "target"]

PROBES = (
    "",
    "a",
    "The old man sees a dog.",
    "  two  spaces  ",
    "Don't pay 3.14 or 1,000, OK?",
    "naïve café — “quoted”…",
    "Ärger über Füße",
    "ﬁ ＦＵＬＬ ①",
    "漢字 कखग עברית 😀",
    "a\tb\nc",
)
"""Texts on which the object and the stored tokenizer must agree."""
ATTRIBUTES = {UNK: ("unk",), PAD: ("pad",), BOS: ("bos", "cls"), EOS: ("eos", "sep")}
"""Our special tokens → the roles of transformers that give them, in order of precedence."""


class GivenTokenizer(NamedTuple):
    """Holds a tokenizer made of an object."""

    tokenizer: Tokenizer
    tag: str
    """The language that the object puts around each sentence; "" for none."""


class _Functions(NamedTuple):
    """The object's own functions."""

    encode: Callable[[str], Sequence[int]]
    """Returns the ids of a sentence, with the tokens around it."""
    encode_bare: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]


def as_tokenizer(tokenizer: AnyTokenizer, *, side: Side = "source") -> Tokenizer:
    """Makes a `Tokenizer` of one of `transformers` or of `tokenizers`.

    It splits and joins text as the object does, under the same ids. Pad, unk, bos and eos are those of a tokenizer of
    transformers, with cls and sep in place of a missing bos and eos; in one of `tokenizers` they are recognised by
    their common names, as by `load_tokenizer`. The source's adds the tokens that the object's own template adds, except
    for a language, which is a tag here (`Tokenizer.tags`). The target's adds none: training and decoding do.

    Two things differ on purpose: the name of a special token in a text is text, and decoding shows <unk>.

    Args:
      tokenizer: a `Tokenizer`, a `PreTrainedTokenizerBase` or a `tokenizers.Tokenizer`. It isn't changed.
      side: which text it is for.

    Raises:
      ValueError: another object; a special token is missing, or is both padding and the end; a template that adds other
        tokens; a tokenizer that can't be stored so that it encodes and decodes as the object does.

    Example:
      >>> from tokenizers import Tokenizer, models, pre_tokenizers
      >>> words = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "who": 4, "sleeps": 5}
      >>> theirs = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
      >>> theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
      >>> ours = as_tokenizer(theirs, side="target")
      >>> ours.encode(["who sleeps", "who knows"]), ours.bos_id, ours.eos_id
      ([[4, 5], [4, 1]], 2, 3)
    """
    return given_tokenizer(tokenizer, side).tokenizer


def given_tokenizer(given: AnyTokenizer, side: Side) -> GivenTokenizer:
    """Returns what `as_tokenizer` does, and the object's language."""
    option = f"{side}_tokenizer"
    if isinstance(given, Tokenizer):
        return GivenTokenizer(given if side == "source" else given.adding(bos=False, eos=False), "")
    classes = {f"{each.__module__.split('.')[0]}.{each.__name__}" for each in type(given).__mro__}
    try:
        if "transformers.PreTrainedTokenizerBase" in classes:
            made, functions = _of_transformers(given, side)
        elif "tokenizers.Tokenizer" in classes:
            made, functions = _of_tokenizers(given, side)
        else:
            raise ValueError(
                "expected a tokenizer of transformers (PreTrainedTokenizerBase) or of tokenizers (Tokenizer), or one "
                f"of jax_transformer.data; received {type(given).__name__}"
            )
        return GivenTokenizer(made, _check_agreement(made, functions, side))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _of_tokenizers(given: Any, side: Side) -> tuple[Tokenizer, _Functions]:
    own = type(given).from_str(given.to_str())
    own.no_padding()
    own.no_truncation()
    made = _of_content(json.loads(own.to_str()), _size(own.get_vocab()), side)
    for role, attribute in ((PAD, "pad_id"), (EOS, "eos_id")):
        if getattr(made, attribute) in (NO_TOKEN, made.unk_id) and (role == PAD or side == "target"):
            raise ValueError(
                f"expected a token {', '.join(NAMES[role][:-1])} or {NAMES[role][-1]}, by which {ROLES[role]} is "
                "recognised; received a vocabulary without any. Name it in a PreTrainedTokenizerFast("
                f"tokenizer_object=…, {ROLES[role]}_token=…)"
            )
    return made, _Functions(
        lambda text: own.encode(text).ids,
        lambda text: own.encode(text, add_special_tokens=False).ids,
        lambda ids: str(own.decode(list(ids))),
    )


def _of_transformers(given: Any, side: Side) -> tuple[Tokenizer, _Functions]:
    roles = _roles(given, side)
    size = _size(given.get_vocab())
    if given.is_fast:
        content = _with_our_names(json.loads(given.backend_tokenizer.to_str()), roles)
        made = _of_content(content, size, side)
    elif name := known_class(type(given)):
        with tempfile.TemporaryDirectory() as folder:
            given.save_pretrained(folder)
            files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        made = read_class(name, files, {"vocab_size": size})[side == "target"]
    else:
        raise ValueError(
            f"expected a tokenizer with a pipeline (is_fast), or of a class that port reads; received "
            f"{type(given).__name__}"
        )
    if side == "target" and getattr(given, "clean_up_tokenization_spaces", False):
        warnings.warn(
            "target_tokenizer: clean_up_tokenization_spaces isn't done here: spaces before punctuation stay",
            stacklevel=4,
        )
    key = "text" if side == "source" else "text_target"
    return made, _Functions(
        lambda text: given(**{key: text}).input_ids,
        lambda text: given(**{key: text}, add_special_tokens=False).input_ids,
        lambda ids: str(given.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)),
    )


def _of_content(content: dict[str, Any], size: int, side: Side) -> Tokenizer:
    """Returns the tokenizer of a tokenizer.json with so many ids."""
    source = with_own_template(content, {"vocab_size": size}, takes_tag=True)
    return source if side == "source" else source.adding(bos=False, eos=False)


def _roles(given: Any, side: Side) -> dict[str, str]:
    """Returns the object's token for each of our special tokens that it has.

    Raises:
      ValueError: no padding, or no end of a target; one token for both.
    """
    found: dict[str, str] = {}
    for role, attributes in ATTRIBUTES.items():
        tokens = (getattr(given, f"{attribute}_token", None) for attribute in attributes)
        if token := next((str(token) for token in tokens if token is not None), ""):
            found[role] = token
    for role in (PAD, EOS) if side == "target" else (PAD,):
        if role not in found:
            raise ValueError(
                f"expected a tokenizer with a {ROLES[role]}_token; received one without. Add one: "
                f'tokenizer.add_special_tokens({{"{ROLES[role]}_token": "{NAMES[role][0]}"}})'
            )
    if found[PAD] in (found.get(BOS), found.get(EOS)):
        raise ValueError(
            f"expected a pad_token of its own, since padding is left out of the loss; received {found[PAD]!r}, which "
            f'also begins or ends sentences. Add one: tokenizer.add_special_tokens({{"pad_token": "{PAD}"}})'
        )
    # One token may be the end and the beginning, or the end and unknown: the end counts.
    return {role: token for role, token in found.items() if role in (EOS, PAD) or token != found.get(EOS)}


def _with_our_names(content: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
    """Returns a tokenizer.json in which `find_specials` finds the roles: a token that it would not take for its role
    gets our name. The ids stay."""
    model = dict(content["model"])
    listed = isinstance(model["vocab"], list)
    known = {entry for entry, _ in model["vocab"]} if listed else {*model["vocab"]}
    known |= {token["content"] for token in content["added_tokens"]}
    names: dict[str, str] = {}
    for role, token in roles.items():
        if token in names or token == next((name for name in NAMES[role] if name in known), None):
            continue  # padding with <unk>, or a common name
        if role in known:
            raise ValueError(f"expected one {ROLES[role]} token; received {token!r} and {role!r}")
        names[token] = role
    if listed:
        model["vocab"] = [[names.get(entry, entry), score] for entry, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(entry, entry): index for entry, index in model["vocab"].items()}
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [token | {"content": names.get(token["content"], token["content"])} for token in content["added_tokens"]]
    return content | {"model": model, "added_tokens": added}


def _size(vocabulary: Mapping[str, int]) -> int:
    return 1 + max(vocabulary.values(), default=-1)


def _check_agreement(made: Tokenizer, theirs: _Functions, side: Side) -> str:
    """Returns the tag that the object puts around sentences; "" for none.

    Raises:
      ValueError: the two encode or decode a probe differently.
    """
    around = theirs.encode("")
    tag = next((tag for tag, index in made.tag_ids.items() if index in around), "")
    bare = made.adding(bos=False, eos=False)
    for text in PROBES:
        try:
            expected = list(theirs.encode(text) if side == "source" else theirs.encode_bare(text))
        except Exception:  # of a token that a vocabulary without <unk> lacks
            continue
        received = made.encode([text], tag if side == "source" else "")[0]
        if received != expected:
            raise ValueError(
                f"expected a tokenizer that can be stored; received one that encodes {text!r} as {expected}, and "
                f"stored, as {received}"
            )
        if side == "source":
            continue  # which nothing decodes
        (ids,) = bare.encode([text])
        if made.unk_id not in ids and (said := theirs.decode(ids)) != (ours := made.decode([ids])[0]):
            raise ValueError(
                f"expected a tokenizer that can be stored; received one that decodes {ids} as {said!r}, and stored, "
                f"as {ours!r}"
            )
    return tag
