"""Files of OpenNMT-py 3: read with the logits of its published formulas, exported with the same bits, refused in one
line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jax_transformer import apply, import_checkpoint, load_model
from jax_transformer.cli import main
from jax_transformer.porting import PortingError, export_checkpoint

V, D, F, HEADS, LENGTH = 30, 8, 12, 2, 20
WORDS = ["<unk>", "<blank>", "<s>", "</s>", *(f"w{i}" for i in range(V - 4))]
Tensors = dict[str, torch.Tensor]


def options_of(**others: Any) -> dict[str, Any]:
    return {
        "model_task": "seq2seq",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "heads": HEADS,
        "pos_ffn_activation_fn": "relu",
        "position_encoding": True,
        "position_encoding_type": "SinusoidalInterleaved",
        "max_relative_positions": 0,
        "add_qkvbias": False,
        "add_ffnbias": True,
        "layer_norm": "standard",
        "norm_eps": 1e-6,
        "share_embeddings": False,
        "share_decoder_embeddings": False,
        "copy_attn": False,
        "generator_function": "softmax",
    } | others


def table(kind: str) -> torch.Tensor:
    """Returns the positions [P, 1, D]."""
    steps = torch.arange(LENGTH).float()[:, None]
    if kind == "SinusoidalConcat":
        angles = steps * torch.exp(torch.arange(D // 2) * -(math.log(10000) / (D // 2 - 1)))
        return torch.cat([angles.sin(), angles.cos()], 1)[:, None]
    angles = steps * torch.exp(torch.arange(0, D, 2).float() * -(math.log(10000.0) / D))
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, None]


def made(options: dict[str, Any]) -> tuple[Tensors, Tensors]:
    """Returns random tensors under OpenNMT-py's names, and those of its head."""
    torch.manual_seed(0)
    found: Tensors = {}

    def linear(name: str, inputs: int, outputs: int, bias: bool) -> None:
        found[f"{name}.weight"] = torch.randn(outputs, inputs) * 0.3
        if bias:
            found[f"{name}.bias"] = torch.randn(outputs) * 0.3

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = 1 + torch.randn(D) * 0.1, torch.randn(D) * 0.1

    is_gated = options["pos_ffn_activation_fn"] in ("silu", "gated-gelu")
    for stack, name in (("encoder", "transformer"), ("decoder", "transformer_layers")):
        words = "encoder.embeddings.make_embedding.emb_luts.0.weight"
        is_shared = stack == "decoder" and options["share_embeddings"]
        weight = found[words] if is_shared else torch.randn(V, D) * 0.3
        found[f"{stack}.embeddings.make_embedding.emb_luts.0.weight"] = weight
        found[f"{stack}.embeddings.make_embedding.pe.pe"] = table(options["position_encoding_type"])
        for i in range(2):
            layer = f"{stack}.{name}.{i}"
            for attention in ("self_attn", "context_attn")[: 1 + (stack == "decoder")]:
                for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    linear(f"{layer}.{attention}.{part}", D, D, options["add_qkvbias"])
            for part, inputs, outputs in (("w_1", D, F), ("w_2", F, D), ("w_3", D, F))[: 2 + is_gated]:
                linear(f"{layer}.feed_forward.{part}", inputs, outputs, options["add_ffnbias"])
            norm(f"{layer}.feed_forward.layer_norm")
            for part in ("layer_norm",) if stack == "encoder" else ("layer_norm_1", "layer_norm_2"):
                norm(f"{layer}.{part}")
        norm(f"{stack}.layer_norm")
    head = {"weight": torch.randn(V, D) * 0.3, "bias": torch.randn(V) * 0.3}
    if options["share_decoder_embeddings"]:
        head["weight"] = found["decoder.embeddings.make_embedding.emb_luts.0.weight"]
    return found, head


