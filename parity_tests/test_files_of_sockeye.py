"""Model directories of Sockeye 3: read with the logits of its formulas, written with the same bits, refused in one
line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jax_transformer import apply, load_model
from jax_transformer.cli import main
from parity_tests.plain_transformer import LENGTH, D, F, Shape, Stack, Tensors, V, logits, made

WORDS = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(V - 4))]
ATTENTION = {
    ("encoder", "self"): "self_attention",
    ("decoder", "self"): "autoregr_layer",
    ("decoder", "cross"): "enc_attention",
}
ACTIVATIONS = {torch.relu: "relu", torch.nn.functional.silu: "swish1", torch.nn.functional.gelu: "gelu"}


def named(shape: Shape, parts: Tensors) -> Tensors:
    """Returns plain parts as Sockeye saves them: keys and values in one matrix, a head's keys before its values."""
    found = {
        "embedding_source.embedding.weight": parts["source"],
        "embedding_target.embedding.weight": parts["target"],
        "output_layer.weight": parts["head/weight"],
        "output_layer.bias": parts["head/bias"],
    }
    for side in ("encoder", "decoder"):
        stack: Stack = getattr(shape, side)
        found[f"{side}.pos_embedding.weight"] = parts[f"{side}/positions"]
        when = "pre" if stack.pre else "post"
        for i in range(stack.depth):
            layer = f"{side}.layers.{i}"
            for (of, kind), name in ATTENTION.items():
                if of != side:
                    continue
                q, k, v, o = (parts[f"{side}/{i}/{kind}/{part}/weight"] for part in "qkvo")
                heads = zip(k.chunk(stack.heads), v.chunk(stack.heads), strict=True)
                keys_values = torch.cat([part for head in heads for part in head])
                if kind == "self":
                    found[f"{layer}.{name}.ff_in.weight"] = torch.cat([q, keys_values])
                else:
                    found[f"{layer}.{name}.ff_q.weight"] = q
                    found[f"{layer}.{name}.ff_kv.weight"] = keys_values
                found[f"{layer}.{name}.ff_out.weight"] = o
                for part in ("weight", "bias"):
                    found[f"{layer}.{when}_{name}.layer_norm.{part}"] = parts[f"{side}/{i}/{kind}/norm/{part}"]
            for part in ("weight", "bias"):
                for ours, theirs in (("in", "ff1"), ("gate", "linear"), ("out", "ff2")):
                    if f"{side}/{i}/feed/{ours}/{part}" in parts:
                        found[f"{layer}.ff.{theirs}.{part}"] = parts[f"{side}/{i}/feed/{ours}/{part}"]
                found[f"{layer}.{when}_ff.layer_norm.{part}"] = parts[f"{side}/{i}/feed/norm/{part}"]
        if stack.final:
            for part in ("weight", "bias"):
                found[f"{side}.final_process.layer_norm.{part}"] = parts[f"{side}/norm/{part}"]
    return found


def options_of(shape: Shape, **others: str) -> str:
    """Returns Sockeye's config, a YAML file of tagged objects."""

    def stack(of: Stack, **more: str) -> str:
        options = {
            "act_type": ACTIVATIONS[of.activation],
            "attention_heads": of.heads,
            "decoder_type": "transformer",
            "dropout_act": 0.1,
            "dropout_attention": 0.2,
            "dropout_prepost": 0.3,
            "feed_forward_num_hidden": F,
            "model_size": D,
            "num_layers": of.depth,
            "positional_embedding_type": "learned" if shape.learned else "fixed",
            "preprocess_sequence": "n" if of.pre else "''",
            "postprocess_sequence": "dr" if of.pre else "drn",
            "use_glu": str(of.gated).lower(),
            "use_lhuc": "false",
        } | more
        return "".join(f"  {name}: {value}\n" for name, value in options.items())

    tying = "_".join(
        name for name, on in (("src", shape.shared), ("trg", shape.shared or shape.tied), ("softmax", shape.tied)) if on
    )
    of_decoder = {name: others.pop(name) for name in ("decoder_type", "postprocess_sequence") if name in others}
    embedding = {
        "source": others.pop("source_factors", "null"),
        "target": others.pop("target_factors", "null"),
    }
    return (
        "!ModelConfig\n"
        "config_data: !DataConfig\n  data_statistics: !DataStatistics\n    buckets:\n    - !!python/tuple\n      - 40\n"
        f"config_encoder: !TransformerConfig\n{stack(shape.encoder)}"
        f"config_decoder: !TransformerConfig\n{stack(shape.decoder, **of_decoder)}"
        + "".join(
            f"config_embed_{side}: !EmbeddingConfig\n  factor_configs: {factors}\n"
            for side, factors in embedding.items()
        )
        + f"weight_tying_type: {tying or 'none'}\n"
        + "".join(f"{name}: {value}\n" for name, value in others.items())
    )


