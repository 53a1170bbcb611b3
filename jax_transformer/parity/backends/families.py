"""Runs models of the installed Hugging Face transformers as references for ported checkpoints."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_transformer.parity.backends.modules import ModuleReference
from jax_transformer.parity.backends.torch_module import Pass
from jax_transformer.porting.dialects import Dialect
from jax_transformer.porting.exporting import export_directory
from jax_transformer.programs.modes import wide
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    import torch
    from torch import nn


CACHED = ("fsmt", "t5gemma")
"""Families whose `generate` computes something else without a cache. FSMT's shows later tokens, and T5Gemma's hides the
target's padding."""


@dataclass(frozen=True)
class FamilyReference(ModuleReference):
    """Runs a model of transformers with unfused attention, whatever attn_implementation it was loaded with."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        import torch
        import transformers

        module: Any = super().build(dtype)
        module.set_attn_implementation("eager")
        if dtype == torch.float64:
            _widen_rotations(module)
        module.generation_config = transformers.GenerationConfig()  # Marian's and BART's force their last token
        return module

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        with wide(module), wide_fills():
            return super().run(module, source_ids, decoder_input_ids, watched=watched, gradients=gradients)

    def outputs(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        with wide(module), wide_fills():
            return super().outputs(module, source_ids, decoder_input_ids)

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor:
        return self._generate(module, source_ids, start_id, eos_id, most, 1)

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        return self._generate(module, source_ids, start_id, eos_id, most, beam_size)

    def _generate(
        self, module: Any, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        """Calls `generate`, without a cache unless it is needed: T5's has one layer per encoder layer, too few for a
        deeper decoder. Whisper's own `generate` adds tags and cuts recordings in windows, so the general one is
        called."""
        import transformers
        from transformers.generation import GenerationMixin

        options = transformers.GenerationConfig(
            max_new_tokens=most,
            num_beams=beam_size,
            do_sample=False,
            use_cache=module.config.model_type in CACHED,
            decoder_start_token_id=start_id,
            eos_token_id=eos_id,
            pad_token_id=self.config.target.pad_id,
        )
        given = {"input_ids": source_ids, "attention_mask": source_ids != self.config.source.pad_id}
        if self.config.stem is not None:
            given = {"input_features": source_ids.transpose(1, 2)}
        with wide(module), wide_fills():
            tokens: torch.Tensor = GenerationMixin.generate(module, **given, generation_config=options)[:, 1:]
        is_end = tokens == eos_id
        # Where pads are 0, beam search fills with ends instead.
        return tokens.masked_fill(is_end.cumsum(1) > is_end.int(), self.config.target.pad_id)


def exported_module(model: Model, dialect: Dialect) -> nn.Module:
    """Exports a ported model in the format of transformers, and loads it there.

    Raises:
      ImportError: transformers isn't installed.
    """
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        export_directory(model, directory, dialect)
        with _quietly(transformers):
            kind: Any = transformers.AutoModelForSeq2SeqLM
            if model.config.stem is not None:
                kind = transformers.AutoModelForSpeechSeq2Seq
            elif dialect.name == "indictrans":  # which transformers lacks
                from jax_transformer.parity.backends.indictrans import IndicTransForConditionalGeneration as kind
            loaded = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    module: nn.Module = loaded.eval()
    with torch.device("meta"):
        fresh = type(loaded)(loaded.config)
    for name, parameter in fresh.named_parameters():  # from_pretrained forgets that Whisper's positions are fixed
        module.get_parameter(name).requires_grad_(parameter.requires_grad)
    return module


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Disables progress bars within the context."""
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.enable_progress_bar()


def _widen_rotations(module: nn.Module) -> None:
    """Computes the frequencies of rotations in float64; T5Gemma's are float32 when a model is made."""
    import torch

    for part in module.modules():
        parameters = getattr(getattr(part, "config", None), "rope_parameters", None)
        frequencies = getattr(part, "inv_freq", None)
        if parameters is not None and isinstance(frequencies, torch.Tensor):
            pairs = frequencies.shape[0]
            part.inv_freq = parameters["rope_theta"] ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


@contextlib.contextmanager
def wide_fills() -> Iterator[None]:
    """Makes FSMT's mask fill tensors in their own dtype; its float64 minimum would overflow in its float32 tensor."""
    fsmt: Any = sys.modules.get("transformers.models.fsmt.modeling_fsmt")
    if fsmt is None:
        yield
        return

    import torch

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, torch.finfo(tensor.dtype).min)

    before, fsmt.fill_with_neg_inf = fsmt.fill_with_neg_inf, fill
    try:
        yield
    finally:
        fsmt.fill_with_neg_inf = before
