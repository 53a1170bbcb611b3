"""What of PEFT's directories is refused, by name. (What is read: parity_tests/test_lora.py.)"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting import PortingError, all_dialects, export_adapter, import_adapter
from jax_transformer.porting.dialects.fairseq import DEFAULTS
from jax_transformer.porting.peft_config import read_peft_config
from jax_transformer.runtime.trees import flatten, map_leaves
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import Model, save_model
from jax_transformer.storage.tensor_files import write_tensors
from jax_transformer.storage.training_state import TrainingState

MARIAN = all_dialects()["marian"]
CONFIG = TransformerConfig(
    **DEFAULTS | MARIAN.fixed, source_vocab_size=11, target_vocab_size=11, d_model=12, num_heads=3, d_ff=7,
    num_encoder_layers=2, num_decoder_layers=1, max_length=9, share_embeddings=True, tie_head=True,
)  # fmt: skip
START = "base_model.model.model.encoder.layers."
TENSORS = {
    f"{START}{layer}.self_attn.q_proj.lora_{part}.weight": np.full(shape, 1 + layer, np.float32)
    for layer in range(2)
    for part, shape in (("A", (2, 12)), ("B", (12, 2)))
}
SAID = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "inference_mode": True}


@pytest.fixture(scope="module")
def model() -> Model:
    params = map_leaves(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_params(CONFIG))
    return Model(CONFIG, params, None, None, GenerationConfig(decoder_start_id=2), {"dialect": "marian"})


def write(path: Path, said: Any = SAID, tensors: dict[str, np.ndarray] = TENSORS) -> Path:
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(said))
    write_tensors(path / "adapter_model.safetensors", tensors)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_adapters_are_added_in_the_models_dtype(dtype: Any, model: Model, tmp_path: Path) -> None:
    base = dataclasses.replace(model, params=map_leaves(lambda leaf: leaf.astype(dtype), model.params))
    query = import_adapter(write(tmp_path), base).params["encoder"]["layers"]["self_attention"]["query"]["kernel"]
    assert query.dtype == dtype
    assert np.array_equal(query[:, 0, 0, 0], [4.0, 16.0])  # scale 2, rank 2
    assert not np.any(model.params["encoder"]["layers"]["self_attention"]["query"]["kernel"])


def test_a_merged_model_has_no_scores_or_training_state_of_its_base(model: Model, tmp_path: Path) -> None:
    state = TrainingState("sgd", 7, {"momentum": {"head/kernel": np.zeros((12, 11))}})
    base = dataclasses.replace(model, training={"step": 7, "bleu": 30.0}, training_state=state)
    merged = import_adapter(write(tmp_path), base)
    assert (merged.training, merged.training_state) == (None, None)
    assert merged.origin == base.origin


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be 'LORA'; received 'IA3'"),
        ({"use_dora": True}, "use_dora: DoRA can't be carried over"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: modules that were trained as a whole"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: trained tokens"),
        ({"lora_bias": True}, "lora_bias: biases of B"),
        ({"bias": "all"}, "bias must be 'none'"),
        ({"init_lora_weights": "pissa_niter_4"}, "received 'pissa_niter_4', which changes the model's own weights"),
        ({"use_something_new": True}, "use_something_new: unknown, and not left empty; received True"),
        ({"lora_alpha": "4"}, "lora_alpha must be a number above 0; received '4'"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern: q_proj must be a number above 0; received None"),
        ({"alpha_pattern": {"q(": 2}}, r"alpha_pattern: expected names .*; received 'q\('"),
        ({"alpha_pattern": {"([a-z0-9_.]+)+!": 2}}, r"received '\(\[a-z0-9_\.\]\+\)\+!'"),
        ({"alpha_pattern": {".*a.*b.*!": 2}}, r"with 2 of \.\* and \\d\+ at most; received '\.\*a\.\*b\.\*!'"),
        ({"alpha_pattern": {"q" * 501: 2}}, "expected names of at most 500 characters"),
        ({"alpha_pattern": {f"q{i}": 2 for i in range(1001)}}, "expected at most 1,000 patterns; received 1,001"),
        ({"alpha_pattern": [2]}, "alpha_pattern must be an object"),
    ],
)
def test_more_than_lora_is_refused_by_name(said: dict[str, Any], message: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(PortingError, match=message):
        import_adapter(write(tmp_path, SAID | said), model)


@pytest.mark.parametrize(
    ("pattern", "is_meant"),
    [
        ("q_proj", True),
        ("self_attn.q_proj|v_proj", True),
        (r"layers\.\d+\.self_attn\.q_proj", True),
        ("^model.encoder.*q_proj$", True),
        ("^encoder.*q_proj", False),
        ("attn.q_proj", False),
        ("proj", False),
    ],
)
def test_patterns_of_scales_are_read_as_peft_reads_them(pattern: str, is_meant: bool) -> None:
    config = read_peft_config(SAID | {"alpha_pattern": {"nothing": 1, pattern: 7}})
    module = "model.encoder.layers.10.self_attn.q_proj"
    assert config.alpha_of(module) == (7 if is_meant else 4)


def without(*names: str, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in TENSORS.items() if not name.endswith(names)} | more


LONG = np.zeros((2, 13), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            without("1.self_attn.q_proj.lora_B.weight"),
            r"missing tensor .*1.self_attn.q_proj.lora_B.weight, the counterpart of",
        ),
        (without(**{f"{START}2.self_attn.q_proj.lora_A.weight": LONG}), r"no such linear layer, .* \(nearest: "),
        (without(**{"base_model.model.lm_head.lora_A.weight": LONG}), "its weight is tied to an embedding"),
        (without(**{"base_model.model.model.shared.lora_embedding_A": LONG}), "adapters of embeddings have no place"),
        (without(**{"base_model.model.model.shared.weight": LONG}), "of linear layers alone"),
        (without(**{f"{START}0.self_attn.q_proj.lora_A.weight": LONG}), r"A \[rank, 12\] and B \[12, rank\]; received"),
        (without(**{f"{START}0.self_attn.q_proj.lora_A.weight": LONG[:, 1:] + np.inf}), "values are not finite"),
        ({}, "expected adapters of one layer at least"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tensors: dict[str, np.ndarray], message: str, model: Model, tmp_path: Path
) -> None:
    with pytest.raises(PortingError, match=message):
        import_adapter(write(tmp_path, tensors=tensors), model)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "adapter_model.safetensors").unlink(), "expected adapters, one of adapter_model.safet"),
        (lambda path: (path / "adapter_config.json").write_text("{"), "expected PEFT's config of adapters"),
        (lambda path: (path / "adapter_config.json").write_text("[1]"), "expected a JSON object; received list"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b"abc"), "adapter_model.safetensors"),
    ],
)
def test_files_that_cannot_be_read(spoil: Callable[[Path], Any], message: str, model: Model, tmp_path: Path) -> None:
    spoil(write(tmp_path))
    with pytest.raises(PortingError, match=message):
        import_adapter(tmp_path, model)


def test_a_model_of_no_family_has_no_adapters_of_peft(model: Model, tmp_path: Path) -> None:
    path = write(tmp_path / "adapter")
    with pytest.raises(PortingError, match="was not imported from transformers"):
        import_adapter(path, dataclasses.replace(model, origin=None))
    with pytest.raises(PortingError, match="dialect harvard has no directories"):
        import_adapter(path, dataclasses.replace(model, origin={"dialect": "harvard"}))
    merged = dataclasses.replace(import_adapter(path, model), origin=None)
    export_adapter(merged, tmp_path / "back", dialect="marian")
    assert sorted(file.name for file in (tmp_path / "back").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "digests.json",
    ]  # fmt: skip
    with pytest.raises(PortingError, match="expected a name that is free"):
        export_adapter(merged, tmp_path / "back", dialect="marian")


def test_adapters_of_a_tied_head_cannot_be_written(model: Model, tmp_path: Path) -> None:
    head = {"lora_a": np.zeros((12, 2), np.float32), "lora_b": np.zeros((2, 11), np.float32)}
    adapters = Adapters(LoraConfig(rank=2, targets=("head/kernel",)), {"head": head})
    with pytest.raises(PortingError, match=r"no linear layers for these adapters.*\n.*head/lora_a \(12, 2\)"):
        export_adapter(dataclasses.replace(model, adapters=adapters), tmp_path / "back")


def failed_line(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_the_command_names_mistakes(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter, ours, out = write(tmp_path / "adapter"), tmp_path / "model", tmp_path / "out"
    save_model(model, ours)
    assert "expected --base MODEL" in failed_line(capsys, "port", adapter, out)
    assert "--base nowhere: no such directory" in failed_line(capsys, "port", adapter, out, "--base", "nowhere")
    assert "received --config" in failed_line(capsys, "port", adapter, out, "--base", ours, "--config", "a.yaml")
    assert "this model has no adapters" in failed_line(capsys, "port", ours, out, "--adapters")
    assert "expected a model or run directory" in failed_line(capsys, "port", adapter, out, "--adapters")
    assert "--base x: expected --adapters" in failed_line(capsys, "port", ours, out, "--base", "x")
    assert "expected a name outside of" in failed_line(capsys, "port", ours, ours / "a", "--adapters")
    assert "received PEFT's adapters" in failed_line(capsys, "port", adapter, "--inspect")
    assert not out.exists()
    write(adapter, SAID | {"base_model_name_or_path": str(ours)})
    assert main(["port", str(adapter), str(out), "--dtype", "float64"]) == 0
    assert "rank 2, scale 2" in capsys.readouterr().out
    assert all(leaf.dtype == np.float32 for leaf in flatten(model.params).values())
