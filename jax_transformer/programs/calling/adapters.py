"""Writes adapters, as text and as modules, that call another module as `(source_ids, decoder_input_ids) → logits`.

The text is the one source: the object is made by executing it, so that both run the same lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

CLASS = '''\
class Adapter(nn.Module):
    """Maps source_ids [B, S] and decoder_input_ids [B, T], int64, to logits [B, T, V]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
'''


def as_module(built: Any) -> nn.Module:
    """Wraps a factory's result as one module: itself, or the modules of a mapping or sequence in a container.

    Raises:
      ValueError: the result is neither a module nor holds modules alone.
    """
    from torch import nn

    if isinstance(built, nn.Module):
        return built
    parts = list(built.values() if isinstance(built, Mapping) else built if isinstance(built, list | tuple) else [])
    if not parts or not all(isinstance(part, nn.Module) for part in parts):
        held = f" of {', '.join(type(part).__name__ for part in parts)}" if parts else ""
        raise ValueError(
            f"expected a torch.nn.Module, or a dict or tuple of such modules; received {type(built).__name__}{held}"
        )
    whole = nn.ModuleDict(built) if isinstance(built, Mapping) else nn.ModuleList(built)
    whole.training = any(part.training for part in parts)
    return whole


def container(built: Any) -> str:
    """Returns the expression of the container for a factory's result, if it is several modules; else ''."""
    from torch import nn

    if isinstance(built, Mapping) or type(built) is nn.ModuleDict:
        return "nn.ModuleDict"
    return "nn.ModuleList" if isinstance(built, list | tuple) or type(built) is nn.ModuleList else ""


def wrap(module: Any, lines: Sequence[str], constants: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """Builds an Adapter that holds the module as `self.module` and runs these lines as its forward.

    Args:
      module: a module, or a mapping or sequence of modules.
      lines: the body of `forward`, over `self.module`, `source_ids` [B, S] and `decoder_input_ids` [B, T]; the last one
        returns.
      constants: the values of `self.constants`, if the lines use it; see `programs.exact`.
    """
    module = as_module(module)
    adapter: nn.Module = _compiled(class_text(lines))(module)
    if constants is not None:
        adapter.constants = dict(constants)
    adapter.train(module.training)
    return adapter


def run(module: nn.Module, lines: Sequence[str], source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> Any:
    """Runs these lines once, as `wrap` would, around a module in the mode that it is in."""
    return _compiled(class_text(lines)).forward(SimpleNamespace(module=module), source_ids, decoder_input_ids)


def class_text(lines: Sequence[str]) -> str:
    """Returns the source of the class Adapter whose forward runs these lines."""
    return CLASS + textwrap.indent("\n".join(lines), " " * 8) + "\n"


def file_text(
    lines: Sequence[str],
    factory: str,
    notes: Sequence[str] = (),
    *,
    holder: str = "",
    rounded: Collection[str] | None = None,
    is_draft: bool = False,
) -> str:
    """Writes the text of adapter.py, whose `build()` returns the adapter around the factory's module.

    Args:
      factory: `package.module:function`; it takes no arguments.
      notes: remarks on how the module is called, one comment each.
      holder: the container of the modules, if the factory returns several.
      rounded: the names of constants to keep as the module rounds them, if all other constants become exact.
      is_draft: whether a person must correct the lines first.
    """
    name, _, function = factory.partition(":")
    first, _, rest = (function or "build").partition(".")
    built = f"build_module.{rest}" if rest else "build_module"
    call = f"{holder}({built}())" if holder else f"{built}()"
    constants = f"exact_constants({', '.join([built, *([repr(tuple(rounded))] if rounded else [])])})"
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
            *(["", "from jax_transformer.programs.exact import exact_constants"] if rounded is not None else []),
            "",
            "",
            class_text(lines),
            "",
            "def build() -> nn.Module:",
            f'    """Returns the module of {factory} in its adapter, in evaluation mode."""',
            *(
                [f"    adapter = Adapter({call}).eval()", f"    adapter.constants = {constants}", "    return adapter"]
                if rounded is not None
                else [f"    return Adapter({call}).eval()"]
            ),
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
