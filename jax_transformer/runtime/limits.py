"""Limits input from outside, by name: text, archives, JSON, YAML, tensors, tokenizers and sizes of models.

Each limit is far above normal input, so that only damaged or hostile input meets it. Its message names the environment
variable that raises it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

PREFIX = "JAX_TRANSFORMER_MAX_"
MIB = 2**20


@dataclass(frozen=True)
class Limit:
    """Holds the most of something that is accepted.

    Example:
      >>> from jax_transformer.runtime.limits import Limit
      >>> Limit("CATS", 3, "cats", "no house has more").check(4, "house.txt:7")
      Traceback (most recent call last):
      ...
      ValueError: house.txt:7: expected at most 3 cats; received 4. If that is meant, set JAX_TRANSFORMER_MAX_CATS.
    """

    name: str
    default: int
    unit: str
    why: str
    """The reason for the size, and the resource that it protects."""

    @property
    def variable(self) -> str:
        """Returns the name of the environment variable that replaces the default."""
        return PREFIX + self.name

    @property
    def value(self) -> int:
        """Returns the limit in force. Raises ValueError if the variable isn't a positive integer."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not text.isascii() or not text.isdecimal() or len(text) > 30 or int(text) < 1:
            raise ValueError(f"{self.variable}: expected a positive integer; received {text[:40]!r}")
        return int(text)

    def check(self, received: int, where: str, error: type[ValueError] = ValueError, *, or_more: bool = False) -> None:
        """Raises `error`, with the place and the remedy, if there is more than the limit.

        Args:
          received: how much there is.
          where: the place, such as file:line.
          error: the class to raise.
          or_more: whether counting stopped there.
        """
        if received > self.value:
            raise error(
                f"{where}: expected at most {self.value:,} {self.unit}; received {received:,}"
                f"{' or more' * or_more}. If that is meant, set {self.variable}."
            )


LINE_BYTES = Limit("LINE_BYTES", 64 * MIB, "bytes in a line", "a line is a sentence, or a row of a table")
GZIP_RATIO = Limit(
    "GZIP_RATIO",
    200,
    "times the compressed bytes",
    "text shrinks to a third, repeated lines to a fiftieth; gzip itself reaches 1,032. Counted beyond 4 MiB",
)
GZIP_FREE_BYTES = 4 * MIB
"""Bytes of text that GZIP_RATIO leaves alone: small files of a few repeated lines compress to anything."""
JSON_BYTES = Limit("JSON_BYTES", 128 * MIB, "bytes of JSON", "the index of a thousand shards has 10 MB")
CERTIFICATE_BYTES = Limit(
    "CERTIFICATE_BYTES", 8 * MIB, "bytes in a certificate of a proof", "one of 1,000 arrays and 10,000 ids has 0.5 MB"
)
CERTIFICATE_ELEMENTS = Limit(
    "CERTIFICATE_ELEMENTS", 2**22, "elements of a certificate's inputs", "eight images of 3 · 224 · 224 have 1,204,224"
)
SERIES_BYTES = Limit("SERIES_BYTES", 256 * MIB, "bytes of a table of series", "a million values have 10 MB")
TOKENIZER_BYTES = Limit(
    "TOKENIZER_BYTES", 128 * MIB, "bytes in a tokenizer's file", "a vocabulary of 262,144 tokens has 33 MB"
)
TOKEN_IDS = Limit("TOKEN_IDS", 10_000_000, "token ids", "the largest vocabularies have 300,000")
PATTERN_SECONDS = Limit(
    "PATTERN_SECONDS", 10, "seconds to split a few sentences", "usual patterns take a millisecond; some take forever"
)
TEXT_GROWTH = Limit("TEXT_GROWTH", 100, "characters for each one of a text", "NFKC makes at most 18 of one")
YAML_BYTES = Limit(
    "YAML_BYTES", 2 * MIB, "bytes of YAML", "configs have 4 kB, maps of names 100 kB; parsing takes 4 s for each MB"
)
YAML_VALUES = Limit(
    "YAML_VALUES", 200_000, "values, with aliases written out", "aliases of aliases multiply (a billion laughs)"
)
HEADER_BYTES = Limit(
    "HEADER_BYTES",
    50_000_000,
    "bytes of a safetensors header",
    "the largest have 15 MB, a hundred a tensor",
)
TENSORS = Limit("TENSORS", 500_000, "tensors in a file", "the largest checkpoints have 100,000 in all of their files")
PICKLE_BYTES = Limit(
    "PICKLE_BYTES", 256 * MIB, "bytes of names and shapes", "torch files have a few hundred for each tensor"
)
TENSOR_RATIO = Limit(
    "TENSOR_RATIO",
    16,
    "times the file's bytes, in the tensors of a torch file",
    "tied tensors are stored once, and expanded ones (stride 0) as one value. Counted beyond 1 GiB",
)
TENSOR_FREE_BYTES = 1024 * MIB
"""Bytes of tensors that TENSOR_RATIO leaves alone."""
MODEL_SIZE = Limit("MODEL_SIZE", 2**31 - 1, "in any size of a model", "compilers index with 32 bits")
POSITIONS = Limit(
    "POSITIONS", 10_000_000, "rows in a table of positions", "the longest contexts have ten times fewer tokens"
)
PARAMETERS = Limit("PARAMETERS", 10**13, "parameters of a model", "ten trillion take 40 TB in float32")

LIMITS = (
    LINE_BYTES,
    GZIP_RATIO,
    JSON_BYTES,
    CERTIFICATE_BYTES,
    CERTIFICATE_ELEMENTS,
    SERIES_BYTES,
    TOKENIZER_BYTES,
    TOKEN_IDS,
    PATTERN_SECONDS,
    TEXT_GROWTH,
    YAML_BYTES,
    YAML_VALUES,
    HEADER_BYTES,
    TENSORS,
    PICKLE_BYTES,
    TENSOR_RATIO,
    MODEL_SIZE,
    POSITIONS,
    PARAMETERS,
)
"""All of them, as docs/reliability.md lists them."""
