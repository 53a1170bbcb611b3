"""Frozen references: what a file holds, which files are refused, and comparisons and proofs with them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.frozen.record import SETTINGS
from jax_transformer.parity import ParityError, Side
from jax_transformer.storage.safetensors_writer import save_safetensors
from jax_transformer.storage.tensor_files import SafetensorsFile

IDS = {"input_ids": np.array([[1, 5, 3, 2], [4, 4, 0, 7]])}
ROOT = Path(jt.__file__).parent.parent

pytestmark = pytest.mark.usefixtures("quick_compilation")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Original(torch.nn.Module):
    def __init__(self, seed: int = 0, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.layers = torch.nn.Embedding(11, 8), torch.nn.ModuleList([Block(), Block()])
        self.head, self.drop = torch.nn.Linear(8, 11, bias=False), drop
        self.head.weight = self.words.weight
        with torch.no_grad():
            for one in self.parameters():
                one.add_(0.1 * torch.randn_like(one))
        self.eval()

    def forward(self, input_ids: Any) -> dict[str, Any]:
        x = torch.nn.functional.dropout(self.words(input_ids), self.drop) if self.drop else self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x), "hidden": x}


class PortedBlock(nnx.Module):
    def __init__(self, epsilon: float, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(8, epsilon=epsilon, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(8, 12, rngs=rngs), nnx.Linear(12, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.narrow(jnp.tanh(self.wide(self.norm(x))))


class Ported(nnx.Module):
    """A port whose second layer may have another ε."""

    def __init__(self, epsilon: float = 1e-5) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.blocks = nnx.List([PortedBlock(each, rngs) for each in (1e-5, epsilon)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def converted(tensors: dict[str, np.ndarray]) -> Any:
    """Loads the original's weights into the port's state."""
    params = nnx.split(Ported())[1]
    params["embed"]["embedding"] = tensors["words.weight"]
    for layer in range(2):
        block = params["blocks"][layer]
        for ours, theirs in (("scale", "weight"), ("bias", "bias")):
            block["norm"][ours] = tensors[f"layers.{layer}.norm.{theirs}"]
        for ours, theirs in (("wide", "up"), ("narrow", "down")):
            block[ours]["kernel"] = tensors[f"layers.{layer}.{theirs}.weight"].T
            block[ours]["bias"] = tensors[f"layers.{layer}.{theirs}.bias"]
    return params


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("frozen") / "original.frozen")
    jt.freeze(Original(), IDS, path, optimizer="adamw")
    return path


def test_a_file_holds_what_was_run(file: str) -> None:
    frozen, module = jt.Frozen.read(file), Original()
    assert np.array_equal(frozen.output, module(torch.from_numpy(IDS["input_ids"]))["logits"].detach().numpy())
    assert frozen.tied == {"words.weight": ("head.weight",)}
    assert list(frozen.weights) == list(module.state_dict())
    assert np.array_equal(frozen.weights["layers.1.up.bias"], module.layers[1].up.bias.detach().numpy())
    inside = ["words", "layers.0.norm", "layers.0.up", "layers.0.down", "layers.0"]
    assert list(frozen.float64)[:5] == inside
    assert list(frozen.float64)[-2:] == ["head", "output"]
    assert len(frozen.steps) == len(frozen.losses) == 3
    assert not frozen.rounds
    assert [one.stage for one in frozen.programs] == ["forward", "gradients"]
    assert {"Original", "Block"} == {one["name"].rpartition(".")[2] for one in frozen.source}
    lines = "\n".join(frozen.lines())
    for said in ("tied: words.weight = head.weight", "3 of {'name': 'adamw'", "program as data: forward, gradients"):
        assert said in lines


def test_the_steps_are_those_of_pytorch(file: str) -> None:
    frozen, module = jt.Frozen.read(file), Original().double()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01)
    factors = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 11)))
    for step in range(3):
        optimizer.zero_grad()
        (module(torch.from_numpy(IDS["input_ids"]))["logits"] * factors).sum().backward()
        optimizer.step()
        np.testing.assert_allclose(
            frozen.steps[step]["layers.0.up.weight"], module.layers[0].up.weight.detach().numpy(), rtol=1e-13
        )


def test_a_port_passes(file: str) -> None:
    report = jt.compare(Ported(), file)
    assert report.verdict == "passed", str(report)
    names = [stage.name for stage in report.stages]
    assert names == ["forward", "forward float32", "gradients", "step 1", "step 3"]
    assert "nothing is proven here" in str(report)
    assert "13 of 13 weights of Ported have a partner" in " ".join(str(report).split())


@pytest.mark.parametrize("names", [None, converted])
def test_a_fault_is_located_by_activation(file: str, names: Any) -> None:
    report = jt.compare(Ported(1e-3), file, names=names)
    assert report.verdict == ("diverged" if names else "inconclusive")
    assert report.faults[0].finding.node == "layers.1.norm"
    text = " ".join(str(report).split())
    assert "the last before it that it computes: layers.0" in text
    assert ("with another map the two may agree" in text) == (names is None)


def test_a_port_is_proven_and_repaired_against_a_file(file: str) -> None:
    certificate = jt.assert_same(Ported(), file)
    assert [(stage.name, stage.verdict) for stage in certificate.stages] == [
        ("forward", "proven"),
        ("gradients", "proven"),
    ]
    with pytest.raises(AssertionError, match="with 1e-05, the two are proven the same"):
        jt.assert_same(Ported(1e-6), file, stages=("forward",))


def test_a_map_may_be_given(file: str) -> None:
    assert jt.compare(Ported(), file, names=converted, stages=("forward",)).verdict == "passed"

    def swapped(tensors: dict[str, np.ndarray]) -> Any:
        return converted({**tensors, "layers.1.norm.weight": tensors["layers.0.norm.weight"]})

    assert jt.compare(Ported(), file, names=swapped, stages=("forward",)).verdict == "diverged"


BLOCKED = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import ports
import jax_transformer as jt
frozen = jt.Frozen.read({file!r})
report = jt.compare(ports.port(), frozen)
assert report.verdict == "passed", str(report)
certificate = jt.assert_same(ports.port(), frozen)
assert [stage.verdict for stage in certificate.stages] == ["proven"]
"""