def write(path: Path, options: dict[str, Any], model: Tensors, head: Any) -> Path:
    state = {i: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2)} for i in range(2)}
    vocabularies = {"src": WORDS, "tgt": WORDS, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    optimizer = {"training_step": 4, "optimizer": {"state": state, "param_groups": [{"lr": 1.0}]}}
    content = {"model": model, "generator": head, "vocab": vocabularies, "optim": optimizer}
    torch.save({**content, "opt": argparse.Namespace(**options)}, path)
    return path


class OpenNMT:
    """Computes OpenNMT-py's Transformer as its modules say."""

    def __init__(self, options: dict[str, Any], model: Tensors, head: Tensors) -> None:
        self.options, self.weights, self.head = options, model, head
        names = {"relu": torch.relu, "silu": torch.nn.functional.silu}
        self.activation: Any = names.get(options["pos_ffn_activation_fn"], torch.nn.functional.gelu)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, (D,), weight, bias, self.options["norm_eps"])

    def attention(self, name: str, q: torch.Tensor, k: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        def split(x: torch.Tensor, part: str) -> torch.Tensor:
            return self.linear(x, f"{name}.{part}").unflatten(-1, (HEADS, -1)).transpose(1, 2)

        query = split(q, "linear_query") / math.sqrt(D // HEADS)
        scores = (query @ split(k, "linear_keys").transpose(2, 3)).masked_fill(hidden, -1e18)
        mixed = scores.softmax(-1) @ split(k, "linear_values")
        return self.linear(mixed.transpose(1, 2).flatten(2), f"{name}.final_linear")

    def feed_forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        normed = self.norm(x, f"{name}.layer_norm")
        inner = self.activation(self.linear(normed, f"{name}.w_1"))
        if f"{name}.w_3.weight" in self.weights:
            inner = inner * self.linear(normed, f"{name}.w_3")
        return x + self.linear(inner, f"{name}.w_2")

    def embedded(self, stack: str, ids: torch.Tensor) -> torch.Tensor:
        name = f"{stack}.embeddings.make_embedding"
        positions = self.weights[f"{name}.pe.pe"][: ids.shape[1], 0]
        return self.weights[f"{name}.emb_luts.0.weight"][ids] * math.sqrt(D) + positions

    def logits(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        pads = (source == 1)[:, None, None]
        x = self.embedded("encoder", source)
        for i in range(2):
            layer = f"encoder.transformer.{i}"
            normed = self.norm(x, f"{layer}.layer_norm")
            x = self.feed_forward(
                x + self.attention(f"{layer}.self_attn", normed, normed, pads), f"{layer}.feed_forward"
            )
        memory = self.norm(x, "encoder.layer_norm")
        future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool() | (target == 1)[:, None, None]
        x = self.embedded("decoder", target)
        for i in range(2):
            layer = f"decoder.transformer_layers.{i}"
            normed = self.norm(x, f"{layer}.layer_norm_1")
            x = x + self.attention(f"{layer}.self_attn", normed, normed, future)
            normed = self.norm(x, f"{layer}.layer_norm_2")
            x = self.feed_forward(
                x + self.attention(f"{layer}.context_attn", normed, memory, pads), f"{layer}.feed_forward"
            )
        return self.norm(x, "decoder.layer_norm") @ self.head["weight"].T + self.head["bias"]


KINDS = {
    "usual": options_of(),
    "biases": options_of(add_qkvbias=True, pos_ffn_activation_fn="gelu", norm_eps=1e-5),
    "gated": options_of(pos_ffn_activation_fn="silu", add_ffnbias=False),
    "gated gelu": options_of(pos_ffn_activation_fn="gated-gelu", position_encoding_type="SinusoidalConcat"),
    "tied": options_of(share_embeddings=True, share_decoder_embeddings=True),
}


def ids(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns sources and targets, the second of which end with padding."""
    source, target = draw.integers(4, V, (2, 9)), draw.integers(4, V, (2, 6))
    source[1, 6:], target[1, 4:] = 1, 1
    return source, target


@pytest.mark.parametrize("kind", KINDS)
def test_logits_follow_its_formulas_and_bits_return(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind]
    held, head = made(options)
    model = import_checkpoint(write(tmp_path / "model.pt", options, held, head))
    source, target = ids(np.random.default_rng(0))
    expected = OpenNMT(options, held, head).logits(torch.tensor(source), torch.tensor(target)).numpy()
    computed = np.asarray(apply(model.config, model.params, source, target))
    is_real = target != 1
    np.testing.assert_allclose(computed[is_real], expected[is_real], atol=1e-6)
    assert (model.generation.decoder_start_id, model.generation.eos_id, model.config.target_pad_id) == (2, 3, 1)
    assert model.config.tie_head == options["share_decoder_embeddings"]

    export_checkpoint(model, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    back = back.get("model", back)
    before = held | {f"generator.{name}": tensor for name, tensor in head.items()}
    assert back.keys() == before.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (options_of(max_relative_positions=-1), "max_relative_positions must be 0; received -1"),
        (options_of(copy_attn=True), "copy_attn must be False; received True"),
        (options_of(pos_ffn_activation_fn="swiglu"), "pos_ffn_activation_fn must be one of relu, gelu, silu"),
    ],
)
def test_other_models_are_refused_by_their_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    held, head = made(options)
    with pytest.raises(PortingError, match=message):
        import_checkpoint(write(tmp_path / "model.pt", options, held, head))


def test_a_file_without_its_head_is_refused(tmp_path: Path) -> None:
    held, _ = made(options_of())
    with pytest.raises(PortingError, match=r"expected the head of OpenNMT-py 3 under 'generator'.*; received none"):
        import_checkpoint(write(tmp_path / "model.pt", options_of(), held, None))


def test_its_words_are_the_tokenizer(tmp_path: Path) -> None:
    options = options_of(transforms=["filtertoolong"])
    held, head = made(options)
    path = write(tmp_path / "model.pt", options, held, head)
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    assert model.source_tokenizer.encode(["w2  w9 W9"]) == [[6, 13, 0]]  # sources have no end
    assert model.target_tokenizer.decode([[6, 13, 0, 3]]) == ["w2 w9 <unk>"]


def test_subwords_are_cut_by_the_file_next_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(transforms=["bpe"], src_subword_model="elsewhere/codes", tgt_subword_model="elsewhere/codes")
    held, head = made(options)
    path = write(tmp_path / "model.pt", options, held, head)
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    assert "left:     vocab, whose text is split by codes, which isn't next to model.pt" in capsys.readouterr().out
    assert load_model(tmp_path / "model").source_tokenizer is None
    (tmp_path / "codes").write_text("#version: 0.2\nw 1\n")
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.target_tokenizer is not None
    assert model.target_tokenizer.encode(["w12"]) == [[0, 0]]  # w1@@ and 2, which vocab lacks
    assert main(["port", str(path), "--inspect"]) == 0
    assert "format: OpenNMT-py's file" in capsys.readouterr().out


def test_other_transforms_leave_the_words_unread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(transforms=["onmt_tokenize"])
    path = write(tmp_path / "model.pt", options, *made(options))
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    assert "left:     vocab, whose text is transformed by onmt_tokenize, optim" in capsys.readouterr().out
