"""Writes indictrans_program.json: what IndicTrans2's own program computes with small models of random weights.

    python parity_tests/indictrans_program.py FOLDER [EXPORTED]

needs modeling_indictrans.py and configuration_indictrans.py of the Hub's repositories in FOLDER, and a transformers
that runs them (pip install transformers==4.46.3). With EXPORTED, where `test_indictrans.py` keeps directories if
JAX_TRANSFORMER_INDICTRANS names it, it instead checks that `from_pretrained` loads each tensor of them.
`test_indictrans.py` compares.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDENS = Path(__file__).with_name("indictrans_program.json")
KEYS = (
    "encoder_embed_dim",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "encoder_vocab_size",
    "decoder_vocab_size",
    "max_source_positions",
    "max_target_positions",
)
VARIANTS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    (
        (24, 2, 3, 2, 3, 20, 28, 61, 66, 44, 41),
        {
            "encoder_normalize_before": True,
            "decoder_normalize_before": True,
            "layernorm_embedding": True,
            "activation_function": "gelu",
        },
    ),
    ((20, 3, 1, 5, 2, 33, 17, 71, 76, 50, 47), {"share_decoder_input_output_embed": True}),
    (
        (32, 1, 2, 4, 1, 18, 40, 67, 72, 48, 60),
        {"decoder_normalize_before": True, "scale_embedding": False, "share_decoder_input_output_embed": True},
    ),
)
SIZES = tuple(
    dict(zip(KEYS, sizes, strict=True)) | {"decoder_embed_dim": sizes[0]} | variant for sizes, variant in VARIANTS
)
"""Sizes whose stacks differ, with norms before and after sublayers, and a head of its own and a tied one."""
PAD, START = 1, 2
BEAMS, NEW_TOKENS, NO_REPEAT = 3, 12, 2


def make_directory(size: int, folder: Path) -> Path:
    """Writes a model of random weights, as the Hub has them, and returns its directory."""
    from safetensors.numpy import save_file

    path, config = folder / f"indictrans_{size}", SIZES[size]
    path.mkdir()
    more = {
        "model_type": "IndicTrans",
        "architectures": ["IndicTransForConditionalGeneration"],
        "is_encoder_decoder": True,
    }
    (path / "config.json").write_text(json.dumps(config | more))
    rng = np.random.default_rng(size)
    tensors = {}
    for name, shape in shapes(config):
        draw = rng.standard_normal(shape)
        if "norm" in name:
            draw = (name.endswith("weight") + 0.3 * draw) if len(shape) == 1 else draw
        else:
            sharp = 2.4 if "q_proj" in name or "k_proj" in name else 1.2
            draw *= 0.1 if len(shape) == 1 or "embed" in name or "head" in name else sharp / shape[-1] ** 0.5
        tensors[name] = draw.astype(np.float32)
    if config.get("share_decoder_input_output_embed"):
        tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the names and shapes of a model's tensors."""
    width = config["encoder_embed_dim"]

    def linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (rows, columns)
        yield f"{name}.bias", (rows,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    for stack in ("encoder", "decoder"):
        yield f"model.{stack}.embed_tokens.weight", (config[f"{stack}_vocab_size"], width)
        for i in range(config[f"{stack}_layers"]):
            layer, hidden = f"model.{stack}.layers.{i}", config[f"{stack}_ffn_dim"]
            for attention in ("self_attn", "encoder_attn")[: 1 + (stack == "decoder")]:
                for part in "kvq":
                    yield from linear(f"{layer}.{attention}.{part}_proj", width, width)
                yield from linear(f"{layer}.{attention}.out_proj", width, width)
                yield from norm(f"{layer}.{attention}_layer_norm")
            yield from linear(f"{layer}.fc1", hidden, width)
            yield from linear(f"{layer}.fc2", width, hidden)
            yield from norm(f"{layer}.final_layer_norm")
        if config.get(f"{stack}_normalize_before"):
            yield from norm(f"model.{stack}.layer_norm")
        if config.get("layernorm_embedding"):
            yield from norm(f"model.{stack}.layernorm_embedding")
    if not config.get("share_decoder_input_output_embed"):
        yield "lm_head.weight", (config["decoder_vocab_size"], width)


def make_ids(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns source_ids [4, 9], decoder_input_ids [4, 7] and labels [4, 7], with pads on either side and inside."""
    rng, config = np.random.default_rng(100 + size), SIZES[size]
    source = rng.integers(3, config["encoder_vocab_size"], (4, 9))
    target, labels = rng.integers(3, config["decoder_vocab_size"], (2, 4, 7))
    source[0, 6:] = source[1, :3] = source[2, 4:6] = source[3, 1:] = PAD
    target[:, 0], target[0, 5:], labels[0, 4:], labels[2, 2] = START, PAD, PAD, PAD
    return source, target, labels


def load(program: Any, path: Path) -> Any:
    """Loads a directory in float64. Raises ValueError for tensors that are missing, or that the program lacks."""
    model, found = program.IndicTransForConditionalGeneration.from_pretrained(
        path, attn_implementation="eager", output_loading_info=True
    )
    if any(found.values()):
        raise ValueError(f"{path}: {found}")
    if model.config.share_decoder_input_output_embed:
        model.lm_head.weight = model.model.decoder.embed_tokens.weight  # as when it is made; loading unties them
    return model.eval().double()


def compute(program: Any, size: int, folder: Path) -> dict[str, Any]:
    """Returns what the program computes: logits, the loss and each gradient's product with its parameter, tokens."""
    model = load(program, make_directory(size, folder))
    torch.set_default_dtype(torch.float64)  # in which transformers 4 makes masks
    source, target, labels = map(torch.from_numpy, make_ids(size))
    mask = source != PAD
    done = model(
        input_ids=source,
        attention_mask=mask,
        decoder_input_ids=target,
        labels=labels.masked_fill(labels == PAD, -100),
        use_cache=False,
    )
    done.loss.backward()
    products = {
        name: float((one.grad * one.detach()).sum()) for name, one in model.named_parameters() if one.grad is not None
    }

    def tokens(beams: int, end: int) -> np.ndarray:
        found = model.generate(
            source,
            attention_mask=mask,
            num_beams=beams,
            max_new_tokens=NEW_TOKENS,
            no_repeat_ngram_size=NO_REPEAT,
            do_sample=False,
            early_stopping=beams > 1,
            eos_token_id=end,
        )
        return np.pad(found[:, 1:].numpy(), ((0, 0), (0, NEW_TOKENS + 1 - found.shape[1])), constant_values=PAD)

    endless = tokens(1, SIZES[size]["decoder_vocab_size"])
    rows = {int(token): int((endless[:, :-1] == token).any(axis=1).sum()) for token in np.unique(endless)}
    end = max(rows, key=lambda token: rows[token])  # one that ends many sentences
    return {
        "logits": done.logits.tolist(),
        "loss": float(done.loss.detach()),
        "products": products,
        "end": end,
        "greedy": tokens(1, end).tolist(),
        "beams": tokens(BEAMS, end).tolist(),
    }


def main(folder: str, exported: str = "") -> None:
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary, "indictrans_remote")
        package.mkdir()
        (package / "__init__.py").touch()
        for name in ("modeling_indictrans.py", "configuration_indictrans.py"):
            shutil.copy(Path(folder, name), package)
        sys.path.insert(0, temporary)
        from indictrans_remote import modeling_indictrans  # type: ignore[import-not-found, unused-ignore]

        if exported:
            from safetensors.numpy import load_file

            for path in sorted(Path(exported).iterdir()):
                held, loaded = load_file(path / "model.safetensors"), load(modeling_indictrans, path).state_dict()
                assert held.keys() == loaded.keys(), held.keys() ^ loaded.keys()
                assert all(np.array_equal(held[name], loaded[name].float().numpy()) for name in held)
                print(f"{path}: {len(held)} tensors")
            return
        found = []
        for size in range(len(SIZES)):
            found.append(compute(modeling_indictrans, size, Path(temporary)))
            torch.set_default_dtype(torch.float32)
    GOLDENS.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