def write(folder: Path, options: str, weights: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(weights, folder / "params.best")
    (folder / "config").write_text(options)
    (folder / "version").write_text("3.1.34")
    for side in ("src", "trg"):
        (folder / f"vocab.{side}.0.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}, indent=4))
    return folder


def small(folder: Path, **others: str) -> Path:
    shape = KINDS["tied"]
    return write(folder, options_of(shape, **others), named(shape, made(shape)))


POST = {"pre": False, "final": False}
PLAIN = {"attention_bias": False, "hides_target_padding": False, "halves": True}
KINDS = {
    "tied": Shape(shared=True, tied=True, **PLAIN),
    "post": Shape(
        encoder=Stack(depth=1, activation=torch.nn.functional.silu, **POST),
        decoder=Stack(heads=4, activation=torch.nn.functional.gelu, **POST),
        **PLAIN,
    ),
    "learned": Shape(encoder=Stack(gated=True), decoder=Stack(gated=True), tied=True, learned=True, **PLAIN),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_follow_its_formulas_and_bits_return(kind: str, tmp_path: Path) -> None:
    shape = KINDS[kind]
    parts = made(shape)
    folder = write(tmp_path / "sockeye", options_of(shape), named(shape, parts))
    assert main(["port", str(folder), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    draw = np.random.default_rng(0)
    source, target = draw.integers(4, V, (2, 9)), draw.integers(4, V, (2, 6))
    source[1, 6:] = 0
    expected = logits(shape, parts, torch.tensor(source), torch.tensor(target)).numpy()
    computed = np.asarray(apply(model.config, model.params, source, target))
    np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-6)
    assert (model.config.encoder.max_length, model.config.share_embeddings) == (LENGTH, shape.shared)
    assert model.config.encoder.dropout.at("attention") == 0.2

    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    back, first = (torch.load(each / "params.best") for each in (tmp_path / "back", folder))
    assert list(back) == list(first)
    assert all(torch.equal(back[name], first[name]) for name in first)
    for name in ("config", "version", "vocab.src.0.json", "vocab.trg.0.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


def test_its_words_are_split_at_spaces(tmp_path: Path) -> None:
    assert main(["port", str(small(tmp_path / "sockeye")), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    assert model.source_tokenizer.encode(["w2  W2 w3"]) == [[6, 1, 7, 3]]
    assert model.target_tokenizer.decode([[6, 1, 7, 3]]) == ["w2 <unk> w3"]
    assert (model.generation.decoder_start_id, model.generation.eos_id, model.config.source_pad_id) == (2, 3, 0)


# --- other files


def without(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def replaced(name: str, data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(data)


def with_options(**others: str) -> Callable[[Path], Any]:
    return lambda folder: small(folder, **others)


def packed(folder: Path) -> None:
    torch.save({"encoder.layers.0.ff.ff1.scale": torch.ones(1)}, folder / "params.best")


def cut_projection(folder: Path) -> None:
    weights = torch.load(folder / "params.best")
    weights["encoder.layers.1.self_attention.ff_in.weight"] = torch.zeros(2 * D, D)
    torch.save(weights, folder / "params.best")


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def with_code(folder: Path) -> None:
    torch.save({"a": torch.zeros(2), "b": Code()}, folder / "params.best")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("config"), "it lacks config, its options"),
        (without("params.best"), "it lacks params.best, its weights"),
        (without("vocab.src.0.json"), "it lacks vocab.src.0.json, the words of the source"),
        (with_options(decoder_type="ssru_transformer"), "decoder_type must be 'transformer'; received 'ssru_"),
        (with_options(postprocess_sequence="r"), None),
        (with_options(postprocess_sequence="rnd"), "expected norms before sublayers .* postprocess_sequence='rnd'"),
        (with_options(source_factors="[!FactorConfig {vocab_size: 9}]"), "factor_configs must be none; received 1 fac"),
        (with_options(lhuc="true"), "lhuc must be off; received True"),
        (with_options(neural_vocab_selection="eos"), "neural_vocab_selection must be off; received 'eos'"),
        (replaced("version", b"2.3.24"), "expected a model of Sockeye 3; its version says 2.3.24"),
        (replaced("params.best", b"\x93\x64MXNet"), "expected Sockeye 3's weights, a torch file"),
        (replaced("config", b"!ModelConfig\nconfig_encoder: !RecurrentEncoderConfig {a: 1}\n"), "options of a Transf"),
        (packed, "expected floating-point weights; received encoder.layers.0.ff.ff1.scale of an int8 model"),
        (cut_projection, r"expected 3 matrices of 8 rows, for 2 heads; received shape \(16, 8\)"),
        (with_code, "holds Python objects as well as tensors"),
    ],
)
def test_other_files_are_refused(
    damage: Callable[[Path], Any],
    message: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = small(tmp_path / "sockeye")
    damage(folder)
    code = main(["port", str(folder), str(tmp_path / "model")])
    if message is None:  # dropout may be left out
        assert code == 0
        return
    assert code == 2
    assert re.search(message, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["sockeye"]


def test_inspect_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small(tmp_path / "sockeye")
    without("vocab.trg.0.json")(folder)
    assert main(["port", str(folder), "--inspect"]) == 0
    printed = capsys.readouterr().out
    assert "format: model directory of Sockeye" in printed
    assert "missing: vocab.trg.0.json, the words of the target" in printed
    assert "could be sockeye: Sockeye 3" in printed
