"""Loads models by their name on the Hugging Face Hub, such as owner/name or owner/name@revision.

A path of this name that exists is a path. Only the files that a manifest lists are downloaded, into the Hub's cache;
`load_model` then compares them with the manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jax_transformer.buckets import address_of
from jax_transformer.storage.model_files import (
    FILES,
    MANIFEST,
    TOKENIZER_FOLDER,
    ModelError,
    is_model_directory,
    model_in_bucket,
    read_manifest,
)
from jax_transformer.storage.tensor_files import INDEX, SUFFIXES

NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
PLAIN_FILE = re.compile(r"\w[\w.-]*", re.ASCII)


class HubError(ModelError):
    """Raised when a model on the Hub can't be read or written."""


class HubName(NamedTuple):
    """Names a model on the Hub."""

    repository: str
    """owner/name."""
    revision: str | None
    """Branch, tag or commit. None: the main branch."""

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def hub_name(name: str | os.PathLike[str]) -> HubName | None:
    """Returns the model on the Hub that a name could mean.

    None for a path that exists, for any other text, and for owner/name without a revision if there is a local
    folder `owner`: it is a mistyped path then, such as runs/dmeo, and no request is made.

    Example:
      >>> from jax_transformer.storage.hub import hub_name
      >>> hub_name("Helsinki-NLP/opus-mt-en-de@main")
      HubName(repository='Helsinki-NLP/opus-mt-en-de', revision='main')
      >>> hub_name("./model") is hub_name("model.pt") is None
      True
    """
    name = os.fspath(name)
    found = parse_hub_name(name)
    if found is None or os.path.exists(name) or name.endswith((*SUFFIXES, INDEX)):
        return None
    return None if found.revision is None and os.path.isdir(name.partition("/")[0]) else found


def parse_hub_name(text: str) -> HubName | None:
    """Returns the repository and the revision of owner/name or owner/name@revision; None for other text."""
    found = NAME.fullmatch(text)
    return None if found is None else HubName(found["repository"], found["revision"])


def is_model_on_hub(name: str | os.PathLike[str]) -> bool:
    """Returns whether a model of jax-transformer has this name on the Hub, or in its cache; False if it can't be
    read."""
    found = hub_name(name)
    try:
        return found is not None and _manifest(found) is not None
    except HubError:
        return False


def model_at(path: str | os.PathLike[str]) -> Path | None:
    """Returns the model directory at a path, the one named `model` in a run directory, or the one of a name on the Hub;
    from there and from a bucket it is downloaded. None if there is no model.

    Raises:
      HubError, ModelError: see `download_model`.
      BucketError: see `model_in_bucket`.
    """
    if address_of(path) is not None:
        return model_in_bucket(path)
    for directory in (Path(path), Path(path) / "model"):
        if is_model_directory(directory):
            return directory
    found = hub_name(path)
    return download_model(found) if found is not None and is_model_on_hub(path) else None


def download_model(name: HubName) -> Path:
    """Downloads a model, or finds it in the Hub's cache; returns its directory, whose name is the commit.

    Raises:
      HubError: there is no such model, it is one of another program, or the Hub can't be reached.
      ModelError: its manifest can't be read.
    """
    manifest = _manifest(name)
    if manifest is None:
        raise HubError(
            f"{name}: expected a model of jax-transformer; received a repository on the Hub without {MANIFEST}. If "
            f"transformers wrote it, port it first: jax-transformer port {name} MODEL"
        )
    directory = manifest.parent
    for file in read_manifest(directory)["sha256"]:
        _check_place(name, file)
        with explained(name):
            if _download(name._replace(revision=directory.name), file) is None:
                raise HubError(f"{name}: expected the files that its {MANIFEST} lists; {file} isn't there")
    return directory


def pinned(name: str) -> str:
    """Returns a name on the Hub with the commit that it means now; other names as they are. Raises as
    `download_model`."""
    found = hub_name(name)
    return name if found is None else str(found._replace(revision=download_model(found).name))


def is_missing_path(name: str) -> bool:
    """Returns whether a model that a run's config names is a local path with nothing at it, and not a name on the Hub.

    The config of a run that has begun has its names on the Hub as `pinned` returns them, with a revision. What looks
    like one and has none was a path: its directory is gone, or belongs to another working directory.

    Example:
      >>> from jax_transformer.storage.hub import is_missing_path
      >>> is_missing_path("outputs/model"), is_missing_path("Helsinki-NLP/opus-mt-en-de@main")
      (True, False)
    """
    found = hub_name(name)
    return found is not None and found.revision is None


@contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Turns errors that the Hub's library raises in the block into a HubError of one line; our own errors and
    errors of the disk stay as they are."""
    try:
        yield
    except (ModelError, KeyboardInterrupt):
        raise
    except Exception as error:  # the library and its dependencies raise dozens of classes
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        if _is_of_the_disk(cause):
            raise
        raise HubError(f"{name}: {_reason(name, cause)}") from None


def _is_of_the_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno is not None and error.filename is not None


def _reason(name: HubName, error: BaseException) -> str:
    """Returns the cause of an error and the remedy."""
    from huggingface_hub import constants, errors

    log_in, place = "log in (hf auth login), or set HF_TOKEN", f"the Hub at {constants.ENDPOINT}"
    if isinstance(error, errors.GatedRepoError):
        return f"its owner decides who may have it: ask at {constants.ENDPOINT}/{name.repository}, and {log_in}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such directory, and no model of this name on the Hub; if it is a private one, {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository on the Hub has no revision {name.revision}"
    if isinstance(error, errors.HFValidationError):
        return f"no such directory, and no name that the Hub can have ({_one_line(error)})"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        if constants.HF_HUB_OFFLINE:
            return "no such directory, and not in the Hub's cache; HF_HUB_OFFLINE is set, so nothing is downloaded"
        return f"no such directory, and {place} can't be reached; once it can, the same command goes on"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        return {
            401: f"the Hub doesn't know this user: {log_in}",
            403: "the token has no right to do this: use one with write access to the owner's models",
            412: "the repository was changed in between, and nothing was committed: try again",
        }.get(status, f"{place} refused: {_one_line(error)}")
    return f"{place} can't be reached, or ended the connection ({_one_line(error)}); try again"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _manifest(name: HubName) -> Path | None:
    """Downloads the manifest; None if the repository has none."""
    with explained(name):
        return _download(name, MANIFEST)


def _download(name: HubName, file: str) -> Path | None:
    """Downloads a file into the Hub's cache, or finds it there; None if the repository has none of this name."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        return Path(hf_hub_download(name.repository, file, revision=name.revision))
    except RemoteEntryNotFoundError:
        return None


def _check_place(name: HubName, file: str) -> None:
    """Raises HubError unless a manifest's file is one that a model directory has."""
    folder, _, plain = file.rpartition("/")
    is_tokenizer = folder == TOKENIZER_FOLDER and PLAIN_FILE.fullmatch(plain) is not None
    if file not in FILES and not is_tokenizer:
        raise HubError(f"{name}: {MANIFEST} must list files of a model; received {file[:80]!r}")
