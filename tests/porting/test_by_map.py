"""Importing and exporting by a map of names, without PyTorch: state_dicts are made of NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from mapped_program import CONFIG, CONFIG_TEXT, MAP, make_tensors

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.maps import NameMap
from jax_transformer.model.functional import abstract_params
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.storage.tensor_files import read_tensors
from jax_transformer.storage.tensors import PortingError

NAMES = NameMap.parse(MAP, "map.yaml")


def without(text: str, *lines: str) -> NameMap:
    """Returns the map without the lines that begin so."""
    kept = [line for line in text.splitlines() if not line.strip().startswith(lines)]
    return NameMap.parse("\n".join(kept), "map.yaml")


def assert_same(received: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Checks names, dtypes, shapes and bits."""
    assert received.keys() == expected.keys()
    for name, array in expected.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape), name
        assert received[name].tobytes() == array.tobytes(), name


def make_params(config: TransformerConfig = CONFIG, dtype: Any = "float32") -> dict[str, Any]:
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), abstract_params(config))
    if "decoder_positions" in params.get("constants", {}):
        params["constants"]["decoder_positions"] = params["constants"]["encoder_positions"].copy()
    return params


@pytest.mark.parametrize("prefix", ["", "_orig_mod.module."])
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_from_torch_and_back(prefix: str, dtype: Any, tmp_path: Path) -> None:
    """Through a model directory, which needs no map for it; all bits, the order, and what isn't read."""
    tensors = make_tensors(prefix, dtype)
    (tmp_path / "map.yaml").write_text(MAP)
    (tmp_path / "config.yaml").write_text(CONFIG_TEXT)
    model = import_checkpoint(tensors, names=tmp_path / "map.yaml", config=tmp_path / "config.yaml", eos_id=3)
    assert (model.config, model.generation) == (CONFIG, GenerationConfig(eos_id=3))
    assert (model.origin or {})["prefix"] == prefix
    query = model.params["encoder"]["layers"]["self_attention"]["query"]["kernel"]
    np.testing.assert_array_equal(query[1][:, 2], tensors[f"{prefix}enc.1.attn.heads.2.q.weight"].T)
    np.testing.assert_array_equal(model.params["constants"]["decoder_positions"], tensors[f"{prefix}pe"][0])
    save_model(model, tmp_path / "model")
    for mapped in (False, True):
        for suffix in (".pt", ".safetensors"):
            export_checkpoint(load_model(tmp_path / "model", mapped=mapped), tmp_path / f"back{suffix}")
            back = read_tensors(tmp_path / f"back{suffix}")
            assert_same(back, tensors)
            assert suffix == ".safetensors" or list(back) == list(tensors)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16])
def test_to_torch_and_back(suffix: str, dtype: Any, tmp_path: Path) -> None:
    """The file says what the tensors don't, so the way back needs no map and no config."""
    model = Model(CONFIG, make_params(dtype=dtype), None, None, GenerationConfig(decoder_start_id=3, eos_id=4))
    names = dataclasses.replace(NAMES, ignored=())
    export_checkpoint(model, tmp_path / f"model{suffix}", names=names)
    for options in ({}, {"names": names}, {"names": names, "config": CONFIG, "decoder_start_id": 3, "eos_id": 4}):
        received = import_checkpoint(tmp_path / f"model{suffix}", **options)
        assert (received.config, received.generation) == (model.config, model.generation)
        assert_same(flatten(received.params), flatten(model.params))


def test_the_map_may_be_changed_on_the_way(tmp_path: Path) -> None:
    """An imported model is exported by another map, too: under its names alone, without what the first one ignored."""
    model = import_checkpoint(make_tensors("model."), names=NAMES, config=CONFIG)
    other = NameMap.parse(MAP.replace("enc.{i}", "layers.{i}"), "other")
    export_checkpoint(model, tmp_path / "other.safetensors", names=other)
    names = set(read_tensors(tmp_path / "other.safetensors"))
    assert {"layers.1.attn.heads.2.k.bias", "out.weight"} < names
    assert not any(name.startswith(("model.", "enc.", "criterion")) for name in names)
    with pytest.raises(PortingError, match="a dialect or a map of names; received both"):
        export_checkpoint(model, tmp_path / "both.pt", "harvard", names=other)
    with pytest.raises(PortingError, match=r"a map of names writes a file: expected a name that ends in .safetensors"):
        export_checkpoint(model, tmp_path / "directory")
    changed = dataclasses.replace(model, config=dataclasses.replace(CONFIG, norm_eps=1e-5))
    with pytest.raises(PortingError, match="norm_eps must be 1e-06, as in the checkpoint that was imported; received"):
        export_checkpoint(changed, tmp_path / "changed.pt")
    with pytest.raises(PortingError, match=r"to keep what its map ignores; .* lacks model.enc.0.mask"):
        export_checkpoint(dataclasses.replace(model, ignored_tensors=None), tmp_path / "lost.pt")


