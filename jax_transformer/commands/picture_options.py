"""What every picture takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """What every picture takes."""

    output: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = ""
    """The picture: .png, .svg or .pdf. Without it: KIND.png here. A file of that name is replaced."""
    width: float = 12.0
    """Inches."""
    height: float = 0.0
    """Inches. 0: what suits the picture."""
    dpi: int = 100
    """Dots per inch of a PNG."""
    dark: bool = False
    """Light on a dark ground."""
