"""Properties that only some models have, by their masks and positions: what padding changes, what may be packed or
cached. Decoding, packing and tests read them."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

from jax_transformer.config.short_names import ShortNames, named_values


class Guarantees(ShortNames):
    """Gives them to TransformerConfig, from whose parts they follow."""

    def while_decoding(self) -> Any:
        """Returns the config with the padding masks that apply while decoding."""
        decoder = self.decoder
        cross = decoder.cross_attention
        return dataclasses.replace(
            self,
            decoder=dataclasses.replace(
                decoder,
                self_attention=decoder.self_attention.while_decoding(),
                cross_attention=None if cross is None else cross.while_decoding(),
            ),
        )

    @cached_property
    def batch_rows_are_independent(self) -> bool:
        """Whether a sentence's logits depend neither on its row nor on other rows."""
        return not any(index == "batch_row" for _, index in named_values(self, "position_index"))

    @property
    def padding_is_invisible(self) -> bool:
        """Whether appending pads to a batch leaves the logits at real positions unchanged.

        The source must have at least one real token. If the decoder doesn't hide its pads, real positions see earlier
        pads, and those must not see how many pads follow: a pad whose own row is masked attends to everything alike.
        """
        sees_no_more = self.decoder_causal and self.decoder_padding == "none" and self.cross_padding == "keys"
        return self.source_padding_is_invisible and (self._decoder_hides_pads or sees_no_more)

    @cached_property
    def source_padding_is_invisible(self) -> bool:
        """Whether appending pads to a batch's sources leaves the decoded outputs unchanged."""
        return self.encoder_padding in ("keys", "both") and self.cross_padding in ("keys", "both")

    @property
    def packing_obstacle(self) -> str:
        """Why pairs packed into one row, each hidden from the others, wouldn't have the logits that they have in rows
        of their own, padded at the end. Empty: they have."""
        if not self.batch_rows_are_independent:
            return "position_index='batch_row', which depends on the row's number"
        knows_pads = self.decoder_padding == "none" or self.decoder_padding_id in (None, self.target_pad_id)
        sees_no_later_pads = self.decoder_causal and knows_pads
        if not (self.source_padding_is_invisible and (sees_no_later_pads or self._decoder_hides_pads)):
            names = ("encoder_padding", "decoder_padding", "cross_padding", "decoder_padding_id")
            masks = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{masks}, with which padding changes the result"
        return ""

    @property
    def is_causal(self) -> bool:
        """Whether no logit at a real position depends on a later decoder input.

        A fully masked row attends to everything alike, the future included. Such a row belongs to a pad masked on the
        query axis, which real positions may attend to, or to a real first token that the decoder treats as padding.
        """
        return self.decoder_causal and (self.decoder_padding == "none" or self._decoder_hides_pads)

    @property
    def _decoder_hides_pads(self) -> bool:
        """Whether no real position of the decoder attends to a pad, and each attends at least to itself."""
        return self.decoder_padding in ("keys", "both") and self.decoder_padding_id in (None, self.target_pad_id)

    @property
    def cache_is_exact(self) -> bool:
        """Whether decoding with cached keys and values equals decoding the whole prefix again at every step.

        A masked query attends uniformly to every key, including later ones of the prefix, which a cache hasn't seen.
        """
        decoding = self.while_decoding()
        masks_queries = {decoding.decoder_padding, decoding.cross_padding} & {"queries", "both"}
        return self.decoder_causal and not masks_queries