def test_a_llama_is_compared_and_proven_without_pytorch(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    file = str(tmp_path / "llama.frozen")
    ids = {"input_ids": np.random.default_rng(0).integers(0, 101, (2, 8))}
    frozen = jt.freeze(transformers.LlamaForCausalLM(config).eval(), ids, file, optimizer="adamw")
    assert frozen.rounds  # its rotary table is float32 in a float64 model, too
    where = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": where, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-c", BLOCKED.format(file=file)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]


def test_a_module_computes_with_the_weights_of_a_file(file: str) -> None:
    report = jt.compare(Original(seed=1), file)
    assert report.verdict == "passed", str(report)
    changed = Original(seed=1)
    changed.layers[1].norm.eps = 1e-3
    report = jt.compare(changed, file)
    assert report.verdict == "diverged"
    assert report.faults[0].finding.node == "layers.1.norm"


class Untied(Original):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = torch.nn.Parameter(self.words.weight.detach().clone())


def test_two_files_are_compared_with_their_own_weights(file: str) -> None:
    assert jt.compare(jt.freeze(Original(), IDS, optimizer="adamw"), file).verdict == "passed"
    other = Original()
    with torch.no_grad():
        other.layers[1].up.bias[3] += 1e-6
    report = jt.compare(jt.freeze(other, IDS), file, stages=("weights", "forward"))
    assert report.verdict == "diverged"
    assert report.faults[0].finding.node == "layers.1.up.bias"
    rows = {row.name: row.verdict for stage in report.stages if stage.name == "forward" for row in stage.rows}
    assert rows["layers.1.norm"] == "passed"
    assert rows["layers.1.up"] == "diverged"
    report = jt.compare(jt.freeze(Untied(), IDS), file)
    assert "one tensor in the reference alone: head.weight = words.weight" in str(report)
    assert report.verdict != "passed"  # the gradients of the two tensors are apart


