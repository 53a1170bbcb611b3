"""What backends have in common that keep the entry of each id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax_transformer.data.tokenizers.special_tokens import UNK, find_specials


class EntryList:
    """Holds each id's entry, and the special tokens, which no text matches."""

    def __init__(self, entries: Sequence[str], specials: Mapping[str, int]) -> None:
        self._entries, self._specials = list(entries), dict(specials)
        taken = set(self._specials.values())
        self._ids = {entry: index for index, entry in enumerate(self._entries) if index not in taken}

    @property
    def size(self) -> int:
        return len(self._entries)

    @property
    def specials(self) -> Mapping[str, int]:
        return self._specials

    def _unknown_id(self) -> int:
        """Returns the id of <unk>. Raises ValueError if there is none."""
        unknown = find_specials(self._specials).get(UNK)
        if unknown is None:
            raise ValueError(f"expected a vocabulary with {UNK}; received one without")
        return unknown
