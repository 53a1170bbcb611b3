"""Directories of transformers: what is refused, with its reason, and that nothing is half-written. (What they compute:
parity_tests.)"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pytest
from safetensors.numpy import save_file

from jax_transformer.cli import main
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.translation import translate
from jax_transformer.model import functional
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.dialects import all_dialects
from jax_transformer.porting.state_dicts import state_dict_from_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.storage.tensors import PortingError

FAMILIES = [
    name for name, table in all_dialects().items() if table.config_file and name != "m2m_100"
]  # whose tables PyTorch makes
METADATA = {"format": "pt"}
SIZES: dict[str, Any] = {
    "source_vocab_size": 13,
    "target_vocab_size": 13,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 7,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "max_length": 20,
    "source_pad_id": 1,
    "target_pad_id": 1,
    "share_embeddings": True,
    "tie_head": True,
}


def make_config(name: str, **options: Any) -> TransformerConfig:
    table = all_dialects()[name]
    first = {field: values[-1] for field, values in table.choices.items()}
    return TransformerConfig(**{**table.defaults, **first, **table.fixed, **SIZES, **options})


def make_model(config: TransformerConfig) -> Model:
    rng = np.random.default_rng(7)
    shapes = functional.abstract_params(config)
    params = {path: rng.standard_normal(leaf.shape).astype(np.float32) for path, leaf in flatten(shapes).items()}
    from jax_transformer.runtime.trees import unflatten

    return Model(config, unflatten(params), None, None, GenerationConfig(decoder_start_id=2, eos_id=3))


def write(folder: Path, name: str = "t5", **json_options: Any) -> Path:
    """A directory of transformers, written by hand of what a small model of the family has."""
    config = make_config(name)
    model = make_model(config)
    file = all_dialects()[name].config_file
    assert file is not None
    content = {
        "model_type": file.model_type,
        "architectures": [file.architectures[0]],
        "is_encoder_decoder": True,
        **file.write(config),
    }
    content |= {"decoder_start_token_id": 2, "eos_token_id": 3} | json_options
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    tensors = state_dict_from_params(config, model.params, name)
    save_file(
        {key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors", METADATA
    )
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_directory_becomes_a_model_directory_and_comes_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write(tmp_path / "there", name)
    (there / "source.spm").write_bytes(b"\x00pieces")
    (there / "generation_config.json").write_text(json.dumps({"num_beams": 4, "eos_token_id": 3}))
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert f"dialect:  {name}\n" in printed
    assert "text:     its tokenizer files are kept for export, but not used: expected " in printed
    assert "parameters, without vocabularies\n" in printed
    model = load_model(tmp_path / "model")
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 3)
    assert model.tokenizer_files == {"source.spm": b"\x00pieces"}
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    for file in ("model.safetensors", "source.spm"):
        assert (tmp_path / "back" / file).read_bytes() == (there / file).read_bytes()
    config, generation = (
        json.loads((tmp_path / "back" / f"{file}.json").read_text()) for file in ("config", "generation_config")
    )
    assert config == json.loads((there / "config.json").read_text()) | {"dtype": "float32", "pad_token_id": 1}
    assert generation == {"num_beams": 4, "eos_token_id": 3}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_was_trained_here_can_go_to_transformers(name: str, tmp_path: Path) -> None:
    """Its config.json says all that its config does."""
    model = make_model(make_config(name, dropout_rate=0.2))
    export_checkpoint(model, tmp_path / "there", name)
    back = import_checkpoint(tmp_path / "there")
    before, after = dataclasses.asdict(model.config), dataclasses.asdict(back.config)
    of_dropout = {
        name for name in before if name.endswith("dropout_rate")
    }  # None is dropout_rate, and T5 has one rate for all
    assert {name for name in before if before[name] != after[name]} <= {*of_dropout, "head_dim"}
    assert (back.config.encoder, back.config.decoder) == (model.config.encoder, model.config.decoder)
    assert after["dropout_rate"] == 0.2
    expected, received = flatten(model.params), flatten(back.params)
    assert all(np.array_equal(expected[path], received[path]) for path in expected)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (
            "t5",
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "is_encoder_decoder": ...},
            r"model_type must be one of marian, .*umt5; received 'gpt2' \(GPT2LMHeadModel\), which isn't said to be "
            r"an encoder-decoder",
        ),
        (
            "t5",
            {"architectures": ["T5EncoderModel"]},
            r"architectures must be T5ForConditionalGeneration or T5Model or .*; received T5Enc",
        ),
        (
            "marian",
            {"architectures": ["MarianForCausalLM"], "is_decoder": True, "is_encoder_decoder": False},
            r"is_encoder_decoder must be True; received False\n.*is_decoder must be False; received True\n.*received "
            r"MarianForCausalLM",
        ),
        (
            "bart",
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: quantised weights can't be carried over",
        ),
        (
            "bart",
            {"activation_function": "tanh"},
            "activation_function must be one of relu, .*; received 'tanh', which isn't built here",
        ),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn must be one of relu, .*; received 'mish'"),
        (
            "t5",
            {"feed_forward_proj": "gated-mish", "dense_act_fn": ...},
            "feed_forward_proj must be one of .*; received 'gated-mish'",
        ),
        (
            "t5",
            {"feed_forward_proj": "half-relu"},
            "feed_forward_proj must be NAME or gated-NAME; received 'half-relu'",
        ),
        (
            "bart",
            {"activation_function": ["gelu"]},
            r"activation_function must be one of relu, .*; received \['gelu'\]",
        ),
        ("bart", {"architectures": "BertModel"}, "architectures must be .*; received BertModel, which"),
        ("bart", {"architectures": [None, 1]}, "architectures must be .*; received None, 1, which"),
        ("bart", {"model_type": ["bart"]}, r"model_type must be one of .*; received \['bart'\]"),
        ("bart", {"hidden_size": 24}, "d_model: config.json says 24; the tensors say 12"),
        ("t5", {"head_dim": 5}, "head_dim: config.json says 5; the tensors say 4"),
        ("t5", {"num_hidden_layers": 1}, "num_encoder_layers: config.json says 1; the tensors say 2"),
        ("marian", {"normalize_before": True}, "normalize_before must be False; received True"),
        ("bart", {"d_model": 24}, "d_model: config.json says 24; the tensors say 12"),
        ("t5", {"num_layers": 3}, "num_encoder_layers: config.json says 3; the tensors say 2"),
        ("t5", {"eos_token_id": [3, 4]}, r"eos_token_id must be one id; received \[3, 4\]"),
    ],
)
def test_another_kind_of_model_is_refused(name: str, options: dict[str, Any], told: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "there", name, **options)
    with pytest.raises(PortingError, match=told):
        import_checkpoint(directory)
    assert main(["port", str(directory), str(tmp_path / "model")]) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("bart", {"num_attention_heads": 6}, {"num_heads": 6}),
        ("bart", {"num_attention_heads": 6, "encoder_attention_heads": ...}, {"num_heads": 6}),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"},
            {"activation": "relu", "feed_forward_gated": True},
        ),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu", "dense_act_fn": ...},
            {"activation": "gelu_tanh", "feed_forward_gated": True},
        ),
        ("t5", {"scale_decoder_outputs": None, "tie_word_embeddings": True}, {"scale_head": False}),
        ("t5", {"scale_decoder_outputs": ..., "tie_word_embeddings": True}, {"scale_head": True}),
        ("t5", {"architectures": ["T5WithLMHeadModel"]}, {}),
    ],
)
def test_what_config_json_says_in_other_words(
    name: str, options: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    """As transformers takes it: other names of keys prevail, and so do T5's dense_act_fn and is_gated_act. It is
    written back as it was."""
    directory = write(tmp_path / "there", name, **options)
    model = import_checkpoint(directory)
    assert {field: getattr(model.config, field) for field in fields} == fields
    export_checkpoint(model, tmp_path / "back")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (directory, tmp_path / "back"))
    assert after == before | {"dtype": "float32"}


def test_a_config_that_changed_is_written_without_other_names(tmp_path: Path) -> None:
    model = import_checkpoint(write(tmp_path / "there", "bart", num_attention_heads=6))
    export_checkpoint(
        dataclasses.replace(model, config=dataclasses.replace(model.config, dropout_rate=0.4)), tmp_path / "back"
    )
    back = import_checkpoint(tmp_path / "back").config
    assert (back.dropout_rate, back.num_heads) == (0.4, 6)
    assert "num_attention_heads" not in json.loads((tmp_path / "back" / "config.json").read_text())


# --- its tokenizer


def write_tokenizer(path: Path, names: tuple[str, ...] = ("<unk>", "<pad>", "<s>", "</s>"), words: int = 5) -> Path:
    """A tokenizer.json with these special tokens, a mask and a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {name: i for i, name in enumerate([*names, *(f"w{i}" for i in range(words))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([*names, ">>deu<<"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])])
    made.save(str(path))
    return path


def test_its_tokenizer_is_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the embedding beyond it have no token."""
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json")
    (there / "tokenizer_config.json").write_text('{"clean_up_tokenization_spaces": true}')
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "text:     by tokenizer.json, tokenizer_config.json",
        "          tags >>deu<<",
        "          not done: clean_up_tokenization_spaces, so that spaces before punctuation stay",
        f"model:    {tmp_path / 'model'}, 3,516 parameters, ready to translate",
    ]
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    assert (model.source_tokenizer.vocab_size, model.target_tokenizer.vocab_size) == (13, 13)
    assert model.source_tokenizer.encode(["w0 w4 x"]) == [[4, 8, 0, 3]]
    assert model.target_tokenizer.decode([[2, 4, 12, 9, 3]]) == ["w0 <unk>"]
    assert translate(model, ["w0 w1", ""])[1] == ""
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (there / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("names", "words", "told"),
    [
        (
            ("<unk>", "<pad>", "<s>", "</s>"),
            9,
            "its tokenizer: expected at most 13 tokens, the rows of the source embedding; received 14",
        ),
        (("<pad>", "<unk>", "<s>", "</s>"), 5, ""),  # padded with <unk>
        (("<s>", "<pad>", "<unk>", "</s>"), 5, ""),
        (
            ("<unk>", "<s>", "<pad>", "</s>"),
            5,
            "expected source_pad_id=1 to be its padding; received a list whose padding is 2",
        ),
        (("<s>", "<pad>", "</s>", "<unk>"), 5, "--eos-id: expected 2, as its tokenizer says; received 3"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_kept_but_not_used(
    names: tuple[str, ...], words: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json", names, words)
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    assert ("kept for export, but not used: " in (out := capsys.readouterr().out)) == bool(told)
    assert f"{told}\n" in out
    model = load_model(tmp_path / "model")
    assert (model.source_tokenizer is None) == (model.target_tokenizer is None) == bool(told)
    assert model.tokenizer_files is not None


def test_vocabularies_that_are_given_prevail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json")
    given = str(write_tokenizer(tmp_path / "given.json", words=7))
    options = ["--source-vocab", given, "--target-vocab", given]
    assert main(["port", str(there), str(tmp_path / "model"), *options]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.vocab_size == 13
    assert model.source_tokenizer.encode(["w6"]) == [[10, 3]]
    write_tokenizer(tmp_path / "given.json", words=9)
    assert main(["port", str(there), str(tmp_path / "other"), *options]) == 2
    assert (
        f"{given}: expected at most 13 tokens, the rows of the source embedding; received 14" in capsys.readouterr().err
    )


# --- how it is decoded


def test_what_it_says_of_decoding_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte; and what no decoding here obeys is named."""
    there = write(tmp_path / "there")
    text = '{"num_beams":4,\r\n"repetition_penalty":1.20, "name": "\\u00e4", "num_beams": 3 }'
    (there / "generation_config.json").write_bytes(text.encode())
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "decoding: beam_size=3\n" in printed
    assert "not decoded by: repetition_penalty=1.2 (kept for export)\n" in printed
    assert load_model(tmp_path / "model").generation.beam_size == 3
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "generation_config.json").read_bytes() == text.encode()


