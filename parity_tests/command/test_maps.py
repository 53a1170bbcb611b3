"""`jax-transformer parity` on modules of other names, which a map leads to ours: whole maps, drafts, and wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import user_models
from parity_command import PYTORCH, Run, module

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_module_of_other_names(run: Run) -> None:
    outcome = run(
        "pytorch.pt",
        *PYTORCH,
        *module("foreign"),
        "--map",
        "names.yaml",
        stages="weights,inputs,masks,forward,loss,gradients",
    )
    assert outcome.code == 0, outcome.output
    assert "✓ masks: 3 of 3" in outcome.output, "from the logits"


@pytest.mark.parametrize(
    ("name", "node", "cause"),
    [
        ("foreign_eps", "encoder.layers.1.feed_forward_norm", "norm: ε = 1e-06"),
        ("foreign_gelu", "decoder.layers.0.feed_forward.hidden", "exact GELU"),
    ],
)
def test_faults_of_a_module_of_other_names(name: str, node: str, cause: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module(name), "--map", "names.yaml")
    assert outcome.code == 1, outcome.output
    assert f"{cause}, at 1 node of the reference" in outcome.output
    assert f"node {node} (forward, own weights)" in outcome.output


def test_activations_follow_from_parameters(run: Run, tmp_path: Path) -> None:
    """And the logits are compared, whatever a map leaves out."""
    parameters = user_models.FOREIGN_MAP[user_models.FOREIGN_MAP.index("parameters:") :]
    maps = {"none": "", "one": "activations:\n  enc_ln: encoder.output\n"}
    for name, activations in maps.items():
        (tmp_path / name).write_text(activations + parameters)
        outcome = run(
            "pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / name), stages="weights,forward"
        )
        assert outcome.code == 0, outcome.output
        assert ("2 of 2" if name == "one" else "42 of 42") in outcome.output
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign_gelu"), "--map", str(tmp_path / "one"), stages="forward")
    assert outcome.code == 1, outcome.output
    assert "exact GELU" in outcome.output, "of a node that isn't seen"


def test_a_map_numbers_layers_one_by_one(run: Run, tmp_path: Path) -> None:
    lines = []
    for line in user_models.FOREIGN_MAP.replace(":\n    {", ": {").splitlines():
        numbers = range(2 if "enc.{i}" in line else 1) if "{i}" in line else [0]
        lines += [line.replace("{i}", str(number)) for number in numbers]
    (tmp_path / "names.yaml").write_text("\n".join(lines))
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / "names.yaml"))
    assert outcome.code == 0, outcome.output


def test_a_draft_of_a_map(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "draft.yaml"
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--draft-map", str(path))
    assert outcome.code == 0, outcome.output
    assert "Read it and edit it" in outcome.out
    draft = path.read_text()
    assert draft.startswith("# A DRAFT")
    assert "enc.{i}.attn.qkv.weight" in draft
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(path))
    assert outcome.is_one_clear_message, "what is commented out is missing"


MAPS: dict[str, tuple[str, str, int, str]] = {
    "our activation": (
        "dec_ln: decoder.output",
        "dec_ln: decoder.outputs",
        2,
        "ours has no such name (nearest: decoder.output)",
    ),
    "their activation": (
        "enc_ln: encoder.output",
        "enc_lm: encoder.output",
        3,
        "only the candidate has encoder.output",
    ),
    "our parameter": ("out.bias: head/bias", "out.bias: head/biases", 2, "leaf head/bias (19,): no rule leads to it"),
    "their parameter": ("out.bias: head/bias", "out.biases: head/bias", 2, "unexpected tensor out.bias"),
    "another size": ("enc_ln: encoder.output", "enc_ln: decoder.embedding", 2, "is no decoder.embedding (7, 9, 12)"),
    "no YAML": ("activations:", "activations: [", 2, "expected YAML"),
}


@pytest.mark.parametrize("mistake", MAPS)
def test_a_wrong_map(mistake: str, run: Run, tmp_path: Path) -> None:
    right, wrong, code, output = MAPS[mistake]
    assert right in user_models.FOREIGN_MAP
    (tmp_path / "wrong.yaml").write_text(user_models.FOREIGN_MAP.replace(right, wrong))
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / "wrong.yaml"))
    assert outcome.code == code, outcome.output
    assert output in outcome.output
    assert outcome.is_one_clear_message == (code == 2)
