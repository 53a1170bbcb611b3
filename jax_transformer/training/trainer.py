"""Trains one run from its latest checkpoint to its model: steps, evaluations and checkpoints.

Every process of the run does this. Process 0 makes every decision that depends on files.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jax_transformer.buckets import joined
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.data.loader import prefetch
from jax_transformer.decoding.prepared import prepare
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import split_adapters
from jax_transformer.parallel.mesh import described
from jax_transformer.parallel.placement import RowShare, place_params, row_shards
from jax_transformer.parallel.processes import Processes
from jax_transformer.storage.model_directory import save_model
from jax_transformer.training.analysis import translations_record
from jax_transformer.training.averaging import average
from jax_transformer.training.batch_schedule import Position, Schedule, ScheduledBatch, make_batch_schedule
from jax_transformer.training.checkpoints import Checkpoints
from jax_transformer.training.divergence import (
    MOST_ROLLBACKS,
    Diverged,
    Divergence,
    Explosion,
    has_finite_weights,
    sentences_of,
)
from jax_transformer.training.evaluation import EvaluationStep, Sample, Split, mean_loss, split_batches, translate_split
from jax_transformer.training.export import check_initial_models, make_model
from jax_transformer.training.fitting import FittedRun
from jax_transformer.training.given_batches import GivenSchedule
from jax_transformer.training.interruption import Interrupted, how_to_resume, stop_requests
from jax_transformer.training.joint_run import share_stream
from jax_transformer.training.journal import Journal
from jax_transformer.training.metrics import BEST_METRICS, TranslationScores
from jax_transformer.training.optimizer_state import continue_training
from jax_transformer.training.profiling import Profile
from jax_transformer.training.progress import Status, TrainingProgress
from jax_transformer.training.run_directory import CONFIG, CONTINUED, RunDirectory, RunError
from jax_transformer.training.schedules import make_schedule, plateau_scale
from jax_transformer.training.state import TrainState, abstract_state, evaluation_params, init_state
from jax_transformer.training.step import TokenLoss, TrainStep, make_evaluation_step, make_train_step
from jax_transformer.training.throughput import Compiled, SavedWindow, Window
from jax_transformer.training.utilization import Utilization, seconds_of_earlier_processes
from jax_transformer.training.virtual_shards import VirtualShards
from jax_transformer.training.warm_start import continuation_lines, load_initial_params, load_training_state


@dataclass(frozen=True)
class TrainingResult:
    """Holds the results of a finished run; see `train`.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.training import TrainingResult
      >>> run = Path("runs/demo")
      >>> result = TrainingResult(run=run, model=run / "model", report=run / "report.html", steps=[300, 600], scores={},
      ...                         samples=[], seconds=60.0, compile_seconds=9.0, programs=2)
      >>> result.step
      600
    """

    run: Path
    model: Path
    report: Path
    steps: list[int]
    """Steps of the checkpoints averaged into the model; usually one."""

    scores: dict[str, TranslationScores]
    """Scores by split: "test" and, for the phrasebook, "combinations"; "valid" if there is no test set."""
    samples: list[Sample]
    seconds: float
    """Seconds from the start of this process to the saved model, compilation included."""
    compile_seconds: float
    programs: int
    """Number of compiled training steps: one per shape."""
    place: str = ""
    """The run directory as it was named: its address in a bucket, of which `run` is the local copy, or `run`."""

    @property
    def step(self) -> int:
        """The last averaged step."""
        return self.steps[-1]


class Trainer:
    """Trains a run from its latest checkpoint to its end, as one of its processes."""

    def __init__(
        self,
        run_dir: RunDirectory,
        run: FittedRun,
        journal: Journal,
        processes: Processes,
        *,
        started: float,
        profile: Profile | None,
        batches: Iterable[Any] | None = None,
        loss: TokenLoss | None = None,
    ) -> None:
        """Prepares the batches and steps.

        Args:
          started: the `perf_counter` at which the run began.
          batches: the caller's own. None: those of the training text.
          loss: the caller's own. None: cross-entropy, as the config describes it.
        """
        config, self.run_dir, self.journal, self.processes = run.config, run_dir, journal, processes
        self.config, self.corpus, self.model_config, self.mesh = config, run.corpus, run.model, run.mesh
        self.started, self.profile = started, profile
        print(f"run directory: {run_dir.place}", flush=True)
        self.position: Position = {}
        self.has_own_loss = loss is not None
        self.train_step, self.evaluation_step, row_parts = self._programs(loss)
        self.share = RowShare(self.mesh, config.train.accumulate * row_parts)
        self.valid_share = RowShare(self.mesh, row_parts)
        self.exchange = share_stream(config, run_dir, processes)
        self.takes_batches = batches is not None
        self.schedule: Schedule = (
            make_batch_schedule(config, run.corpus, self.share, self.exchange)
            if batches is None
            else GivenSchedule(batches, config, run.model, self.share)
        )
        self.valid = Split.lay_out(self.corpus.splits["valid"], config.data.batch_tokens)
        self.window, self.saved_window, self.has_evaluated = Window(), SavedWindow(), False
        before = seconds_of_earlier_processes(run_dir)
        self.utilization = Utilization(
            self.model_config, config.train, self.mesh, started=started, seconds_before=before
        )
        self.explosion = Explosion(self.model_config.target_vocab_size)

    def _programs(self, loss: TokenLoss | None) -> tuple[Any, EvaluationStep, int]:
        """Returns the training step, the evaluation step, and the divisor of their batches' rows."""
        shards, model, train = self.config.parallel.virtual_shards, self.model_config, self.config.train
        if shards:
            virtual = VirtualShards(model, train, self.mesh, shards, loss)
            return virtual, virtual.evaluate, shards
        step = Compiled(_train_step(model, train, self.mesh, loss))
        return step, _evaluation_step(model, self.mesh), row_shards(self.mesh)

    def run_to_the_end(self) -> TrainingResult:
        checkpoints = Checkpoints(self.run_dir.checkpoints, self.config.train, on_saved=self._saved)
        try:
            state = self._first_state(checkpoints)
            done, corpus = int(state.step), self.corpus
            self.journal.begin(done, corpus.directory.name, corpus.report, evaluation_params(state))
            if self.journal.is_live:
                print(f"live page: {self.run_dir.report} (open it in a browser)", flush=True)
            self.has_callbacks = self.processes.agree("whether there are callbacks", lambda: bool(self.journal.calls))
            print(self._description(state), flush=True)
            last, every = self.schedule.last_step, self.config.train.evaluate_every
            with TrainingProgress(last, done, evaluate_every=every, publish=self._publish) as progress:
                self.train_step.announce = partial(self._compiling, progress)
                with stop_requests(self.processes.count, progress.print) as stop_requested:
                    state = self._steps(state, checkpoints, progress, stop_requested)
                for line in self.schedule.closing_lines(self.position):
                    progress.print(line)
                return self._finish(state, checkpoints, progress)
        finally:
            if self.profile:
                self.profile.close()
            self.exchange.close()
            checkpoints.close()

    def _saved(self, step: int) -> None:
        self.journal.checkpoint(step)
        self.run_dir.upload(f"Save step {step}")

    def _publish(self, status: Status) -> None:
        self.journal.progress(status | {"run_seconds": self.utilization.goodput()["run_seconds"]})

    def _compiling(
        self, progress: TrainingProgress, number: int, arguments: tuple[Any, ...]
    ) -> AbstractContextManager[None]:
        """Shows which program of the training step is being compiled."""
        batch = arguments[1]
        if not isinstance(batch, Batch):
            return progress.doing("compiling the update of the parameters", prints=True)
        lengths = f"{batch.labels.shape[0]}×{batch.source_ids.shape[1]}→{batch.labels.shape[1]}"
        each = len(self.mesh.local_devices) if self.config.parallel.virtual_shards else 1
        shapes = None if self.config.data.streaming else self.schedule.shapes  # a stream may never use its longest one
        of = "" if shapes is None else f" of {each * len(shapes)}"
        return progress.doing(f"compiling program {number}{of} ({lengths})", prints=True)

    def _first_state(self, checkpoints: Checkpoints) -> TrainState:
        latest = self.processes.agree("the latest checkpoint", checkpoints.latest_step)
        if latest is None:
            return self._at_rate_of_records(self._new_state())
        like = abstract_state(self.model_config, self.config.train, mesh=self.mesh)
        state = checkpoints.restore(latest, like=like)
        self.position = self.processes.agree("the position in the data", partial(checkpoints.position, latest))
        self.saved_window = self.processes.agree("the metrics under way", partial(checkpoints.window, latest))
        self.run_dir.forget_after(latest)
        print(f"resumed at step {latest}", flush=True)
        return self._at_rate_of_records(state)

    def _new_state(self) -> TrainState:
        """Returns the state before the first step."""
        config = self.config
        check_initial_models(config)
        initial = (
            load_initial_params(config.init_from, self.model_config, self.corpus, config.init_adapters_from)
            if config.init_from
            else None
        )
        state = init_state(self.model_config, config.train, initial, mesh=self.mesh)
        self.run_dir.forget_after(0)
        self.position, self.saved_window = {}, SavedWindow()
        return self._continued(state) if config.init_optimizer else state

    def _continued(self, state: TrainState) -> TrainState:
        """Puts the training state of the initial model into the first state."""
        saved = load_training_state(self.config.init_from)
        self.run_dir.write(CONTINUED, saved.described())
        state = continue_training(state, saved, self.config.train)
        rate = float(make_schedule(self.config.train, self.model_config.d_model)(state.step))
        print(*continuation_lines(self.config, saved, rate), sep="\n", flush=True)
        return state

    def _description(self, state: TrainState) -> str:
        base, _ = split_adapters(state.frozen)
        trained, frozen = (sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (state.params, base))
        parameters = f"{trained + frozen:,} parameters" + (f", of which {trained:,} are trained," if frozen else "")
        lines = [f"model: {parameters} on {described(self.mesh)}", self.schedule.description, self.utilization.note]
        return "\n".join(filter(None, lines))

    def _steps(
        self,
        state: TrainState,
        checkpoints: Checkpoints,
        progress: TrainingProgress,
        stop_requested: Callable[[int], bool],
    ) -> TrainState:
        while True:
            try:
                return self._finite_steps(state, checkpoints, progress, stop_requested)
            except Diverged as diverged:
                divergence = diverged.divergence
            state = self._after(divergence, checkpoints, progress)

    def _finite_steps(
        self,
        state: TrainState,
        checkpoints: Checkpoints,
        progress: TrainingProgress,
        stop_requested: Callable[[int], bool],
    ) -> TrainState:
        """Returns the state after the last step. Raises Diverged if a step isn't finite, before the state is saved."""
        config = self.config.train
        done = int(state.step)
        if self._has_stopped_improving():
            return state
        scheduled = self.schedule.scheduled_from(done, self.position)
        with (
            prefetch(scheduled, transfer=self._to_devices) as stream,
            closing(self.exchange),  # closed first, since the prefetching thread may be waiting for another process
        ):
            self.utilization.go_on_from(self.run_dir.records())
            self.window.restart(self.saved_window)
            stream.on_wait = self.window.waiting
            for step, (batch, self.position, figures, is_last, failure) in enumerate(stream, start=done + 1):
                self.window.waited()
                if self.profile:
                    self.profile.before_step()
                state, metrics = self.train_step(state, batch)
                self.window.add(metrics, self.utilization.step_flops(batch))
                progress.at_step(step, self.window)
                if step % config.log_every == 0 or is_last:
                    self._log_window(step, figures, progress)
                    checkpoints.report_saved()
                    failure = failure or self._failure_of_callbacks()
                evaluates = step % config.evaluate_every == 0 or is_last
                if evaluates:
                    self._log_window(step, figures, progress)
                    self._check_weights(step, state)
                    with progress.doing("evaluating", is_evaluation=True):
                        score = self._evaluate(step, state, progress)
                    checkpoints.save(state, score, self.position)
                    failure = failure or self._failure_of_callbacks()
                    state = self._at_rate_of_records(state)
                    self.journal.evaluated()
                    self.window.restart()
                    if self._has_stopped_improving():
                        progress.print(
                            f"stopped at step {step}: "
                            f"{config.patience} evaluations without a better {config.best_metric}"
                        )
                        break
                stops = stop_requested(step)  # asked last, so that a request during an evaluation counts
                if not evaluates and (stops or failure):
                    self._check_weights(step, state)
                    checkpoints.save(state, None, self.position, self.window.saved())
                if failure or (stops and not is_last):
                    self._end_early(step, failure, checkpoints)
        return state

    def _end_early(self, step: int, failure: str, checkpoints: Checkpoints) -> NoReturn:
        """Raises RunError in all processes for a failure, else Interrupted, once the state is on disk."""
        checkpoints.wait()
        failure = failure or self._failure_of_callbacks()
        if not failure:
            raise Interrupted(self.run_dir.place, step, takes_batches=self.takes_batches)
        self.processes.gather("the saved run", None)
        saved = (
            f"The run is saved at step {step}; {how_to_resume(self.run_dir.place, takes_batches=self.takes_batches)}"
        )
        raise RunError(f"{failure} {saved}") from self.journal.calls.cause

    def _failure_of_callbacks(self) -> str:
        """Returns the description of callbacks' exceptions, in all processes; "" if none was raised."""
        if not self.has_callbacks:
            return ""
        failure = self.processes.agree("the callbacks", lambda: self.journal.calls.failure)
        return failure and f"{failure}."

    def _at_rate_of_records(self, state: TrainState) -> TrainState:
        """Sets the factor of the learning rate that follows from all evaluations and rollbacks so far."""
        if not self.config.train.plateau_patience and self.config.train.on_nonfinite != "rollback":
            return state
        scale = self.processes.agree("the learning rate's factor", self._rate_scale)
        return state._replace(rate_scale=jnp.asarray(scale, state.rate_scale.dtype))

    def _rate_scale(self) -> float:
        config, records = self.config.train, self.run_dir.records()
        losses = [record["valid_loss"] for record in records if "valid_loss" in record]
        scale = plateau_scale(config, losses) if config.plateau_patience else 1.0
        return scale * float(config.rollback_factor ** len(_rollbacks(records)))

    # --- steps that aren't finite

    def _check_weights(self, step: int, state: TrainState) -> None:
        """Raises Diverged if a number of the state, or of a step that isn't skipped, isn't finite."""
        if self.config.train.on_nonfinite != "skip":
            self._check_window(step)
        if not has_finite_weights(state):
            raise Diverged(Divergence(step))

    def _check_window(self, step: int) -> None:
        """Raises Diverged if a step since the last line of metrics wasn't finite; if such steps are skipped, records
        them instead, unless all were."""
        found = self.window.not_finite()
        if not found:
            return
        steps = {step - ago: metrics for ago, metrics in found.items()}
        if self.config.train.on_nonfinite != "skip" or len(found) == self.window.steps:
            first = min(steps)
            raise Diverged(self._divergence(first, steps[first]))
        for number, metrics in steps.items():
            self.journal.nonfinite({"step": number, "nonfinite": self._divergence(number, metrics).record("skip")})

    def _divergence(self, step: int, metrics: Mapping[str, float]) -> Divergence:
        sentences: tuple[tuple[str, str], ...] = ()
        if not self.config.data.streaming and self.processes.is_first:
            sentences = sentences_of(next(self.schedule.scheduled_from(step - 1, {})).batch, self.corpus)
        return Divergence(step, metrics["loss"], metrics["gradient_norm"], sentences)

    def _after(self, divergence: Divergence, checkpoints: Checkpoints, progress: TrainingProgress) -> TrainState:
        """Returns the state of the last evaluation, with a lower learning rate, if the config allows a rollback. (A
        later checkpoint, saved when the run was stopped, may be about to diverge.)

        Raises:
          RunError: no rollback is allowed.
        """
        checkpoints.wait()
        evaluated = self.processes.agree("the last evaluation", checkpoints.last_evaluated_step) or 0
        rollbacks = self.processes.agree("the rollbacks", lambda: _rollbacks(self.run_dir.records()).count(evaluated))
        shares_stream = self.config.data.streaming and self.processes.count > 1
        if self.config.train.on_nonfinite == "rollback" and rollbacks < MOST_ROLLBACKS and not shares_stream:
            checkpoints.forget_after(evaluated)  # first: a process killed before the record is written diverges again
            self.run_dir.forget_after(evaluated)
            self.journal.nonfinite({"step": evaluated, "nonfinite": divergence.record("rollback")})
            progress.print(f"step {divergence.step}: {divergence.message}; going back to step {evaluated}")
            return self._first_state(checkpoints)
        latest = self.processes.agree("the latest checkpoint", checkpoints.latest_step) or 0
        self.journal.nonfinite({"step": divergence.step, "nonfinite": divergence.record("stop")})
        saved = f"the run is saved at step {latest}" if latest else "the run has no checkpoint yet"
        raise RunError(
            f"step {divergence.step}: {divergence.message}; {saved}: lower train.learning_rate, set train.clip_norm, "
            f"or set train.on_nonfinite to skip or rollback, in {joined(self.run_dir.place, CONFIG)}, and resume"
        )

    def _has_stopped_improving(self) -> bool:
        config = self.config.train
        return config.patience > 0 and self.processes.agree(
            "whether to stop",
            lambda: (
                evaluations_without_improvement(self.run_dir.records(), config.best_metric, config.min_improvement)
                >= config.patience
            ),
        )

    def _log_window(self, step: int, data_figures: dict[str, Any], progress: TrainingProgress) -> None:
        if not self.window.steps:
            return
        self._check_window(step)
        figures = self.window.figures(compile_seconds=self.train_step.take_seconds())
        figures |= self.utilization.figures(figures, self.window.flops)
        if self.has_own_loss:
            del figures["perplexity"]  # which only nats have
        self.journal.step({"step": step, **data_figures, **figures, "programs": len(self.train_step.programs)})
        if not self.has_own_loss and (warning := self.explosion.warning(step, figures["loss"])):
            progress.print(warning)
        loss, rate, speed = (figures[name] for name in ("loss", "learning_rate", "tokens_per_second"))
        smoothed = " (smoothed)" if "plain_perplexity" in figures else ""
        perplexity = figures.get("plain_perplexity", figures.get("perplexity"))
        text = f"loss {loss:.3f}{smoothed}"
        text += "" if perplexity is None else f"  perplexity {perplexity:.2f}"
        text += f"  rate {rate:.2e}  {speed:,.0f} tokens/s"
        text += f"  MFU {100 * figures['mfu']:.1f} %" if "mfu" in figures else ""
        progress.update(step, text, speed)
        self.window.restart()

    def _evaluate(self, step: int, state: TrainState, progress: TrainingProgress) -> float:
        """Logs the validation metrics. Returns the score that selects the best checkpoint; higher is better."""
        is_first = not self.has_evaluated  # of this process: the programs are compiled on the way
        what = "compiling and computing the validation loss" if is_first else "computing the validation loss"
        with progress.doing(what, prints=is_first):
            loss = self._valid_loss(evaluation_params(state))
        if not math.isfinite(loss):
            raise RunError(
                f"step {step}: expected a finite validation loss; received {loss}; "
                "lower train.learning_rate or set train.clip_norm, or check that a validation pair fits data.max_length"
            )
        record: dict[str, Any] = {"step": step, "valid_loss": loss, "valid_perplexity": math.exp(min(loss, 700.0))}
        text = f"step {step}  valid loss {loss:.4f}  perplexity {record['valid_perplexity']:.2f}"
        samples: list[Sample] = []
        if self.config.train.evaluate_sentences and not self.config.data.is_pretraining:
            most = self.config.train.evaluate_sentences
            what = f"translating {min(most, len(self.corpus.splits['valid']))} validation sentences"
            with progress.doing(f"compiling and {what}" if is_first else what, prints=is_first):
                scores, samples = self._translate("valid", evaluation_params(state), most)
            record |= {f"valid_{key}": value for key, value in dataclasses.asdict(scores).items()}
            text += f"  {scores.summary()}"
        self.has_evaluated = True
        self.journal.evaluation(record, samples)
        progress.print(text)
        if warning := self.explosion.warning(step, loss, "validation loss", is_new=True):
            progress.print(warning)
        key, sign = BEST_METRICS[self.config.train.best_metric]
        return sign * record[key]

    def _finish(self, state: TrainState, checkpoints: Checkpoints, progress: TrainingProgress) -> TrainingResult:
        """Averages the checkpoints that the config names, evaluates the model, and writes it."""
        config = self.config.train
        which, count = (config.average_which, config.average_checkpoints) if config.average_checkpoints else ("best", 1)
        steps = self.processes.agree("the best checkpoints", partial(checkpoints.steps_to_keep, which, count))
        model = make_model(self.config, self.corpus, average(checkpoints, steps, like=state))
        params = place_params(model.params, self.mesh)
        splits: list[str] = [name for name in ("test", "combinations") if name in self.corpus.splits] or ["valid"]
        if self.config.data.is_pretraining:
            splits = []  # nothing to translate
        scores: dict[str, TranslationScores] = {}
        translated: dict[str, list[Sample]] = {}
        for name in splits:
            with progress.doing(f"translating {len(self.corpus.splits[name])} sentences of {name}", prints=True):
                scores[name], translated[name] = self._translate(name, params)
        records = {name: dataclasses.asdict(score) for name, score in scores.items()}
        with progress.doing("computing the model's validation loss"):
            loss = self._valid_loss(params)
        if warning := self.explosion.warning(steps[-1], loss, "validation loss of the model", is_new=True):
            progress.print(warning)
        training = {"step": steps[-1], "checkpoints": steps, "valid_loss": loss, "scores": records}
        if self.processes.is_first:
            save_model(dataclasses.replace(model, training=training), self.run_dir.model)
        facts = {"model_step": steps[-1], "model_checkpoints": steps, "model_valid_loss": loss}
        # A stream keeps no text, and batches of the caller's own have none.
        has_text = not (self.config.data.streaming or self.takes_batches)
        counted = self.corpus.splits["train"] if has_text else None
        translations = translations_record(int(state.step), translated, counted if self.processes.is_first else None)
        used = self.utilization.goodput()
        self.journal.model({"step": int(state.step), **facts, **used, **records}, translations)
        return TrainingResult(
            run=self.run_dir.path,
            model=self.run_dir.model,
            report=self.run_dir.report,
            steps=steps,
            scores=scores,
            samples=[sample for some in translated.values() for sample in some[:3]],
            seconds=time.perf_counter() - self.started,
            compile_seconds=self.train_step.seconds,
            programs=len(self.train_step.programs),
            place=str(self.run_dir.place),
        )

    def _valid_loss(self, params: Params) -> float:
        return mean_loss(self.evaluation_step, params, split_batches(self.valid, self.corpus, self.valid_share))

    def _to_devices(self, scheduled: ScheduledBatch) -> ScheduledBatch:
        return scheduled._replace(batch=self.share.place(scheduled.batch))

    def _translate(self, split: str, params: Params, most: int | None = None) -> tuple[TranslationScores, list[Sample]]:
        model = make_model(self.config, self.corpus, params)
        greedy = dataclasses.replace(model.generation, beam_size=None, sampling=None)
        model = dataclasses.replace(model, generation=greedy)
        if self.config.parallel.virtual_shards:  # on one device, the bits are the same everywhere
            model = dataclasses.replace(model, params=jax.device_get(params))
        else:
            model = prepare(model, self.mesh)
        tags = [corpus.source_tag for corpus in self.config.data.corpora]
        return translate_split(
            model, self.corpus.splits[split], most, tokenize=self.config.train.score_tokenizer, tags=tags
        )


