"""Defines the bodies of requests: their fields, with the names and checks of the commands' options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from jax_transformer.config.decoding import LISTS_OF_IDS, DecodingConfig
from jax_transformer.config.validation import check_field_types
from jax_transformer.runtime.trees import nearest
from jax_transformer.serving.limits import Limits, Refusal

HIDDEN = ("bad_words", *LISTS_OF_IDS, "renormalize", "forced_bos_id", "forced_eos_id")
"""Decoding options that the commands don't have either."""


@dataclass(frozen=True, kw_only=True)
class TranslateRequest(DecodingConfig):
    """Asks for translations. An option that isn't set is the server's, the model's own, or else the default.

    Example:
      >>> TranslateRequest(texts=("Who sleeps?",), beam_size=4).given
      {'beam_size': 4}
    """

    texts: tuple[str, ...]
    """Texts to translate. A blank one gives an empty translation."""
    source_tag: str | None = None
    """Token to put before every text, such as <2de>, which selects the target language of a multilingual model."""
    target_tag: str | None = None
    """Token that every translation begins with, such as deu_Latn."""
    prefix: str = ""
    """Text that every translation begins with."""
    split_long: bool = False
    """Split a text that is too long for the model at its sentence ends. Default: refuse it."""
    attention: bool = False
    """Add to each translation the decoder's attention weights to the source, by layer, head and token, and which tokens
    are unknown to the model."""
    stream: bool = False
    """Send one text's translation in pieces, as they are decoded: greedily, or with sampling."""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Asks how probable translations are."""

    sources: tuple[str, ...]
    """Source texts."""
    targets: tuple[str, ...]
    """Their translations, as many."""
    source_tag: str | None = None
    """Token to put before every source."""
    target_tag: str | None = None
    """Token that every target begins with. It isn't counted."""

    def __post_init__(self) -> None:
        check_field_types(self)


Body = TypeVar("Body", TranslateRequest, ScoreRequest)


def read_request(kind: type[Body], value: Any, limits: Limits) -> Body:
    """Returns the request that a JSON value describes.

    Raises:
      Refusal: the value isn't an object of the request's fields, an option is out of range, or a text is beyond a
        limit.
    """
    names = field_names(kind)
    if not isinstance(value, dict):
        raise Refusal(422, f"expected an object with the field {names[0]!r}; received {_kind_of(value)}")
    for name in value:
        if name not in names:
            raise Refusal(422, f"expected one of {', '.join(names)}; received {name[:80]!r}{nearest(name[:80], names)}")
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in value:
            raise Refusal(422, f"expected the field {field.name!r}; received {', '.join(value) or 'none'}")
    lists: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    for name in ("texts", "sources", "targets"):
        if name in value:
            _check_texts(name, lists[name], limits)
    try:
        request = kind(**lists)
    except ValueError as error:
        raise Refusal(422, str(error)) from None
    if isinstance(request, ScoreRequest) and len(request.sources) != len(request.targets):
        raise Refusal(
            422, f"targets: expected one for each of {len(request.sources)} sources; received {len(request.targets)}"
        )
    return request


def field_names(kind: type[TranslateRequest] | type[ScoreRequest]) -> list[str]:
    """Returns the fields that a body may have, required ones first."""
    found = [field for field in dataclasses.fields(kind) if field.name not in HIDDEN]
    return [field.name for field in sorted(found, key=lambda field: field.default is not dataclasses.MISSING)]


def _check_texts(name: str, texts: Any, limits: Limits) -> None:
    if not isinstance(texts, tuple):
        raise Refusal(422, f"{name}: expected a list of texts; received {_kind_of(texts)}")
    if not texts:
        raise Refusal(422, f"{name}: expected at least one text; received an empty list")
    limits.check("max_texts", len(texts), "texts", name)
    for number, text in enumerate(texts):
        where = f"{name}[{number}]"
        if not isinstance(text, str):
            raise Refusal(422, f"{where}: expected a text; received {_kind_of(text)}")
        limits.check("max_characters", len(text), "characters", where)
        for character, said in (("\0", "a NUL"), *((char, "half of a surrogate pair") for char in _surrogates(text))):
            if character in text:
                raise Refusal(422, f"{where}: expected text; received {said} at character {text.index(character) + 1}")


def _surrogates(text: str) -> list[str]:
    """Returns the first character that UTF-8 can't express, if there is one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return [text[error.start]]
    return []


def _kind_of(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        tuple: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    return kinds.get(type(value), "a number")