def test_what_is_said_of_decoding_may_be_given_instead(tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    (there / "generation_config.json").write_text('{"num_beams": 4, "max_length": 20}')
    model = import_checkpoint(there, beam_size=2, bad_words=[[4], [5, 6]])
    assert (model.generation.beam_size, model.generation.bad_words, model.generation.max_new_tokens) == (
        2,
        ((4,), (5, 6)),
        19,
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"num_beams": "4"}', r"there/generation_config\.json: num_beams must be an integer; received '4'"),
        ('{"num_beams": 4', r"there/generation_config\.json: no JSON"),
        ('{"early_stopping": "sometimes"}', "early_stopping must be .*; received 'sometimes'"),
        ('{"bad_words_ids": [4]}', r"bad_words must be .*; received \(4,\)"),
        ('{"max_length": 1}', "max_new_tokens must be at least 1; received 0"),
        ('{"forced_bos_token_id": 13}', "forced_bos_id must be below target_vocab_size=13; received 13"),
    ],
)
def test_what_cannot_be_said_of_decoding_is_refused(content: str, told: str, tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    (there / "generation_config.json").write_text(content)
    with pytest.raises(PortingError, match=told):
        import_checkpoint(there)


def test_a_model_directory_of_the_first_format_is_exported(tmp_path: Path) -> None:
    """It has the content of generation_config.json in place of its text, of which its generation.json says nothing."""
    model = import_checkpoint(write(tmp_path / "there"))
    assert model.origin is not None
    content = {"num_beams": 4, "eos_token_id": 3, "length_penalty": 2.0}
    model.origin["hugging_face"]["generation_config"] = content
    changed = dataclasses.replace(model, generation=dataclasses.replace(model.generation, beam_size=2))
    for name, one, expected in (("back", model, content), ("changed", changed, content | {"num_beams": 2})):
        export_checkpoint(one, tmp_path / name)
        assert json.loads((tmp_path / name / "generation_config.json").read_text()) == expected


def test_a_model_that_was_trained_here_says_how_long_its_translations_are(tmp_path: Path) -> None:
    """Or else transformers would stop after 20 tokens."""
    generation = GenerationConfig(decoder_start_id=2, eos_id=3, max_decode_length=15, beam_size=4)
    export_checkpoint(
        dataclasses.replace(make_model(make_config("bart")), generation=generation), tmp_path / "there", "bart"
    )
    assert json.loads((tmp_path / "there" / "generation_config.json").read_text()) == {
        "pad_token_id": 1,
        "num_beams": 4,
        "max_new_tokens": 15,
        "decoder_start_token_id": 2,
        "eos_token_id": 3,
    }


def test_no_generation_config_is_made_up(tmp_path: Path) -> None:
    """transformers makes one of config.json where there is none."""
    export_checkpoint(import_checkpoint(write(tmp_path / "there", forced_eos_token_id=3)), tmp_path / "back")
    assert not (tmp_path / "back" / "generation_config.json").exists()


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_that_is_told_is_that_of_most_values(key: str, tmp_path: Path) -> None:
    """Whatever the first tensor has."""
    directory = write(tmp_path / "there", "marian", **{key: "float16"})
    assert main(["port", str(directory), str(tmp_path / "model"), "--dtype", "bfloat16"]) == 0
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    content = json.loads((tmp_path / "back" / "config.json").read_text())
    assert [content[name] for name in ("dtype", "torch_dtype") if name in content] == ["bfloat16"]


def test_two_embeddings_leave_the_shared_one_unread(tmp_path: Path) -> None:
    """Models that aren't tied have it nonetheless, so it is left out and written anew."""
    from safetensors.numpy import load_file

    config = make_config("bart", share_embeddings=False, tie_head=False)
    export_checkpoint(make_model(config), tmp_path / "there", "bart")
    weights = tmp_path / "there" / "model.safetensors"
    tensors = load_file(weights)
    assert np.array_equal(tensors["model.shared.weight"], tensors["model.encoder.embed_tokens.weight"])
    save_file(tensors | {"model.shared.weight": np.ones((13, 12), np.float32)}, weights, METADATA)
    model = import_checkpoint(tmp_path / "there")
    assert model.origin is not None
    assert model.origin["ignored"] == ["model.shared.weight"]
    assert not model.config.share_embeddings
    export_checkpoint(model, tmp_path / "back")
    assert set(load_file(tmp_path / "back" / "model.safetensors")) == set(tensors)


@pytest.mark.parametrize(
    "kept", ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
)
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_tied_embedding_may_have_any_of_its_names(name: str, kept: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    directory = write(tmp_path / "there", name)
    tensors = load_file(directory / "model.safetensors")
    tensors[kept] = tensors.pop("model.shared.weight")
    save_file(tensors, directory / "model.safetensors", METADATA)
    config = import_checkpoint(directory).config
    assert config.share_embeddings
    assert config.tie_head


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("bart", {"norm_eps": 0.1}, r"norm_eps must be 1e-05, as in its programs; received 0\.1"),
        (
            "bart",
            {"share_embeddings": False, "target_vocab_size": 17},
            "target_vocab_size must be source_vocab_size=13; received 17",
        ),
    ],
)
def test_what_a_directory_cannot_tell_is_refused(name: str, options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(PortingError, match=told):
        export_checkpoint(make_model(make_config(name, **options)), tmp_path / "there", name)
    assert list(tmp_path.iterdir()) == []


def test_another_family_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(import_checkpoint(write(tmp_path / "there", "t5")), tmp_path / "model")
    for name in ("marian", "bart"):
        assert main(["port", str(tmp_path / "model"), str(tmp_path / "out"), "--dialect", name]) == 2
        assert "norm_kind must be 'layer_norm'; received 'rms_norm'" in capsys.readouterr().err


def test_weights_of_two_precisions_run(tmp_path: Path) -> None:
    """As T5's in float16, whose feed-forwards end in float32."""
    from safetensors.numpy import load_file

    directory = write(tmp_path / "there", "t5")
    tensors = load_file(directory / "model.safetensors")
    halves = {name: tensor if ".wo." in name else tensor.astype(np.float16) for name, tensor in tensors.items()}
    ids = np.array([[4, 5, 6]])
    whole = import_checkpoint(directory)
    save_file(halves, directory / "model.safetensors", METADATA)
    model = import_checkpoint(directory)
    logits, expected = (functional.apply(one.config, one.params, ids, ids) for one in (model, whole))
    assert np.linalg.norm(logits - expected) < 0.02 * np.linalg.norm(expected)


def test_a_link_to_an_empty_directory_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    export_checkpoint(import_checkpoint(write(tmp_path / "there")), tmp_path / "link")
    assert (tmp_path / "real" / "config.json").is_file()


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "model.safetensors").rename(directory / "tf_model.h5")
    with pytest.raises(PortingError, match=r"expected weights, one of model\.safetensors, .*; received tf_model\.h5"):
        import_checkpoint(directory)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing.safetensors", "no such file"),
        ("../there/model.safetensors", "expected names of files beside it, without folders"),
    ],
)
def test_shards_that_are_missing_or_elsewhere_are_refused(place: str, told: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "model.safetensors").rename(directory / "shard.safetensors")
    places = {"shared.weight": "shard.safetensors", "lm_head.weight": place}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(PortingError, match=told):
        import_checkpoint(directory)


