"""Reads and writes adapter_config.json of PEFT, and refuses settings that aren't LoRA proper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.config.lora import LoraConfig
from jax_transformer.porting.dialects import Json
from jax_transformer.storage.tensors import PortingError

PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""First values after which the model's own weights are as they were. Other values, such as pissa, change them."""
MORE_THAN_LORA = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "velora_config": "VeLoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "layers that are repeated",
    "lora_bias": "biases of B",
    "target_parameters": "adapters of parameters outside of linear layers",
    "modules_to_save": "modules that were trained as a whole",
    "trainable_token_indices": "trained tokens",
}
"""Keys that ask for more than LoRA, and what for."""
SILENT = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config"),
    *("megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision"),
    *("runtime_config", "target_modules", "task_type", "use_rslora"),
}
"""Keys that are read here, or that say nothing of the trained model."""

SIMPLE = re.compile(r"\^?(?:[\w-]|\\?\.[*+]?|\\d\+?)++\$?")
"""An alternative of a pattern that is matched: names, dots, `.*` and `\\d+`. Other patterns may take forever."""
PATTERNS, LENGTH, REPETITIONS = 1000, 500, 2
"""Most patterns in a file, characters in one, and repetitions in it, so that matching them ends soon."""


@dataclass(frozen=True)
class PeftConfig:
    """Holds the scales in adapter_config.json."""

    alpha: float
    alphas: Mapping[re.Pattern[str], float]
    """The alphas of some modules, by a regular expression for their names."""
    use_rslora: bool
    base: str
    """Name or path of the model that the adapters are for; "" if it says nothing."""

    def alpha_of(self, module: str) -> float:
        """Returns the alpha of a module, such as model.encoder.layers.0.self_attn.q_proj."""
        own = (alpha for pattern, alpha in self.alphas.items() if pattern.match(module))
        return next(own, self.alpha)

    def lora(self, rank: int, alpha: float, targets: tuple[str, ...]) -> LoraConfig:
        """Returns the LoraConfig of adapters."""
        return LoraConfig(rank=rank, alpha=alpha, use_rslora=self.use_rslora, targets=targets)


def read_peft_config(json: Json) -> PeftConfig:
    """Reads adapter_config.json.

    Raises:
      PortingError: it isn't LoRA's, asks for more than LoRA, or has values of other types; lists all problems.
    """
    problems = list(_refusals(json))
    alphas = json.get("alpha_pattern") or {}
    numbers = {"lora_alpha": json.get("lora_alpha", 8)}
    if isinstance(alphas, dict):
        numbers |= {f"alpha_pattern: {name}": value for name, value in alphas.items()}
        problems += _pattern_problems(list(alphas))
    else:
        problems.append(f"alpha_pattern must be an object; received {alphas!r}")
    problems += [
        f"{name} must be a number above 0; received {value!r}"
        for name, value in numbers.items()
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf")
    ]
    if problems:
        raise PortingError("adapter_config.json: no adapters that this ports", problems)
    base = json.get("base_model_name_or_path")
    return PeftConfig(
        float(numbers["lora_alpha"]),
        {re.compile(rf"(.*\.)?({name})$"): value for name, value in alphas.items()},  # as PEFT matches them
        bool(json.get("use_rslora")),
        base if isinstance(base, str) else "",
    )


def _refusals(json: Json) -> list[str]:
    """Lists the settings of a file that aren't LoRA proper."""
    problems = []
    if json.get("peft_type") != "LORA":
        problems.append(f"peft_type must be 'LORA'; received {json.get('peft_type')!r}")
        return problems  # other methods have other keys
    problems += [
        f"{key}: {what} can't be carried over; received {json[key]!r}"
        for key, what in MORE_THAN_LORA.items()
        if json.get(key)
    ]
    if json.get("bias", "none") != "none":
        problems.append(
            f"bias must be 'none', since biases that were trained have no place here; received {json['bias']!r}"
        )
    start = json.get("init_lora_weights", True)
    if not any(start is known or (isinstance(start, str) and start == known) for known in PLAIN_STARTS):
        problems.append(
            f"init_lora_weights must be one of {', '.join(map(repr, PLAIN_STARTS))}; received {start!r}, which changes "
            "the model's own weights, too (PEFT's save_pretrained converts such adapters: "
            "path_initial_model_for_weight_conversion)"
        )
    problems += [
        f"{key}: unknown, and not left empty; received {value!r}"
        for key, value in json.items()
        if key not in SILENT and key not in MORE_THAN_LORA and value
    ]
    return problems


def _pattern_problems(patterns: list[str]) -> list[str]:
    """Lists the patterns that are refused."""
    if len(patterns) > PATTERNS:
        return [f"alpha_pattern: expected at most {PATTERNS:,} patterns; received {len(patterns):,}"]
    return [
        f"alpha_pattern: expected names of at most {LENGTH} characters, joined by |, with {REPETITIONS} of .* and \\d+ "
        f"at most; received {text[:60]!r}"
        for text in patterns
        if not _is_simple(text)
    ]


def _is_simple(text: str) -> bool:
    """Returns whether a pattern takes a short time on any name."""
    if len(text) > LENGTH or text.count("*") + text.count("+") > REPETITIONS:
        return False
    return all(SIMPLE.fullmatch(part) for part in text.split("|"))


def peft_config(lora: LoraConfig, modules: list[str], base: str) -> dict[str, Any]:
    """Returns adapter_config.json for adapters.

    Args:
      modules: the names, or the ends of names, of the modules that have adapters.
      base: name or path of the model of transformers; "" says nothing.
    """
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "use_rslora": lora.use_rslora,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