def test_positions_that_the_map_leaves_out_are_computed_or_given(tmp_path: Path) -> None:
    names, tensors = without(MAP, "pe:", "ignore:"), make_tensors()
    held = {name: tensor for name, tensor in tensors.items() if tensor.dtype == "float32" and name != "pe"}
    model = import_checkpoint(held, names=names, config=CONFIG)
    expected = sinusoid_table(CONFIG.encoder).astype("float32")
    np.testing.assert_array_equal(model.params["constants"]["encoder_positions"], expected)
    np.save(tmp_path / "table.npy", tensors["pe"][0, :5])
    other = import_checkpoint(held, names=names, config=CONFIG, position_table=tmp_path / "table.npy")
    assert other.config == dataclasses.replace(CONFIG, max_length=5)
    np.testing.assert_array_equal(other.params["constants"]["decoder_positions"], tensors["pe"][0, :5])
    export_checkpoint(other, tmp_path / "back.safetensors")
    assert_same(read_tensors(tmp_path / "back.safetensors"), held)
    with pytest.raises(PortingError, match="position_table: the config has no such tables, or the map names them"):
        import_checkpoint(tensors, names=NAMES, config=CONFIG, position_table=tmp_path / "table.npy")


def test_learned_positions_a_bias_buffer_and_tensors_of_all_layers() -> None:
    config = dataclasses.replace(CONFIG, position_kind="learned", head_bias="buffer", decoder_max_length=9)
    text = MAP.replace('"constants/{encoder,decoder}_positions", axes: "1 P D -> P D"', '"encoder/positions/embedding"')
    text = text.replace("out.bias: head_bias", "out.bias: constants/head_bias\n  dec_pos: decoder/positions/embedding")
    text = text.replace(
        'enc.{i}.ln1.bias: "encoder/layers/self_attention_norm/bias[{i}]"',
        "all: encoder/layers/self_attention_norm/bias",
    )
    tensors = make_tensors()
    tensors |= {"pe": tensors["pe"][0], "dec_pos": np.ones((9, 6), "float32"), "all": np.eye(2, 6, dtype="float32")}
    for i in range(2):
        del tensors[f"enc.{i}.ln1.bias"]
    model = import_checkpoint(tensors, names=NameMap.parse(text, "map"), config=config)
    assert_same(model.params["constants"], {"head_bias": tensors["out.bias"]})
    assert_same(model.params["decoder"]["positions"], {"embedding": tensors["dec_pos"]})
    assert_same(
        model.params["encoder"]["layers"]["self_attention_norm"] | {"scale": tensors["all"]},
        {"bias": tensors["all"], "scale": tensors["all"]},
    )


def test_all_that_does_not_fit_is_told_together() -> None:
    tensors = make_tensors("module.")
    del tensors["module.enc.1.up.bias"]
    tensors["module.enc.0.attn.heads.3.q.weight"] = tensors["module.enc.0.attn.heads.2.q.weight"]
    tensors["module.dec.2.down.weight"] = tensors["module.dec.2.down.weight"].T
    tensors["module.dec.0.ln1.bias"] = tensors["module.dec.0.ln1.bias"].astype("float64")
    tensors["module.out.weight"] = 2 * tensors["module.out.weight"]
    tensors["module.src.weight"] = tensors["module.src.weight"].astype(int)
    del tensors["module.steps"]
    text = MAP.replace("enc.{i}.ln1.bias:", "gone.{i}:").replace("ignore:", "  gone: encoder/final_norm/scale\nignore:")
    with pytest.raises(PortingError) as error:
        import_checkpoint(tensors, names=NameMap.parse(text, "map"), config=CONFIG)
    assert str(error.value).startswith("the state_dict does not fit the map of names and the config, 12 problems:")
    assert [problem.split(", ")[0].split(" (")[0] for problem in error.value.problems] == [
        "unused rule: the model has no encoder/final_norm/scale",
        "unused rule: no tensor matches module.gone.{i} ↔ encoder/layers/self_attention_norm/bias",
        "missing tensor module.enc.1.up.bias: expected shape",
        "unexpected tensor module.enc.0.ln1.bias",
        "unexpected tensor module.enc.1.ln1.bias",
        "unexpected tensor module.enc.0.attn.heads.3.q.weight",
        "tensor module.src.weight: expected a dtype of float16",
        "tied tensors module.tgt.weight and module.out.weight",
        "tensor module.dec.1.ln1.bias: expected dtype float64",
        "tensor module.dec.2.ln1.bias: expected dtype float64",
        "tensor module.dec.2.down.weight: expected shape",
        "unused pattern under ignore: no tensor without an entry matches steps",
    ]