def test_a_config_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PortingError, match=r"config\.json: No such file or directory"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PortingError, match=r"config\.json: no JSON"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(PortingError, match="expected a JSON object; received list"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(PortingError, match=r"config\.json: no JSON"):
        import_checkpoint(tmp_path)


def test_the_command_says_what_is_wrong_with_config_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    assert main(["port", str(tmp_path / "there"), str(tmp_path / "model")]) == 2
    assert "config.json: model_type must be one of marian" in capsys.readouterr().err


def test_hints_that_contradict_config_json_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    with pytest.raises(PortingError, match=r"activation: config\.json says 'silu'; received 'relu'"):
        import_checkpoint(directory, activation="relu")
    with pytest.raises(PortingError, match=r"dialect must be 't5', as its config\.json says; received 'mt5'"):
        import_checkpoint(directory, "mt5")
    assert import_checkpoint(directory, dropout_rate=0.4).config.dropout_rate == 0.4


def test_tensors_that_no_program_reads_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path / "there")
    from safetensors.numpy import load_file

    extra = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {extra: np.zeros((32, 3), np.float32)}, directory / "model.safetensors", METADATA)
    assert main(["port", str(directory), str(tmp_path / "model")]) == 0
    assert f"ignored:  {extra} (its programs don't read them)\n" in capsys.readouterr().out


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    save_model(import_checkpoint(directory), tmp_path / "model")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    for place in ("taken", "there", "no/such/parent"):
        assert main(["port", str(tmp_path / "model"), str(tmp_path / place)]) == 2
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "model" / "inside")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "taken", "there"]


