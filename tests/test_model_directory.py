"""Model directories lose nothing, detect changes, and overwrite no file of the user's."""

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.model.functional import abstract_params, init_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage import model_directory
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.storage.model_files import ModelError, is_model_directory
from jax_transformer.storage.model_tokenizers import with_tokenizers
from jax_transformer.storage.tensor_files import write_tensors
from jax_transformer.storage.training_state import TrainingState

CONFIG = TransformerConfig(
    source_vocab_size=13,
    target_vocab_size=11,
    d_model=12,
    num_heads=3,
    d_ff=7,
    num_encoder_layers=2,
    num_decoder_layers=1,
    max_length=9,
)
GENERATION = GenerationConfig(decoder_start_id=2, eos_id=3, max_decode_length=8)


ORIGIN = {"form": "dict", "keys": {}, "order": [], "parameters": [], "groups": [], "step": "none", "is_flat": False}
ORIGIN |= {"extras": {}, "others": {}, "left_out": []}
"""What the checkpoint of a training state said of it."""


def make_model(dtype="float32", **changes):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), abstract_params(CONFIG))
    return dataclasses.replace(Model(CONFIG, params, None, None, GENERATION), **changes)


def make_adapters(rank=2, **changes):
    """Returns adapters of the encoder's queries, [2, 12, 3, 4]."""
    draw = np.random.default_rng(1).standard_normal
    query = {"lora_a": draw((2, 12, rank)), "lora_b": draw((2, rank, 3, 4))} | changes
    leaves = {"encoder": {"layers": {"self_attention": {"query": query}}}}
    return Adapters(LoraConfig(rank=2, alpha=3, targets=("encoder/*/query/kernel",)), leaves)


def make_tokenizer():
    from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer

    return train_tokenizer(
        ["a dog sees a cat", "the cat"], kind="words", specials=SpecialIds(pad=0, unk=1, bos=2, eos=3)
    )


def sign(directory):
    """Makes the manifest agree with the current files."""
    manifest = json.loads((directory / "manifest.json").read_text())
    for name in manifest["sha256"]:
        manifest["sha256"][name] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps(manifest))


def edit(path, **changes):
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


def test_a_training_state_comes_back(tmp_path):
    moments = {"head/kernel": np.arange(132, dtype=np.float32).reshape(12, 11)}
    state = TrainingState("sgd", 3, {"momentum": moments}, {"momentum": 0.9}, 0.5, ORIGIN)
    save_model(make_model(training_state=state), tmp_path / "model")
    back = load_model(tmp_path / "model").training_state
    assert back.described() == state.described()
    np.testing.assert_array_equal(back.slots["momentum"]["head/kernel"], moments["head/kernel"])
    for wrong in (
        {"optimizer": "adam"},
        state.described() | {"train": {"foo": 1}},
        state.described() | {"origin": {"form": "dict"}},
    ):
        edit(tmp_path / "model" / "manifest.json", training_state=wrong)
        assert "as the manifest describes it" in problems_of(tmp_path / "model")[0]


def problems_of(path):
    with pytest.raises(ModelError) as error:
        load_model(path)
    assert all("\n" not in problem for problem in error.value.problems)
    return error.value.problems or [str(error.value)]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    save_model(make_model(), path)
    return path


# --- round trips


def test_decoding_settings_come_back(tmp_path):
    generation = dataclasses.replace(
        GENERATION, beam_size=4, early_stopping="never", bad_words=((4,), (5, 6)), forced_eos_id=3, top_p=0.5
    )
    save_model(make_model(generation=generation), tmp_path / "model")
    assert load_model(tmp_path / "model").generation == generation


def test_a_directory_of_the_first_format(saved):
    """Its generation.json has no decoding settings."""
    edit(saved / "manifest.json", format_version=1)
    content = json.loads((saved / "generation.json").read_text())
    ids_and_lengths = ("decoder_start_id", "eos_id", "max_decode_length", "source_length")
    (saved / "generation.json").write_text(json.dumps({name: content[name] for name in ids_and_lengths}))
    sign(saved)
    assert load_model(saved).generation == GENERATION


