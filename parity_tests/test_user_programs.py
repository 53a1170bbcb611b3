"""`jax-transformer parity` on a user's own losses, optimizers and decoders: right ones pass, mistakes are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import user_models
import user_programs
import yaml

from jax_transformer import TrainConfig, compare
from jax_transformer.cli import main
from jax_transformer.parity import ParityError, Side
from jax_transformer.parity.diagnosis.training import unseen_losses
from jax_transformer.parity.oracle.losses import LossRule
from jax_transformer.parity.problems import own_problem
from jax_transformer.porting import import_checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = ["pytorch.pt", "--dialect", "pytorch", "--num-heads", "3", "--source-pad-id", "1", "--target-pad-id", "2"]
MODEL += ["--set", "norm_placement=post", "--set", "activation=relu", "--decoder-start-id", "0", "--eos-id", "3"]
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes the current directory: a checkpoint, the config of a run, and a cache of compiled programs."""
    path = tmp_path_factory.mktemp("programs")
    torch.save(user_models.pytorch().state_dict(), path / "pytorch.pt")
    (path / "config.yaml").write_text(yaml.safe_dump({"train": user_programs.CONFIG}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(path / "xla"))
        yield path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function (*arguments) → the exit code, and everything printed without its line breaks."""

    def run_command(*arguments: str) -> tuple[int, str]:
        code = main(["parity", *MODEL, "--dtypes", "float64", *arguments])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return run_command


def named(option: str, program: str) -> list[str]:
    return [f"--{option}", f"user_programs:{program}"]


LOSSES = {
    "loss_counting_pads": "pads counted",
    "loss_without_smoothing": "smoothing missing",
    "loss_per_sentence": "mean over sentences",
    "loss_late_by_one": "labels late by one: compared with the logits before",
}
OPTIMIZERS = {
    "optimizer_with_eps_inside": "ε inside the root",
    "optimizer_without_correction": "no bias correction",
    "optimizer_with_decoupled_decay": "decoupled decay for L2",
    "optimizer_a_step_ahead": "schedule a step early",
    "optimizer_clipping_values": "clipped value by value",
    "optimizer_without_clipping": "clipping missing",
    "optimizer_without_an_embedding": "not updated",
}
DECODERS = {
    "greedy_going_on": "end token ignored or sentences that have ended go on until all have, at 1 node",
    "greedy_until_all_end": "end token ignored or sentences that have ended go on until all have, at 1 node",
    "greedy_from_another_start": "starts with id 1",
    "greedy_a_token_short": "one token fewer at most",
}
BEAMS = {
    "beams_not_counting_the_end": "end token not counted in the length, at 1 node of the reference",
    "beams_without_penalty": "length penalty not applied, at 1 node of the reference",
}


def test_a_right_loss_passes_and_its_gradients(run: Run) -> None:
    code, output = run("--stages", "loss,gradients", "--train", ".", *named("loss", "loss"))
    assert code == 0, output


@pytest.mark.parametrize("program", LOSSES)
def test_a_wrong_loss_is_named(program: str, run: Run) -> None:
    code, output = run("--stages", "loss", "--train", "config.yaml", *named("loss", program))
    assert code == 1, output
    assert f"cause {LOSSES[program]}, at 1 node of the reference" in output


def test_a_loss_that_nothing_explains_is_unexplained(run: Run) -> None:
    code, output = run("--stages", "loss", "--train", ".", *named("loss", "loss_of_odd_power"))
    assert (code, "unexplained, at 1 node of the reference" in output) == (4, True), output


@pytest.mark.parametrize("program", ["optimizer", "optimizer_by_hand"])
def test_a_right_optimizer_passes(program: str, run: Run) -> None:
    code, output = run("--stages", "step,trajectory", "--train", ".", *named("optimizer", program))
    assert code == 0, output


@pytest.mark.parametrize("program", OPTIMIZERS)
def test_a_wrong_optimizer_is_named(program: str, run: Run) -> None:
    code, output = run("--stages", "step", "--train", ".", *named("optimizer", program))
    assert code == 1, output
    assert f"cause {OPTIMIZERS[program]}, at 1 node of the reference" in output


@pytest.mark.parametrize("program", ["greedy", "greedy_in_lists"])
def test_a_right_decoder_passes(program: str, run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", program))
    assert (code, "decode: 1 of 1" in output) == (0, True), output


@pytest.mark.parametrize("program", DECODERS)
def test_a_wrong_decoder_is_named(program: str, run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", program))
    assert code == 1, output
    assert f"cause {DECODERS[program]}" in output


SEARCH = ["--beam-size", "3", "--length-penalty", "0.6"]


def test_a_right_beam_search_passes_with_its_scores(run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", "beams_with_scores"), *SEARCH)
    assert (code, "decode: 2 of 2" in output) == (0, True), output


@pytest.mark.parametrize("program", BEAMS)
def test_a_wrong_beam_search_is_named(program: str, run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", program), *SEARCH)
    assert code == 1, output
    assert f"cause {BEAMS[program]}" in output


def test_without_scores_faults_that_only_they_tell_apart_are_all_listed(run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", "beams_without_penalty_or_scores"), *SEARCH)
    assert code == 1, output
    assert "length penalty not applied" in output
    assert "told apart by the scores of the hypotheses" in output


def test_wrong_scores_of_right_tokens_diverge(run: Run) -> None:
    code, output = run("--stages", "decode", *named("decode", "beams_with_odd_scores"), *SEARCH)
    assert (code, "decode: 1 of 2" in output) == (4, True), output


def test_programs_of_both_frameworks_are_compared_without_a_rule(run: Run) -> None:
    pair = [*named("loss", "loss"), *named("jax-loss", "jax_loss")]
    pair += [*named("optimizer", "plain_sgd"), *named("jax-optimizer", "jax_optimizer")]
    code, output = run("--stages", "loss,gradients,step", *pair)
    assert code == 0, output
    code, output = run("--stages", "step", *pair[:-1], "user_programs:jax_optimizer_with_nesterov")
    assert (code, "unexplained" in output) == (4, True), output


def test_with_a_rule_the_jax_side_is_judged_too(folder: Path, run: Run) -> None:
    (folder / "sgd.yaml").write_text(yaml.safe_dump({"train": SGD}))
    both = [*named("optimizer", "plain_sgd"), *named("jax-optimizer", "jax_optimizer_with_nesterov")]
    code, output = run("--stages", "step", "--train", "sgd.yaml", *both)
    assert code == 1, output
    assert "cause Nesterov's momentum, at 1 node of the candidate" in output


SGD = {"optimizer": "sgd", "momentum": 0.9, "schedule": "constant", "warmup_steps": 0, "learning_rate": 0.01}

MISTAKES = {
    "no scalar": ([*named("loss", "losses_of_tokens"), "--train", "."], "loss losses_of_tokens: expected (logits"),
    "a loss that fails": ([*named("loss", "failing_loss"), "--train", "."], "loss failing_loss: raised"),
    "no optimizer": ([*named("optimizer", "no_optimizer"), "--train", "."], "received generator"),
    "no rule": (named("loss", "loss"), "expected train, the TrainConfig that it should follow (--train FILE)"),
    "no program": (["--train", "."], "train: expected a loss or an optimizer that should follow it"),
    "JAX alone": (named("jax-loss", "jax_loss"), "jax_loss: expected loss too, the PyTorch program to compare it with"),
    "the start token": (named("decode", "greedy_with_start"), "expected the ids after the start token"),
    "too few rows": (named("decode", "no_decoder"), "expected ids [12, T], a row of integers for each sentence"),
    "too few scores": ([*named("decode", "beams_with_a_score_too_few"), *SEARCH], "the scores 12 numbers"),
    "a search alone": (["--beam-size", "3"], "decoding: expected decode too, the function that should search so"),
    "no such name": (named("loss", "los"), "expected los in user_programs; there is no such name (nearest: loss)"),
    "no such file": ([*named("loss", "loss"), "--train", "no.yaml"], "no.yaml: expected a YAML file"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(arguments: list[str], message: str, run: Run) -> None:
    stages = {"--loss": "loss", "--optimizer": "step", "--decode": "decode"}.get(arguments[0], "loss")
    code, output = run("--stages", stages, *arguments)
    assert (code, output.startswith("error: "), "Traceback" in output) == (2, True, False), output
    assert message in output


def test_compare_takes_programs_and_the_config_of_a_run() -> None:
    model = import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)
    options = {"stages": ["loss"], "dtypes": ["float64"]}
    theirs = Side(loss=user_programs.loss_without_smoothing)
    assert compare(model, theirs, train=TrainConfig(label_smoothing=0.0), **options).verdict == "passed"
    report = compare(model, theirs, train=TrainConfig(label_smoothing=0.2), **options)
    assert [fault.finding.cause for fault in report.faults] == ["smoothing missing"]
    assert report.environment["reference's loss"] == "loss_without_smoothing"
    with pytest.raises(ParityError, match="expected no frozen parameters; received freeze=encoder"):
        compare(model, theirs, train=TrainConfig(freeze=("encoder/*",)), **options)


def test_the_labels_show_every_known_fault_of_the_loss() -> None:
    model = import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)
    problem = own_problem(model.config, model.params)
    logits = np.random.default_rng(0).standard_normal((*problem.labels.shape, model.config.target_vocab_size))
    assert unseen_losses(LossRule(model.config.target_pad_id, 0.2), logits, problem.labels) == {}


def test_only_pads_of_sentences_count() -> None:
    """A step leaves out rows of nothing but pads; and a target that begins with a pad has a query without keys."""
    model = import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)
    train = TrainConfig(label_smoothing=0.2, loss_counts_pads=True)
    stages = ["loss", "step"]
    theirs = Side(loss=user_programs.loss_counting_pads)
    report = compare(model, theirs, train=train, stages=stages, dtypes=["float64"])
    assert report.verdict == "passed", report


def test_jax_programs_of_a_function_are_used() -> None:
    model = import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)
    options = {"stages": ["loss"], "dtypes": ["float64"], "dialect": "pytorch", "model": model}
    ours, theirs = Side(user_models.function(), loss=user_programs.jax_loss), Side(loss=user_programs.loss)
    assert compare(ours, theirs, **options).verdict == "passed"

    def twice(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return 2 * user_programs.jax_loss(logits, labels)

    assert compare(Side(user_models.function(), loss=twice), theirs, **options).verdict == "diverged"
