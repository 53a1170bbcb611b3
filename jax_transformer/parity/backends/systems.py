"""Runs the PyTorch programs of `torch_reference` as references: for each dialect, the program that writes its
checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.torch_module import Pass
from jax_transformer.parity.backends.traces import traced
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.state_dicts import params_from_state_dict, state_dict_from_params
from jax_transformer.runtime.trees import flatten

if TYPE_CHECKING:
    import torch
    from torch import nn

SIZES = (
    "source_vocab_size",
    "target_vocab_size",
    "d_model",
    "num_heads",
    "d_ff",
    "max_length",
    "source_pad_id",
    "target_pad_id",
)
CLASSES = {
    "annotated_zh": "AnnotatedZhTransformer", "codersarts": "CodersartsTransformer", "floydhub": "FloydhubTransformer",
    "harvard": "HarvardTransformer", "hyunwoongko": "HyunwoongkoTransformer", "pytorch": "PytorchTransformer",
    "sayhello": "SayhelloTransformer", "stepwise": "StepwiseTransformer",
}  # fmt: skip
"""Module of `torch_reference` → its class."""


def knows(dialect: str) -> bool:
    """Checks whether there is a program for checkpoints of this dialect."""
    return dialect.split("_")[0] == "stepwise" or dialect in CLASSES


Corrupt = Callable[[str, Mapping[str, Any], Any], Any]


@dataclass(frozen=True)
class SystemReference:
    """Builds and runs a dialect's program, in the variant of the config."""

    dialect: str
    config: TransformerConfig
    constants: Mapping[str, np.ndarray]
    """The model's position tables and untrained biases, by name."""
    corrupt: Corrupt | None = None
    """(name, earlier activations, value) → the value with which the program continues; self-tests use it to inject
    faults."""

    program: str = ""
    """The module of torch_reference with an alternative program for the same weights. "": the dialect's own."""

    @cached_property
    def _program(self) -> Any:
        import importlib

        return importlib.import_module(f"torch_reference.{self._name}")

    @property
    def _name(self) -> str:
        return self.program or ("stepwise" if self.dialect.startswith("stepwise") else self.dialect)

    @property
    def notes(self) -> dict[str, str]:
        return {}

    def own(self) -> None:
        return None

    def visible(self) -> None:
        """Returns None: it shows all activations."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        sizes = {name: getattr(self.config, name) for name in SIZES}
        kind = getattr(self._program, CLASSES[self._name])
        module: nn.Module = kind(**sizes, **self._variant(), dtype=dtype)
        return module

    def _variant(self) -> dict[str, Any]:
        config = self.config
        if self.dialect.startswith("stepwise"):
            return {"num_layers": config.encoder.num_layers, "rung": self._rung()}
        layers: dict[str, Any] = {
            "num_encoder_layers": config.encoder.num_layers,
            "num_decoder_layers": config.decoder.num_layers,
        }
        if self._name == "codersarts":
            layers["position_index"] = config.position_index
        if self._name in ("sayhello", "hyunwoongko"):
            import torch

            layers["position_table"] = torch.tensor(np.asarray(self.constants["encoder_positions"]))
        if self._name == "sayhello":
            layers["attention_bias"] = config.attention_bias
        if self._name == "pytorch":
            names = ("activation", "norm_eps", "share_embeddings", "tie_head")
            layers |= {"norm_first": config.norm_placement == "pre"} | {name: getattr(config, name) for name in names}
        return layers

    def _rung(self) -> int:
        """Returns the number of the stepwise program that computes this config."""
        if self.dialect == "stepwise_core":
            return 1
        return {
            "stepwise_masks": 2,
            "stepwise_positions": 3,
            "stepwise_layers": 4,
            "stepwise_sublayers": 5,
            "stepwise": 6,
        }[self.dialect]

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        return state_dict_from_params(self.config, params, self.dialect, names)

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        table = (
            self.constants["encoder_positions"] if get_dialect(self.dialect).leaves_out_positions(self.config) else None
        )
        return flatten(params_from_state_dict(self.config, state_dict, self.dialect, table))

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        return traced(module, source_ids, decoder_input_ids, watched=watched, gradients=gradients, corrupt=self.corrupt)

    def outputs(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        done = self.run(module, source_ids, decoder_input_ids, watched=True, gradients=False)
        return done.logits, done.activations()

    def renamed(self, arrays: Arrays, ids: Sequence[tuple[int, ...]]) -> Arrays:
        return arrays

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor:
        tokens: torch.Tensor = self._program.greedy(module, source_ids, start_id, eos_id, most)
        return tokens

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        raise CannotRun(f"torch_reference.{self.dialect} has no beam search")