@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16])
def test_round_trip(dtype, tmp_path):
    model = make_model(
        dtype,
        source_tokenizer=make_tokenizer(),
        target_tokenizer=make_tokenizer(),
        origin={"dialect": "pytorch", "tensors": {"b": "float32", "a": "bfloat16"}},
        training={"step": 300, "metrics": {"loss": 1.5}},
    )
    save_model(model, tmp_path / "model")
    received = load_model(tmp_path / "model")
    assert (received.config, received.generation) == (model.config, model.generation)
    assert (received.origin, received.training) == (model.origin, model.training)
    assert list(received.origin["tensors"]) == ["b", "a"]
    assert received.source_tokenizer.to_json() == model.source_tokenizer.to_json()
    assert received.target_tokenizer.encode(["the dog"]) == model.target_tokenizer.encode(["the dog"])
    assert jax.tree.structure(received.params) == jax.tree.structure(model.params)
    for path, leaf in flatten(model.params).items():
        leaf_received = flatten(received.params)[path]
        assert isinstance(leaf_received, np.ndarray)
        assert (leaf_received.dtype, leaf_received.tobytes()) == (leaf.dtype, leaf.tobytes())


def test_jax_arrays_are_saved_too(tmp_path):
    params = jax.tree.map(jnp.asarray, make_model().params)
    save_model(make_model(params=params), tmp_path / "model")
    received = flatten(load_model(tmp_path / "model").params)
    assert all(np.array_equal(received[path], leaf) for path, leaf in flatten(params).items())


def test_a_model_rounded_to_another_dtype(tmp_path):
    model = make_model()
    save_model(model, tmp_path / "model")
    rounded = load_model(tmp_path / "model", mapped=True).astype("bfloat16")
    assert rounded.config == model.config.replace(compute_dtype="bfloat16")
    for path, leaf in flatten(model.params).items():
        expected = leaf.astype(ml_dtypes.bfloat16)
        assert flatten(rounded.params)[path].tobytes() == expected.tobytes()
    save_model(rounded, tmp_path / "rounded")
    assert load_model(tmp_path / "rounded").config.compute_dtype == "bfloat16"
    with pytest.raises(ConfigError, match="compute"):
        model.astype("float8")


def test_a_model_describes_itself_without_its_arrays():
    origin, training = {"dialect": "marian"}, {"step": 1200}
    model = make_model(target_tokenizer=make_tokenizer(), origin=origin, training=training)
    assert repr(model).splitlines() == [
        "Model: 3,656 parameters in float32",
        "  encoder: layers 2, width 12, heads 3, feed-forward 7",
        "  decoder: layers 1, width 12, heads 3, feed-forward 7",
        "  tokenizers: target of 9 tokens",
        "  weights: ported, dialect marian; trained, step 1,200",
    ]


def test_the_files(saved):
    assert sorted(file.name for file in saved.iterdir()) == [
        "config.json",
        "generation.json",
        "manifest.json",
        "params.safetensors",
    ]
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["format_version"] == 3
    assert sorted(manifest["sha256"]) == ["config.json", "generation.json", "params.safetensors"]
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_a_run_directory_with_a_model_in_it_is_accepted(saved):
    assert not is_model_directory(saved.parent)
    assert load_model(saved.parent).config == CONFIG


def test_loading_imports_neither_torch_nor_transformers_nor_datasets(tmp_path):
    save_model(make_model(source_tokenizer=make_tokenizer()), tmp_path / "model")
    program = (
        "import sys, jax_transformer.porting.importing\n"
        "from jax_transformer.storage.model_directory import load_model\n"
        "load_model(sys.argv[1])\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pandas'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# --- replacing


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_model_directory_is_replaced(saved, can_exchange, monkeypatch):
    if not can_exchange:
        monkeypatch.setattr(model_directory, "_exchange", lambda first, second: False)
    save_model(make_model(training={"step": 2}, source_tokenizer=make_tokenizer()), saved)
    assert load_model(saved).training == {"step": 2}
    save_model(make_model(training={"step": 3}), saved)
    assert load_model(saved).source_tokenizer is None
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_the_link_to_a_model_directory_stays_a_link(saved):
    link = saved.parent / "best"
    link.symlink_to(saved, target_is_directory=True)
    save_model(make_model(training={"step": 2}), link)
    assert link.is_symlink()
    assert load_model(saved).training == {"step": 2}


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "model").mkdir()
    save_model(make_model(), tmp_path / "model")
    assert load_model(tmp_path / "model").config == CONFIG


