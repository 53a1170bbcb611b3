"""The models and batches that are measured; `small` ones run on any machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

LENGTH, PACKED_LENGTH, MEAN_LENGTH = 64, 256, 28
"""Tokens in a row, in a packed row, and of a pair in a packed row in the mean, as in WMT's English and German."""


@dataclass(frozen=True)
class TrainCase:
    """Describes a training step."""

    model: str
    """paper_base or paper_big."""
    vocabulary: int
    rows: int
    length: int
    packed: bool = False
    layer_loop: str = "scan"
    remat: str = "all_but_products"

    @property
    def tokens(self) -> int:
        """Positions on each side."""
        return self.rows * self.length

    @property
    def name(self) -> str:
        packed = ", packed" if self.packed else ""
        loop = "" if self.layer_loop == "scan" else ", layers unrolled"
        remat = "" if self.remat == "all_but_products" else f", remat {self.remat}"
        return f"{self.model}, V {self.vocabulary:,}, {self.rows} × {self.length}{packed}{loop}{remat}"


def train_cases(model: str, small: bool) -> list[TrainCase]:
    """Returns the steps to measure, the most valuable first."""
    if small:
        return [TrainCase(model, 300, 4, 16), TrainCase(model, 300, 2, 32, packed=True)]
    vocabulary = 37_000
    return [
        TrainCase(model, vocabulary, 384, LENGTH),  # 24,576 tokens: the paper's batch
        TrainCase(model, vocabulary, 96, PACKED_LENGTH, packed=True),
        TrainCase(model, vocabulary, 1024, LENGTH),
        TrainCase(model, vocabulary, 128, LENGTH),
        TrainCase(model, 32_000, 384, LENGTH),
        TrainCase(model, vocabulary, 384, LENGTH, layer_loop="unrolled"),
        TrainCase(model, vocabulary, 384, LENGTH, layer_loop="unrolled", remat="none"),
    ]


def run_config(name: str, small: bool) -> Any:
    """Returns the preset of a run, with two tiny layers if it shall be small."""
    from jax_transformer.config.presets import get_preset

    run = get_preset(name)
    if not small:
        return run
    heads = run.model.num_heads // 4
    tiny = replace(run.model, d_model=32 * heads // 2, num_heads=heads, d_ff=64, num_encoder_layers=2,
                   num_decoder_layers=2)  # fmt: skip
    return replace(run, model=tiny)


def model_config(case: TrainCase, small: bool) -> Any:
    """Returns the config of a case's model, in bfloat16, with its preset's dropout."""
    model = run_config(case.model, small).model
    return replace(
        model, source_vocab_size=case.vocabulary, target_vocab_size=case.vocabulary, compute_dtype="bfloat16",
        layer_loop=case.layer_loop, remat=case.remat,
    )  # fmt: skip


def batch(case: TrainCase) -> Any:
    """Returns the int32 arrays of a training step: random tokens, rows full or packed with pairs of random lengths."""
    import numpy as np

    from jax_transformer.data.batching import Batch

    rng = np.random.default_rng(0)
    shape = case.rows, case.length
    source, decoder_input, labels = (rng.integers(4, case.vocabulary, shape).astype(np.int32) for _ in range(3))
    if not case.packed:
        return Batch(source, decoder_input, labels)
    segments = np.zeros(shape, np.int32)
    for row in segments:
        at, number = 0, 1
        while at < case.length:
            length = int(np.clip(rng.lognormal(np.log(0.85 * MEAN_LENGTH), 0.55), 3, case.length))
            row[at : at + length] = number
            at, number = at + length, number + 1
    return Batch(source, decoder_input, labels, segments, segments)


MARIAN = {
    "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_position_embeddings": 512,
    "scale_embedding": True, "activation_function": "swish", "eos_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
"""The sizes of OPUS-MT's models."""
SMALL_MARIAN = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def marian(folder: Any, small: bool, vocabulary: int = 32_000) -> None:
    """Writes a Marian with random weights, enlarged so that its probabilities differ, as transformers does."""
    import torch
    import transformers

    vocabulary = 300 if small else vocabulary
    sizes = MARIAN | (SMALL_MARIAN if small else {})
    transformers.set_seed(0)
    config = transformers.MarianConfig(
        vocab_size=vocabulary, pad_token_id=vocabulary - 1, decoder_start_token_id=vocabulary - 1, **sizes
    )
    module = transformers.MarianMTModel(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1 and "embed" not in name and "shared" not in name:
                parameter.mul_(3.0)
        module.model.shared.weight[vocabulary - 1] = 0.0
    module.generation_config.forced_eos_token_id = None
    module.save_pretrained(folder)


def t5(folder: Any, small: bool, **more: Any) -> None:
    """Writes a T5 with random weights, as transformers does."""
    import transformers

    tiny = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 300} if small else {}
    transformers.set_seed(0)
    config = transformers.T5Config(decoder_start_token_id=0, **{**tiny, **more})
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
