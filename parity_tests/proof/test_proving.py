"""`prove` on any two programs and on models, certificates, and the proof at the end of a comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jax_transformer.parity import Certificate, ParityError, compare, prove
from jax_transformer.parity.run_results import Pair
from jax_transformer.parity.stages.proof import _stage_proof, prove_pair
from jax_transformer.proof import Result
from parity_tests.systems import make_case
from torch_reference.pytorch import PytorchTransformer
from torch_reference.trace import Trace

INPUTS = {"ids": np.array([[1, 2, 3]]), "x": np.ones((1, 3, 5), np.float32)}


class Block(nn.Module):
    """Embeds ids, adds x, and returns the softmax of a normed GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.hidden, self.norm = nn.Embedding(9, 5), nn.Linear(5, 7), nn.LayerNorm(7)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.hidden(self.tokens(ids) + x))
        return torch.softmax(self.norm(hidden), dim=-1)


class Branching(Block):
    """Does something else if the weights are large."""

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return super().forward(ids, x) if self.hidden.weight.sum() < 100 else x


def block(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Computes what `Block` does."""
    embedded = params["tokens.weight"][inputs["ids"]] + inputs["x"]
    hidden = embedded @ params["hidden.weight"].T + params["hidden.bias"]
    active = jax.nn.gelu(hidden, approximate=False)
    centred = active - active.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.softmax(normed * params["norm.weight"] + params["norm.bias"]), {"hidden": hidden}


def test_a_function_is_a_module() -> None:
    certificate = prove(block, Block().eval(), inputs=INPUTS)
    assert certificate.verdict == "proven", str(certificate)
    assert {stage.name: len(stage.equal) for stage in certificate.stages} == {"forward": 2, "gradients": 5}
    assert certificate.log2_error < -80
    assert certificate.inputs["ids"]["values"] == [[1, 2, 3]]


def test_a_module_is_another_with_other_names() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    module, names = nn.Linear(5, 7).eval(), {"linear.weight": "weight", "linear.bias": "bias"}
    inputs = {"input": INPUTS["x"]}

    class Takes(Renamed):
        def forward(self, input: Tensor) -> Tensor:
            return self.linear(input)

    certificate = prove(module, Takes().eval(), inputs=inputs, names=names)
    assert certificate.verdict == "proven", str(certificate)
    with pytest.raises(ParityError, match=r"'linear\.weight' has no partner"):
        prove(module, Takes().eval(), inputs=inputs)


def test_a_branch_on_weights_is_unknown_and_named() -> None:
    certificate = prove(Branching().eval(), Block().eval(), inputs=INPUTS)
    assert certificate.verdict == "unknown"
    assert certificate.exit_code == 3
    assert all("branches on" in stage.reason and "test_proving.py:" in stage.reason for stage in certificate.stages)


def test_a_fault_is_located_and_shown_in_digits() -> None:
    module = Block().double().eval()
    module.norm.eps = 1e-5 * (1 + 2**-50)
    certificate = prove(block, module, inputs=INPUTS, stages=["forward"])
    assert certificate.verdict == "refuted"
    assert certificate.exit_code == 1
    assert certificate.difference is not None
    assert certificate.difference["reference"]["constants"] == [module.norm.eps]
    assert 1e-30 < certificate.difference["digits"] < 1e-12


def test_a_weight_that_nothing_reads_has_no_gradient() -> None:
    class Spare(Block):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    def reads(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        return block(params, inputs)[0] + params["spare"].sum()

    certificate = prove(lambda p, i: block(p, i)[0], Spare().eval(), inputs=INPUTS, stages=["gradients"])
    assert certificate.verdict == "proven", str(certificate)
    assert "gradient of spare" in certificate.stages[0].equal
    other = prove(reads, Spare().eval(), inputs=INPUTS, stages=["gradients"])
    assert other.stages[0].different == ("gradient of spare",)


def test_activations_alone_prove_no_forward_pass() -> None:
    """What one side alone has is listed, and a model whose outputs weren't compared isn't proven."""
    result = Result("proven", equal=("hidden",), alone=("logits",))
    stage = _stage_proof("forward", result)
    assert (stage.verdict, stage.alone) == ("unknown", ("logits",))
    assert _stage_proof("forward", dataclasses.replace(result, equal=("hidden", "logits"))).verdict == "proven"


def test_two_functions_need_weights() -> None:
    arrays = {"inputs": {"x": np.ones((2, 3))}, "weights": {"w": np.ones((3, 4))}}
    twice = prove(lambda p, i: 2 * i["x"] @ p["w"], lambda p, i: i["x"] @ (p["w"] + p["w"]), **arrays)
    assert twice.verdict == "proven"
    with pytest.raises(ParityError, match="weights: expected the parameters"):
        prove(lambda p, i: i["x"], lambda p, i: i["x"], inputs=arrays["inputs"])


class Attending(nn.Module):
    """Attends to itself, by the softmax of rows [B · H, T, S], or by PyTorch's fused attention of [B, H, T, S]."""

    def __init__(self, shows_weights: bool) -> None:
        super().__init__()
        self.attention, self.shows_weights = nn.MultiheadAttention(4, 2, batch_first=True), shows_weights
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=self.shows_weights)[0]
        return found