def test_a_failed_save_leaves_the_old_model(saved, monkeypatch):
    def fail(path, content):
        raise OSError("disk full")

    monkeypatch.setattr(model_directory, "_write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(make_model(training={"step": 2}), saved)
    assert load_model(saved).training is None
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_a_failed_rename_puts_the_old_model_back(saved, monkeypatch):
    path_class = type(saved)
    rename = path_class.rename

    def fail_for_new(self, target):
        if self.name.endswith(".tmp"):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(model_directory, "_exchange", lambda first, second: False)
    monkeypatch.setattr(path_class, "rename", fail_for_new)
    with pytest.raises(OSError, match="no"):
        save_model(make_model(training={"step": 2}), saved)
    assert load_model(saved).training is None
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_a_directory_without_a_model_is_never_replaced(saved):
    file = saved.parent / "notes.txt"
    file.write_text("notes")
    with pytest.raises(ModelError, match="is a file"):
        save_model(make_model(), file)
    with pytest.raises(ModelError, match="is a directory but no model's"):
        save_model(make_model(), saved.parent)
    (saved / "README.md").write_text("mine")
    with pytest.raises(ModelError, match=r"no part of a model and would be lost: README\.md"):
        save_model(make_model(), saved)
    with pytest.raises(ModelError, match="there is no directory"):
        save_model(make_model(), saved.parent / "a" / "b")
    assert file.read_text() == "notes"
    assert load_model(saved).config == CONFIG


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path):
    params = make_model().params
    params["head"]["kernel"] = params["head"]["kernel"].T
    del params["decoder"]["layers"]["feed_forward_norm"]["scale"]
    generation = GenerationConfig(decoder_start_id=2, eos_id=11)
    with pytest.raises(ModelError) as error:
        save_model(make_model(params=params, generation=generation), tmp_path / "model")
    assert error.value.problems == [
        "missing parameter decoder/layers/feed_forward_norm/scale (1, 12)",
        "parameter head/kernel: expected shape (12, 11); received (11, 12)",
        "generation: eos_id must be below target_vocab_size=11; received 11",
    ]
    assert not list(tmp_path.iterdir())


# --- what is refused


def test_places_without_a_model(tmp_path):
    assert "no such directory" in problems_of(tmp_path / "none")[0]
    assert "it has no manifest.json and no config.json" in problems_of(tmp_path)[0]
    (tmp_path / "file").write_text("")
    assert "is a file; expected a model directory" in problems_of(tmp_path / "file")[0]
    (tmp_path / "config.yaml").write_text("")
    assert problems_of(tmp_path)[0].endswith(
        f"without a model yet; to finish it: jax-transformer train --resume {tmp_path}"
    )


def test_a_newer_version(saved):
    edit(saved / "manifest.json", format_version=4)
    assert (
        "written by a newer version: its format_version is 4, and this one reads up to 3; upgrade"
        in problems_of(saved)[0]
    )


@pytest.mark.parametrize("version", [0, "1", None, True])
def test_a_manifest_without_a_version(saved, version):
    edit(saved / "manifest.json", format_version=version)
    assert "format_version must be a positive integer" in problems_of(saved)[0]


