"""`train` runs a whole RunConfig and writes a run directory with a model in it; `describe_run` only describes it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from jax_transformer.buckets import BucketError, joined
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.data.given_tokenizers import GivenPair, take_tokenizers
from jax_transformer.data.preparation import PreparedCorpus, prepare_with
from jax_transformer.data.tokenizers.objects import AnyTokenizer
from jax_transformer.model.functional import abstract_params
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.parallel.processes import ALONE, Processes
from jax_transformer.storage.hub import pinned
from jax_transformer.training.callbacks import Callback
from jax_transformer.training.checkpoints import go_back
from jax_transformer.training.dry_run import describe
from jax_transformer.training.fitting import FittedRun, check_memory, fit_run
from jax_transformer.training.given_batches import check_given, without_training_text
from jax_transformer.training.interruption import Interrupted, how_to_resume
from jax_transformer.training.joint_run import check_same_start, prepare_once
from jax_transformer.training.journal import Journal, check_kinds, check_packages
from jax_transformer.training.metrics import check_tokenizer
from jax_transformer.training.optimizer_state import check_continues
from jax_transformer.training.profiling import Profile
from jax_transformer.training.run_directory import CONFIG, UNNAMED, RunDirectory, check_unused, create_run, open_run
from jax_transformer.training.state import state_shapes
from jax_transformer.training.step import TokenLoss
from jax_transformer.training.trainer import Trainer, TrainingResult
from jax_transformer.training.warm_start import InitialModel, follow_initial_model, load_initial_model


def train(
    config: RunConfig,
    *,
    name: str = "run",
    resume: bool = False,
    from_step: int | None = None,
    profile: bool = False,
    parallel: ParallelConfig | None = None,
    processes: Processes | None = None,
    callbacks: Sequence[Callback] = (),
    live: bool = False,
    batches: Iterable[Any] | None = None,
    source_tokenizer: AnyTokenizer | None = None,
    target_tokenizer: AnyTokenizer | None = None,
    loss: TokenLoss | None = None,
) -> TrainingResult:
    """Trains and evaluates a model, and writes its run directory.

    With several processes, each calls this, and process 0 alone writes the directory, which all must see.

    Args:
      config: the run.
      name: name of the new directory runs/NAME if the config names none.
      resume: continue the run at config.run_dir from its latest checkpoint, with its own config.yaml.
      from_step: with `resume`, the checkpoint to continue from; later ones are deleted. None: the latest.
      profile: write a trace of some steps to the run's profile/.
      parallel: with `resume`, the mesh to continue on. None: the run's own.
      processes: the processes of the run, from `join_processes`; call this within `processes.together()`. None: only
        this one.
      callbacks: receive the records of the run in process 0, after the callbacks that the config enables.
      live: keep the run's report.html up to date from the first step on; the page reloads itself.
      batches: an iterator or iterable of batches of your own, to train on instead of the text of config.data.train:
        dicts or tuples of source_ids [B, S], decoder_input_ids [B, T] and labels [B, T], or `Batch`es; integers, padded
        with the model's pad ids. The config still names text to validate on, data.valid, and if it sets no tokenizers
        data.train, whose text trains them. With `resume`, the batches must be able to say where they are: a sequence,
        or with get_state and set_state, as Grain's iterators, or state_dict and load_state_dict. None: batches of the
        text.
      source_tokenizer, target_tokenizer: tokenizers of transformers or of `tokenizers`, as objects, instead of those of
        config.data; see `as_tokenizer`. The run directory keeps them, so `resume` needs none.
      loss: a function of your own of logits [B, T, V] and labels [B, T] to losses [B, T], in place of cross-entropy;
        see `make_train_step`. Validation still measures cross-entropy. `resume` needs the function again. None:
        cross-entropy, as the config describes it.

    Returns:
      The paths, scores and timings of the run.

    Raises:
      ValueError: an unusable corpus, run directory or checkpoint. If a stream can't be read any further, if a batch of
        `batches` is wrong, or if a callback raises an exception, the run is saved and can be resumed.
      ConfigError: processes with different options or versions.
      Interrupted: Ctrl-C or SIGTERM stopped the run, which can be resumed.

    Example:
      >>> import contextlib, io, tempfile
      >>> from jax_transformer import DataConfig, RunConfig, TrainConfig, TransformerConfig, train
      >>> with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
      ...     result = train(RunConfig(
      ...         model=TransformerConfig(d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1,
      ...                                 max_length=40),
      ...         data=DataConfig(phrasebook_pairs=40, valid_pairs=4, test_pairs=4, max_length=32, batch_tokens=640,
      ...                         num_shapes=1, cache_dir=folder),
      ...         train=TrainConfig(max_steps=1, evaluate_sentences=0), run_dir=f"{folder}/run"))
      >>> result.step, sorted(result.scores)
      (1, ['combinations', 'test'])
    """
    if not isinstance(config, RunConfig):
        raise ValueError(f"train: config: expected a RunConfig; received {type(config).__name__}")
    started = time.perf_counter()
    processes = processes or ALONE
    given = config if parallel is None else dataclasses.replace(config, parallel=parallel)
    check_same_start(given, "resume" if resume else "train", processes)
    check_kinds(callbacks)
    if loss is not None and not callable(loss):
        raise ValueError(f"train: loss: expected a function of logits and labels; received {type(loss).__name__}")
    data, tokenizers = take_tokenizers(config.data, source_tokenizer, target_tokenizer)
    config = dataclasses.replace(config, data=data)
    if batches is not None:
        check_given(batches, config, processes.count, is_resumed=resume)
        config = without_training_text(config)
    if resume:
        run_dir, config = open_run(config.run_dir, processes)
        try:
            config = config if parallel is None else dataclasses.replace(config, parallel=parallel)
            if from_step is not None:
                processes.agree("where to go on", partial(go_back, run_dir.checkpoints, from_step))
            run_dir.check_loss(loss)
            if tokenizers is not None:
                run_dir.check_tokenizers(tokenizers.texts())
            mesh, corpus = _prepare(config, None, processes)
            run_dir.check_corpus(corpus.directory.name)
            for change in run_dir.config_changes(config):
                print(f"note: {joined(run_dir.place, CONFIG)} was changed: {change}", flush=True)
            run = fit_run(config, corpus, mesh)
        except BaseException:
            run_dir.close()
            raise
    else:  # the run directory is created last, so that no mistake leaves one behind
        processes.agree("whether the run directory is unused", partial(_check_unused, config))
        path, adapters_path = processes.agree("the initial models", partial(_pinned_models, config))
        initial = load_initial_model(path, adapters_path)
        config = follow_initial_model(config, initial)
        mesh, corpus = _prepare(config, tokenizers, processes)
        run = fit_run(config, corpus, mesh)
        _check_start(run, initial)
        texts = None if tokenizers is None else tokenizers.texts()
        run_dir = create_run(partial(_create_run, config, name, texts), processes)
        run_dir.keep_loss(loss)
        if tokenizers is not None:  # the config names their files from here on
            config = dataclasses.replace(config, data=run_dir.config().data)
            run = dataclasses.replace(run, config=config)
    processes.advice = how_to_resume(run_dir.place, takes_batches=batches is not None)
    journal = Journal(run_dir, config, callbacks, is_resumed=resume, live=live)
    try:
        trace = Profile(run_dir.path / "profile") if profile and processes.is_first else None
        result = Trainer(
            run_dir, run, journal, processes, started=started, profile=trace, batches=batches, loss=loss
        ).run_to_the_end()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            print(f"stopped at once; {processes.advice}", flush=True)
        with contextlib.suppress(OSError):  # such as of a full disk, which ended the run
            journal.close(error)
        if isinstance(error, Interrupted):
            run_dir.upload("Stop the run")
        elif isinstance(error, Exception) and not isinstance(error, BucketError):
            with contextlib.suppress(BucketError):  # the first error is the one to report
                run_dir.upload("Stop the run")
        raise
    journal.close()
    run_dir.upload("Finish the run")
    journal.calls.check(f"the run is finished, and its model is {result.model}")
    return result


def describe_run(config: RunConfig, processes: Processes | None = None) -> Iterator[str]:
    """Yields a description of `train(config)` line by line: the resolved config, the parameters, batches and memory.
    Creates no run directory.

    Raises:
      ValueError: see `train`.
    """
    processes = processes or ALONE
    check_same_start(config, "describe", processes)
    if config.run_dir:
        processes.agree("whether the run directory is unused", partial(_check_unused, config))
    initial = load_initial_model(config.init_from, config.init_adapters_from)
    config = follow_initial_model(config, initial)
    mesh, corpus = _prepare(config, None, processes, describes=True)
    run = fit_run(config, corpus, mesh, into_memory=False)
    _check_start(run, initial)
    yield from describe(run)


def _check_unused(config: RunConfig) -> None:
    """Raises RunError for a run directory that is in use or can't be written, before any data are read."""
    check_unused(config.run_dir or UNNAMED / "new")


