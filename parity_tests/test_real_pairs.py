"""Diagnosis of real divergences: one published system's weights in another's program."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from systems import Case, make_case

from jax_transformer.comparison.findings import Finding
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids

pytestmark = pytest.mark.usefixtures("quick_compilation")


def findings(case: Case, program: str = "") -> list[Finding]:
    """Returns the faults in a trace of the case's weights; with `program`, another module of torch_reference."""
    reference = dataclasses.replace(case.reference.reference, program=program)
    trace = TorchSide("torch", case.model, reference).forward(case.problem, "float64")
    return diagnose(case.config, case.model.params, with_ids(trace, *case.problem.ids))


@pytest.mark.parametrize("name", ["annotated_zh", "sayhello_article"])
def test_a_program_with_its_own_weights_has_no_faults(name: str) -> None:
    assert findings(make_case(name)) == []


def test_annotated_zh_in_harvard_has_another_activation_and_norm_in_every_place() -> None:
    case = make_case("annotated_zh")
    causes = Counter(finding.cause for finding in findings(case, "harvard"))
    layers = case.config.num_encoder_layers + case.config.num_decoder_layers
    norms = 2 * case.config.num_encoder_layers + 3 * case.config.num_decoder_layers + 2
    assert causes == {"norm: ε outside the root": norms, "ReLU": layers}


def test_sayhello_in_hyunwoongko_has_another_norm_fill_value_and_masks() -> None:
    """The ε is too small to tell where it stands."""
    found = findings(make_case("sayhello_article"), "hyunwoongko")
    named = {(finding.kind, finding.matches[0].variant) for finding in found}
    assert named == {
        ("mask", "pads masked as keys"),
        ("mask", "pads masked as queries, by the target's pad id"),
        ("attention_logits", "masked logits are -10000"),
        ("residual_norm", "norm: variance over D"),
    }
    assert [finding.node for finding in found[:3]] == ["mask.encoder_self", "mask.decoder_self", "mask.cross"]
