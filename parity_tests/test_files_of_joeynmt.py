"""Model directories of JoeyNMT: read with the logits of its formulas and the ids of its tokens, written with the same
bits, refused in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from jax_transformer import apply, import_checkpoint, load_model
from jax_transformer.cli import main
from parity_tests.plain_transformer import LENGTH, D, Shape, Stack, Tensors, V, logits, made

SPECIALS = ["<unk>", "<pad>", "<s>", "</s>"]
WORDS = [*SPECIALS, *(f"w{i}" for i in range(V - 4))]
PARTS = {
    "self/q": "{self}.q_layer",
    "self/k": "{self}.k_layer",
    "self/v": "{self}.v_layer",
    "self/o": "{self}.output_layer",
    "self/norm": "{self_norm}",
    "cross/q": "src_trg_att.q_layer",
    "cross/k": "src_trg_att.k_layer",
    "cross/v": "src_trg_att.v_layer",
    "cross/o": "src_trg_att.output_layer",
    "cross/norm": "dec_layer_norm",
    "feed/in": "feed_forward.pwff_layer.0",
    "feed/out": "feed_forward.pwff_layer.3",
    "feed/norm": "feed_forward.layer_norm",
}
OWN = {
    "encoder": {"self": "src_src_att", "self_norm": "layer_norm"},
    "decoder": {"self": "trg_trg_att", "self_norm": "x_layer_norm"},
}


def named(parts: Tensors) -> Tensors:
    """Returns plain parts under JoeyNMT's names."""
    tables = {"source": "src_embed.lut.weight", "target": "trg_embed.lut.weight"}
    tables["head/weight"] = "decoder.output_layer.weight"
    found = {}
    for name, tensor in parts.items():
        stack, _, rest = name.partition("/")
        if name in tables:
            found[tables[name]] = tensor
        elif rest == "positions":
            found[f"{stack}.pe.pe"] = tensor[None]
        elif rest.startswith("norm"):
            found[f"{stack}.layer_norm.{rest.removeprefix('norm/')}"] = tensor
        else:
            layer, _, part = rest.partition("/")
            inner, _, kind = part.rpartition("/")
            found[f"{stack}.layers.{layer}.{PARTS[inner].format(**OWN[stack])}.{kind}"] = tensor
    return found


def options_of(shape: Shape, **data: Any) -> dict[str, Any]:
    def stack(of: Stack) -> dict[str, Any]:
        activations = {torch.relu: "relu", torch.nn.functional.silu: "swish", torch.nn.functional.gelu: "gelu"}
        found = {
            "type": "transformer",
            "num_layers": of.depth,
            "num_heads": of.heads,
            "hidden_size": D,
            "ff_size": 12,
            "alpha": of.alpha,
            "activation": activations[of.activation],
            "embeddings": {"embedding_dim": D, "scale": of.scaled},
        }
        without = of.pre and not of.final  # as in encoders that don't say it
        return found if without else found | {"layer_norm": "pre" if of.pre else "post"}

    side = {"level": "word"}
    return {
        "name": "small",
        "joeynmt_version": "2.3.0",
        "data": {"src": {"lang": "en", **side}, "trg": {"lang": "de", **side}, **data},
        "testing": {"beam_size": 1, "max_output_length": 12},
        "model": {
            "tied_embeddings": shape.shared,
            "tied_softmax": shape.tied,
            "encoder": stack(shape.encoder),
            "decoder": stack(shape.decoder),
        },
    }


