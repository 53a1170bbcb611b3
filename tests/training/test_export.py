"""The parameters that a run saves: the best checkpoint's, the mean of several, or a moving average; and runs that start
from a model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.files import load_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import load_model, save_model
from jax_transformer.training import trainer
from jax_transformer.training.averaging import mean_params
from jax_transformer.training.checkpoints import Checkpoints
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import describe_run, train
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.state import TrainState, abstract_state, all_params, evaluation_params
from jax_transformer.training.trainer import TrainingResult
from jax_transformer.training.warm_start import InitialModelError

pytestmark = pytest.mark.usefixtures("quick_compilation")


StoppedAfter = Callable[[int], contextlib.AbstractContextManager[None]]


def small_run(folder: Path, **options: Any) -> RunConfig:
    """12 steps of one shape, with dropout; an evaluation and a checkpoint every 3."""
    return RunConfig(
        model=TransformerConfig(
            d_model=16, num_heads=2, d_ff=24, num_encoder_layers=1, num_decoder_layers=1, max_length=32
        ),
        data=DataConfig(
            phrasebook_pairs=200,
            valid_pairs=8,
            test_pairs=4,
            max_length=32,
            batch_tokens=640,
            num_shapes=1,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=2,
            evaluate_sentences=0,
            **{"max_steps": 12, "evaluate_every": 3, "keep_checkpoints": 1} | options,
        ),
        run_dir=str(folder / "run"),
    )


def params_of(path: Path | str) -> dict[str, np.ndarray]:
    return flatten(load_model(path).params)


def saved_states(result: TrainingResult, *steps: int) -> list[TrainState]:
    """Returns the states of a run's checkpoints of these steps."""
    config = load_config(result.run / "config.yaml", RunConfig())
    like = abstract_state(load_model(result.run).config, config.train)
    with closing(Checkpoints(result.run / "checkpoints", config.train)) as checkpoints:
        return [checkpoints.restore(step, like=like) for step in steps]


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """The mean of the last three of four checkpoints, though only one is kept for resuming; two parts per step."""
    return train(small_run(tmp_path_factory.mktemp("averaged"), average_checkpoints=3, accumulate=2))


def test_the_model_is_the_mean_of_the_last_checkpoints(averaged: TrainingResult, tmp_path: Path) -> None:
    assert averaged.steps == [6, 9, 12]
    last = train(small_run(tmp_path, accumulate=2, average_checkpoints=1, keep_checkpoints=3))  # the same run
    assert last.steps == [12]
    singles = [flatten(all_params(state)) for state in saved_states(last, *averaged.steps)]
    assert all(np.array_equal(leaf, singles[-1][path]) for path, leaf in params_of(last.run).items())
    for path, leaf in params_of(averaged.run).items():
        np.testing.assert_allclose(
            leaf, np.mean([single[path] for single in singles], axis=0, dtype=np.float64), rtol=1e-6, atol=1e-8
        )
    training = load_model(averaged.run).training
    assert training is not None
    assert training["checkpoints"] == [6, 9, 12]
    assert (
        json.loads((averaged.run / "metrics.jsonl").read_text().splitlines()[-1])["model_valid_loss"]
        == training["valid_loss"]
    )


def test_a_stopped_run_keeps_the_same_mean(
    averaged: TrainingResult, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    """The checkpoint of the stop, at step 7, wasn't evaluated, and replaces none that was."""
    config = small_run(tmp_path, average_checkpoints=3, accumulate=2)
    with stopped_after(7), pytest.raises(Interrupted, match="saved at step 7"):
        train(config)
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert resumed.steps == averaged.steps
    assert (resumed.model / "params.safetensors").read_bytes() == (averaged.model / "params.safetensors").read_bytes()


def test_the_command_averages(averaged: TrainingResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(averaged.run), "--output", str(tmp_path / "mean"), "--count", "3"]) == 0
    assert "the mean of steps 6, 9, 12; valid loss" in capsys.readouterr().out
    assert (tmp_path / "mean" / "params.safetensors").read_bytes() == (
        averaged.model / "params.safetensors"
    ).read_bytes()


def test_the_command_refuses_a_directory_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(tmp_path), "--output", str(tmp_path / "mean")]) == 2
    assert "expected a run directory with checkpoints" in capsys.readouterr().err
    assert main(["average", str(tmp_path), "--output", str(tmp_path / "mean"), "--count", "0"]) == 2
    assert not (tmp_path / "mean").exists()


def test_means_are_wide_and_leave_constants_alone() -> None:
    """A float32 sum of 1 and 1 + 2^-23, three times each, would lose the half."""
    small = np.float32(1 + 2**-23)
    trees = [
        {"w": np.array([value], np.float32), "constants": {"table": np.array([7.0])}}
        for value in (1.0, small, small, small)
    ]
    mean = mean_params(trees)
    assert mean["w"].dtype == np.float32
    assert mean["w"][0] == np.float32(1 + 0.75 * 2**-23)
    assert mean["constants"] is trees[-1]["constants"]
    with pytest.raises(ValueError, match="one checkpoint or more"):
        mean_params([])


