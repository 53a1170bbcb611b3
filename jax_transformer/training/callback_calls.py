"""Calls the callbacks of a run, and keeps what one of them raised until the run is saved."""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_transformer.config.run import RunConfig
from jax_transformer.runtime.extras import require
from jax_transformer.training.callbacks import Callback
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.tensorboard import TensorBoard
from jax_transformer.training.weights_and_biases import WeightsAndBiases


def configured_callbacks(config: RunConfig) -> list[Callback]:
    """Returns the callbacks that a config asks for."""
    train, found = config.train, list[Callback]()
    if train.tensorboard:
        found.append(TensorBoard())
    if train.wandb_project:
        found.append(WeightsAndBiases(train.wandb_project, entity=train.wandb_entity, mode=train.wandb_mode))
    return found


def check_packages(config: RunConfig) -> None:
    """Raises MissingPackage if a package that the config asks for isn't installed; imports none."""
    if config.train.tensorboard:
        require("tensorboard", "train.tensorboard")
    if config.train.wandb_project:
        require("wandb", "train.wandb_project")


def check_kinds(callbacks: Sequence[Callback]) -> None:
    """Raises ValueError for objects that are no callbacks."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
            raise ValueError(
                f"callbacks: expected objects of subclasses of jax_transformer.training.Callback; received {kind}"
            )


class CallbackCalls:
    """Calls each callback of a run in turn. One that raises is called no more, and `failure` tells why."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self.failure = ""
        """Which callbacks raised an exception, which, and where; "" if none has."""
        self.cause: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def call(self, method: str, *arguments: Any) -> None:
        """Calls a method of all, each with copies of the arguments."""
        for callback in tuple(self._callbacks):
            try:
                getattr(callback, method)(*copy.deepcopy(arguments))
            except (Exception, SystemExit) as error:  # the user's own code may raise anything
                self._callbacks.remove(callback)
                told = _told(callback, method, error)
                self.failure = f"{self.failure}; {told}" if self.failure else told
                self.cause = self.cause or error

    def check(self, what_now: str) -> None:
        """Raises RunError, with what the run did about it, if a callback has raised an exception."""
        if self.failure:
            raise RunError(f"{self.failure}; {what_now}") from self.cause


def _from_here(file: str) -> str:
    """Returns a path relative to the current directory, if it is in there."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _told(callback: Callback, method: str, error: BaseException) -> str:
    """Returns which callback raised what, and the last line of its own file that the exception passed."""
    own = getattr(sys.modules.get(type(callback).__module__), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    place = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    where = f"{_from_here(place.filename)}:{place.lineno}: " if place else ""
    reason = " ".join(str(error).split())
    return f"{where}{type(callback).__name__}.{method} raised {type(error).__name__}{f': {reason}' if reason else ''}"
