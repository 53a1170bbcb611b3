"""Diagnosis of real divergences: one published system's weights in another's program."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from systems import SYSTEMS, Case, make_case, torch_trace

from jax_transformer.parity.diagnosis.findings import Finding
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids

pytestmark = pytest.mark.usefixtures("quick_compilation")


def in_the_program_of(other: str, case: Case) -> list[Finding]:
    """What is found in a trace of that program, of the case's weights and ids."""
    sizes = (
        "source_vocab_size",
        "target_vocab_size",
        "d_model",
        "num_heads",
        "d_ff",
        "max_length",
        "source_pad_id",
        "target_pad_id",
        "num_encoder_layers",
        "num_decoder_layers",
    )
    program = SYSTEMS[other].build(**{name: getattr(case.config, name) for name in sizes}, dtype=torch.float64).eval()
    program.load_state_dict(case.torch64.state_dict())
    return findings(case, program)


def findings(case: Case, program: torch.nn.Module) -> list[Finding]:
    captured = with_ids(torch_trace(program, case), case.source_ids, case.decoder_input_ids)
    return diagnose(case.config, case.params64, captured)


@pytest.mark.parametrize("name", ["annotated_zh", "sayhello_article"])
def test_a_program_with_its_own_weights_has_no_faults(name: str) -> None:
    case = make_case(name)
    assert findings(case, case.torch64) == []


def test_annotated_zh_in_harvard() -> None:
    """The activation, and the norm, in every place."""
    case = make_case("annotated_zh")
    causes = Counter(finding.cause for finding in in_the_program_of("harvard", case))
    layers = case.config.num_encoder_layers + case.config.num_decoder_layers
    norms = 2 * case.config.num_encoder_layers + 3 * case.config.num_decoder_layers + 2
    assert causes == {"norm: ε outside the root": norms, "ReLU": layers}


def test_sayhello_in_hyunwoongko() -> None:
    """The norm, the fill value and the masks. (Its ε is too small to tell where it stands.)"""
    case = make_case("sayhello_article")
    found = in_the_program_of("hyunwoongko", case)
    named = {(finding.kind, finding.matches[0].variant) for finding in found}
    assert named == {
        ("mask", "pads masked as keys"),
        ("mask", "pads masked as queries, by the target's pad id"),
        ("attention_logits", "masked logits are -10000"),
        ("residual_norm", "norm: variance over D"),
    }
    assert [finding.node for finding in found[:3]] == ["mask.encoder_self", "mask.decoder_self", "mask.cross"]
