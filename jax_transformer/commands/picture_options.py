"""Options of every command that draws a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """Holds the options of a picture."""

    output: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = ""
    """Picture to write: .png, .svg or .pdf. An existing file is replaced. Default: KIND.png in this directory."""
    width: float = 12.0
    """Width in inches."""
    height: float = 0.0
    """Height in inches. 0: chosen for the picture."""
    dpi: int = 100
    """Resolution of a PNG in dots per inch."""
    dark: bool = False
    """Draw on a dark background."""
