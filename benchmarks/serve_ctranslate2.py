"""The server with CTranslate2 in the place of this project's decoding: the contestant of benchmarks/serve.py.

    pip install ctranslate2==4.8.5
    python benchmarks/serve_ctranslate2.py runs/demo        # listens on a free port of 127.0.0.1

Queue, batches, limits and HTTP are those of `jax-transformer serve`. Only a batch is computed by `translate_batch`, in
float32, by a model with the same weights. It takes models as the demo trains them: pre-norm, ReLU, sinusoids.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs.transformer_spec import TransformerSpec

from jax_transformer.decoding import prepare
from jax_transformer.decoding.batches import Decoded
from jax_transformer.serving.engine import Engine
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.server import bind, serve
from jax_transformer.serving.service import Service
from jax_transformer.serving.work import Kind, Unit
from jax_transformer.storage.model_directory import Model, load_model


def convert(model: Model, folder: Path) -> None:
    """Writes the model's weights as CTranslate2 reads them."""
    config, params = model.config, model.params
    spec = TransformerSpec.from_config((config.num_encoder_layers, config.num_decoder_layers), config.num_heads)
    for side in ("encoder", "decoder"):
        stack, weights = getattr(spec, side), params[side]
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight = as_array(
            params[{"encoder": "source", "decoder": "target"}[side] + "_embedding"]["embedding"]
        )
        stack.scale_embeddings = config.scale_embedding
        stack.position_encodings.encodings = as_array(params["constants"][f"{side}_positions"])
        set_norm(stack.layer_norm, weights["final_norm"])
        for number, layer in enumerate(stack.layer):
            own = pick(weights["layers"], number)
            set_attention(layer.self_attention, own["self_attention"], own["self_attention_norm"], fused=3)
            if side == "decoder":
                set_attention(layer.attention, own["cross_attention"], own["cross_attention_norm"], fused=1)
            set_norm(layer.ffn.layer_norm, own["feed_forward_norm"])
            set_linear(layer.ffn.linear_0, own["feed_forward"]["hidden"])
            set_linear(layer.ffn.linear_1, own["feed_forward"]["output"])
    set_linear(spec.decoder.projection, params["head"])
    spec.register_source_vocabulary(tokens(config.source_vocab_size))
    spec.register_target_vocabulary(tokens(config.target_vocab_size))
    names = {"bos_token": model.generation.decoder_start_id, "eos_token": model.generation.eos_id, "unk_token": 1}
    for name, index in names.items():
        setattr(spec.config, name, f"t{index}")
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.config.decoder_start_token = f"t{model.generation.decoder_start_id}"
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def set_attention(attention: Any, weights: Any, norm: Any, *, fused: int) -> None:
    """Sets query, key and value, the first `fused` of them in one matrix and the others in the next."""
    set_norm(attention.layer_norm, norm)
    parts = [flat(weights[name], 1) for name in ("query", "key", "value")]
    groups = [parts[:fused], parts[fused:]] if fused < 3 else [parts]
    for linear, group in zip(attention.linear, groups, strict=False):
        linear.weight = np.ascontiguousarray(np.concatenate([kernel.T for kernel, _ in group]))
        linear.bias = np.concatenate([bias for _, bias in group])
    set_linear(attention.linear[-1], dict(zip(("kernel", "bias"), flat(weights["output"], 2), strict=True)))


def set_linear(linear: Any, weights: Any) -> None:
    linear.weight, linear.bias = np.ascontiguousarray(as_array(weights["kernel"]).T), as_array(weights["bias"])


def set_norm(norm: Any, weights: Any) -> None:
    norm.gamma, norm.beta = as_array(weights["scale"]), as_array(weights["bias"])


def flat(weights: Any, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns kernel and bias with the heads in one axis; `inputs` axes of the kernel are its inputs."""
    kernel = as_array(weights["kernel"])
    return kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1), as_array(weights["bias"]).reshape(-1)


def pick(tree: Any, number: int) -> Any:
    """Returns a layer of stacked parameters."""
    return {key: pick(value, number) if isinstance(value, dict) else value[number] for key, value in tree.items()}


def as_array(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)


def tokens(size: int) -> list[str]:
    return [f"t{index}" for index in range(size)]


class CTranslate2Engine(Engine):
    """Computes batches by CTranslate2."""

    def __init__(self, model: Any, folder: Path, threads: int, **options: Any) -> None:
        super().__init__(model, Limits(), **options)
        self._translator = ctranslate2.Translator(
            str(folder), compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def compute(self, kind: Kind, units: Sequence[Unit]) -> Sequence[Any]:
        texts = [[f"t{index}" for index in unit.source_ids] for unit in units]
        found = self._translator.translate_batch(
            texts, beam_size=kind.hypotheses, max_decoding_length=self.model.generation.max_decode_length or 512,
            return_scores=True,
        )  # fmt: skip
        eos_id = self.model.generation.eos_id
        return [[Decoded([*(int(name[1:]) for name in each.hypotheses[0]), eos_id], each.scores[0])] for each in found]


def main(model_path: str) -> int:
    model = prepare(load_model(model_path))
    with tempfile.TemporaryDirectory() as folder, bind("127.0.0.1", 0) as bound:
        convert(model, Path(folder))
        engine = CTranslate2Engine(model, Path(folder), len(os.sched_getaffinity(0)))
        return serve(Service(engine), bound, grace_seconds=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
