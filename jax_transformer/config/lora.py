"""The config of LoRA's adapters (Hu et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax_transformer.config.validation import check_field_types, require


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Configures adapters: for each target, a kernel W, two narrow matrices A and B are trained. The model computes
    with W + scale · A · B. Every other parameter is frozen.

    The defaults are those of PEFT.

    Raises:
      ConfigError: a value outside its range; targets that are empty; a dropout rate.

    Example:
      >>> from jax_transformer import LoraConfig
      >>> LoraConfig(rank=8, alpha=16).scale
      2.0
    """

    rank: int = 0
    """Columns of A and rows of B. 0: no adapters, so that all parameters are trained."""
    alpha: float = 8.0
    """Adapters are scaled by alpha / rank."""
    use_rslora: bool = False
    """Scale adapters by alpha / sqrt(rank) instead (rsLoRA, Kalajdzievski 2023)."""
    targets: tuple[str, ...] = ("*_attention/query/kernel", "*_attention/value/kernel")
    """Kernels that get adapters: patterns of paths, such as encoder/layers/feed_forward/*/kernel."""
    dropout_rate: float = 0.0
    """Always 0. PEFT's lora_dropout acts on the input of A alone, but here A · B is added to the kernel before the
    input is seen; model.dropout_rate still acts on the layers."""

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = []
        if self.rank < 0:
            problems.append(f"rank must be at least 0; received {self.rank}")
        if not 0.0 < self.alpha < math.inf:
            problems.append(f"alpha must be above 0, and finite; received {self.alpha}")
        if not self.targets:
            problems.append("targets must name one pattern of kernels at least; received none")
        if self.dropout_rate:
            problems.append(
                f"dropout_rate must be 0, since adapters are added to the kernels and have no input of their own to "
                f"drop; received {self.dropout_rate}; model.dropout_rate acts on the layers"
            )
        require(self, problems)

    @property
    def scale(self) -> float:
        """The factor of A · B; 0 without adapters."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank) if self.rank else 0.0