class Masking(nn.Module):
    """Masks the logits of a softmax, moves them along, and leaves one out."""

    def __init__(self, fill: float, moved: float = 0.0, *, uses: int = 5) -> None:
        super().__init__()
        self.hidden, self.fill, self.moved, self.uses = nn.Linear(4, 5), fill, moved, uses
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.hidden(x).masked_fill(torch.arange(5) == 2, self.fill) + self.moved
        return torch.softmax(logits, -1) * (torch.arange(5) < self.uses)


ROWS = {"x": np.ones((2, 3, 4), np.float32)}


@pytest.mark.parametrize(
    "modules",
    [(Attending(True), Attending(False)), (Masking(-1e9), Masking(-np.inf)), (Masking(-1e9), Masking(-1e5))],
    ids=["rows of heads", "a fill and infinity", "two fills"],
)
def test_a_softmax_inside_a_module_reads_rows(modules: tuple[nn.Module, nn.Module]) -> None:
    certificate = prove(*modules, inputs=ROWS)
    assert certificate.verdict == "proven", str(certificate)
    assert any("@logits" in name for name in certificate.stages[0].equal)


def test_other_rows_of_a_softmax_inside_a_module_differ() -> None:
    certificate = prove(Masking(-1e9), Masking(-1e9, np.log(2)), inputs=ROWS, stages=("forward",))
    assert certificate.verdict == "refuted"
    assert certificate.difference is not None
    assert "@logits" in certificate.difference["name"]
    assert "output     is the same at this point: what differs is inside" in str(certificate)
    assert "same at this point" not in str(
        prove(Masking(-1e9), Masking(-1e9, uses=4), inputs=ROWS, stages=("forward",))
    )


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """Proves a small system, its optimizer steps included."""
    case = make_case("stepwise_core")
    return prove_pair(Pair(case.config, case.model.params, case.candidate, case.reference, case.model.generation))


def test_a_system_is_proven_with_its_optimizer(certificate: Certificate) -> None:
    assert certificate.verdict == "proven", str(certificate)
    assert [stage.name for stage in certificate.stages] == ["forward", "loss", "gradients", "step 1", "step 3"]
    assert all(stage.equal for stage in certificate.stages)


def test_a_certificate_is_read_back(certificate: Certificate) -> None:
    again = Certificate.from_json(certificate.to_json())
    assert json.loads(again.to_json()) == json.loads(certificate.to_json())
    assert certificate.changes(again) == []


def test_a_changed_certificate_shows(certificate: Certificate) -> None:
    first, *rest = certificate.stages
    other = dataclasses.replace(certificate, stages=(dataclasses.replace(first, equal=first.equal[1:]), *rest))
    assert certificate.changes(other) == ["forward: proven, 33 arrays then; proven, 32 now"]
    program = dataclasses.replace(certificate.tasks[0].candidate, sha256="0" * 64)
    task = dataclasses.replace(certificate.tasks[0], candidate=program)
    assert "the candidate's program was" in certificate.changes(dataclasses.replace(certificate, tasks=(task,)))[-1]