@pytest.mark.parametrize("text", ["{", "[1]", '{"format_version": 1, "sha256": [1]}', '{"format_version": 1}'])
def test_a_broken_manifest(saved, text):
    (saved / "manifest.json").write_text(text)
    assert "manifest.json" in problems_of(saved)[0]


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "altered") for name in model_directory.FILES if name != "target_tokenizer.json"]
    + [
        (name, "missing")
        for name in (
            "params.safetensors",
            "generation.json",
            "source_tokenizer.json",
            "ignored.safetensors",
            "optimizer.safetensors",
            "adapters.safetensors",
        )
    ],
)
def test_an_altered_or_missing_file_is_named(tmp_path, name, how):
    ignored = {"mask": np.tri(3, dtype=bool)}
    state = TrainingState("sgd", 3, {"momentum": {"head/kernel": np.ones((12, 11), np.float32)}}, origin=ORIGIN)
    held = {"source_tokenizer": make_tokenizer(), "ignored_tensors": ignored, "training_state": state}
    save_model(make_model(**held, adapters=make_adapters()), tmp_path / "model")
    path = tmp_path / "model" / name
    content = path.read_bytes()
    if how == "altered":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.unlink()
    assert [problem[: len(name) + 2 + len(how)] for problem in problems_of(tmp_path / "model")] == [f"{name}: {how}"]


@pytest.mark.parametrize("mapped", [False, True])
def test_adapters_come_back(tmp_path, mapped):
    expected = make_adapters()
    save_model(make_model(adapters=expected), tmp_path / "model")
    received = load_model(tmp_path / "model", mapped=mapped).adapters
    assert received.config == expected.config
    assert jax.tree.all(jax.tree.map(np.array_equal, received.params, expected.params))


