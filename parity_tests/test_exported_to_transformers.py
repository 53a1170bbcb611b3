"""Models trained here as directories of transformers: the family found, its logits, tokens and tokenizers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers

from jax_transformer.cli import main
from jax_transformer.config import model as model_module
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Learned, Sinusoidal
from jax_transformer.data.phrasebook.pairs import sample_pairs
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.decoding.translation import translate
from jax_transformer.exporting.transformers import export_transformers
from jax_transformer.model.functional import abstract_params, apply
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.programs.modes import wide
from jax_transformer.storage.model_directory import Model, save_model

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SMALL = TransformerConfig(
    source_vocab_size=31,
    target_vocab_size=29,
    d_model=16,
    num_heads=4,
    d_ff=24,
    num_encoder_layers=2,
    num_decoder_layers=1,
    max_length=24,
)
ONE_SIZE = {"source_vocab_size": 29}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "as the paper": ("marian", {}),
    "tied, two vocabularies": ("marian", {"tie_head": True, "decoder_num_heads": 2, "masked_value": -1e9}),
    "demo": ("pegasus", {"norm_placement": "pre", "final_norm": True}),
    "tiny": (
        "pegasus",
        ONE_SIZE | {"norm_placement": "pre", "final_norm": True, "share_embeddings": True, "tie_head": True},
    ),
    "other sinusoids": (
        "blenderbot",
        {"norm_placement": "pre", "final_norm": True, "position_frequency": "doubled", "position_factor": 0.5},
    ),
    "learned": (
        "blenderbot",
        ONE_SIZE
        | {
            "norm_placement": "pre",
            "final_norm": True,
            "position_kind": "learned",
            "position_index": "non_pad_count",
            "position_offset": 3,
            "tie_head": True,
            "embedding_factor": 4.0,
            "head_bias": "none",
        },
    ),
    "a rounded table": (
        "blenderbot",
        {"norm_placement": "pre", "final_norm": True, "learned_position_scale": True, "position_factor": 0.3},
    ),
    "embedding norms": (
        "bart",
        {
            "encoder_embedding_norm": "after_positions",
            "decoder_embedding_norm": "after_positions",
            "activation": "gelu",
            "scale_embedding": False,
        },
    ),
    "of both": (
        "mbart",
        {
            "encoder_embedding_norm": "after_positions",
            "decoder_embedding_norm": "after_positions",
            "norm_placement": "pre",
            "final_norm": True,
        },
    ),
    "biases by distance": (
        "t5",
        ONE_SIZE
        | {
            "position_kind": "relative_bias",
            "norm_kind": "rms_norm",
            "norm_bias": False,
            "norm_eps": 1e-6,
            "norm_placement": "pre",
            "final_norm": True,
            "attention_scale": 1.0,
            "attention_bias": False,
            "attention_output_bias": False,
            "feed_forward_bias": False,
            "head_bias": "none",
            "share_embeddings": True,
            "scale_embedding": False,
        },
    ),
}


def make_model(form: dict[str, Any] | TransformerConfig, size: float = 0.4) -> Model:
    config = form if isinstance(form, TransformerConfig) else dataclasses.replace(SMALL, **form)
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        stack, _, kind = path[-1].key.partition("_")
        if kind == "positions":
            return sinusoid_table(getattr(config, stack)).astype(np.float32)
        return (size * rng.standard_normal(leaf.shape) + (path[-1].key == "scale")).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(draw, abstract_params(config))
    return Model(config, params, None, None, GenerationConfig(decoder_start_id=2, eos_id=3))


def our_logits(model: Model, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.params)
        return np.asarray(jax.jit(apply, static_argnums=0)(model.config, params, source, target))


@pytest.mark.parametrize("name", FORMS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """Of real tokens; sources have padding. Rows that fill a vocabulary are never decoded."""
    family, form = FORMS[name]
    model = make_model(form)
    lines = export_transformers(model, tmp_path / "there")
    assert lines[0].startswith(f"family:   {family},")
    gate = 1e-6 if name == "a rounded table" else 1e-12  # a factor was multiplied in, and the product stored in float32
    assert_same_logits(model, tmp_path / "there", gate)


def assert_same_logits(model: Model, path: Path, gate: float) -> None:
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
    rng = np.random.default_rng(1)
    source, target = rng.integers(4, 29, (3, 9)), rng.integers(4, 29, (3, 7))
    source[1, 6:], target[:, 0] = 0, 2
    with torch.no_grad(), wide(theirs):
        mask = torch.from_numpy((source != 0).astype(np.int64))
        found = theirs(torch.from_numpy(source), mask, decoder_input_ids=torch.from_numpy(target)).logits.numpy()
    expected = our_logits(model, source, target)
    assert np.abs(found[..., :29] - expected).max() <= gate * np.abs(expected).max()
    assert (found[..., 29:] < -1e8).all()
    assert (theirs.generation_config.decoder_start_token_id, theirs.generation_config.eos_token_id) == (2, 3)
    assert theirs.generation_config.max_new_tokens == 24


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            {"norm_placement": "pre", "final_norm": True, "norm_eps": 1e-6},
            "the nearest is pegasus: norm_eps must be 1e-05, as in its programs; received 1e-06",
        ),
        ({"activation": "mish"}, "the nearest is marian: activation must be 'relu' or 'gelu' or"),
        ({"position_kind": "rotary"}, "position_kind must be"),
        ({"source_pad_id": 1}, "target_pad_id must be source_pad_id=1; received 0"),
        ({"embedding_factor": 3.0}, "embedding_factor must be None; received 3.0"),
    ],
)
def test_refuses_in_one_line(form: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transformers has no family") as error:
        export_transformers(make_model(form), tmp_path / "there")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


# --- stacks that differ


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stacks differ in every option."""
    monkeypatch.setattr(model_module, "model_problems", lambda config: [])