def test_the_best_are_averaged_by_their_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 5.0, 2.0, 0.5])  # the last one is of the model itself
    monkeypatch.setattr(trainer, "mean_loss", lambda *_: next(losses))
    assert train(small_run(tmp_path, average_checkpoints=2, average_which="best")).steps == [6, 12]


def test_patience_ends_a_run_and_a_resumed_one_stays_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 1.0, 9.0, 1.0, 1.0])
    monkeypatch.setattr(trainer, "mean_loss", lambda *_: next(losses))
    config = small_run(tmp_path, max_steps=100, patience=2)
    result = train(config)
    records = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "valid_loss" in record] == [3, 6, 9, 12]
    assert result.steps == [12]  # of two equals the later
    assert train(RunConfig(run_dir=config.run_dir), resume=True).steps == [12]
    assert max(json.loads(line)["step"] for line in (result.run / "metrics.jsonl").read_text().splitlines()) == 12


def test_the_moving_average_is_evaluated_and_saved(tmp_path: Path, stopped_after: StoppedAfter) -> None:
    """With a decay of nearly 1 it moves by at most 9 / (10 + t) a step: another model than the last parameters, after a
    stop as well.

    Muon's state is kept beside it.
    """
    options: dict[str, Any] = {"max_steps": 4, "evaluate_every": 4, "ema_decay": 0.99, "optimizer": "muon"}
    unbroken = train(small_run(tmp_path / "unbroken", **options))
    (saved,) = saved_states(unbroken, unbroken.step)
    average, last = (flatten(params(saved)) for params in (evaluation_params, all_params))
    assert all(np.array_equal(leaf, average[path]) for path, leaf in params_of(unbroken.run).items())
    assert any(not np.array_equal(leaf, last[path]) for path, leaf in average.items())
    config = small_run(tmp_path / "stopped", **options)
    with stopped_after(2), pytest.raises(Interrupted, match="saved at step 2"):
        train(config)
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert (resumed.model / "params.safetensors").read_bytes() == (unbroken.model / "params.safetensors").read_bytes()


# --- starting from a model


def test_a_run_starts_from_a_models_parameters_and_vocabulary(averaged: TrainingResult, tmp_path: Path) -> None:
    """Other text, the model's tokenizers: with everything but a bias frozen, all else is what it was."""
    config = small_run(tmp_path, max_steps=1, freeze=("encoder/*", "decoder/*", "*embedding/*", "head/kernel"))
    other_text = dataclasses.replace(config.data, split_seed=5, phrasebook_pairs=100)
    ported = dataclasses.replace(
        load_model(averaged.run),
        origin={"dialect": "pytorch", "prefix": "module.", "tensors": {}, "config": {}},
        ignored_tensors={"mask": np.tri(3, dtype=bool)},
    )
    save_model(ported, tmp_path / "ported")
    result = train(dataclasses.replace(config, data=other_text, init_from=str(tmp_path / "ported")))
    assert load_model(result.run).origin == ported.origin
    np.testing.assert_array_equal((load_model(result.run).ignored_tensors or {})["mask"], np.tri(3, dtype=bool))
    before, after = params_of(averaged.run), params_of(result.run)
    assert [path for path, leaf in after.items() if not np.array_equal(leaf, before[path])] == ["head/bias"]
    ours, theirs = load_model(result.run), load_model(averaged.run)
    assert ours.source_tokenizer is not None
    assert theirs.source_tokenizer is not None
    assert ours.source_tokenizer.encode(["The cat sees a dog."]) == theirs.source_tokenizer.encode(
        ["The cat sees a dog."]
    )
    assert ours.source_tokenizer.vocab_size == theirs.source_tokenizer.vocab_size


@pytest.mark.parametrize("start_id", [2, 3])
def test_decoding_settings_are_inherited_from_the_initial_model(
    start_id: int, averaged: TrainingResult, tmp_path: Path
) -> None:
    """But for lengths, which are those of the run's sentences, and for a first token that follows another start than
    the run's, 2."""
    model = load_model(averaged.run)
    ids = {"decoder_start_id": start_id, "forced_bos_id": 5, "forced_eos_id": 3, "bad_words": ((1,), (7, 8))}
    search = {"beam_size": 4, "early_stopping": True, "length_penalty": 0.8, "max_new_tokens": 9, "min_new_tokens": 6}
    generation = dataclasses.replace(model.generation, **ids, **search)
    save_model(dataclasses.replace(model, generation=generation), tmp_path / "ported")
    result = train(dataclasses.replace(small_run(tmp_path, max_steps=1), init_from=str(tmp_path / "ported")))
    kept = load_model(result.run).generation
    expected = dataclasses.replace(generation, decoder_start_id=2, max_new_tokens=None, min_new_tokens=None)
    assert kept == (expected if start_id == 2 else dataclasses.replace(expected, forced_bos_id=None))


def test_another_config_or_vocabulary_is_refused_before_there_is_a_run(
    averaged: TrainingResult, tmp_path: Path
) -> None:
    config = small_run(tmp_path)
    model = dataclasses.replace(config.model, d_ff=32, activation="gelu", dropout_rate=0.3)
    with pytest.raises(InitialModelError) as refused:
        train(dataclasses.replace(config, model=model, init_from=str(averaged.run)))
    message = str(refused.value)
    assert "model.d_ff: the run has 32" in message
    assert "model.activation: the run has 'gelu'" in message
    assert "dropout" not in message
    assert not Path(config.run_dir).exists()


