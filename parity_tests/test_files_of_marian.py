"""Models of Marian's: read with the logits of its published formulas, written with the same bits, refused in one
line."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from jax_transformer import apply, import_checkpoint, load_model
from jax_transformer.cli import main
from jax_transformer.porting import export_checkpoint

V, D, F, HEADS = 30, 8, 12, 2
DEPTHS = {"encoder": 2, "decoder": 3}
Arrays = dict[str, np.ndarray]


def options_of(**others: Any) -> dict[str, Any]:
    return {
        "type": "transformer",
        "dim-vocabs": [V, V],
        "transformer-heads": HEADS,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-top": "",
        "transformer-decoder-autoreg": "self-attention",
        "tied-embeddings-all": True,
    } | {name.replace("_", "-"): value for name, value in others.items()}


def made(options: dict[str, Any]) -> Arrays:
    """Returns random matrices under Marian's names."""
    draw = np.random.default_rng(0)
    found: Arrays = {}

    def add(name: str, *shape: int) -> None:
        found[name] = draw.normal(0, 0.3, shape).astype(np.float32)

    pre = "_pre" if "n" in options["transformer-preprocess"] else ""
    for name in ("Wemb",) if options["tied-embeddings-all"] else ("encoder_Wemb", "decoder_Wemb"):
        add(name, V, D)
    if not options["tied-embeddings-all"]:
        add("decoder_ff_logit_out_W", D, V)
    add("decoder_ff_logit_out_b", 1, V)
    for stack, depth in DEPTHS.items():
        for i in range(1, depth + 1):
            for attention in ("self", "context")[: 1 + (stack == "decoder")]:
                layer = f"{stack}_l{i}_{attention}"
                for letter in "qkvo":
                    add(f"{layer}_W{letter}", D, D)
                    add(f"{layer}_b{letter}", 1, D)
                for part in ("scale", "bias"):
                    add(f"{layer}_Wo_ln_{part}{pre}", 1, D)
            layer = f"{stack}_l{i}_ffn"
            for number, shape in (("1", (D, F)), ("2", (F, D))):
                add(f"{layer}_W{number}", *shape)
                add(f"{layer}_b{number}", 1, shape[1])
            for part in ("scale", "bias"):
                add(f"{layer}_ffn_ln_{part}{pre}", 1, D)
        if options["transformer-postprocess-top"]:
            for part in ("scale", "bias"):
                add(f"{stack}_top_ln_{part}", 1, D)
    return found


def write(path: Path, options: dict[str, Any], arrays: Arrays) -> Path:
    text = np.frombuffer(yaml.safe_dump(options).encode() + b"\0", np.int8)
    np.savez(path, **{**arrays, "special:model.yml": text})
    return path


