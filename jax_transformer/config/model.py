"""The model's configuration: numerics as data.

One frozen dataclass holds everything in which two Transformers can differ, in parts that `config.specs` describes. A
new family is a new combination of values, never a subclass. Values are validated once, when a config is created, and
never change afterwards; `dataclasses.replace` makes a new config.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Unpack

from jax_transformer.config.described import changes
from jax_transformer.config.guarantees import Guarantees
from jax_transformer.config.model_validation import model_problems
from jax_transformer.config.option_docs import DocWithOptions
from jax_transformer.config.short_names import ModelOptions, short_names, with_short_names
from jax_transformer.config.specs import Attention
from jax_transformer.config.validation import ConfigError, check_field_types, check_types, require


@dataclass(frozen=True, kw_only=True, init=False)
class TransformerConfig(Guarantees):
    """Configures an encoder-decoder Transformer. The defaults are the base model of Vaswani et al. 2017.

    An option is named by its part, or by a short name that sets it in every place: `num_heads=4` in all attentions,
    `norm_eps=1e-6` in all norms. `decoder_` before a short name sets it in the decoder alone. Short names are read in
    the same way, and `dataclasses.replace` takes them.

    Raises:
      ConfigError (a ValueError): a value is unknown, out of range, or contradicts another. The message names the field,
        the value received and the values allowed. All problems are reported together.
      TypeError: there is no such option.

    Example:
      >>> import dataclasses
      >>> from jax_transformer import TransformerConfig
      >>> config = TransformerConfig(d_model=256, num_heads=4, decoder_d_ff=512)
      >>> config.encoder.heads.head_dim, config.decoder.feed_forward.width
      (64, 512)
      >>> narrow = dataclasses.replace(config.encoder, num_layers=2)
      >>> dataclasses.replace(config, encoder=narrow).num_encoder_layers
      2
      >>> TransformerConfig(dropout_rate=1.0)
      Traceback (most recent call last):
      ...
      jax_transformer.config.validation.ConfigError: TransformerConfig: dropout_rate must be in [0, 1); received 1.0
    """

    def __init__(self, **options: Unpack[ModelOptions]) -> None:
        self._set(dict(options), ignores_unused=False)

    def _set(self, options: dict[str, Any], *, ignores_unused: bool) -> None:
        parts = {one.name: options.pop(one.name, one.default) for one in dataclasses.fields(self)}
        for name in options:
            if name not in short_names():
                near = difflib.get_close_matches(name, [*parts, *short_names()], n=1)
                advice = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"TransformerConfig: unknown option {name!r}{advice}")
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        check_field_types(self)
        try:
            check_types(options, short_names())
            parts = with_short_names(parts, options, ignores_unused=ignores_unused)
        except ConfigError as error:
            require(self, [str(error)])
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        require(self, model_problems(self))

    def __repr__(self) -> str:
        """Names the options that aren't a default, as `changes` of `config.described` does."""
        return f"TransformerConfig({', '.join(f'{name}={value!r}' for name, value in changes(self).items())})"

    def replace(self, **options: Unpack[ModelOptions]) -> TransformerConfig:
        """Returns a config with other values, named as in the constructor: `dataclasses.replace` for type checkers.

        Example:
          >>> from jax_transformer import TransformerConfig
          >>> TransformerConfig().replace(num_heads=4, decoder_norm_placement="pre").decoder.norm_placement
          'pre'
        """
        values: dict[str, Any] = {**options}
        return dataclasses.replace(self, **values)

    @classmethod
    def from_flat(cls, fields: dict[str, Any]) -> TransformerConfig:
        """Returns the config of a file with one level, whose fields are short names, as all files were up to version
        0.1. An option that no part of the model has is ignored.

        Raises:
          ConfigError: a value that isn't allowed.
          TypeError: there is no such field.
        """
        config = cls.__new__(cls)
        config._set(dict(fields), ignores_unused=True)
        return config

    @property
    def attentions(self) -> tuple[Attention, Attention, Attention]:
        """The encoder's self-attention, the decoder's, and cross-attention."""
        cross = self.decoder.cross_attention
        assert cross is not None  # as the checks require
        return self.encoder.self_attention, self.decoder.self_attention, cross

    def while_decoding(self) -> TransformerConfig:
        """Returns the config with the padding masks that apply while decoding."""
        made: TransformerConfig = super().while_decoding()
        return made


TransformerConfig.__doc__ = DocWithOptions(TransformerConfig.__doc__)  # type: ignore[assignment]
