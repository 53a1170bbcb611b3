"""Lists the expressions over the ids that a parameter may take, most likely first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from jax_transformer.programs.calling.roles import Parameter

IMPORTS = {
    "SimpleNamespace": "from types import SimpleNamespace",
    "Unusable": "from jax_transformer.programs.calling.trials import Unusable",
    "outputs_of": "from jax_transformer.programs.modes import outputs_of",
    "softmax_inputs": "from jax_transformer.programs.modes import softmax_inputs",
}
SETUP = {
    "source_real": "source_real = source_ids != {source_pad}",
    "target_real": "target_real = decoder_input_ids != {target_pad}",
    "length": "length = decoder_input_ids.shape[1]",
    "earlier": "earlier = torch.ones(length, length, dtype=torch.bool, device=decoder_input_ids.device).tril()",
    "dtype": "dtype = next(self.module.parameters()).dtype",
}
"""Name → the line that defines it; a line may use the names before it."""
NEEDS = {"earlier": ("length",)}

KINDS = {
    "real": "{}",
    "hidden": "~{}",
    "real_int": "{}.long()",
    "hidden_int": "(~{}).long()",
    "added": 'torch.zeros({}.shape, device=source_ids.device, dtype=dtype).masked_fill(~{}, float("-inf"))',
    "real_float": "{}.to(dtype)",
    "hidden_float": "(~{}).to(dtype)",
}
"""Encoding of a mask → its expression, from a boolean mask with True = may attend."""
MEANING = {
    "real": "True = may attend",
    "hidden": "True = hidden",
    "real_int": "1 = may attend",
    "hidden_int": "1 = hidden",
    "added": "added to the scores: 0 = may attend, -inf = hidden",
    "real_float": "1.0 = may attend",
    "hidden_float": "1.0 = hidden",
}

SOURCE_COLUMNS = {
    "[B, 1, S]": "source_real[:, None, :]",
    "[B, 1, 1, S]": "source_real[:, None, None, :]",
    "[B, S]": "source_real",
    "[S, B]": "source_real.T",
    "[B, S, S]": "source_real[:, None, :].expand(-1, source_ids.shape[1], -1)",
    "[B, 1, S, S]": "source_real[:, None, None, :].expand(-1, -1, source_ids.shape[1], -1)",
    "[B, S, 1]": "source_real[:, :, None]",
    "[1, S, B]": "source_real.T[None]",
}
ALL_SOURCE = {"[S, S]": "torch.ones(*2 * source_ids.shape[1:], dtype=torch.bool, device=source_ids.device)"}
CAUSAL = {
    "[T, T]": "earlier",
    "[1, T, T]": "earlier[None]",
    "[1, 1, T, T]": "earlier[None, None]",
    "[T, T, 1]": "earlier[:, :, None]",
}
TARGET_COLUMNS = {
    "[B, 1, T]": "target_real[:, None, :]",
    "[B, 1, 1, T]": "target_real[:, None, None, :]",
    "[B, T]": "target_real",
    "[T, B]": "target_real.T",
    "[B, T, 1]": "target_real[:, :, None]",
}
BOTH = {
    "[B, T, T]": "(earlier & target_real[:, None, :])",
    "[B, 1, T, T]": "(earlier & target_real[:, None, None, :])",
    "[T, T, B]": "(earlier[:, :, None] & target_real.T[None])",
}
CROSS_COLUMNS = {
    "[B, T, S]": "source_real[:, None, :].expand(-1, decoder_input_ids.shape[1], -1)",
    "[B, 1, T, S]": "source_real[:, None, None, :].expand(-1, -1, decoder_input_ids.shape[1], -1)",
}
ALL_CROSS = {
    "[T, S]": (
        "torch.ones(decoder_input_ids.shape[1], source_ids.shape[1], dtype=torch.bool, device=source_ids.device)"
    )
}

LENGTHS = (
    "{}.sum(1)",
    "{}.sum(1).tolist()",
    "{}.sum(1, keepdim=True)",
    "nn.functional.pad({}.sum(1, keepdim=True), (0, 1))",
)
"""Encodings of lengths: [B], a list, [B, 1], and [B, 2] with zeros in the second column."""


@dataclass(frozen=True)
class Option:
    """Holds an expression that a parameter may take; None leaves the parameter out."""

    text: str | None
    kind: str = ""
    layout: str = ""

    @property
    def meaning(self) -> str:
        """Describes a mask: '[B, 1, S] hides padding (True = may attend)'."""
        hidden = [
            name for name, part in (("later tokens", "earlier"), ("padding", "_real")) if part in (self.text or "")
        ]
        return f"{self.layout} hides {' and '.join(hidden) or 'nothing'} ({MEANING[self.kind]})"


OMIT = Option(None)
UNUSABLE = Option("Unusable()")
"""Fails on any use, which shows whether a call fails there."""


def imports(texts: Iterable[str]) -> list[str]:
    """Writes the lines that import the names in these expressions, and a blank line after them."""
    found = [line for name, line in IMPORTS.items() if any(re.search(rf"\b{name}\(", text) for text in texts)]
    return [*found, ""] if found else []


def definitions(texts: Iterable[str], source_pad: int, target_pad: int) -> list[str]:
    """Writes the lines that define the names in these expressions."""
    joined = " ".join(texts)
    wanted = {name for name in SETUP if re.search(rf"(?<![\w.]){name}(?![\w=])", joined)}
    wanted |= {other for name in wanted for other in NEEDS.get(name, ())}
    return [SETUP[name].format(source_pad=source_pad, target_pad=target_pad) for name in SETUP if name in wanted]


def setup(source_pad: int, target_pad: int) -> list[str]:
    """Writes the lines that define all names that expressions may use."""
    return [line.format(source_pad=source_pad, target_pad=target_pad) for line in SETUP.values()]


def masks(layouts: dict[str, str], kinds: Iterable[str] = KINDS) -> list[Option]:
    """Lists each layout in each kind, kind by kind."""
    return [
        Option(KINDS[kind].replace("{}", expression), kind, layout)
        for kind in kinds
        for layout, expression in layouts.items()
    ]


def mask_options(parameter: Parameter) -> list[Option]:
    """Lists the options of a mask, those that suit its role first."""
    source = masks(SOURCE_COLUMNS)
    target = masks(BOTH | CAUSAL) if not parameter.is_padding else []
    target_padding = masks(TARGET_COLUMNS)
    cross = masks({**SOURCE_COLUMNS, **CROSS_COLUMNS})
    if parameter.role == "source_mask":
        own = source + masks(ALL_SOURCE, ("real", "hidden", "added"))
    elif parameter.role == "cross_mask":
        own = cross + masks(ALL_CROSS, ("real", "hidden", "added"))
    elif parameter.role == "target_mask":
        own = masks(CAUSAL) + target if parameter.is_causal else target + target_padding
        own = target_padding + target if parameter.is_padding and not parameter.is_causal else own
        own = masks(CAUSAL) if parameter.is_plainly_causal else own + cross
    else:
        own = source + target + target_padding
    left_out = [OMIT] if not parameter.is_required else [Option("None")]
    return left_out + list(dict.fromkeys(own))


def plain_options(parameter: Parameter) -> list[Option]:
    """Lists the options of a parameter that is neither ids nor a mask."""
    source, target = ([length.format(side) for length in LENGTHS] for side in ("source_real", "target_real"))
    texts = {
        "source_lengths": source,
        "target_lengths": [*target, *source],
        "source_positions": [
            "torch.arange(source_ids.shape[1], device=source_ids.device).expand_as(source_ids)",
            "torch.arange(1, source_ids.shape[1] + 1, device=source_ids.device) * source_real",
        ],
        "target_positions": [
            "torch.arange(length, device=source_ids.device).expand_as(decoder_input_ids)",
            "torch.arange(1, length + 1, device=source_ids.device) * target_real",
        ],
        "source_pad": ["{source_pad}"],
        "target_pad": ["{target_pad}"],
        "is_causal": ["True", "False"],
        "language": ["0", "1", "torch.zeros_like(source_ids[:, 0])", "torch.zeros_like(source_ids)"],
        "device": ["source_ids.device"],
        "size": ["length", "source_ids.shape[1]"],
    }.get(parameter.role, ["None", "False", "True", "0"])
    options = [Option(text) for text in texts]
    return options if parameter.is_required else [OMIT, *options]
