"""Adapters: modules that call another module as `(source_ids, decoder_input_ids) → logits`, as text and as objects.

The text is the one source: the object is made by executing it, so that both run the same lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CLASS = '''\
class Adapter(nn.Module):
    """Maps source_ids [B, S] and decoder_input_ids [B, T], int64, to logits [B, T, V]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
'''


def wrap(module: nn.Module, lines: Sequence[str]) -> nn.Module:
    """Returns an Adapter that holds the module as `self.module` and runs these lines as its forward.

    Args:
      lines: the body of `forward`, over `self.module`, `source_ids` [B, S] and `decoder_input_ids` [B, T]; the last one
        returns.
    """
    adapter = _compiled(class_text(lines))(module)
    adapter.train(module.training)
    return adapter


def class_text(lines: Sequence[str]) -> str:
    """Returns the source of the class Adapter whose forward runs these lines."""
    return CLASS + textwrap.indent("\n".join(lines), " " * 8) + "\n"


def file_text(lines: Sequence[str], factory: str, notes: Sequence[str] = (), *, is_draft: bool = False) -> str:
    """Returns a module, adapter.py, whose `build()` returns the adapter around what the factory returns.

    Args:
      factory: `package.module:function`, which is called without arguments.
      notes: remarks on how the module is called, one comment each.
      is_draft: whether a person must correct the lines first.
    """
    name, _, function = factory.partition(":")
    first, _, rest = (function or "build").partition(".")
    call = f"build_module.{rest}()" if rest else "build_module()"
    head = "A DRAFT: correct the lines of `forward`." if is_draft else f"Calls {factory} in the usual way."
    return "\n".join(
        [
            f'"""{head}"""',
            "",
            *(f"# {line}" for note in notes for line in textwrap.wrap(note, 116)),
            *([""] if notes else []),
            "import torch",
            f"from {name} import {first} as build_module",
            "from torch import nn",
            "",
            "",
            class_text(lines),
            "",
            "def build() -> nn.Module:",
            f'    """Returns the module of {factory} in its adapter, in evaluation mode."""',
            f"    return Adapter({call}).eval()",
            "",
        ]
    )


@cache
def _compiled(text: str) -> Any:
    import torch
    from torch import nn

    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": "adapter"}
    exec(compile(text, "adapter.py", "exec"), namespace)
    return namespace["Adapter"]
