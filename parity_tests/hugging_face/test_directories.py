"""Directories of the installed transformers, in each of their formats, come back without missing or unexpected keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import (
    KEYS,
    UNTIED,
    Case,
    assert_same_activations,
    head_of,
    load_theirs,
    make_case,
    randomised,
    round_trip,
)

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import load_model, save_model
from jax_transformer.storage.tensor_files import as_arrays
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(params=KEYS, ids=lambda key: f"{key[0]}_{key[1]}")
def case(request: Any, folder: Path) -> Case:
    return make_case(*request.param, folder)


def test_a_directory_comes_back_bit_for_bit(case: Case, tmp_path: Path) -> None:
    """No key is missing or unexpected, and tied tensors are tied again."""
    back, loading = round_trip(case, tmp_path)
    assert {name: found for name, found in loading.items() if found} == {}
    expected, received = case.theirs.state_dict(), back.state_dict()
    assert list(expected) == list(received)
    assert all(torch.equal(expected[name], received[name]) for name in expected)
    for model in (case.theirs, back):
        decoder = model.get_decoder()
        table = decoder.embed_tokens if hasattr(decoder, "embed_tokens") else decoder.get_input_embeddings()
        is_tied = head_of(model).weight.data_ptr() == table.weight.data_ptr()
        assert is_tied == case.config.tie_head == (case.directory.name.rsplit("_", 1)[0] not in UNTIED)
    names = [
        json.loads((folder / "config.json").read_text())
        for folder in (case.directory, tmp_path / f"{case.directory.name}_back")
    ]
    assert names[0] == names[1]


def test_a_directory_comes_back_through_a_model_directory(first: Case, tmp_path: Path) -> None:
    save_model(first.model, tmp_path / "model")
    export_checkpoint(load_model(tmp_path / "model"), tmp_path / "back")
    files = [path / "model.safetensors" for path in (first.directory, tmp_path / "back")]
    assert files[0].read_bytes() == files[1].read_bytes()


# --- formats of transformers


@pytest.fixture
def bart(folder: Path) -> Case:
    return make_case("bart", 0, folder)


def assert_same_function(case: Case, directory: Path) -> None:
    """Asserts that the directory's model has the case's config and leaves."""
    model = import_checkpoint(directory)
    assert model.config == case.config
    expected, received = flatten(case.model.params), flatten(model.params)
    assert expected.keys() == received.keys()
    assert all(np.array_equal(expected[path], received[path]) for path in expected)


def copy_configs(case: Case, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        (directory / name).write_text((case.directory / name).read_text())


def test_shards_are_read(first: Case, tmp_path: Path) -> None:
    first.theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same_function(first, tmp_path)


def test_pytorch_model_bin_is_read(first: Case, tmp_path: Path) -> None:
    """It holds every tied copy and Marian's position tables; old ones may be sharded."""
    copy_configs(first, tmp_path)
    torch.save(first.theirs.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same_function(first, tmp_path)
    tensors = dict(first.theirs.state_dict())
    shards = {
        "pytorch_model-00001-of-00002.bin": list(tensors)[::2],
        "pytorch_model-00002-of-00002.bin": list(tensors)[1::2],
    }
    (tmp_path / "pytorch_model.bin").unlink()
    for file, names in shards.items():
        torch.save({name: tensors[name] for name in names}, tmp_path / file)
    places = {name: file for file, names in shards.items() for name in names}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert_same_function(first, tmp_path)


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("marian", "MarianModel"),
        ("bart", "BartModel"),
        ("mvp", "MvpModel"),
        ("plbart", "PLBartModel"),
        ("mbart", "MBartModel"),
        ("blenderbot", "BlenderbotModel"),
        ("blenderbot_small", "BlenderbotSmallModel"),
        ("pegasus", "PegasusModel"),
        ("m2m_100", "M2M100Model"),
        ("t5", "T5Model"),
    ],
)
def test_a_model_without_its_head_is_read_with_a_tied_one(family: str, base: str, folder: Path, tmp_path: Path) -> None:
    """BART's own checkpoints have no head; transformers ties it."""
    case = make_case(family, 0, folder)
    path, back = tmp_path / "base", tmp_path / "back"
    getattr(transformers, base).from_pretrained(case.directory).save_pretrained(path)
    model = import_checkpoint(path)
    assert model.config == case.config
    assert_same_activations(case.with_models(load_theirs(type(case.theirs), path), model))
    export_checkpoint(model, back)
    assert (back / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    _, loading = getattr(transformers, base).from_pretrained(back, output_loading_info=True)
    assert {name: found for name, found in loading.items() if found} == {}


OTHER_KEYS = [
    ("bart", {"num_attention_heads": 1}),
    ("t5", {"dense_act_fn": "silu"}),
    ("t5", {"scale_decoder_outputs": None}),
    ("t5_gated", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}),
    ("umt5", {"feed_forward_proj": "gated-silu", "dense_act_fn": "relu"}),
]