def test_a_certificate_that_claims_more_shows(certificate: Certificate) -> None:
    first, *rest = certificate.tasks
    side = dataclasses.replace(first.candidate, narrowing=("bfloat16",))
    stage = dataclasses.replace(certificate.stages[0], alone=("logits",))
    claims: list[dict[str, Any]] = [
        {"tasks": (dataclasses.replace(first, log2_error=-1000.0), *rest)},
        {"tasks": (dataclasses.replace(first, axioms={}), *rest)},
        {"tasks": (dataclasses.replace(first, candidate=side), *rest)},
        {"tasks": ()},
        {"reference": "another"},
        {"allowed": ("fully-masked",)},
        {"stages": (stage, *certificate.stages[1:])},
    ]
    for claim in claims:
        assert len(dataclasses.replace(certificate, **claim).changes(certificate)) == 1, claim


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 99, "stages": []}', "[" * 100_000])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x\.json: expected a certificate"):
        Certificate.from_json(text, "x.json")


def test_arrays_are_no_programs() -> None:
    with pytest.raises(ParityError, match="named arrays are numbers"):
        prove({"x": np.ones(2)}, {"x": np.ones(2)})


def test_a_comparison_tells_functions_from_rounding() -> None:
    """A fault that no float shows makes a comparison fail; a variance computed badly is the same function."""
    case = make_case("harvard", num_encoder_layers=1, num_decoder_layers=1)
    module = case.reference.reference.build(torch.float64).eval()
    state = case.reference.reference.state_dict(case.model.params, module.state_dict().keys())
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    module.decoder.layers[0].sublayer[1].norm.eps = 1e-6 * (1 + 2**-50)
    report = compare(case.model, module, stages=["forward", "proof"], dtypes=["float64"], dialect="harvard")
    assert [stage.verdict for stage in report.stages if stage.name == "forward"] == ["passed"]
    assert report.verdict == "diverged"
    assert report.exit_code == 1
    assert report.proof is not None
    assert "two functions, first at decoder.layers.0.cross_attention_norm" in str(report)
    assert json.loads(report.to_json())["proof"]["verdict"] == "refuted"


def test_nn_transformer_is_what_its_sublayers_compute() -> None:
    """`forward` is torch.nn.Transformer's own; with a trace, the same parameters are used sublayer by sublayer."""

    class Traced(PytorchTransformer):
        def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
            return super().forward(source_ids, decoder_input_ids, trace=Trace())

    sizes = {"source_vocab_size": 11, "target_vocab_size": 13, "d_model": 12, "num_heads": 3, "d_ff": 20}
    depths = {"num_encoder_layers": 2, "num_decoder_layers": 2, "source_pad_id": 1, "target_pad_id": 2}
    own, traced = (kind(**sizes, **depths, max_length=9).eval() for kind in (PytorchTransformer, Traced))
    ids = {"source_ids": np.array([[3, 4, 5, 6], [7, 8, 1, 1]]), "decoder_input_ids": np.array([[3, 4, 5], [6, 7, 2]])}
    certificate = prove(own, traced, inputs=ids)
    assert certificate.verdict == "proven", str(certificate)
    assert [stage.name for stage in certificate.stages] == ["forward", "gradients"]


def test_an_unknown_verdict_is_json_and_claims_no_bound() -> None:
    """JSON has no infinity."""
    certificate = prove(lambda p, i: jax.lax.lgamma(p["w"]), lambda p, i: p["w"], inputs={}, weights={"w": np.ones(3)})
    degrees = prove(
        lambda p, i: p["w"] ** 2.0**60, lambda p, i: p["w"] ** 2.0**60, inputs={}, weights={"w": np.ones(3)}
    )
    for one in (certificate, degrees):
        assert one.verdict == "unknown"
        assert one.log2_error == 0.0
        assert Certificate.from_json(one.to_json()).verdict == "unknown"
    assert "lgamma" in certificate.stages[0].reason