@pytest.mark.parametrize(
    ("adapters", "problem"),
    [
        (make_adapters(rank=3), "expected A and B of rank 2 for a kernel (2, 12, 3, 4); received (2, 12, 3) and"),
        (make_adapters(lora_b=np.zeros((2, 2, 4, 3))), "received (2, 12, 2) and (2, 2, 4, 3)"),
        (make_adapters(lora_a=np.zeros((1, 12, 2))), "received (1, 12, 2) and (2, 2, 3, 4)"),
        (dataclasses.replace(make_adapters(), params={"encoder": {"lora_a": np.zeros(2)}}), "expected encoder/kernel"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(tmp_path, adapters, problem):
    with pytest.raises(ModelError, match=re.escape(problem)):
        save_model(make_model(adapters=adapters), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lora", "problem"),
    [
        (None, "lora: expected an object with rank, alpha"),
        ({"rank": 2}, "lora: expected an object with rank, alpha"),
        ({"rank": 3}, "expected A and B of rank 3"),
        ({"targets": "encoder"}, "lora: targets must be a list"),
        ({"alpha": "a"}, "alpha must be a number"),
    ],
)
def test_a_manifest_that_describes_other_adapters(tmp_path, lora, problem):
    save_model(make_model(adapters=make_adapters()), tmp_path / "model")
    own = json.loads((tmp_path / "model" / "manifest.json").read_text())["lora"]
    edit(tmp_path / "model" / "manifest.json", lora=lora if lora in (None, {"rank": 2}) else own | lora)
    with pytest.raises(ModelError, match=re.escape(problem)):
        load_model(tmp_path / "model")


def test_a_file_that_was_smuggled_in(saved):
    (saved / "target_tokenizer.json").write_text(make_tokenizer().to_json())
    assert problems_of(saved) == ["target_tokenizer.json: not listed in manifest.json"]
    (saved / "notes.txt").write_text("other files are nobody's business")
    (saved / "target_tokenizer.json").unlink()
    assert load_model(saved).config == CONFIG


def test_config_fields(saved):
    edit(saved / "config.json", d_modle=3, activation="swish")
    sign(saved)
    assert problems_of(saved) == ["config.json: unknown field d_modle (nearest: d_model)"]
    content = json.loads((saved / "config.json").read_text())
    del content["d_modle"]
    (saved / "config.json").write_text(json.dumps(content))
    sign(saved)
    assert (
        "activation must be one of relu, gelu, gelu_tanh, silu, none, leaky_relu, prelu, elu, selu, mish, quick_gelu, "
        "relu_squared, tanh, sigmoid, softplus; received 'swish'"
    ) in problems_of(saved)[0]


def test_a_config_field_that_is_not_there_has_its_default(saved):
    """Models saved before a field was added keep loading."""
    content = json.loads((saved / "config.json").read_text())
    del content["compute"]["remat"]
    (saved / "config.json").write_text(json.dumps(content))
    sign(saved)
    assert load_model(saved).config == CONFIG


def test_generation_fields(saved):
    (saved / "generation.json").write_text('{"eos": 3}')
    sign(saved)
    assert problems_of(saved) == ["generation.json: unknown field eos (nearest: eos_id)"]
    (saved / "generation.json").write_text('{"eos_id": 30, "decoder_start_id": 2}')
    sign(saved)
    assert problems_of(saved) == ["generation: eos_id must be below target_vocab_size=11; received 30"]
    (saved / "generation.json").write_text('{"bad_words": [[4, 11]], "forced_bos_id": 12, "beam_size": 2}')
    sign(saved)
    assert problems_of(saved) == [
        "generation: forced_bos_id must be below target_vocab_size=11; received 12",
        "generation: bad_words must be below target_vocab_size=11; received 11",
    ]
    (saved / "generation.json").write_text('{"bad_words": [4]}')
    sign(saved)
    assert "bad_words must be" in problems_of(saved)[0]
    (saved / "generation.json").write_text('{"beam_size": 0}')
    sign(saved)
    assert problems_of(saved) == ["generation.json: GenerationConfig: beam_size must be at least 1; received 0"]


def test_parameters_that_are_not_the_configs(saved):
    leaves = flatten(make_model().params)
    leaves["head/biass"] = leaves.pop("head/bias")
    leaves["head/kernel"] = leaves["head/kernel"].T
    leaves["encoder/layers/feed_forward_norm/scale"] = np.ones((2, 12), int)
    leaves["target_embedding"] = np.ones(2)
    write_tensors(saved / "params.safetensors", leaves)
    sign(saved)
    assert sorted(problems_of(saved)) == [
        "params.safetensors: missing parameter head/bias (11,) (nearest: head/biass)",
        "params.safetensors: parameter encoder/layers/feed_forward_norm/scale: expected a dtype of float16, bfloat16, "
        "float32, float64; "
        "received int64",
        "params.safetensors: parameter head/kernel: expected shape (12, 11); received (11, 12)",
        "params.safetensors: unexpected parameter head/biass (11,) (nearest: head/bias)",
        "params.safetensors: unexpected parameter target_embedding (2,)",
    ]


def test_all_problems_are_reported_together(tmp_path):
    path = tmp_path / "model"
    save_model(make_model(source_tokenizer=make_tokenizer()), path)
    (path / "source_tokenizer.json").write_text("{}")
    (path / "config.json").write_text("[1]")
    (path / "params.safetensors").write_bytes(b"x")
    sign(path)
    (path / "generation.json").unlink()
    assert [problem.split(":")[0] for problem in problems_of(path)] == [
        "generation.json",
        "config.json",
        "params.safetensors",
        "source_tokenizer.json",
    ]


def test_a_directory_of_transformers_is_to_be_ported_first(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"it has no manifest\.json\)\. If transformers wrote it, port it first: "):
        load_model(tmp_path)


def test_given_tokenizers_must_fit_the_model(tmp_path: Path) -> None:
    theirs = pipeline_of_words(6)
    config = TransformerConfig(source_vocab_size=10, target_vocab_size=10, d_model=8, num_heads=2, d_ff=8)
    bare = Model(config, init_params(config, jax.random.key(0)), None, None, GenerationConfig())
    model = with_tokenizers(bare, theirs, theirs)
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 3)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model").source_tokenizer
    assert loaded is not None
    assert loaded.encode(["w1 w5 other"]) == [theirs.encode("w1 w5 other").ids]
    other = dataclasses.replace(bare, generation=GenerationConfig(decoder_start_id=2, eos_id=1))
    with pytest.raises(ValueError, match="eos-id: expected 3, as target_tokenizer says; received 1"):
        with_tokenizers(other, theirs, theirs)
    with pytest.raises(ValueError, match=r"source_tokenizer: expected 10 tokens, the rows of the source .* received 9"):
        with_tokenizers(bare, pipeline_of_words(5), theirs)


def pipeline_of_words(count: int) -> Pipeline:
    entries = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(count))]
    made = Pipeline(models.WordLevel({entry: index for index, entry in enumerate(entries)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made
