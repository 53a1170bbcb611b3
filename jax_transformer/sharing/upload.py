"""Uploads a model directory and its card to the Hub, as one commit, and never over anything else unasked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.limits import TOKENIZER_BYTES
from jax_transformer.storage.hub import HubError, HubName, explained
from jax_transformer.storage.model_files import FILES, MANIFEST, TOKENIZER_FOLDER, ModelError, read_manifest

CARD = "README.md"
FILES_OF_HUB = (".gitattributes", CARD)
"""Files of a repository that are no part of a model."""
LARGE = ".safetensors"


@dataclass(frozen=True)
class Upload:
    """Holds the files to upload, and the options of the upload."""

    name: HubName
    """The repository, and the branch."""
    directory: Path
    sums: Mapping[str, str]
    """SHA-256 of the files by name."""
    card: str
    message: str
    private: bool = False
    card_only: bool = False
    replace: bool = False
    """Whether another model, or another card, may be replaced."""


@dataclass(frozen=True)
class _Head:
    """Holds the state of the branch before the upload."""

    commit: str
    files: frozenset[str]
    sums: Mapping[str, str] | None
    """SHA-256 of the files of its model. None: it has none."""
    card: str | None


def upload(job: Upload) -> str:
    """Uploads the files, and returns the address of the commit; "" if the repository has all of them already.

    Raises:
      HubError: no token, no right, the repository has something else, or it was changed in between; the Hub can't be
        reached. Nothing is committed then; a repository that was made stays.
      ModelError: a local file was changed since it was verified.
    """
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise HubError(
            f"{job.name}: expected a token of the Hub; received none; log in (hf auth login), or set HF_TOKEN"
        )
    api = HfApi(library_name="jax-transformer")
    with explained(job.name):
        head = _open(api, job)
    if not _changes(job, head):
        return ""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    card = CommitOperationAdd(CARD, job.card.encode())
    additions = [] if job.card_only else [CommitOperationAdd(name, _content(job, name)) for name in _files(job)]
    stale = (
        [] if job.card_only else sorted(name for name in head.files if _is_of_model(name) and name not in _files(job))
    )
    repository, revision = job.name
    with explained(job.name):
        api.preupload_lfs_files(repository, [*additions, card], revision=revision, free_memory=False)
        _check_uploaded(job, additions)
        done = api.create_commit(
            repository,
            [*additions, card, *(CommitOperationDelete(name) for name in stale)],
            commit_message=job.message,
            revision=revision,
            parent_commit=head.commit,
        )
    return str(done.commit_url)


def _open(api: Any, job: Upload) -> _Head:
    """Returns the state of the branch; makes the repository and the branch if there are none.

    Raises:
      HubError: the repository is public, and the upload private; there is no model whose card could be replaced.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    repository, revision = job.name
    try:
        info = api.model_info(repository)
    except RepositoryNotFoundError:
        if job.card_only:
            raise HubError(f"{job.name}: expected a repository whose card to replace; received none") from None
        api.create_repo(repository, private=job.private or None)
        info = api.model_info(repository)
    if job.private and info.private is False:
        raise HubError(f"{job.name}: expected a private repository; received a public one, which all would see")
    if revision:
        try:
            info = api.model_info(repository, revision=revision)
        except RevisionNotFoundError:
            api.create_branch(repository, branch=revision)
            info = api.model_info(repository, revision=revision)
    files = frozenset(sibling.rfilename for sibling in info.siblings or ())

    def read(file: str) -> Path:
        return Path(api.hf_hub_download(repository, file, revision=info.sha))

    sums = read_manifest(read(MANIFEST).parent)["sha256"] if MANIFEST in files else None
    card = read(CARD).read_text(encoding="utf-8", errors="replace") if CARD in files else None
    return _Head(str(info.sha), files, sums, card)


def _changes(job: Upload, head: _Head) -> bool:
    """Returns whether there is anything to upload.

    Raises:
      HubError: the branch has something else, which would be lost.
    """
    strange = sorted(head.files - {*FILES_OF_HUB})
    if head.sums is None and strange:
        raise HubError(
            f"{job.name}: expected a new repository, or one with a model of jax-transformer; received one with "
            f"{', '.join(strange[:3])}; choose another name"
        )
    if job.card_only and head.sums != job.sums:
        raise HubError(
            f"{job.name}: expected the repository of this model for --card-only; received another model, or none"
        )
    if head.sums == job.sums and head.card == job.card:
        return False
    if head.sums is not None and head.sums != job.sums and not job.replace:
        raise HubError(
            f"{job.name}: expected a new repository, or this model; received one with another model; to commit "
            "this one in its place, --replace (the other stays in the history)"
        )
    if head.sums == job.sums and not (job.card_only or job.replace):
        raise HubError(f"{job.name}: this model is there already, with another card; to replace the card, --card-only")
    return True


def _files(job: Upload) -> tuple[str, ...]:
    return (*job.sums, MANIFEST)


def _is_of_model(name: str) -> bool:
    return name in FILES or name.startswith(f"{TOKENIZER_FOLDER}/")


def _content(job: Upload, name: str) -> str | bytes:
    """Returns a large file's path, or a small file's content, as it was verified."""
    if name.endswith(LARGE):
        return str(job.directory / name)
    content = read_bytes(job.directory / name, TOKENIZER_BYTES)
    if name != MANIFEST:
        _check_sum(job, name, hashlib.sha256(content).hexdigest())
    return content


def _check_uploaded(job: Upload, additions: list[Any]) -> None:
    """Raises ModelError if a large file was changed before it was uploaded."""
    for addition in additions:
        if addition.path_in_repo.endswith(LARGE):
            _check_sum(job, addition.path_in_repo, addition.upload_info.sha256.hex())


def _check_sum(job: Upload, name: str, received: str) -> None:
    if received != job.sums[name]:
        raise ModelError(f"{job.directory / name}: changed while it was uploaded; nothing was committed")