def write(folder: Path, options: dict[str, Any], weights: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    state = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1.0}]}
    torch.save({"model_state": weights, "optimizer_state": state, "scaler_state": None}, folder / "best.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("\n".join(WORDS) + "\n")
    return folder


KINDS = {
    "tied": Shape(shared=True, tied=True, head_bias=False, pad=1),
    "post": Shape(
        encoder=Stack(pre=False, final=False, scaled=False, depth=1, activation=torch.nn.functional.silu),
        decoder=Stack(pre=False, final=False, depth=3, heads=4),
        head_bias=False,
        pad=1,
    ),
    "usual": Shape(
        encoder=Stack(final=False, alpha=1.5, activation=torch.nn.functional.gelu),
        decoder=Stack(pre=False, final=False, alpha=0.5),
        tied=True,
        head_bias=False,
        pad=1,
    ),
}
"""The last leaves layer_norm out of both stacks: the encoder then norms first and has no norm at its end."""


@pytest.mark.parametrize("kind", KINDS)
def test_logits_follow_its_formulas_and_bits_return(kind: str, tmp_path: Path) -> None:
    shape = KINDS[kind]
    parts = made(shape)
    folder = write(tmp_path / "joey", options_of(shape), named(parts))
    assert main(["port", str(folder), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    draw = np.random.default_rng(0)
    source, target = draw.integers(4, V, (2, 9)), draw.integers(4, V, (2, 6))
    source[1, 6:], target[1, 4:] = 1, 1
    expected = logits(shape, parts, torch.tensor(source), torch.tensor(target)).numpy()
    computed = np.asarray(apply(model.config, model.params, source, target))
    np.testing.assert_allclose(computed[target != 1], expected[target != 1], rtol=0, atol=1e-6)
    assert (model.config.encoder.max_length, model.config.share_embeddings) == (LENGTH, shape.shared)

    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    back, first = (torch.load(each / "best.ckpt")["model_state"] for each in (tmp_path / "back", folder))
    assert list(back) == list(first)
    assert all(torch.equal(back[name], first[name]) for name in first)
    for name in ("config.yaml", "src_vocab.txt", "trg_vocab.txt"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


def test_ids_and_rules_of_its_search_come_along(tmp_path: Path) -> None:
    symbols = {"bos_token": "<start>", "unk_token": "<oov>", "sep_token": "<sep>", "sep_id": 4, "lang_tags": ["<de>"]}
    options = options_of(KINDS["tied"], special_symbols=symbols)
    options["testing"] |= {"generate_unk": False, "min_output_length": 2}
    folder = write(tmp_path / "joey", options, named(made(KINDS["tied"])))
    words = ["<oov>", "<pad>", "<start>", "</s>", "<sep>", "<de>", *WORDS[6:]]
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("\n".join(words[2:]) + "\n")  # its first lines may be missing
    assert main(["port", str(folder), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    generation = model.generation
    assert (generation.decoder_start_id, generation.eos_id) == (2, 3)
    assert generation.suppress_tokens == (0, 2, 4, 5)
    assert (generation.min_new_tokens, generation.max_new_tokens) == (2, 12)
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.encode(["w2 <sep> w9"]) == [[6, 0, 13, 3]]
    assert model.source_tokenizer.tags == ("<sep>", "<de>")


def ported(folder: Path, words: list[str], side: dict[str, Any], **files: bytes) -> Any:
    """Returns the model of a directory whose sides split text so."""
    shape = KINDS["tied"]
    folder = write(
        folder, options_of(shape, src={"lang": "en", **side}, trg={"lang": "de", **side}), named(made(shape))
    )
    words += [f"more{i}" for i in range(V - 4 - len(words))]
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("\n".join([*SPECIALS, *words]) + "\n")
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    assert main(["port", str(folder), str(folder.with_name("model"))]) == 0
    return load_model(folder.with_name("model"))


def test_subword_nmt_splits_into_the_vocabulary_alone(tmp_path: Path) -> None:
    codes = b"#version: 0.2\nl o\nlo w\ne r</w>\nlow er</w>\nn e\nne w</w>\n"
    side = {
        "level": "bpe", "tokenizer_type": "subword-nmt", "lowercase": True, "tokenizer_cfg": {"codes": "x/codes.en"},
    }  # fmt: skip
    words = ["low@@", "er", "new", "n@@", "lo@@", "w", "e@@"]
    model = ported(tmp_path / "joey", words, side, codes_en=codes)
    tokenizer = model.source_tokenizer
    ids = tokenizer.encode(["Lower new ner", "low xew"])
    assert [tokenizer.tokens(each) for each in ids] == [
        ["low@@", "er", "new", "n@@", "er", "<eos>"],  # "lower" isn't in the list: its last merge is undone
        ["lo@@", "w", "<unk>", "e@@", "w", "<eos>"],
    ]
    assert model.target_tokenizer.decode([ids[0], [*ids[0][:1]]]) == ["lower new ner", "low"]


def test_characters_have_a_mark_for_the_space(tmp_path: Path) -> None:
    model = ported(tmp_path / "joey", ["a", "b", "▁", "B"], {"level": "char", "normalize": True})
    ids = model.source_tokenizer.encode(["a  B ,b"])
    assert ids == [[4, 6, 7, 0, 5, 3]]  # no space before the comma, which isn't in the list
    assert model.target_tokenizer.decode(ids) == ["a B<unk>b"]


def test_sentencepiece_splits_into_the_vocabulary_alone(tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "text").write_text("who sleeps here\nwho reads there\nthe cat sees who sleeps\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "sp"), vocab_size=30, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    data = (tmp_path / "sp.model").read_bytes()
    pieces = sentencepiece.SentencePieceProcessor(model_proto=data)
    known = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    side = {"level": "bpe", "tokenizer_cfg": {"model_file": "sp.model"}}
    whole = ported(tmp_path / "joey", known, side, sp_model=data)
    text = "who sleeps there"
    assert whole.source_tokenizer.tokens(whole.source_tokenizer.encode([text])[0])[:-1] == pieces.encode(
        text, out_type=str
    )
    assert whole.target_tokenizer.decode(whole.source_tokenizer.encode([text])) == [text]
    letters = [piece for piece in known if len(piece) == 1]
    few = ported(tmp_path / "joey", letters, side, sp_model=data)
    assert few.source_tokenizer.tokens(few.source_tokenizer.encode([text])[0]) == [*"▁who▁sleeps▁there", "<eos>"]


# --- other files


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def with_option(stack: str, name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        options = yaml.safe_load((folder / "config.yaml").read_text())
        options["model"][stack][name] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(options))

    return change


def of_lightning(folder: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(2)}, "epoch": 3}, folder / "best.ckpt")


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def with_code(folder: Path) -> None:
    torch.save({"model_state": {"a": torch.zeros(2)}, "stats": Code()}, folder / "best.ckpt")


def no_yaml(folder: Path) -> None:
    (folder / "config.yaml").write_text("model: [")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("config.yaml"), "it lacks config.yaml, its options"),
        (without("best.ckpt"), "it lacks best.ckpt, its weights"),
        (without("trg_vocab.txt"), "it lacks trg_vocab.txt, the tokens of the target"),
        (with_option("encoder", "type", "recurrent"), "model.encoder.type must be 'transformer'; received 'recurrent'"),
        (with_option("decoder", "activation", "tanh"), "must be one of relu, gelu, swish; received 'tanh'"),
        (with_option("encoder", "hidden_size", 16), "d_model: config.yaml says 16; the tensors say 8"),
        (with_option("encoder", "num_layers", 3), "num_encoder_layers: config.yaml says 3; the tensors say 2"),
        (with_option("decoder", "num_heads", 3), "num_heads"),
        (of_lightning, "expected JoeyNMT's checkpoint, with weights under model_state; received state_dict, epoch"),
        (with_code, "holds Python objects as well as tensors"),
        (no_yaml, "config.yaml: expected YAML"),
    ],
)
def test_other_files_are_refused(
    damage: Callable[[Path], Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = KINDS["tied"]
    folder = write(tmp_path / "joey", options_of(shape), named(made(shape)))
    damage(folder)
    assert main(["port", str(folder), str(tmp_path / "model")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joey"]


def test_inspect_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = KINDS["tied"]
    folder = write(tmp_path / "joey", options_of(shape), named(made(shape)))
    without("src_vocab.txt")(folder)
    assert main(["port", str(folder), "--inspect"]) == 0
    printed = capsys.readouterr().out
    assert "format: model directory of JoeyNMT" in printed
    assert "num_heads=2" in printed
    assert "missing: src_vocab.txt, the tokens of the source" in printed
    assert "could be joeynmt" in printed


def test_a_model_of_another_origin_is_written_as_a_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = named(made(KINDS["tied"]))
    torch.save(weights, tmp_path / "model.pt")
    hints = {"share_embeddings": True, "tie_head": True, "num_heads": 2, "decoder_num_heads": 2}
    more = {"norm_placement": "pre", "scale_embedding": True, "activation": "relu"}
    model = import_checkpoint(tmp_path / "model.pt", "joeynmt", **hints, **more, source_pad_id=1, target_pad_id=1)
    from jax_transformer import export_checkpoint
    from jax_transformer.porting import PortingError

    with pytest.raises(PortingError, match="expected a model that came from JoeyNMT's directory"):
        export_checkpoint(model, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    export_checkpoint(model, tmp_path / "back.pt")
    assert torch.load(tmp_path / "back.pt").keys() == weights.keys()