def test_losses_are_compared(tmp_path: Path) -> None:
    theirs = Side(Original(), loss=lambda output: (output**2).mean())
    frozen = jt.freeze(theirs, IDS, tmp_path / "loss.frozen", optimizer="sgd", learning_rate=0.5)
    report = jt.compare(Side(Ported(), loss=lambda output: (output**2).mean()), frozen)
    assert report.verdict == "passed", str(report)
    assert "loss" in [stage.name for stage in report.stages]
    wrong = jt.compare(Side(Ported(), loss=lambda output: (output**2).sum()), frozen)
    assert wrong.verdict == "diverged"
    assert "the candidate has no loss" in str(jt.compare(Ported(), frozen))


def test_random_numbers_are_refused_or_seeded(file: str) -> None:
    with pytest.raises(ParityError, match=r"draws random numbers. Give a seed"):
        jt.freeze(Original(drop=0.5), IDS)
    frozen = jt.freeze(Original(drop=0.5), IDS, seed=3)
    assert frozen.seed == 3
    assert frozen.programs == ()
    assert "it draws random numbers; seed 3 was set before each run" in frozen.notes
    again = jt.freeze(Original(drop=0.5), IDS, seed=3)
    assert np.array_equal(frozen.output, again.output)


class Noisy(Original):
    """Draws from a generator of its own, which no seed of PyTorch reaches."""

    def forward(self, input_ids: Any) -> Any:
        return super().forward(input_ids)["logits"] + float(np.random.default_rng().random())


class Narrow(Ported):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nnx.Embed(11, 6, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda file: jt.freeze(Noisy(), IDS, seed=0), "don't follow from PyTorch's seed"),
        (lambda file: jt.freeze(Original().train(), IDS), "in training mode: call .eval"),
        (lambda file: jt.freeze(Original(), {"ids": IDS["input_ids"]}), "can't be run on ids"),
        (lambda file: jt.freeze(Original(), {}), "expected arrays by the names of the program's arguments"),
        (
            lambda file: jt.freeze(Original(), IDS, optimizer="lion"),
            "expected one of sgd, adam, adamw; received 'lion'",
        ),
        (lambda file: jt.freeze(Original(), IDS, learning_rate=0.1), "expected an optimizer with it"),
        (lambda file: jt.freeze(Original(), IDS, "nowhere/x.frozen"), "there is no directory nowhere"),
        (lambda file: jt.freeze(lambda p, i: p, IDS), r"Side\(program, params=...\)"),
        (lambda file: jt.freeze(Ported(), IDS, seed=1), "whose random numbers follow from its keys"),
        (lambda file: jt.compare(file), "expected a candidate"),
        (lambda file: jt.compare(file, Original()), "expected the frozen side as the reference"),
        (lambda file: jt.compare(lambda p, i: p, file), r"Side\(program, params=...\) of a Linen module"),
        (lambda file: jt.compare(Ported(), file, dtypes=["float32"]), "dtypes doesn't apply to a frozen reference"),
        (lambda file: jt.compare(Ported(), file, stages=["decode"]), "expected some of weights, forward"),
        (lambda file: jt.compare(Ported(), "absent.frozen"), "absent.frozen: expected a frozen reference; there is no"),
        (lambda file: jt.compare(torch.nn.Linear(8, 8).eval(), file), "words.weight has no partner"),
        (lambda file: jt.compare(Narrow(), file), "Narrow"),
        (
            lambda file: jt.compare(jt.freeze(Original(), {"input_ids": IDS["input_ids"] + 1}), file),
            "frozen on the same inputs; input_ids differs",
        ),
        (
            lambda file: jt.compare(Ported(), dataclasses.replace(jt.Frozen.read(file), programs=(), unlowered="why")),
            r"with its program as data.*none \(why\): give the map, names= or --map",
        ),
        (lambda file: jt.prove(Original(), file), "expected a JAX program with its weights as the candidate"),
        (lambda file: jt.prove(Ported(), file, inputs={"input_ids": IDS["input_ids"] + 1}), "expected none, or those"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(file: str, call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        call(file)
    assert "\n" not in str(caught.value)


# --- damaged and foreign files


def changed_header(path: Path, change: Any) -> None:
    """Writes a file again with another header, whose digest may be wrong."""
    file = SafetensorsFile(path)
    header = json.loads(file.settings or "")
    change(header)
    save_safetensors({name: np.asarray(file[name]) for name in file}, path, {SETTINGS: json.dumps(header)})


def resigned(header: dict[str, Any], path: Path) -> None:
    from jax_transformer.frozen.record import _digest

    file = SafetensorsFile(path)
    header["sha256"] = _digest(header["body"], {name: np.asarray(file[name]) for name in file})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "damaged or of another kind"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)), "damaged or of another kind"),
        (lambda path: path.write_bytes(b""), "damaged or of another kind"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
            "its digest is another",
        ),
        (lambda path: save_safetensors({"x": np.ones(2)}, path), "a safetensors file of another kind"),
        (
            lambda path: changed_header(path, lambda header: header.update(schema=99)),
            "expected schema 1 .* received 99",
        ),
        (lambda path: changed_header(path, lambda header: header["body"].update(name="else")), "its digest is another"),
        (lambda path: changed_header(path, lambda header: header.pop("body")), "damaged"),
    ],
)
def test_damaged_and_foreign_files_are_refused(file: str, tmp_path: Path, damage: Any, said: str) -> None:
    path = tmp_path / "copy.frozen"
    path.write_bytes(Path(file).read_bytes())
    damage(path)
    with pytest.raises(ParityError, match=said) as caught:
        jt.Frozen.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body["programs"][0][4]["entries"][0].__setitem__(0, "os.system"), "no call that builds programs"),
        (lambda body: body["programs"][0][4]["entries"][0].__setitem__(1, [{"import": "os"}]), "no kind of argument"),
        (lambda body: body["programs"][0][4].update(sha256="0"), "it is another one"),
        (lambda body: body["programs"][0][4]["entries"][0][5][0].__setitem__(0, [2**40]), "of more than"),
    ],
)
def test_a_file_runs_nothing_but_the_calls_of_programs(file: str, tmp_path: Path, change: Any, said: str) -> None:
    """Even if its digest is right: it may be a stranger's."""
    path = tmp_path / "copy.frozen"
    path.write_bytes(Path(file).read_bytes())

    def with_digest(header: dict[str, Any]) -> None:
        change(header["body"])
        resigned(header, path)

    changed_header(path, with_digest)
    with pytest.raises(ParityError, match=said):
        jt.compare(Ported(), path)


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jax_transformer.frozen.record.save_safetensors", fails)
    with pytest.raises(OSError, match="No space left"):
        jt.freeze(torch.nn.Linear(2, 2).eval(), {"input": np.ones((1, 2), np.float32)}, tmp_path / "x.frozen")
    assert [*tmp_path.iterdir()] == []


