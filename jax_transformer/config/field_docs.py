"""The text under each field of a dataclass, for help."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping


@functools.cache
def field_docs(owner: type) -> Mapping[str, str]:
    """Returns the docstring under each annotated field of a class, on one line.

    Example:
      >>> from jax_transformer.config.field_docs import field_docs
      >>> from jax_transformer.config.specs import FeedForward
      >>> field_docs(FeedForward)["width"]
      'Units of the hidden layer (F).'
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_text = (
            isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        )
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            docs[field.target.id] = " ".join(text.value.value.split())  # type: ignore[attr-defined]
    return docs