class Marian:
    """Computes Marian's Transformer as its transformer.h says."""

    def __init__(self, options: dict[str, Any], arrays: Arrays) -> None:
        self.options, self.weights = options, {name: torch.tensor(array) for name, array in arrays.items()}
        names = {"relu": torch.relu, "swish": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
        self.activation = names[options["transformer-ffn-activation"]]

    def affine(self, x: torch.Tensor, name: str, number: str) -> torch.Tensor:
        return x @ self.weights[f"{name}_W{number}"] + self.weights[f"{name}_b{number}"]

    def norm(self, x: torch.Tensor, name: str, suffix: str = "") -> torch.Tensor:
        scale, bias = (self.weights[f"{name}_ln_{part}{suffix}"][0] for part in ("scale", "bias"))
        return torch.nn.functional.layer_norm(x, (D,), scale, bias, 1e-6)

    def sublayer(self, x: torch.Tensor, name: str, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        y = self.norm(x, name, "_pre") if "n" in self.options["transformer-preprocess"] else x
        y = compute(y) + x
        return self.norm(y, name) if "n" in self.options["transformer-postprocess"] else y

    def attention(self, name: str, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        def split(x: torch.Tensor, letter: str) -> torch.Tensor:
            return self.affine(x, name, letter).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        scores = split(q, "q") @ split(k, "k").transpose(2, 3) / math.sqrt(D / HEADS) + (1 - mask) * -99999999.0
        mixed = scores.softmax(-1) @ split(k, "v")
        return self.affine(mixed.transpose(1, 2).flatten(2), name, "o")

    def stack(self, side: str, x: torch.Tensor, mask: torch.Tensor, memory: Any = None) -> torch.Tensor:
        half, steps = D // 2, torch.arange(x.shape[1]).float()[:, None]
        angles = steps * torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        x = math.sqrt(D) * x + torch.cat([angles.sin(), angles.cos()], 1)
        for i in range(1, DEPTHS[side] + 1):
            name = f"{side}_l{i}"
            x = self.sublayer(x, f"{name}_self_Wo", lambda y, n=name: self.attention(f"{n}_self", y, y, mask))
            if memory is not None:
                attend = lambda y, n=name: self.attention(f"{n}_context", y, *memory)  # noqa: E731
                x = self.sublayer(x, f"{name}_context_Wo", attend)
            feed = lambda y, n=f"{name}_ffn": self.affine(self.activation(self.affine(y, n, "1")), n, "2")  # noqa: E731
            x = self.sublayer(x, f"{name}_ffn_ffn", feed)
        return self.norm(x, f"{side}_top") if self.options["transformer-postprocess-top"] else x

    def logits(self, source: torch.Tensor, lengths: list[int], target: torch.Tensor) -> torch.Tensor:
        weights, tied = self.weights, self.options["tied-embeddings-all"]
        mask = (torch.arange(source.shape[1]) < torch.tensor(lengths)[:, None]).float()[:, None, None]
        encoded = self.stack("encoder", weights["Wemb" if tied else "encoder_Wemb"][source], mask)
        embedded = weights["Wemb" if tied else "decoder_Wemb"][target]
        shifted = torch.cat([torch.zeros_like(embedded[:, :1]), embedded[:, :-1]], 1)
        causal = torch.ones(target.shape[1], target.shape[1]).tril()
        decoded = self.stack("decoder", shifted, causal, (encoded, mask))
        head = weights["Wemb"].T if tied else weights["decoder_ff_logit_out_W"]
        return decoded @ head + weights["decoder_ff_logit_out_b"]


KINDS = {
    "tied": options_of(),
    "prenorm": options_of(
        transformer_preprocess="n", transformer_postprocess="da", transformer_postprocess_top="n",
        transformer_ffn_activation="swish",
    ),
    "two_vocabularies": options_of(tied_embeddings_all=False, transformer_ffn_activation="gelu"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_logits_follow_its_formulas_and_bits_return(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind]
    arrays = made(options)
    model = import_checkpoint(write(tmp_path / "model.npz", options, arrays))
    draw = np.random.default_rng(1)
    source, target, lengths = draw.integers(0, V, (2, 7)), draw.integers(0, V, (2, 5)), [7, 4]
    expected = Marian(options, arrays).logits(torch.tensor(source), lengths, torch.tensor(target))
    source[1, 4:] = V  # the row of padding, with which the decoder starts, too
    shifted = np.concatenate([np.full((2, 1), V), target[:, :-1]], 1)
    logits = np.asarray(apply(model.config, model.params, source, shifted))
    np.testing.assert_allclose(logits[..., :V], expected.numpy(), rtol=0, atol=1e-6)
    assert not logits[..., V].any()

    export_checkpoint(model, tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz") as back, np.load(tmp_path / "model.npz") as first:
        assert {*back.files} == {*first.files}
        assert all(np.array_equal(back[name], first[name]) and back[name].dtype == first[name].dtype for name in first)


def test_a_vocabulary_beside_it_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sentencepiece

    (tmp_path / "text").write_text("who sleeps here\nwho reads there\nthe cat sees who sleeps\n" * 20)
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text"), model_prefix=str(tmp_path / side), vocab_size=V, eos_id=0, unk_id=1,
            bos_id=-1, hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (tmp_path / f"{side}.model").rename(tmp_path / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.spm"))
    words = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
    words += [f"more{i}" for i in range(V - len(words))]
    (tmp_path / "opus.vocab.yml").write_text("".join(f"{json.dumps(word)}: {i}\n" for i, word in enumerate(words)))
    path = write(tmp_path / "model.npz", options_of(), made(options_of()))
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "format:   model of Marian's (.npz)" in printed
    assert "by vocab.json, source.spm, target.spm" in printed
    assert "ready to translate" in printed
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back.npz")]) == 0


@pytest.mark.parametrize("named", [False, True])
def test_sentencepiece_models_may_be_its_vocabularies(named: bool, tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "vocab"), vocab_size=V, eos_id=0, unk_id=1, bos_id=-1,
        minloglevel=2,
    )  # fmt: skip
    (tmp_path / "vocab.model").rename(tmp_path / "vocab.spm")
    if named:
        (tmp_path / "other.spm").write_bytes(b"of another model")
        (tmp_path / "model.npz.decoder.yml").write_text("vocabs: [there/vocab.spm, there/vocab.spm]\n")
    path = write(tmp_path / "model.npz", options_of(), made(options_of()))
    assert main(["port", str(path), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "vocab.spm"))
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    text = "who reads the cat"
    assert model.source_tokenizer.encode([text]) == [[*pieces.encode(text), 0]]
    assert model.target_tokenizer.decode([[*pieces.encode(text), 0, V]]) == [text]


def with_option(name: str, value: Any) -> Callable[[Path], None]:
    return lambda path: write(path, options_of() | {name: value}, made(options_of())) and None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:900])


def without_options(path: Path) -> None:
    np.savez(path, **made(options_of()))


def pickled(path: Path) -> None:
    np.savez(path, a=np.array([print], dtype=object), allow_pickle=True)


def without_a_matrix(path: Path) -> None:
    write(path, options_of(), {name: array for name, array in made(options_of()).items() if "l2_self_Wk" not in name})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_option("transformer-decoder-autoreg", "rnn"), "autoreg must be 'self-attention'; received 'rnn'"),
        (with_option("type", "amun"), "type must be 'transformer'; received 'amun'"),
        (with_option("transformer-heads", 3), "num_heads"),
        (with_option("transformer-ffn-activation", "prelu"), "must be one of relu, swish, gelu; received 'prelu'"),
        (cut, "truncated, or no .npz file"),
        (without_options, "with its options in special:model.yml; received none"),
        (pickled, "truncated, or no .npz file"),
        (without_a_matrix, "missing tensor encoder_l2_self_Wk"),
    ],
    ids=["rnn", "amun", "heads", "activation", "cut", "no_options", "pickle", "matrix"],
)
def test_other_files_are_refused(
    damage: Callable[[Path], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "model.npz", options_of(), made(options_of()))
    damage(path)
    assert main(["port", str(path), str(tmp_path / "model")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "model").exists()


def test_a_binary_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.bin").write_bytes(struct.pack("<QQ", 1, 3) + bytes(96))
    assert main(["port", str(tmp_path / "model.bin"), str(tmp_path / "model")]) == 2
    assert "received its binary model" in capsys.readouterr().err
