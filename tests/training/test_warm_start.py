"""What a run takes from the model that it starts from. (Against transformers: parity_tests/test_fine_tuning.py.)"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model.functional import init_params
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.training.export import make_model
from jax_transformer.training.warm_start import InitialModelError, follow_initial_model, load_initial_model

CONFIG = TransformerConfig(
    source_vocab_size=12, target_vocab_size=12, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1,
    num_decoder_layers=1, max_length=150, share_embeddings=True, dropout_rate=0.2, norm_placement="pre",
)  # fmt: skip


@pytest.fixture
def ported(tmp_path: Path) -> Path:
    import jax

    words = train_tokenizer(
        ["a b c d e f g h"], kind="whitespace", specials=SpecialIds(0, 1, 2, 3), add_bos=True, add_eos=True
    )
    origin = {"dialect": "bart", "prefix": "", "tensors": {}, "config": {}, "hugging_face": {"config": {}}}
    generation = GenerationConfig(decoder_start_id=3, eos_id=3)
    params = jax.device_get(init_params(CONFIG, jax.random.key(0)))
    target = words.adding(bos=False, eos=False)
    model = Model(CONFIG, params, words, target, generation, origin, tokenizer_files={"vocab.json": b"{}"})
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


def start(model: Path, config: RunConfig) -> RunConfig:
    return follow_initial_model(config, load_initial_model(str(model)))


@pytest.mark.parametrize("preset", ["finetune", "tiny", "paper_base"])
def test_a_presets_model_gives_way_to_the_initial_one(preset: str, ported: Path) -> None:
    config = get_preset(preset)
    followed = start(ported, config)
    assert dataclasses.replace(followed.model, initializer=CONFIG.initializer) == CONFIG
    assert followed.train == config.train
    assert followed.data.joint_vocabulary
    assert followed.data.tokenizers_as_stored
    assert (followed.data.decoder_start_id, followed.data.target_bos) == (3, True)
    assert followed.data.source_tokenizer == str(ported / "source_tokenizer.json")


def test_options_that_may_differ_remain(ported: Path) -> None:
    preset = get_preset("finetune")
    model = dataclasses.replace(preset.model, dropout_rate=0.4, compute_dtype="bfloat16", remat="all")
    followed = start(ported, dataclasses.replace(preset, model=model))
    expected = dataclasses.replace(CONFIG, dropout_rate=0.4, compute_dtype="bfloat16", remat="all")
    assert followed.model == expected


def test_a_model_of_its_own_is_kept_to_be_compared(ported: Path) -> None:
    preset = get_preset("tiny")
    model = dataclasses.replace(preset.model, d_ff=64)
    assert start(ported, dataclasses.replace(preset, model=model)).model == model


def test_tokenizers_that_are_named_stay(ported: Path) -> None:
    preset = get_preset("finetune")
    files = {f"{side}_tokenizer": str(ported / f"{side}_tokenizer.json") for side in ("source", "target")}
    followed = start(ported, dataclasses.replace(preset, data=dataclasses.replace(preset.data, **files)))
    assert not followed.data.tokenizers_as_stored
    assert followed.data.decoder_start_id is None


def test_tokenizer_files_go_along_with_the_tokenizers(ported: Path, tmp_path: Path) -> None:
    """They don't if the run names tokenizers, which it may read otherwise, or if the model is gone."""
    for side in ("source", "target"):
        (tmp_path / side).write_text("a b c\nd e f g h\n")
    pair = (str(tmp_path / "source"), str(tmp_path / "target"))
    preset, cache = get_preset("finetune"), str(tmp_path / "cache")
    data = dataclasses.replace(preset.data, train=pair, valid=pair, max_length=8, num_shapes=1, cache_dir=cache)
    config = start(ported, dataclasses.replace(preset, data=data))
    corpus, params = prepare(config.data), load_model(ported).params
    assert make_model(config, corpus, params).tokenizer_files == {"vocab.json": b"{}"}
    other = dataclasses.replace(config.data, tokenizers_as_stored=False)
    assert make_model(dataclasses.replace(config, data=other), corpus, params).tokenizer_files is None
    ported.rename(tmp_path / "elsewhere")
    assert make_model(config, corpus, params).tokenizer_files is None


def test_fine_tuning_needs_a_model() -> None:
    with pytest.raises(InitialModelError, match=r"finetune: expected --init-from MODEL, .*; received none"):
        follow_initial_model(get_preset("finetune"), None)
    assert follow_initial_model(get_preset("tiny"), None) == get_preset("tiny")
