"""LoRA adapters go between PEFT and this package, and train alike in both."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from families import FAMILIES, Case, make_case
from fine_tuning import train_in_jax, train_in_torch
from recipes_in_torch import NO_DROPOUT

from jax_transformer.cli import main
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import (
    FACTOR_RMS,
    FLOAT64_RELATIVE_RMS,
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
)
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch, make_batch
from jax_transformer.model.functional import apply
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.porting import PortingError, export_adapter, import_adapter, import_checkpoint
from jax_transformer.programs.modes import wide
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model, load_model, save_model

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied after merging:UserWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True but the target module:UserWarning"),
]

ALL_LINEAR: dict[str, list[str] | str] = {
    "t5": ["q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"],
    "encoder-decoder": r".*\.layer\..*\.(query|key|value|dense)",  # not the encoder's pooler, which nothing reads
    "t5gemma": r".*\.layers\..*_proj",  # not the head's out_proj, which is tied
    "others": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


def linear_of(case: Case) -> list[str] | str:
    kind = case.theirs.config.model_type
    return ALL_LINEAR["t5" if kind.endswith("t5") else kind if kind in ALL_LINEAR else "others"]


def adapted(theirs: Any, targets: list[str] | str, *, zero: bool = False, **options: Any) -> Any:
    """Returns a copy of a model with random adapters; with `zero`, as PEFT draws them."""
    transformers.set_seed(1)
    usual = {"task_type": "SEQ_2_SEQ_LM", "r": 3, "lora_alpha": 5}
    config = peft.LoraConfig(target_modules=targets, init_lora_weights=zero, **usual | options)
    return peft.get_peft_model(copy.deepcopy(theirs), config).to(theirs.dtype).eval()


def merged_by_peft(case: Case, theirs: Any, folder: Path) -> Any:
    """Returns the parameters of a model into which PEFT has merged its adapters."""
    plain = copy.deepcopy(case.theirs)
    plain.load_state_dict(theirs.merge_and_unload().state_dict())
    plain.save_pretrained(folder / "merged")
    return import_checkpoint(folder / "merged").params


def in_float64(model: Model) -> Model:
    return dataclasses.replace(model, params=cast(model.params, "float64"))


def logits_of(case: Case, model: Model) -> np.ndarray:
    problem = case.problem
    return np.asarray(apply(model.config, model.params, problem.source_ids, problem.decoder_input_ids))


def their_logits(case: Case, theirs: Any) -> np.ndarray:
    with torch.no_grad(), wide(theirs):
        return theirs(**case.inputs(), use_cache=False).logits.numpy()


# --- files


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_of_every_linear_layer_merge_as_in_peft(family: str, folder: Path, tmp_path: Path) -> None:
    case = make_case(family, 0, folder)
    theirs = adapted(case.theirs.double(), linear_of(case))
    theirs.save_pretrained(tmp_path / "adapter")
    merged = import_adapter(tmp_path / "adapter", in_float64(case.model))
    expected = flatten(merged_by_peft(case, theirs, tmp_path))
    received, before = flatten(merged.params), flatten(case.model.params)
    assert received.keys() == expected.keys()
    changed = [path for path, leaf in before.items() if not np.array_equal(leaf, received[path])]
    kinds = {path.split("/", 1)[1] for path in changed}
    assert {"layers/cross_attention/output/kernel", "layers/feed_forward/hidden/kernel"} < kinds
    errors = {path: compare(received[path], expected[path]).relative_rms for path in changed}
    assert max(errors.values()) < FLOAT64_RELATIVE_RMS

    export_adapter(merged, tmp_path / "back", base="somewhere/base")
    before, after = (peft.utils.load_peft_weights(str(tmp_path / name)) for name in ("adapter", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_logits_are_equal_both_ways(family: str, folder: Path, tmp_path: Path) -> None:
    case = make_case(family, 0, folder)
    base = case.theirs.double().eval()
    theirs = adapted(base, linear_of(case)[:2], use_rslora=True, fan_in_fan_out=True, lora_dropout=0.5)
    theirs.save_pretrained(tmp_path / "adapter")
    merged = import_adapter(tmp_path / "adapter", in_float64(case.model))
    truth = their_logits(case, theirs)
    assert compare(logits_of(case, merged), truth).relative_rms < FLOAT64_RELATIVE_RMS
    assert compare(their_logits(case, base), truth).relative_rms > 1e-3

    export_adapter(merged, tmp_path / "back")
    back = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / "back"))
    assert np.array_equal(their_logits(case, back.double().eval()), truth)

    single = import_adapter(tmp_path / "adapter", case.model)
    in_float32 = compare(logits_of(case, single), truth).relative_rms
    theirs_in_float32 = compare(their_logits(case, theirs.float()), truth).relative_rms
    assert in_float32 < FACTOR_RMS * theirs_in_float32


UNEVEN = [
    {"rank_pattern": {"encoder.layers.1.self_attn.q_proj": 5}},
    {"alpha_pattern": {"^model.decoder.*v_proj": 7, "layers.0.self_attn.v_proj": 2}},
    {"layers_to_transform": [1]},
]


@pytest.mark.parametrize("options", UNEVEN, ids=lambda options: next(iter(options)))
def test_uneven_adapters_merge_but_are_not_kept(options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    case = make_case("marian", 0, folder)
    theirs = adapted(case.theirs.double(), ["q_proj", "v_proj"], **options)
    theirs.save_pretrained(tmp_path / "adapter")
    merged = import_adapter(tmp_path / "adapter", in_float64(case.model))
    expected = flatten(merged_by_peft(case, theirs, tmp_path))
    errors = [compare(leaf, expected[path]).relative_rms for path, leaf in flatten(merged.params).items()]
    assert max(errors) < FLOAT64_RELATIVE_RMS
    assert merged.adapters is None
    with pytest.raises(PortingError, match="this model has no adapters"):
        export_adapter(merged, tmp_path / "back")


def test_adapters_of_one_stack_name_their_modules_in_full(folder: Path, tmp_path: Path) -> None:
    case = make_case("t5", 0, folder)
    base = case.theirs.double().eval()
    theirs = adapted(base, r".*encoder.*SelfAttention\.(q|o)")
    theirs.save_pretrained(tmp_path / "adapter")
    merged = import_adapter(tmp_path / "adapter", in_float64(case.model))
    export_adapter(merged, tmp_path / "back")
    named = json.loads((tmp_path / "back" / "adapter_config.json").read_text())["target_modules"]
    assert named[0] == "encoder.block.0.layer.0.SelfAttention.q"
    back = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / "back")).double().eval()
    assert np.array_equal(their_logits(case, back), their_logits(case, theirs))


def test_adapters_of_a_model_without_its_head(folder: Path, tmp_path: Path) -> None:
    """The names of a MarianModel lack the "model." that a MarianMTModel's have."""
    case = make_case("marian", 0, folder)
    adapted(case.theirs, ["q_proj"]).save_pretrained(tmp_path / "headed")
    expected = import_adapter(tmp_path / "headed", case.model)
    body = adapted(case.theirs.model, ["q_proj"], task_type="FEATURE_EXTRACTION")
    body.save_pretrained(tmp_path / "body")
    received = import_adapter(tmp_path / "body", case.model)
    ours, theirs = flatten(received.params), flatten(expected.params)
    assert all(np.array_equal(leaf, theirs[path]) for path, leaf in ours.items())


