"""Options and steps that the decoding commands share: decoding options, loading a model, a closed output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.runtime.standard_output import discard_output

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model


Dtype = Literal["float32", "bfloat16"]

_STOPPING: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}
STOPPING_ARGUMENT = tyro.constructors.PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="{false,true,never}",
    instance_from_str=lambda words: _STOPPING[words[0]],
    is_instance=lambda value: value in _STOPPING.values(),
    str_from_instance=lambda value: [str(value).lower()],
    choices=tuple(_STOPPING),
)


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(DecodingConfig):
    """Holds the decoding options of a command. An option that isn't set is the model's own, or else the default.

    The options, their help and their checks come from DecodingConfig. This class overrides the ones that a command line
    writes in another form, or omits.
    """

    early_stopping: Annotated[bool | Literal["never"] | None, STOPPING_ARGUMENT] = None
    sampling: tyro.conf.FlagCreatePairsOff[bool] = False
    renormalize: tyro.conf.Suppress[bool | None] = None
    bad_words: tyro.conf.Suppress[tuple[tuple[int, ...], ...] | None] = None
    suppress_tokens: tyro.conf.Suppress[tuple[int, ...] | None] = None
    begin_suppress_tokens: tyro.conf.Suppress[tuple[int, ...] | None] = None
    more_eos_ids: tyro.conf.Suppress[tuple[int, ...] | None] = None
    forced_bos_id: tyro.conf.Suppress[int | None] = None
    forced_eos_id: tyro.conf.Suppress[int | None] = None
    num_return: tyro.conf.Suppress[int | None] = None
    target_tag: str = ""
    """Token that every translation begins with, such as deu_Latn: the target language for NLLB, M2M-100 and mBART-50.
    The decoder of mBART and PLBART starts with it. IndicTrans2 reads it before the source."""
    dtype: Dtype | None = None
    """Round the weights to this dtype, and compute in it. bfloat16 halves the memory and is faster where the device has
    instructions for it. (Default: the model's own)"""

    def __post_init__(self) -> None:
        """Checks nothing yet: tyro reports errors in another form than commands do. See `config`."""

    def config(self) -> DecodingConfig:
        """Returns the options as a plain DecodingConfig. Raises ConfigError for options that no model can follow."""
        return DecodingConfig().updated(**self.given | {"sampling": self.sampling or None})

    def applied_to(self, model: Model) -> tuple[Model, DecodingConfig]:
        """Returns the model as the target tag starts it, and its settings with these options on top.

        Raises:
          ConfigError: the model can't follow the options.
          ValueError: the model doesn't have the target tag.
        """
        from jax_transformer.decoding.target_tags import with_target_tag

        model, forced = with_target_tag(model, self.target_tag)
        return model, self.config().updated(forced_bos_id=forced).resolved(model.generation)


def load(path: str, source_tag: str, dtype: Dtype | None = None) -> Model:
    """Loads a model, and rounds it to the dtype. Prints a note if it was trained with source tags and the caller sets
    none."""
    from jax_transformer.storage.model_directory import load_model

    model = load_model(path) if dtype is None else load_model(path, mapped=True).astype(dtype)
    tags = model.source_tokenizer.tags if model.source_tokenizer else ()
    if tags and not source_tag:
        some = ", ".join(tags[:10]) + ", …" * (len(tags) > 10)
        print(f"note: this model knows the source tags {some}; set one with --source-tag", file=sys.stderr)
    return model


def check_rows(rows: int) -> None:
    """Raises ValueError for less than one row."""
    if rows < 1:
        raise ValueError(f"--rows must be at least 1; received {rows}")


@contextlib.contextmanager
def output_may_close() -> Iterator[None]:
    """Ends the output without an error once its reader closes it (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
