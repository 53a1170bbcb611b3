"""Files that fairseq itself writes for BART, M2M-100 and NLLB: the head has another name, and there are numbers
that no program needs."""

from __future__ import annotations

import argparse
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jax_transformer import apply, import_checkpoint, load_model
from jax_transformer.cli import main
from jax_transformer.porting import export_checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 16,
    "max_position_embeddings": 24,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
}
HINTS: dict[str, Any] = {
    "num_heads": 2,
    "decoder_num_heads": 2,
    "source_pad_id": 1,
    "target_pad_id": 1,
    "scale_embedding": False,
    "activation": "gelu",
    "share_embeddings": True,
    "max_length": 24,
}
FAMILIES = {
    "bart": (transformers.BartForConditionalGeneration, transformers.BartConfig),
    "m2m_100": (transformers.M2M100ForConditionalGeneration, transformers.M2M100Config),
}


def made(family: str, folder: Path, *, is_tied: bool) -> tuple[Any, dict[str, torch.Tensor], Path]:
    """Returns a model of transformers, its tensors by fairseq's names, and a file of them."""
    torch.manual_seed(0)
    module_class, config_class = FAMILIES[family]
    config = config_class(**SIZES, activation_function="gelu", scale_embedding=False)
    module = module_class(config).eval()
    if not is_tied:
        module.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn_like(module.lm_head.weight))
    left_out = ("shared.weight", "lm_head.weight", "final_logits_bias", "embed_positions.weights")
    held = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in module.state_dict().items()
        if not name.endswith(left_out)
    }
    held["decoder.output_projection.weight"] = module.lm_head.weight.detach().clone()
    for stack in ("encoder", "decoder"):
        held[f"{stack}.version"] = torch.tensor([3.0])
        if family == "m2m_100":
            held[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    torch.save({"args": None, "cfg": None, "model": held, "extra_state": {}}, folder / "fairseq.pt")
    return module, held, folder / "fairseq.pt"


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, is_tied: bool, tmp_path: Path) -> None:
    module, held, file = made(family, tmp_path, is_tied=is_tied)
    model = import_checkpoint(file, dialect=family, **HINTS)
    assert model.config.tie_head == is_tied
    source, target = (np.random.default_rng(0).integers(4, 37, (2, length)) for length in (9, 6))
    with torch.no_grad():
        expected = module(torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits.numpy()
    np.testing.assert_allclose(apply(model.config, model.params, source, target), expected, atol=1e-6)

    export_checkpoint(model, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    back = back.get("model", back)
    assert back.keys() == held.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())


# --- options in the file


def options_of(family: str, **others: Any) -> dict[str, Any]:
    """Returns the options of a model of `made`, as fairseq keeps them."""
    is_bart = family == "bart"
    stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in STACK.items()}
    return {
        "arch": "bart_large" if is_bart else "transformer_wmt_en_de_big",
        **stacks,
        **{f"{stack}_normalize_before": not is_bart for stack in ("encoder", "decoder")},
        **{f"{stack}_learned_pos": is_bart for stack in ("encoder", "decoder")},
        "layernorm_embedding": is_bart,
        "activation_fn": "gelu",
        "no_scale_embedding": True,
        "share_all_embeddings": True,
        "max_source_positions": 24,
        "dropout": 0.1,
    } | others


STACK = {"attention_heads": 2, "embed_dim": 16, "ffn_embed_dim": 20, "layers": 1}


