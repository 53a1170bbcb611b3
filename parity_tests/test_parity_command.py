"""`jax-transformer parity` on models: built-in references, modules and functions of the user's, and what it says of bad
input.

Models are tiny and of one config wherever they can be, so that one process compiles each program once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import families
import numpy as np
import pytest
import torch
import user_models

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES = ["--num-heads", "3", "--source-pad-id", "1", "--target-pad-id", "2"]
PYTORCH = [*SIZES, "--dialect", "pytorch", "--set", "norm_placement=post", "--set", "activation=relu"]
NORM = "decoder.layers.0.cross_attention_norm"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """All that was printed, without its line breaks."""
        return " ".join((self.out + self.err).split())

    @property
    def is_one_clear_message(self) -> bool:
        """Of a mistake of the user's."""
        return self.code == 2 and self.out == "" and self.err.startswith("error: ") and "Traceback" not in self.err


Run = Callable[..., Outcome]


@pytest.fixture(scope="module", autouse=True)
def no_cache_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("xla")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints and maps."""
    path = tmp_path_factory.mktemp("checkpoints")
    for name in ("harvard", "hyunwoongko", "pytorch"):
        torch.save(getattr(user_models, name)().state_dict(), path / f"{name}.pt")
    (path / "names.yaml").write_text(user_models.FOREIGN_MAP)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """(*arguments) → what became of it, by default of the forward pass in float64 alone; in the folder of
    checkpoints."""
    monkeypatch.chdir(folder)

    def run_command(*arguments: str, stages: str | None = "weights,masks,forward", dtypes: str = "float64") -> Outcome:
        limits = ["--dtypes", dtypes, *(["--stages", stages] if stages else [])]
        try:
            code = main(["parity", *arguments, *limits])
        except SystemExit as stop:  # tyro's own refusals
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


def module(name: str) -> list[str]:
    return ["--reference", f"user_models:{name}"]


def function(name: str) -> list[str]:
    return ["--candidate", f"user_models:{name}"]


# --- built-in references


@pytest.mark.parametrize("name", ["harvard", "hyunwoongko"])
def test_a_checkpoint_and_its_own_program(name: str, run: Run) -> None:
    outcome = run(f"{name}.pt", "--dialect", name, *SIZES)
    assert outcome.code == 0, outcome.told
    assert f"parity: {name}.pt against torch_reference.{name}:" in outcome.out


def test_every_stage_and_precision(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "pytorch.pt",
        *PYTORCH,
        "--decoder-start-id",
        "0",
        "--eos-id",
        "3",
        "--json",
        str(tmp_path / "report.json"),
        stages=None,
        dtypes="float64,float32,bfloat16",
    )
    assert outcome.code == 0, outcome.told
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(stage["name"], stage["verdict"]) for stage in report["stages"]] == [
        (name, "passed")
        for name in (
            "weights",
            "inputs",
            "masks",
            "forward",
            "truth",
            "forward float32",
            "forward bfloat16",
            "loss",
            "gradients",
            "step",
            "trajectory",
            "decode",
        )
    ]
    assert all(stage["compared"] for stage in report["stages"])
    assert (report["schema"], report["exit_code"], report["faults"], report["doubts"]) == (1, 0, [], [])
    assert report["environment"]["torch"] == torch.__version__
    assert report["environment"]["reference's TF32"] == "False"
    assert report["environment"]["dialect"] == "pytorch"


def test_a_family_of_transformers(run: Run, tmp_path: Path) -> None:
    case = families.make_case("marian", 0, tmp_path)
    outcome = run(str(case.directory), stages="weights,masks,forward,loss")
    assert outcome.code == 0, outcome.told
    assert "against transformers, marian" in outcome.out


def test_a_model_directory(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "pytorch.pt", str(tmp_path / "model"), *PYTORCH]) == 0
    capsys.readouterr()
    assert run(str(tmp_path / "model")).code == 0
    outcome = run(str(tmp_path / "model"), "--num-heads", "3")
    assert outcome.is_one_clear_message
    assert "is a model and has its config; expected no num_heads" in outcome.err


# --- modules


def test_a_module_with_the_weights_of_the_model(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"))
    assert outcome.code == 0, outcome.told


def test_the_weights_of_a_module_alone(run: Run) -> None:
    outcome = run(*PYTORCH, *module("pytorch"), stages="weights,forward,loss,gradients")
    assert outcome.code == 0, outcome.told
    assert "user_models:pytorch in JAX against user_models:pytorch" in outcome.out


def test_another_epsilon_is_named(run: Run, tmp_path: Path, folder: Path) -> None:
    files = {"--json": str(tmp_path / "report.json"), "--html": str(tmp_path / "report.html")}
    outcome = run("pytorch.pt", *PYTORCH, *module("other_eps"), *(word for pair in files.items() for word in pair))
    assert outcome.code == 1, outcome.told
    assert outcome.out.startswith("diverged: pytorch.pt against user_models:other_eps")
    assert "norm: ε = 1e-06, at 1 node of the reference" in outcome.told
    report = json.loads(Path(files["--json"]).read_text())
    (fault,) = report["faults"]
    assert (fault["side"], fault["node"], fault["cause"]) == ("reference", NORM, "norm: ε = 1e-06")
    assert fault["command"].startswith("jax-transformer parity pytorch.pt --num-heads 3 ")
    assert fault["command"].endswith(f" --node {NORM}")
    assert "report" not in fault["command"], "a replay would write over the reports"
    assert list(report["sha256"]) == ["pytorch.pt", "user_models:other_eps, its state_dict"]
    assert report["sha256"]["pytorch.pt"] == hashlib.sha256((folder / "pytorch.pt").read_bytes()).hexdigest()
    page = Path(files["--html"]).read_text()
    assert page.startswith("<!doctype html>")
    assert NORM in page
    assert "https://" not in page, "no network"


def test_one_node_is_replayed(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("other_eps"), "--node", NORM, stages=None)
    assert outcome.code == 1, outcome.told
    assert "norm: ε = 1e-06" in outcome.told
    assert "encoder." not in outcome.out
    assert run("pytorch.pt", *PYTORCH, *module("other_eps"), "--node", "encoder.layers.0.output", stages=None).code == 0
    unseen = run(
        "pytorch.pt", *PYTORCH, *module("foreign"), "--map", "names.yaml", "--node", "encoder.positions", stages=None
    )
    assert (unseen.code, "encoder.positions can't be seen in the reference" in unseen.told) == (3, True)


def test_a_weight_that_differs(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("other_weight"))
    assert outcome.code == 4
    assert "first at head/kernel (weights" in outcome.told
    assert "at [4, 3]" in outcome.told


def test_a_module_that_draws_random_numbers(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("random_numbers"))
    assert outcome.code == 3
    assert (
        "the reference differs from itself when it is run again, first at logits: does it draw random numbers?"
        in outcome.told
    )


def test_gradients_that_amplify_rounding(run: Run, tmp_path: Path) -> None:
    """Keys that are nearly the same: what is left of the gradients to queries are the last digits of numbers that
    cancel."""
    state_dict = user_models.pytorch().state_dict()
    width = user_models.SIZES["d_model"]
    state_dict["transformer.decoder.layers.0.self_attn.in_proj_weight"][width : 2 * width] *= 1e-5
    torch.save(state_dict, tmp_path / "alike.pt")
    outcome = run(str(tmp_path / "alike.pt"), *PYTORCH, stages="gradients")
    assert outcome.code == 0, outcome.told
    assert "amplifies rounding: judged by how far the sides are from themselves" in outcome.told


# --- modules of other names


def test_a_module_of_other_names(run: Run) -> None:
    outcome = run(
        "pytorch.pt",
        *PYTORCH,
        *module("foreign"),
        "--map",
        "names.yaml",
        stages="weights,inputs,masks,forward,loss,gradients",
    )
    assert outcome.code == 0, outcome.told
    assert "✓ masks: 3 of 3" in outcome.told, "from the logits"


@pytest.mark.parametrize(
    ("name", "node", "cause"),
    [
        ("foreign_eps", "encoder.layers.1.feed_forward_norm", "norm: ε = 1e-06"),
        ("foreign_gelu", "decoder.layers.0.feed_forward.hidden", "exact GELU"),
    ],
)
def test_faults_of_a_module_of_other_names(name: str, node: str, cause: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module(name), "--map", "names.yaml")
    assert outcome.code == 1, outcome.told
    assert f"{cause}, at 1 node of the reference" in outcome.told
    assert f"node {node} (forward, own weights)" in outcome.told


def test_activations_follow_from_parameters(run: Run, tmp_path: Path) -> None:
    """And the logits are compared, whatever a map leaves out."""
    parameters = user_models.FOREIGN_MAP[user_models.FOREIGN_MAP.index("parameters:") :]
    maps = {"none": "", "one": "activations:\n  enc_ln: encoder.output\n"}
    for name, activations in maps.items():
        (tmp_path / name).write_text(activations + parameters)
        outcome = run(
            "pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / name), stages="weights,forward"
        )
        assert outcome.code == 0, outcome.told
        assert ("2 of 2" if name == "one" else "42 of 42") in outcome.told
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign_gelu"), "--map", str(tmp_path / "one"), stages="forward")
    assert outcome.code == 1, outcome.told
    assert "exact GELU" in outcome.told, "of a node that isn't seen"


def test_a_map_numbers_layers_one_by_one(run: Run, tmp_path: Path) -> None:
    lines = []
    for line in user_models.FOREIGN_MAP.replace(":\n    {", ": {").splitlines():
        numbers = range(2 if "enc.{i}" in line else 1) if "{i}" in line else [0]
        lines += [line.replace("{i}", str(number)) for number in numbers]
    (tmp_path / "names.yaml").write_text("\n".join(lines))
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / "names.yaml"))
    assert outcome.code == 0, outcome.told


def test_a_draft_of_a_map(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "draft.yaml"
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--draft-map", str(path))
    assert outcome.code == 0, outcome.told
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
    right, wrong, code, told = MAPS[mistake]
    assert right in user_models.FOREIGN_MAP
    (tmp_path / "wrong.yaml").write_text(user_models.FOREIGN_MAP.replace(right, wrong))
    outcome = run("pytorch.pt", *PYTORCH, *module("foreign"), "--map", str(tmp_path / "wrong.yaml"))
    assert outcome.code == code, outcome.told
    assert told in outcome.told
    assert outcome.is_one_clear_message == (code == 2)


# --- functions

SHORT = "weights,inputs,masks,forward,loss,gradients"


def test_a_function(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("function"), stages=SHORT)
    assert outcome.code == 0, outcome.told


def test_a_wrong_function(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("scaled_logits"), stages=SHORT)
    assert outcome.code == 4, outcome.told
    assert "unexplained, at 1 node of the candidate" in outcome.told
    assert "node logits (forward, own weights)" in outcome.told


@pytest.mark.parametrize(
    ("name", "stages", "told"),
    [
        (
            "function",
            "weights,step,decode",
            "the candidate is a function, without an optimizer: leave the stage out with --stages",
        ),
        ("narrow", "forward,loss", "the candidate gives float32 logits for float64 parameters"),
    ],
)
def test_functions_of_which_nothing_follows(name: str, stages: str, told: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function(name), stages=stages)
    assert outcome.code == 3, outcome.told
    assert outcome.out.startswith("inconclusive: ")
    assert told in outcome.told


def test_a_function_without_a_trace_is_compared_by_its_logits(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("without_a_trace"), stages="forward")
    assert outcome.code == 0, outcome.told
    assert "✓ forward: 1 of " in " ".join(outcome.out.split())


# --- bad input

BAD: dict[str, tuple[list[str], str]] = {
    "a module in training mode": (module("training"), "the module itself is in training mode: call .eval() first"),
    "a part in training mode": (
        module("part_in_training"),
        "transformer.decoder.layers.0.dropout1 is in training mode",
    ),
    "a factory that raises": (module("raising"), "raising() raised RuntimeError: the weights are elsewhere"),
    "no such factory": (module("nowhere"), "expected nowhere in user_models; there is no such name"),
    "no factory": (module("SIZES"), "expected a function SIZES; received a dict"),
    "no such Python module": (
        ["--reference", "nowhere.models:make"],
        "nowhere.models can't be imported: ModuleNotFoundError",
    ),
    "no colon": (["--reference", "user_models"], "expected package.module:name; received 'user_models'"),
    "no nn.Module": (module("no_module"), "expected a torch.nn.Module; received dict"),
    "another width": (module("wider"), "tensor source_embedding.weight: expected shape (23, 12); received (23, 18)"),
    "other names": (
        module("foreign"),
        "map them with names (--map FILE); draft_map",
    ),
    "no such map": (
        [*module("foreign"), "--map", "nowhere.yaml"],
        "nowhere.yaml: expected a YAML file that maps names",
    ),
    "no function": (function("no_function"), "expected a function (params, inputs) → (logits, trace); received int"),
    "a function without a trace": (function("logits_alone"), "expected (logits, trace), the trace a mapping"),
    "a function that raises": (function("failing"), "candidate user_models:failing: raised KeyError: 'weights'"),
    "no such node": (["--node", "encoder.layers.7.output"], "expected an activation of this model"),
    "a tolerance": (["--tolerance", "1"], "tolerance doesn't apply to models; expected only"),
    "no such folder": (["--json", "nowhere/report.json"], "expected a directory that exists; there is no nowhere"),
    "no such folder for a page": (
        ["--html", "nowhere/report.html"],
        "expected a directory that exists; there is no nowhere",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes(mistake: str, run: Run, tmp_path: Path) -> None:
    options, told = BAD[mistake]
    report = [] if "--json" in options else ["--json", str(tmp_path / "report.json")]
    outcome = run("pytorch.pt", *PYTORCH, *options, *report)
    assert outcome.is_one_clear_message, outcome.told
    assert told in outcome.told
    assert list(tmp_path.iterdir()) == [], "nothing is written"
    assert len(outcome.err.splitlines()) <= 8


def test_where_reports_go_is_checked_before_anything_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_models, "pytorch", lambda: pytest.fail("the module was made"))
    assert run("pytorch.pt", *PYTORCH, *module("pytorch"), "--json", "nowhere/report.json").is_one_clear_message


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.pt", *PYTORCH], "nowhere.pt: no such file"),
        (["pytorch.pt", *SIZES, "--dialect", "hyunwoongko"], "this is no checkpoint of dialect hyunwoongko"),
        (["pytorch.pt", *SIZES, "--dialect", "pytroch"], "received 'pytroch' (nearest: pytorch)"),
        (["harvard.pt", *SIZES], "several dialects have tensors of these names; say which this is"),
        ([], "expected a model directory or a checkpoint, --reference or --diff; received none of them"),
        (["--draft-map", "draft.yaml"], "--draft-map: expected a model"),
    ],
)
def test_no_model(arguments: list[str], told: str, run: Run, folder: Path) -> None:
    outcome = run(*arguments)
    assert outcome.is_one_clear_message, outcome.told
    assert told in outcome.told
    assert not (folder / "draft.yaml").exists()


def test_stages_and_dtypes(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, stages="forwards")
    assert outcome.is_one_clear_message
    assert "stages: expected some of weights, inputs, masks, forward," in outcome.err
    assert "dtypes: expected some of float64" in run("pytorch.pt", *PYTORCH, dtypes="float16").err
    for stages in (",", "weights,,"):
        assert run("pytorch.pt", *PYTORCH, stages=stages).code == (2 if stages == "," else 0)
    outcome = run("pytorch.pt", *PYTORCH, stages="weights,loss", dtypes="float32")
    assert (outcome.code, "compared in float64 alone" in outcome.told) == (3, True)
    assert run("pytorch.pt", *PYTORCH, stages="inputs").code == 3


def test_files_of_arrays(run: Run, tmp_path: Path) -> None:
    """--diff, of which tests/commands/test_parity.py has the rest."""
    good, objects = str(tmp_path / "good.npz"), str(tmp_path / "objects.npz")
    np.savez(good, logits=np.ones(3))
    np.savez(objects, logits=np.array([{}], dtype=object))
    for arguments, told in (
        ([objects, good], "expected numbers; received an array of objects"),
        ([good, str(tmp_path / "nowhere.npz")], "there is no such file"),
        ([good, str(tmp_path)], "expected two .npz files of named arrays"),
    ):
        outcome = run("--diff", *arguments)
        assert outcome.is_one_clear_message, outcome.told
        assert told in outcome.told
    assert run("pytorch.pt", *PYTORCH, "--diff", good, good).is_one_clear_message
