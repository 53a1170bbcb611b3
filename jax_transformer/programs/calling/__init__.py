"""Finds out how to call an unknown PyTorch encoder-decoder."""

from jax_transformer.programs.calling.adapters import as_module
from jax_transformer.programs.calling.direct import DirectCall, Known, find_direct
from jax_transformer.programs.calling.find import Call, CallError, adapter_text, find_call

__all__ = ["Call", "CallError", "DirectCall", "Known", "adapter_text", "as_module", "find_call", "find_direct"]