@pytest.mark.parametrize(("family", "keys"), OTHER_KEYS, ids=str)
def test_other_keys_of_a_config_mean_what_they_mean_to_transformers(
    family: str, keys: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """These keys override others that contradict them."""
    case = make_case(family, 0, folder)
    shutil.copytree(case.directory, tmp_path / "there")
    config = json.loads((case.directory / "config.json").read_text()) | keys
    (tmp_path / "there" / "config.json").write_text(json.dumps(config))
    loaded, model = load_theirs(type(case.theirs), tmp_path / "there"), import_checkpoint(tmp_path / "there")
    other = case.with_models(loaded, model)
    before, after = (each.candidate.forward(each.problem, "float64")["logits"] for each in (case, other))
    assert compare(after, before).relative_rms > 1e-5, "the key should matter"
    assert_same_activations(other)


@pytest.mark.parametrize("family", ["bart", "m2m_100", "marian", "mbart", "blenderbot", "pegasus"])
def test_two_embeddings_and_an_untied_head_come_back(family: str, folder: Path, tmp_path: Path) -> None:
    """transformers keeps an unused shared embedding; import leaves it out, and export writes the source's there."""
    case = make_case(family, 0, folder)
    config = type(case.theirs.config)(**(case.theirs.config.to_dict() | {"tie_word_embeddings": False}))
    there = randomised(type(case.theirs)(config).eval(), np.random.default_rng(3), untied=True)
    there.save_pretrained(tmp_path / "there")
    model = import_checkpoint(tmp_path / "there")
    assert (model.config.share_embeddings, model.config.tie_head) == (False, False)
    export_checkpoint(model, tmp_path / "back")
    for path in ("there", "back"):
        _, loading = type(case.theirs).from_pretrained(tmp_path / path, output_loading_info=True)
        assert {name: found for name, found in loading.items() if found} == {}
        assert_same_activations(case.with_models(load_theirs(type(case.theirs), tmp_path / path), model))


def test_other_position_tables_are_refused_by_export(folder: Path, tmp_path: Path) -> None:
    """transformers computes M2M-100's tables, which would differ from the model's."""
    model = import_checkpoint(make_case("m2m_100", 0, folder).directory)
    model.params["constants"]["decoder_positions"][5] += 1e-4
    with pytest.raises(
        PortingError,
        match="constants/encoder_positions and decoder_positions must be the ones that its programs compute",
    ):
        export_checkpoint(model, tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_generate_works_on_what_comes_back(family: str, folder: Path, tmp_path: Path) -> None:
    """It gives the same tokens, also without generation_config.json, which old directories lack."""
    case = make_case(family, 0, folder)
    shutil.copytree(case.directory, tmp_path / "there")
    (tmp_path / "there" / "generation_config.json").unlink()
    export_checkpoint(import_checkpoint(tmp_path / "there"), tmp_path / "back")
    source = torch.from_numpy(case.problem.source_ids)
    models = [type(case.theirs).from_pretrained(tmp_path / path).eval() for path in ("there", "back")]
    expected, received = (model.generate(source, max_new_tokens=6, use_cache=False) for model in models)
    assert expected.shape[1] > 1
    assert torch.equal(expected, received)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_come_back(first: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    there = type(first.theirs).from_pretrained(first.directory, dtype=dtype)
    there.save_pretrained(tmp_path / "there")
    export_checkpoint(import_checkpoint(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "there" / "model.safetensors").read_bytes() == (
        tmp_path / "back" / "model.safetensors"
    ).read_bytes()
    back, loading = type(first.theirs).from_pretrained(tmp_path / "back", output_loading_info=True, dtype="auto")
    assert {name: found for name, found in loading.items() if found} == {}
    assert back.dtype == dtype


# --- Flax


def flax_tree(model: Any) -> dict[str, Any]:
    """Returns the parameters as the Flax models of transformers 4 named and laid them out."""
    from torch import nn

    tree: dict[str, Any] = {}
    skipped = (
        {"lm_head"}
        if model.config.tie_word_embeddings and model.lm_head.weight is model.get_input_embeddings().weight
        else set()
    )
    for path, module in model.named_modules():
        if (
            path in skipped
            or path.endswith("embed_tokens")
            or (path.endswith("embed_positions") and model.config.model_type == "marian")
        ):
            continue
        node = tree
        for part in path.split("."):
            node = node.setdefault(part, {})
        if isinstance(module, nn.Linear):
            node["kernel"] = import_array(module.weight.T)
        elif isinstance(module, nn.Embedding):
            node["embedding"] = import_array(module.weight)
        elif isinstance(module, nn.LayerNorm):
            node["scale"] = import_array(module.weight)
        elif hasattr(module, "variance_epsilon"):
            node["weight"] = import_array(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            node["bias"] = import_array(module.bias)
    if hasattr(model, "final_logits_bias"):
        tree["final_logits_bias"] = import_array(model.final_logits_bias)
    return _without_empty(tree)


def import_array(tensor: torch.Tensor) -> np.ndarray:
    return as_arrays({"tensor": tensor})["tensor"]


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    kept = {name: _without_empty(value) if isinstance(value, dict) else value for name, value in tree.items() if name}
    return {name: value for name, value in kept.items() if not isinstance(value, dict) or value}


@pytest.mark.parametrize("family", ["marian", "bart", "t5", "t5_gated", "mt5"])
def test_flax_model_msgpack_is_read(family: str, folder: Path, tmp_path: Path) -> None:
    """transformers 4 wrote such files; 5 can't read them."""
    from flax import serialization

    case = make_case(family, 0, folder)
    copy_configs(case, tmp_path)
    (tmp_path / "flax_model.msgpack").write_bytes(serialization.to_bytes(flax_tree(case.theirs)))
    assert_same_function(case, tmp_path)
    export_checkpoint(import_checkpoint(tmp_path), tmp_path / "back")
    _, loading = type(case.theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert {name: found for name, found in loading.items() if found} == {}


def in_two(tree: dict[str, Any], folder: Path) -> None:
    """Writes the tree as `save_pretrained(max_shard_size=…)` of transformers 4 does."""
    from flax import serialization
    from flax.traverse_util import flatten_dict, unflatten_dict

    leaves = flatten_dict(tree, sep="/")
    names = sorted(leaves)
    places = {name: f"flax_model-0000{1 + (i >= len(names) // 2)}-of-00002.msgpack" for i, name in enumerate(names)}
    for file in {*places.values()}:
        part = unflatten_dict({name: leaves[name] for name in names if places[name] == file}, sep="/")
        (folder / file).write_bytes(serialization.to_bytes(part))
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "flax_model.msgpack.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("family", ["bart", "t5_gated"])
def test_several_flax_files_are_read(family: str, folder: Path, tmp_path: Path) -> None:
    case = make_case(family, 0, folder)
    copy_configs(case, tmp_path)
    in_two(flax_tree(case.theirs), tmp_path)
    assert_same_function(case, tmp_path)
    (tmp_path / "flax_model-00002-of-00002.msgpack").unlink()
    with pytest.raises(ValueError, match=r"flax_model-00002-of-00002\.msgpack: No such file or directory"):
        import_checkpoint(tmp_path)


def test_a_broken_flax_file_is_refused(bart: Case, tmp_path: Path) -> None:
    copy_configs(bart, tmp_path)
    (tmp_path / "flax_model.msgpack").write_bytes(b"no msgpack")
    with pytest.raises(ValueError, match=r"truncated, or no file of flax\.serialization"):
        import_checkpoint(tmp_path)