# A run that resumes in the same process, such as in a notebook, reuses its compiled programs.
@lru_cache(maxsize=2)
def _train_step(model: TransformerConfig, config: TrainConfig, mesh: Mesh, loss: TokenLoss | None) -> TrainStep:
    return make_train_step(model, config, loss=loss, mesh=mesh)


@lru_cache(maxsize=2)
def _evaluation_step(model: TransformerConfig, mesh: Mesh) -> EvaluationStep:
    return make_evaluation_step(model, mesh)


def _rollbacks(records: Iterable[Mapping[str, Any]]) -> list[int]:
    """Returns the steps to which a run went back, in the lines of metrics.jsonl."""
    odd = (record for record in records if "nonfinite" in record)
    return [record["step"] for record in odd if record["nonfinite"].get("action") == "rollback"]


def evaluations_without_improvement(
    records: Iterable[Mapping[str, Any]], metric: Literal["loss", "bleu", "chrf"], least: float = 0.0
) -> int:
    """Returns the number of evaluations since the last improvement, from the lines of metrics.jsonl: since a value that
    is better than the best one before it, by more than `least`."""
    key, sign = BEST_METRICS[metric]
    best, count = -math.inf, -1
    for score in (sign * record[key] for record in records if record.get(key) is not None):
        count = 0 if score > best and score - best > least else count + 1
        best = max(best, score)
    return max(count, 0)