def test_another_way_of_splitting_text_is_refused(averaged: TrainingResult, tmp_path: Path) -> None:
    """The vocabulary is the model's, but the text is preprocessed differently."""
    config = small_run(tmp_path)
    files = {f"{side}_tokenizer": str(averaged.model / f"{side}_tokenizer.json") for side in ("source", "target")}
    differences = (
        ({"source_bos": True}, r"is <bos> .* in the run, and (?!<bos>)"),
        ({"source_eos": False}, r"and .* <eos> in "),
    )
    for options, received in differences:
        data = dataclasses.replace(config.data, **files, **options)
        with pytest.raises(InitialModelError, match=rf"data.source_tokenizer: .*{received}") as refused:
            train(dataclasses.replace(config, data=data, init_from=str(averaged.run)))
        assert "target_tokenizer" not in str(refused.value)
    assert not Path(config.run_dir).exists()


def test_a_run_does_not_go_on_with_other_text(tmp_path: Path, stopped_after: StoppedAfter) -> None:
    """Training notices a changed file under the same name, and resumes once the file is restored."""
    text = "".join(f"the cat {k}\tdie katze {k}\n" for k in range(40))
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    config = small_run(tmp_path, max_steps=3)
    data = dataclasses.replace(config.data, train=(str(tmp_path / "train.tsv"),), test_pairs=4)
    with stopped_after(1), pytest.raises(Interrupted, match="saved at step 1"):
        train(dataclasses.replace(config, data=data))
    (tmp_path / "train.tsv").write_text(text.replace("katze 7", "katze 8"), encoding="utf-8")
    with pytest.raises(RunError, match=r"expected the text, .* that this run began with; received different ones"):
        train(RunConfig(run_dir=config.run_dir), resume=True)
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    assert train(RunConfig(run_dir=config.run_dir), resume=True).steps == [3]


# --- told beforehand


def test_a_dry_run_describes_the_run(averaged: TrainingResult, tmp_path: Path) -> None:
    config = small_run(tmp_path, accumulate=2, freeze=("encoder/*",))
    text = "\n".join(describe_run(config))
    model = load_model(averaged.run)
    sizes = {path: leaf.size for path, leaf in flatten(model.params).items()}
    trained = sum(size for path, size in sizes.items() if not path.startswith(("constants/", "encoder/")))
    assert f"{trained:,}  (and {sum(sizes.values()) - trained:,} not trained)" in text
    assert all(path in text for path in sizes)
    assert f"source_vocab_size: {model.config.source_vocab_size}" in text
    assert "programs: 1" in text
    assert "12 steps" in text
    assert "MiB of state" in text
    assert not Path(config.run_dir).exists()


def test_the_commands_dry_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "--data.phrasebook-pairs",
        "50",
        "--data.cache-dir",
        str(tmp_path / "cache"),
        "--model.num-encoder-layers",
        "1",
    ]
    assert main(["train", "demo", "--dry-run", *options]) == 0
    assert "phrasebook_pairs: 50" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_dry_run_refuses_a_directory_in_use(averaged: TrainingResult) -> None:
    with pytest.raises(RunError, match="expected"):
        list(describe_run(small_run(averaged.run.parent)))


def test_a_vocabulary_size_of_ones_own_must_be_the_tokenizers(averaged: TrainingResult, tmp_path: Path) -> None:
    size = load_model(averaged.run).config.source_vocab_size

    def dry_run(**sizes: int) -> str:
        config = small_run(tmp_path)
        return "\n".join(describe_run(dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))))

    assert dry_run(source_vocab_size=size) == dry_run()
    message = (
        f"source_vocab_size must be {size}, the size of the tokenizer's vocabulary, or 0, which takes that size; "
        f"received {size + 1}; target_vocab_size must be"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        dry_run(source_vocab_size=size + 1, target_vocab_size=1)


def test_a_profile_is_a_trace(tmp_path: Path) -> None:
    result = train(small_run(tmp_path, max_steps=32, evaluate_every=32), profile=True)
    assert list((result.run / "profile").rglob("*.xplane.pb"))


def test_a_validation_loss_that_is_not_finite_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends there; the previous checkpoint can be resumed."""
    losses = iter([3.0, float("nan")])
    config = small_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "mean_loss", lambda *_: next(losses))
        with pytest.raises(RunError, match="step 6: expected a finite validation loss; received nan"):
            train(config)
    assert sorted(path.name for path in (Path(config.run_dir) / "checkpoints").iterdir()) == ["3"]


def test_an_unknown_tokenizer_for_scores_is_refused_beforehand(tmp_path: Path) -> None:
    config = small_run(tmp_path, score_tokenizer="14a")
    with pytest.raises(ValueError, match=r"score_tokenizer: expected one of .*13a.*; received '14a'"):
        train(config)
    assert not Path(config.run_dir).exists()