def _pinned_models(config: RunConfig) -> list[str]:
    """Returns the names of the models that the run starts from; names on the Hub get their current commit."""
    return [pinned(config.init_from), pinned(config.init_adapters_from)]


def _create_run(config: RunConfig, name: str, tokenizers: dict[str, str] | None) -> RunDirectory:
    if config.run_dir:
        return RunDirectory.create(config.run_dir, config, tokenizers)
    return RunDirectory.create_numbered(name, config, tokenizers)


def _prepare(
    config: RunConfig, tokenizers: GivenPair | None, processes: Processes, *, describes: bool = False
) -> tuple[Mesh, PreparedCorpus]:
    """Checks everything that needs no data, then returns the devices and the data of a run."""
    mesh = make_mesh(config.parallel)
    if not describes:
        check_memory(config, config.model, mesh)
    check_packages(config)
    check_tokenizer(config.train.score_tokenizer)
    corpus = prepare_once(
        lambda: prepare_with(config.data, tokenizers, lambda line: print(line, flush=True)), processes
    )
    for line in corpus.report.lines():
        print(line, flush=True)
    return mesh, corpus


def _check_start(run: FittedRun, initial: InitialModel | None) -> None:
    """Raises ValueError unless the freeze patterns, initial model and training state fit the model."""
    model, train = run.model, run.config.train
    drawn = abstract_params(model)
    state = state_shapes(model, train, drawn)
    if initial is None:
        return
    initial.check(model, run.corpus)
    if initial.adapters:
        state_shapes(model, train, jax.eval_shape(initial.adapted, drawn))
    if run.config.init_optimizer:
        check_continues(state, initial.training_state, train)