PRE_NORM: dict[str, Any] = {"norm_placement": "pre", "final_norm": True}


def apart(**parts: dict[str, Any]) -> TransformerConfig:
    """A pre-norm config with other options in these parts, such as decoder__norm."""
    config = dataclasses.replace(SMALL, **PRE_NORM)
    for path, options in parts.items():
        stack, _, name = path.partition("__")
        own = getattr(config, stack)
        changed = {name: dataclasses.replace(getattr(own, name), **options)} if name else options
        config = dataclasses.replace(config, **{stack: dataclasses.replace(own, **changed)})
    return config


def test_tables_and_masks_of_stacks_that_differ_are_rearranged(unchecked: None, tmp_path: Path) -> None:
    """Each stack's positions become a learned table; masked values that give no weight become the family's."""
    config = apart(
        encoder={"positions": Learned(offset=3, factor=0.5, index="non_pad_count")},
        decoder={"positions": Sinusoidal(frequency="inclusive", layout="halves")},
        decoder__self_attention={"masked_value": -1e9},
        decoder__cross_attention={"masked_value": -1e6},
    )
    model = make_model(config)
    lines = export_transformers(model, tmp_path / "there")
    assert lines[0].startswith("family:   blenderbot,")
    assert_same_logits(model, tmp_path / "there", 1e-12)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"decoder__norm": {"eps": 1e-3}},
            "the nearest is pegasus: decoder.norm.eps must be 1e-05, as encoder.norm.eps is: one norm_eps applies to "
            "all; received 0.001",
        ),
        ({"decoder__cross_attention": {"scale": 2.0}}, "decoder.cross_attention.scale must be None; received 2.0"),
        ({"encoder__feed_forward": {"gated": True}}, "encoder.feed_forward.gated must be False; received True"),
        ({"decoder__self_attention": {"masked_value": -5.0}}, "decoder.self_attention.masked_value must be None"),
        ({"encoder__dropout": {"rate": 0.4}}, "dropout_rate must be one value in all places; received"),
    ],
)
def test_an_option_of_which_a_family_has_one_is_refused_by_its_path(
    parts: dict[str, Any], message: str, unchecked: None, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="transformers has no family") as error:
        export_transformers(make_model(apart(**parts)), tmp_path / "there")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_feed_forward_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="feed_forward must be True; received False"):
        export_transformers(make_model({"feed_forward": False}), tmp_path / "there")


PAIRS = sample_pairs("train", 60)
TEXTS = [*(source for source, _ in PAIRS[:12]), "Who sees <eos> and <pad> ?", "", "unknown ☃ words"]
IDS = SpecialIds(pad=0, unk=1, bos=2, eos=3)


@pytest.mark.parametrize(("kind", "is_joint"), [("words", False), ("bpe", True)])
def test_text_goes_in_and_out(kind: Any, is_joint: bool, tmp_path: Path) -> None:
    """Ids of AutoTokenizer, and translations by beams, from the directory alone."""
    sides = [[source for source, _ in PAIRS], [target for _, target in PAIRS]]
    if is_joint:
        sides = [sides[0] + sides[1]] * 2
    size = {"vocab_size": 120} if kind == "bpe" else {}
    source, target = (
        train_tokenizer(texts, kind=kind, specials=IDS, add_eos=number == 0, **size)
        for number, texts in enumerate(sides)
    )
    sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size}
    model = make_model(sizes | {"max_length": 64}, size=0.2)  # or probabilities are so near 1 that scores tie
    model = dataclasses.replace(model, source_tokenizer=source, target_tokenizer=target)
    save_model(model, tmp_path / "model")
    there = tmp_path / "there"
    assert main(["export", str(tmp_path / "model"), str(there), "--to", "transformers"]) == 0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(there).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(there)
    decoder = tokenizer if is_joint else transformers.AutoTokenizer.from_pretrained(there / "target_tokenizer")
    assert (there / "target_tokenizer").exists() is not is_joint
    assert tokenizer(TEXTS).input_ids == source.encode(TEXTS)
    texts = TEXTS[:12]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        ids = theirs.generate(batch.input_ids, attention_mask=batch.attention_mask, num_beams=4, max_new_tokens=8)
    assert decoder.batch_decode(ids, skip_special_tokens=True) == translate(
        model, texts, DecodingConfig(beam_size=4, max_new_tokens=8)
    )


def test_a_ported_model_goes_back_as_it_came(tmp_path: Path) -> None:
    sizes = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, **sizes)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "first")
    assert main(["port", str(tmp_path / "first"), str(tmp_path / "model")]) == 0
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "back"), "--to", "transformers"]) == 0
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
