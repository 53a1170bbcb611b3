"""Ids and a length that tests of decoding share: the start and end tokens, and the most tokens of a target."""

from __future__ import annotations

START, EOS, MOST = 4, 3, 10
