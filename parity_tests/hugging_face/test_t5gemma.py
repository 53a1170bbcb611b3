"""T5Gemma's windows and paddings matter in the cases of the other tests, and its heads may be untied."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES, Case, load_theirs, make_case, make_problem, randomised

import jax_transformer as jt
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import with_values
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def case(folder: Path) -> Case:
    return make_case("t5gemma", 0, folder)


def logits(case: Case, config: TransformerConfig) -> np.ndarray:
    model = Model(config, case.model.params, None, None, case.model.generation)
    return np.asarray(JaxSide("jax", model).forward(case.problem, "float64")["logits"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("encoder.self_attention.window", 5),  # as sliding_window says, which counts other tokens
        ("encoder.self_attention.full_every", None),
        ("decoder.self_attention.window", 8),
        ("decoder.self_attention.full_every", 3),
        ("decoder.self_attention.padding", "none"),
        ("encoder.self_attention.logits_cap", None),
        ("decoder.cross_attention.logits_cap", None),
        ("decoder.cross_attention.scale", None),
        ("encoder.positions.base", 10_000.0),
        ("head.cap", None),
    ],
)
def test_every_option_that_is_read_counts(case: Case, path: str, value: object) -> None:
    expected = case.reference.forward(case.problem, "float64")["logits"]
    assert compare(logits(case, case.config), expected).relative_rms < FLOAT64_RELATIVE_RMS
    assert compare(logits(case, with_values(case.config, {path: value})), expected).relative_rms > 1e-4


def test_generate_shows_padding_that_training_hides(case: Case) -> None:
    """With a cache, as `generate` has, transformers masks none of the target's pads."""
    module = copy.deepcopy(case.theirs).float()
    with torch.no_grad():
        hidden, shown = (module(**case.inputs(), use_cache=cached).logits.numpy() for cached in (False, True))
    assert compare(logits(case, case.config), hidden).relative_rms < 1e-4
    assert compare(logits(case, case.config.while_decoding()), shown).relative_rms < 1e-4
    assert compare(hidden, shown).relative_rms > 1e-3


def test_a_head_of_its_own_comes_back(folder: Path, tmp_path: Path) -> None:
    kind, rng = FAMILIES["t5gemma"], np.random.default_rng(5)
    config = kind.config(**kind.sizes[1], tie_word_embeddings=False)
    theirs = randomised(kind.model(config).eval(), rng, untied=False)
    theirs.save_pretrained(tmp_path / "there")
    theirs = load_theirs(kind.model, tmp_path / "there")
    model = import_checkpoint(tmp_path / "there")
    assert not model.config.tie_head
    case = Case(theirs, tmp_path / "there", model, make_problem(rng, model))
    expected = case.reference.forward(case.problem, "float64")["logits"]
    assert compare(logits(case, model.config), expected).relative_rms < FLOAT64_RELATIVE_RMS
    export_checkpoint(model, tmp_path / "back")
    back = transformers.T5GemmaForConditionalGeneration.from_pretrained(tmp_path / "back")
    assert not torch.equal(back.lm_head.out_proj.weight, back.model.decoder.embed_tokens.weight)
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


def test_a_model_saved_without_its_head_is_read(case: Case, tmp_path: Path) -> None:
    case.theirs.model.save_pretrained(tmp_path / "there")
    model = import_checkpoint(tmp_path / "there")
    assert model.config == case.config
    assert compare(
        np.asarray(JaxSide("jax", model).forward(case.problem, "float64")["logits"]), logits(case, case.config)
    ).within(0.0)


@pytest.mark.nightly
def test_the_forward_pass_is_proven_with_gradients_and_steps(case: Case) -> None:
    proof = jt.prove(case.model, case.theirs)
    assert proof.verdict == "proven", str(proof)
    assert {"gradients", "step 3"} <= {stage.name for stage in proof.stages}