def test_a_map_and_a_config_are_asked_for(tmp_path: Path) -> None:
    tensors = make_tensors()
    with pytest.raises(PortingError, match=r"expected its config with the map \(--config FILE\)"):
        import_checkpoint(tensors, names=NAMES)
    with pytest.raises(PortingError, match="a dialect or a map of names; received both"):
        import_checkpoint(tensors, "harvard", names=NAMES, config=CONFIG)
    with pytest.raises(PortingError, match="config: expected a map of names with it"):
        import_checkpoint(tensors, config=CONFIG)
    with pytest.raises(PortingError, match=r"num_head: no such hint \(nearest: num_heads\)"):
        import_checkpoint(tensors, names=NAMES, config=CONFIG, num_head=3)
    with pytest.raises(PortingError, match=r"config: .*activation must be"):
        import_checkpoint(tensors, names=NAMES, config=CONFIG, activation="swish")
    with pytest.raises(PortingError, match=r"hints with a map of names:\n.*eos_id"):
        import_checkpoint(tensors, names=NAMES, config=CONFIG, eos_id=11)
    with pytest.raises(PortingError, match="expected parameters, their names and ours; received none"):
        import_checkpoint(tensors, names=NameMap({"a": ("b",)}), config=CONFIG)
    with pytest.raises(PortingError, match="a map reads a file of tensors; received a directory"):
        import_checkpoint(tmp_path, names=NAMES, config=CONFIG)
    (tmp_path / "config.yaml").write_text("d_model: 6\nnum_head: 3\n")
    with pytest.raises(PortingError, match=r"config.yaml:2: unknown field 'num_head'; did you mean 'num_heads'\?"):
        import_checkpoint(tensors, names=NAMES, config=tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("model:\n  d_model: 6\nd_ff: 3\n")
    with pytest.raises(PortingError, match=r"config.yaml:3: unknown field 'd_ff'"):
        import_checkpoint(tensors, names=NAMES, config=tmp_path / "config.yaml")


@pytest.mark.parametrize("text", [CONFIG_TEXT, "run_dir: runs/x\nmodel:" + CONFIG_TEXT.replace("\n", "\n  ")])
def test_a_config_file_has_the_fields_or_a_run_s(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text.replace("tie_head: true", "tie_head: false"))
    model = import_checkpoint(make_tensors(), names=NAMES, config=str(tmp_path / "config.yaml"), tie_head=True)
    assert model.config == CONFIG


def test_the_one_state_dict_of_the_map_is_taken_from_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state_dict = {name: torch.from_numpy(np.asarray(tensor)) for name, tensor in make_tensors().items()}
    torch.save({"epoch": 3, "optimizer": {"a": torch.ones(2)}, "net": state_dict}, tmp_path / "model.pt")
    model = import_checkpoint(tmp_path / "model.pt", names=NAMES, config=CONFIG)
    assert len((model.origin or {})["tensors"]) == len(state_dict)


def test_a_part_that_was_saved_beside_the_rest_is_read_with_it() -> None:
    """Under its key, as the map has it; a program that calls `model.out = generator` saves so."""
    tensors = make_tensors()
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("out.")}
    head = {name.removeprefix("out."): tensors[name] for name in ("out.weight", "out.bias")}
    optimizer = {"moments": {"a": np.ones(3)}}
    expected = import_checkpoint(tensors, names=NAMES, config=CONFIG)
    model = import_checkpoint({"model": rest, "out": head, "optimizer": optimizer}, names=NAMES, config=CONFIG)
    assert_same(flatten(model.params), {path: np.asarray(leaf) for path, leaf in flatten(expected.params).items()})
    with pytest.raises(PortingError, match=r"out\.bias"):
        import_checkpoint({"model": rest, "head": head}, names=NAMES, config=CONFIG)