def test_a_dialect_without_directories_says_so(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    model = import_checkpoint(directory)
    with pytest.raises(
        PortingError, match=r"dialect harvard has no directories, as marian, .* have: expected a name that ends in \.pt"
    ):
        export_checkpoint(model, tmp_path / "out", "harvard")


def test_a_name_on_the_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", "a--b/c", "a/b.git"):
        with pytest.raises(
            PortingError, match=f"{name}: no such file or directory, and no model of this name on the Hub"
        ):
            import_checkpoint(name)
    assert main(["port", "./nothing", str(tmp_path / "model")]) == 2


HUB_COMMAND = "import sys; from jax_transformer.cli import main; sys.exit(main(sys.argv[1:]))"


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks of a Hub, for one model in the folder `served`."""

    served: Path
    asked: ClassVar[list[str]] = []
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        file = self.served / path.rpartition("/")[2]
        if path.startswith("/api/models/someone/tiny/tree/"):
            files = [
                {"type": "file", "path": entry.name, "size": entry.stat().st_size, "oid": "0" * 40}
                for entry in self.served.iterdir()
            ]
            body = json.dumps(files).encode()
        elif path.startswith("/api/models/someone/tiny"):
            names = [{"rfilename": entry.name} for entry in sorted(self.served.iterdir())]
            body = json.dumps(
                {"id": "someone/tiny", "modelId": "someone/tiny", "sha": self.COMMIT, "siblings": names, "tags": []}
            ).encode()
        elif path.startswith("/someone/tiny/resolve/") and file.is_file():
            body = file.read_bytes()
            self.asked.append(file.name)
        else:
            self.send_error(404)
            return
        self.send_response(200)
        headers = {
            "X-Repo-Commit": self.COMMIT,
            "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
            "Content-Type": "application/json",
        }
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_a_name_on_the_hub(tmp_path: Path) -> None:
    """By huggingface_hub itself, from a Hub of our own: only the files that are needed, and from its cache the next
    time."""
    directory = write(tmp_path / "there", "bart")
    (directory / "tf_model.h5").write_bytes(b"not asked for")
    (directory / "README.md").write_text("nor this")
    (directory / "vocab.json").write_text("{}")
    Hub.served = directory
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
    }
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    try:
        for name, place, code in (("tiny", "model", 0), ("tiny", "again", 0), ("other", "none", 2)):
            command = [sys.executable, "-c", HUB_COMMAND, "port", f"someone/{name}", str(tmp_path / place)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
            assert (done.stdout + done.stderr).count(
                f"files:    someone/{name}" if code == 0 else "no model of this name on the Hub"
            ) == 1
    finally:
        server.shutdown()
        server.server_close()
    assert set(Hub.asked) == {"config.json", "model.safetensors", "vocab.json"}
    received, expected = load_model(tmp_path / "model"), import_checkpoint(directory)
    assert received.tokenizer_files == {"vocab.json": b"{}"}
    assert all(np.array_equal(leaf, flatten(expected.params)[path]) for path, leaf in flatten(received.params).items())


def test_the_tokenizers_files_are_under_checksums(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "spiece.model").write_bytes(b"pieces")
    save_model(import_checkpoint(directory), tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "spiece.model").write_bytes(b"others")
    with pytest.raises(ValueError, match=r"tokenizer/spiece\.model: altered since it was saved"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "spiece.model").unlink()
    with pytest.raises(ValueError, match=r"tokenizer/spiece\.model: missing"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "another").write_bytes(b"smuggled")
    with pytest.raises(ValueError, match="tokenizer/another: not listed in manifest"):
        load_model(tmp_path / "model")
