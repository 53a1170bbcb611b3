"""Configs whose sizes multiply to more than any memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import jax
import pytest
from hostile import failed_line, refusal

from jax_transformer import cli
from jax_transformer.config.data import DataConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import MeshConfig
from jax_transformer.config.presets import PRESETS
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.shapes import count_constants, count_parameters, param_shapes
from jax_transformer.config.validation import ConfigError
from jax_transformer.model.functional import abstract_params, init_params
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.runtime.memory import VARIABLE, host_memory
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import GenerationConfig, Model, save_model
from jax_transformer.training.fitting import least_memory, memory_problem
from jax_transformer.training.loop import describe_run, train
from jax_transformer.training.state import abstract_state

TINY = TransformerConfig(
    source_vocab_size=9, target_vocab_size=7, d_model=8, num_heads=2, d_ff=6, num_encoder_layers=2,
    num_decoder_layers=1, max_length=16,
)  # fmt: skip
SIZES = {
    "d_model": 10**9,
    "num_encoder_layers": 10**12,
    "source_vocab_size": 10**12,
    "max_length": 10**12,
    "decoder_max_length": 10**9,
    "d_ff": 10**10,
    "relative_buckets": 10**12,
    "decoder_head_dim": 10**12,
}


@pytest.mark.parametrize(("name", "value"), SIZES.items())
def test_sizes_beyond_any_model(name, value):
    kind = {"position_kind": "relative_bias"} if name == "relative_buckets" else {}
    message = refusal(lambda: dataclasses.replace(TINY, **kind, **{name: value}), ConfigError)
    assert name in message
    assert "JAX_TRANSFORMER_MAX_" in message


def test_sizes_that_multiply_to_petabytes():
    message = refusal(lambda: TransformerConfig(d_model=2**20, num_encoder_layers=100), ConfigError)
    assert "at most 10,000,000,000,000 parameters" in message


VARIANTS = {
    "plain": {},
    "shared": {"share_layers": True, "target_vocab_size": 9, "share_embeddings": True, "tie_head": True},
    "no biases": {"attention_bias": False, "feed_forward_bias": False, "norm_bias": False, "head_bias": "none"},
    "gated": {"feed_forward_gated": True, "num_kv_heads": 1, "value_dim": 3, "decoder_d_ff": 4},
    "bare": {"feed_forward": False, "attention_output": False, "norm_kind": "none"},
    "buckets": {"position_kind": "relative_bias", "relative_bias_per_layer": True},
    "vectors": {"position_kind": "relative_vectors", "relative_value_vectors": False},
    "learned": {"position_kind": "learned", "decoder_position_kind": "rotary", "decoder_head_dim": 6},
}


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_parameters_are_counted(fields):
    config = dataclasses.replace(TINY, **fields)
    leaves = flatten(abstract_params(config))
    assert dict(param_shapes(config)) == {path: leaf.shape for path, leaf in leaves.items()}
    assert count_parameters(config) == sum(leaf.size for leaf in leaves.values())
    constants = {path: leaf for path, leaf in leaves.items() if path.startswith("constants/")}
    assert count_constants(config) == sum(leaf.size for leaf in constants.values())


@pytest.mark.parametrize("optimizer", ["adam", "muon", "sgd", "adafactor"])
@pytest.mark.parametrize(
    "more", [{}, {"ema_decay": 0.9}, {"freeze": ("encoder/*",)}], ids=["plain", "average", "frozen"]
)
def test_the_estimate_of_the_state_is_no_more_than_it_takes(optimizer, more):
    config = RunConfig(model=TINY, train=TrainConfig(optimizer=optimizer, **more), data=DataConfig(max_length=16))
    state = abstract_state(TINY, config.train)
    taken = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert 0.2 * taken < least_memory(config, TINY).state <= taken


def test_every_preset_fits_where_it_may_be_run():
    for name, preset in PRESETS.items():
        config = preset()
        least = least_memory(config, config.model)
        assert least.state + least.batch < 8 * 2**30, name


def test_train_refuses_what_cannot_fit_before_the_corpus_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(2**30))
    monkeypatch.chdir(tmp_path)
    line = failed_line(
        capsys, "train", "--model.d-model", 4096, "--data.train", "missing.tsv", "--data.valid", "missing.tsv"
    )
    assert "for parameters and optimizer" in line
    assert f"expected to fit into 1.0 GiB ({VARIABLE}); received at least" in line
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_cannot_fit(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(2**30))
    config = RunConfig(model=TINY, data=DataConfig(max_length=16, batch_tokens=10**8, cache_dir=str(tmp_path)))
    wide = dataclasses.replace(config, model=dataclasses.replace(TINY, d_model=256))
    message = refusal(lambda: train(wide), ConfigError)
    assert "a batch of 100,000,000 tokens" in message


def test_a_dry_run_tells_that_it_cannot_fit(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "20000")
    data = DataConfig(phrasebook_pairs=20, valid_pairs=2, test_pairs=2, max_length=16, cache_dir=str(tmp_path))
    model = dataclasses.replace(TINY, source_vocab_size=0, target_vocab_size=0)
    *_, last = describe_run(RunConfig(model=model, data=data))
    assert "memory:" in last
    assert "received at least" in last


def test_the_memory_is_that_of_the_machine_or_less(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    pages = int(next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line))
    assert 2**28 < host_memory()[0] <= pages * 1024 * 1.1


def test_a_table_of_positions_that_fits_no_memory(monkeypatch):
    monkeypatch.setenv(VARIABLE, str(2**30))
    config = dataclasses.replace(TINY, max_length=10**7)
    message = refusal(lambda: sinusoid_table(config.encoder))
    assert "table of positions, 10,000,000 rows with d_model=8: expected to fit into 1.0 GiB" in message


def lying_model(path: Path, **fields) -> Path:
    """Writes a model directory whose config.json says other sizes than its tensors have, under right checksums."""
    save_model(
        Model(TINY, init_params(TINY, jax.random.key(0)), None, None, GenerationConfig(decoder_start_id=2)), path
    )
    config, manifest = (json.loads((path / name).read_text()) for name in ("config.json", "manifest.json"))
    (path / "config.json").write_text(json.dumps(config | fields))
    manifest["sha256"]["config.json"] = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize("fields", [{"max_length": 10**7}, {"num_encoder_layers": 10**6}], ids=["positions", "layers"])
@pytest.mark.parametrize("command", ["translate", "parity", "port"])
def test_a_model_directory_that_says_other_sizes_than_its_tensors(command, fields, tmp_path, capsys):
    path = lying_model(tmp_path / "model", **fields)
    text = tmp_path / "a.txt"
    text.write_text("who sleeps\n")
    more = {"translate": ["--input", text], "port": [tmp_path / "out.safetensors"], "parity": []}[command]
    assert cli.main([command, str(path), *map(str, more)]) == 2
    assert "expected sizes of the" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "model"]


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate"), RuntimeError("RESOURCE_EXHAUSTED: no\nmore")])
def test_the_last_net_is_a_line(error, monkeypatch, capsys):
    def fails(arguments):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "parity", fails)
    assert "parity: expected to fit into" in failed_line(capsys, "parity")


@pytest.mark.parametrize("name", ["accumulate", "average_checkpoints", "max_decode_length", "max_steps"])
def test_integers_that_devices_cannot_count(name):
    assert name in refusal(lambda: TrainConfig(**{name: 10**12}), ConfigError)


@pytest.mark.parametrize("name", ["vocab_size", "valid_pairs", "test_pairs", "max_length", "batch_tokens"])
def test_sizes_of_data(name):
    assert name in refusal(lambda: DataConfig(**{"batch_tokens": 10**8, name: 10**12}), ConfigError)


def test_the_estimate_alone_decides(monkeypatch):
    config = RunConfig(model=TINY, data=DataConfig(max_length=16, batch_tokens=16))
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    monkeypatch.setenv(VARIABLE, str(sum(least_memory(config, TINY)) - 1))
    assert "received at least" in memory_problem(config, TINY, mesh)
    monkeypatch.setenv(VARIABLE, str(sum(least_memory(config, TINY))))
    assert memory_problem(config, TINY, mesh) == ""