def test_the_command_merges_and_writes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = make_case("bart", 0, folder)
    adapted(case.theirs.float(), ["q_proj", "v_proj"]).save_pretrained(tmp_path / "adapter")
    shutil.copytree(case.directory, tmp_path / "hf")
    save_model(case.model, tmp_path / "model")
    expected = flatten(import_adapter(tmp_path / "adapter", case.model).params)
    for number, base in enumerate(("hf", "model")):
        merged = str(tmp_path / f"merged_{number}")
        assert main(["port", str(tmp_path / "adapter"), merged, "--base", str(tmp_path / base)]) == 0
        received = flatten(load_model(merged).params)
        assert all(np.array_equal(leaf, expected[path]) for path, leaf in received.items())
    assert "rank 3, scale 1.66667" in capsys.readouterr().out
    assert main(["port", merged, str(tmp_path / "back"), "--adapters", "--base", "facebook/bart-base"]) == 0
    content = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert (content["base_model_name_or_path"], content["target_modules"]) == (
        "facebook/bart-base",
        ["q_proj", "v_proj"],
    )


# --- training

SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 24, "max_position_embeddings": 16,
}  # fmt: skip
T5_SIZES = {"d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
PAD = {"marian": 40, "t5": 0}
ADAMW = {
    "learning_rate": 5e-3, "weight_decay": 0.01, "weight_decay_kind": "decoupled", "adam_b2": 0.999, "adam_eps": 1e-8,
    "schedule": "linear", "warmup_steps": 0,
}  # fmt: skip
ADAFACTOR = {
    "optimizer": "adafactor",
    "schedule": "relative",
    "learning_rate": 1.0,
    "factored_from": 1,
    "warmup_steps": 0,
}


def tiny_model(kind: str) -> Any:
    transformers.set_seed(0)
    if kind == "t5":
        return transformers.T5ForConditionalGeneration(
            transformers.T5Config(**T5_SIZES, vocab_size=41, decoder_start_token_id=0)
        )
    ids = {"pad_token_id": 40, "decoder_start_token_id": 40, "eos_token_id": 0}
    return transformers.MarianMTModel(transformers.MarianConfig(**SIZES, **ids, vocab_size=41))


def batches(kind: str) -> list[Batch]:
    """Returns two batches of random sentences."""
    draw, pad_id = np.random.default_rng(0), PAD[kind]
    ids = {"source_pad_id": pad_id, "target_pad_id": pad_id, "bos_id": pad_id, "eos_id": 1}

    def sentences() -> list[list[int]]:
        return [draw.integers(3, 39, length).tolist() for length in (7, 4, 5, 2)]

    return [make_batch(sentences(), sentences(), **ids) for _ in range(2)]


@pytest.mark.parametrize(
    ("kind", "targets", "options"),
    [("marian", ["q_proj", "v_proj"], ADAMW), ("t5", ["q", "o", "wo"], ADAMW), ("t5", ["q", "o", "wi"], ADAFACTOR)],
    ids=["marian-adamw", "t5-adamw", "t5-adafactor"],
)
def test_training_goes_as_in_peft(kind: str, targets: list[str], options: dict[str, Any], tmp_path: Path) -> None:
    """Twelve steps in float64, from the same first adapters: each loss, and the adapters."""
    base = tiny_model(kind).double()
    base.save_pretrained(tmp_path / "hf")
    theirs = adapted(base, targets, zero=True)
    theirs.base_model.model.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path / "first")
    model = import_checkpoint(tmp_path / "hf")
    first = import_adapter(tmp_path / "first", model)
    assert first.adapters is not None
    steps = batches(kind) * 6
    train = TrainConfig(**options, max_steps=len(steps), clip_norm=0.5, label_smoothing=0.0, lora=first.adapters.config)
    config = dataclasses.replace(model.config, **NO_DROPOUT, output_dropout_rate=0.0)
    params = unflatten(flatten(model.params) | flatten(first.adapters.params))
    received, trained = train_in_jax(config, train, params, steps)

    own = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    if train.optimizer == "adafactor":
        optimizer: Any = transformers.Adafactor(own, relative_step=True, scale_parameter=True)
        lower_rate = None
    else:
        optimizer = torch.optim.AdamW(own, train.learning_rate, weight_decay=train.weight_decay)
        lower_rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 - done / train.max_steps).step
    expected = train_in_torch(theirs, steps, optimizer, lower_rate, train.clip_norm)
    np.testing.assert_allclose(received, expected, rtol=TRAJECTORY_LOSS_RELATIVE)
    assert expected[-2] < expected[0]  # of the same batch

    theirs.save_pretrained(tmp_path / "trained")
    last = import_adapter(tmp_path / "trained", model).adapters
    assert last is not None
    ours, reference = flatten(trained), flatten(last.params)
    assert ours.keys() == reference.keys()
    errors = {path: compare(ours[path], leaf).relative_rms for path, leaf in reference.items()}
    assert max(errors.values()) < TRAJECTORY_PARAMETERS_RELATIVE_RMS
