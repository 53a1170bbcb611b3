"""Sends text in pieces while its tokens arrive, and never changes a sent piece."""

from __future__ import annotations

import re

HELD = 12
"""Characters at most that are held back of a last word: scripts without spaces have long ones."""
_LAST_WORD = re.compile(r"\s*\S*\Z")


class Pieces:
    """Turns the growing text of a translation into pieces to send.

    Text is sent once it can't change any more. The last word is held back, with the space before it: the next token may
    go on with it, close up to it ("do" + "n't"), or complete a character of which only some bytes are there. Of a word
    of more than HELD characters, the first ones are sent. Before each piece the new text must begin with all that was
    sent. If a detokenizer rewrites that after all, no more pieces are sent, and the text at the end holds.

    Example:
      >>> pieces = Pieces()
      >>> [pieces.add(text) for text in ("Wer", "Wer schlä", "Wer schläft", "Wer schläft?")]
      ['', 'Wer', '', '']
      >>> pieces.end("Wer schläft?")
      ' schläft?'
    """

    def __init__(self) -> None:
        self.sent = ""

    def add(self, text: str) -> str:
        """Returns the next piece, which may be empty, given the text of all tokens so far."""
        word = _LAST_WORD.search(text)
        start = word.start() if word else 0
        return self._next(text[: max(start, len(text.rstrip()) - HELD)].rstrip())

    def end(self, text: str) -> str:
        """Returns the last piece, given the whole text."""
        return self._next(text)

    def _next(self, text: str) -> str:
        if not text.startswith(self.sent):
            return ""
        piece = text[len(self.sent) :]
        self.sent = text
        return piece