# --- the commands


def test_the_commands_freeze_inspect_and_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = type(sys)("of_the_frozen_command")
    vars(module).update(original=Original, ported=Ported, wrong=lambda: Ported(1e-3))
    monkeypatch.setitem(sys.modules, "of_the_frozen_command", module)
    np.savez(tmp_path / "inputs.npz", **IDS)
    file, report = str(tmp_path / "original.frozen"), tmp_path / "report.json"
    made = ["freeze", "of_the_frozen_command:original", "--inputs", str(tmp_path / "inputs.npz"), "--out", file]
    assert main([*made, "--optimizer", "sgd"]) == 0
    assert main(["freeze", "--inspect", file]) == 0
    assert "frozen reference of of_the_frozen_command:original (torch, float32)" in capsys.readouterr().out
    assert main(["parity", "--candidate", "of_the_frozen_command:ported", "--reference", file]) == 0
    wrong = ["parity", "--candidate", "of_the_frozen_command:wrong", "--reference", file, "--json", str(report)]
    assert main(wrong) == 3
    held = json.loads(report.read_text())
    assert held["verdict"] == "inconclusive"
    assert held["first_difference"]["place"] == "layers.1.norm"
    assert any("with another map" in each for each in held["unknown"])
    assert main(["parity", "--candidate", file, "--reference", file]) == 0
    assert main(["parity", "--candidate", "of_the_frozen_command:ported", "--reference", file, "--prove"]) == 0
    assert "proven: of_the_frozen_command:ported against of_the_frozen_command:original" in capsys.readouterr().out
    for arguments in (made[:2], [*made[:-1], "x.txt"], ["freeze", "--inspect", str(report)]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
