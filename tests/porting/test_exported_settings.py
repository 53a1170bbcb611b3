"""Files that were exported here come back without a hint; other programs, and other files, notice nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import init_params
from jax_transformer.porting import PortingError, export_checkpoint, import_checkpoint
from jax_transformer.porting.checkpoint import VERSION
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import read_tensors, settings_of, write_tensors

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = TransformerConfig(
    source_vocab_size=11,
    target_vocab_size=13,
    d_model=8,
    num_heads=4,
    d_ff=12,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=16,
    norm_placement="pre",
    final_norm=True,
    activation="gelu",
    source_pad_id=3,
    target_pad_id=5,
    dropout_rate=0.25,
)
GENERATION = GenerationConfig(decoder_start_id=2, eos_id=4, beam_size=3, bad_words=((1, 2),))
SUFFIXES = (".pt", ".safetensors")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, init_params(CONFIG, jax.random.key(0)), None, None, GENERATION)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_model_comes_back_without_a_hint(model: Model, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    export_checkpoint(model, path, "pytorch")
    again = import_checkpoint(path)
    assert (again.config, again.generation) == (model.config, model.generation)
    received, expected = flatten(again.params), flatten(model.params)
    assert received.keys() == expected.keys()
    assert all(np.array_equal(received[path], np.asarray(leaf)) for path, leaf in expected.items())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_two_dialects_share_are_no_question(tmp_path: Path, suffix: str) -> None:
    """harvard's and annotated_zh's checkpoints have the same names."""
    from selftest.subjects import make_model

    model, path = make_model("annotated_zh"), tmp_path / f"model{suffix}"
    export_checkpoint(model, path)
    again = import_checkpoint(path)
    assert (again.origin or {})["dialect"] == "annotated_zh"
    assert again.config == model.config
    with pytest.raises(PortingError, match="give by name"):
        import_checkpoint(path, "harvard")  # the settings are another dialect's


def test_what_is_given_prevails(model: Model, tmp_path: Path) -> None:
    export_checkpoint(model, tmp_path / "model.pt", "pytorch")
    again = import_checkpoint(tmp_path / "model.pt", num_heads=2, dropout_rate=0.0, eos_id=6)
    assert again.config == dataclasses.replace(CONFIG, num_heads=2, dropout_rate=0.0)
    assert again.generation == dataclasses.replace(GENERATION, eos_id=6)


def test_a_state_dict_in_memory_tells_as_much(model: Model, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    export_checkpoint(model, tmp_path / "model.pt", "pytorch")
    assert import_checkpoint(torch.load(tmp_path / "model.pt", weights_only=True)).config == CONFIG


def test_torch_loads_the_file_as_ever(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch_reference.pytorch import PytorchTransformer

    sizes = {"source_vocab_size": 11, "target_vocab_size": 13, "d_model": 8, "num_heads": 2, "d_ff": 12}
    module = PytorchTransformer(
        **sizes, num_encoder_layers=1, num_decoder_layers=1, max_length=16, source_pad_id=0, target_pad_id=0
    )
    model = import_checkpoint(
        module.state_dict(), num_heads=2, source_pad_id=0, target_pad_id=0, norm_placement="post", activation="relu"
    )
    export_checkpoint(model, tmp_path / "model.pt")
    state_dict = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(state_dict) == list(module.state_dict())
    assert module.load_state_dict(state_dict).missing_keys == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda settings: "{", "expected in its metadata the settings that export_checkpoint writes; received '{'"),
        (lambda settings: "[" * 100_000, "expected in its metadata the settings"),
        (lambda settings: json.dumps([1]), "expected in its metadata the settings"),
        (
            lambda settings: json.dumps({**settings, "config": {"__class__": 1}}),
            "expected in its metadata the settings",
        ),
        (lambda settings: json.dumps({**settings, "version": VERSION + 1}), "a newer version exported this file"),
        (lambda settings: json.dumps({**settings, "dialect": "nobody's"}), "nobody's"),
        (
            lambda settings: json.dumps({**settings, "config": settings["config"] | {"num_heads": "many"}}),
            "num_heads must be",
        ),
        (
            lambda settings: json.dumps({**settings, "config": settings["config"] | {"num_heads": 3}}),
            "num_heads must be a divisor of d_model=8",
        ),
    ],
)
def test_settings_that_are_none(model: Model, tmp_path: Path, suffix: str, change: Any, message: str) -> None:
    path = tmp_path / f"model{suffix}"
    export_checkpoint(model, path, "pytorch")
    tensors = read_tensors(path)
    settings = json.loads(settings_of(tensors) or "")
    write_tensors(path, {name: tensors[name] for name in tensors}, change(settings))
    with pytest.raises(PortingError, match=message):
        import_checkpoint(path)