def nested(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options as a run with `cfg` keeps them: those of a stack in a dict of their own."""
    flat = {name: value for name, value in options.items() if not name.startswith(("encoder_", "decoder_"))}
    stacks = {
        stack: {name.removeprefix(f"{stack}_"): value for name, value in options.items() if name.startswith(stack)}
        for stack in ("encoder", "decoder")
    }
    return flat | stacks | {"arch": None, "_name": options["arch"]}


@pytest.mark.parametrize("place", ["args", "cfg", "cfg of a namespace"])
@pytest.mark.parametrize("family", FAMILIES)
def test_options_in_the_file_decide(family: str, place: str, tmp_path: Path) -> None:
    module, held, file = made(family, tmp_path, is_tied=True)
    options = options_of(family)
    said: dict[str, Any] = {
        "args": {"args": argparse.Namespace(**options), "cfg": None},
        "cfg": {"args": None, "cfg": {"model": nested(options), "task": {"_name": "translation"}}},
        "cfg of a namespace": {"args": None, "cfg": {"model": argparse.Namespace(**options)}},
    }[place]
    torch.save({**said, "model": held, "extra_state": {"epoch": 3}}, file)
    model = import_checkpoint(file)
    assert model.origin is not None
    assert model.origin["dialect"] == family
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 2)
    source, target = (np.random.default_rng(0).integers(4, 37, (2, length)) for length in (9, 6))
    with torch.no_grad():
        expected = module(torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits.numpy()
    np.testing.assert_allclose(apply(model.config, model.params, source, target), expected, atol=1e-6)
    with pytest.raises(ValueError, match=rf"num_heads: {place[:4].rstrip()}.* says 2; received 4"):
        import_checkpoint(file, num_heads=4)


def test_objects_of_fairseq_are_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of a run are pickled as objects of classes that nothing imports."""
    _, held, file = made("bart", tmp_path, is_tied=True)
    meters = types.ModuleType("fairseq.meters")
    meters.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
        patch.setitem(sys.modules, "fairseq.meters", meters)
        meter = meters.AverageMeter()
        meter.sum = 3.0
        content = {"args": argparse.Namespace(**options_of("bart")), "model": held, "extra_state": {"meter": meter}}
        torch.save(content, file)
        torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert import_checkpoint(file).config == import_checkpoint(tmp_path / "old.pt").config
    assert "fairseq.meters" not in sys.modules


class Command:
    """Runs a command when it is unpickled carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"arch": "fconv_wmt_en_de"}, "expected one of fairseq's Transformers or BARTs; its args says arch='fconv_"),
        ({"arch": "transformer_lm_big"}, "its args says arch='transformer_lm_big'"),
        ({"adaptive_input": True}, "adaptive_input must be off; received True"),
        ({"decoder_embed_dim": 8}, "decoder_embed_dim must be encoder_embed_dim=16; received 8"),
        ({"activation_fn": "linear"}, "activation_fn must be one of relu, gelu, gelu_accurate, swish"),
        ({"layernorm_embedding": False}, "layernorm_embedding=False, encoder_normalize_before=False"),
    ],
)
def test_other_architectures_are_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, held, file = made("bart", tmp_path, is_tied=True)
    torch.save({"args": argparse.Namespace(**options_of("bart", **said)), "model": held}, file)
    with pytest.raises(ValueError, match=re.escape(message)):
        import_checkpoint(file)


def test_code_in_a_file_never_runs(tmp_path: Path) -> None:
    _, held, file = made("bart", tmp_path, is_tied=True)
    options = argparse.Namespace(**options_of("bart"), task=Command(tmp_path / "ran"))
    torch.save({"args": options, "model": held}, file)
    with pytest.raises(ValueError, match="which are not loaded"):
        import_checkpoint(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("names", [("dict.txt",), ("dict.en.txt", "dict.de.txt")])
def test_dictionaries_next_to_it_are_the_tokenizers(names: tuple[str, ...], tmp_path: Path) -> None:
    module, held, file = made("bart", tmp_path, is_tied=True)
    options = options_of("bart") | {"source_lang": "en", "target_lang": "de"}
    torch.save({"args": argparse.Namespace(**options), "model": held}, file)
    size = module.config.vocab_size
    for name in names:
        (tmp_path / name).write_text("".join(f"w{i} {9 * size - i}\n" for i in range(size - 4)))
    assert main(["port", str(file), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    assert model.source_tokenizer.encode(["w0 w5 x"]) == [[4, 9, 3, 2]]
    assert model.target_tokenizer.decode([[2, 4, 9, 2]]) == ["w0 w5"]


def test_pieces_in_a_dictionary_are_of_the_sentencepiece_model(tmp_path: Path) -> None:
    import sentencepiece

    module, held, file = made("bart", tmp_path, is_tied=True)
    torch.save({"args": argparse.Namespace(**options_of("bart")), "model": held}, file)
    (tmp_path / "text").write_text("who sleeps here\nwho reads there\nthe cat sees who sleeps\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spm"), vocab_size=30, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    known = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    words = known + [f"madeupword{i:04}" for i in range(module.config.vocab_size - 4 - len(known))]
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    assert main(["port", str(file), str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    text = "who reads there"
    ids = model.source_tokenizer.encode([text])
    assert ids == [[*(4 + known.index(piece) for piece in pieces.encode(text, out_type=str)), 2]]
    assert model.target_tokenizer.decode(ids) == [text]


def test_inspect_prints_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, held, file = made("bart", tmp_path, is_tied=True)
    torch.save({"args": argparse.Namespace(**options_of("bart")), "model": held}, file)
    assert main(["port", str(file), "--inspect"]) == 0
    printed = capsys.readouterr().out
    assert "format: fairseq's file, arch=" in printed
    assert "args says num_heads=" in printed
