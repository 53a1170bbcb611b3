"""jax-transformer push MODEL OWNER/NAME: share a model on the Hugging Face Hub."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jax_transformer.commands.parsing import parsed
from jax_transformer.runtime.files import atomic_write

if TYPE_CHECKING:
    from jax_transformer.sharing.facts import Facts
    from jax_transformer.storage.hub import HubName

FOLDER = tyro.conf.arg(metavar="DIR")
FILE = tyro.conf.arg(metavar="FILE")


@dataclass(frozen=True)
class PushOptions:
    """Upload a model directory with a model card to the Hugging Face Hub, as one commit.

    Log in first (hf auth login), or set HF_TOKEN. The card states data, training, scores, how to use the model, and the
    SHA-256 of its files. A repository that has anything else is left alone.
    """

    model: tyro.conf.Positional[str]
    """Model directory, or run directory that contains one."""
    repository: tyro.conf.Positional[str]
    """Where to upload it: OWNER/NAME."""
    private: bool = False
    """Make the new repository private."""
    revision: str | None = None
    """Branch to commit to; made if there is none. Default: main."""
    message: str | None = None
    """Message of the commit."""
    license: str = ""
    """The Hub's identifier of a license, such as apache-2.0."""
    languages: str = ""
    """Comma-separated language codes, such as en,de. Default: the languages of the run's config."""
    tags: str = ""
    """Comma-separated tags in addition to the usual ones."""
    datasets: str = ""
    """Comma-separated datasets on the Hub. Default: the datasets of the run's config."""
    base_model: str = ""
    """Model on the Hub that this one was made of. Default: as the run's config says."""
    parity_report: Annotated[str, FILE] = ""
    """Report of `jax-transformer parity --json`, for the card. Default: parity.json next to the model directory."""
    with_optimizer: bool = False
    """Also upload optimizer.safetensors, the optimizer's state of a model whose training can go on, with its
    checkpoint's settings of that training, which may name paths and users."""
    card_only: bool = False
    """Replace the card of a model that is there."""
    replace: bool = False
    """Commit this model in place of another, which stays in the history."""
    dry_run: Annotated[str | None, FOLDER] = None
    """Write the card to DIR/README.md, and list the files; upload nothing."""


def push(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer push ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the model can't be read, or not be uploaded.
    """
    options = parsed(PushOptions, arguments, "push")
    from jax_transformer.sharing.card import make_card
    from jax_transformer.sharing.facts import CardOptions, read_facts
    from jax_transformer.storage.hub import parse_hub_name

    name = parse_hub_name(options.repository)
    if name is None or name.revision:
        raise ValueError(f"push: expected OWNER/NAME to upload to; received {options.repository!r}")
    stated = CardOptions(
        license=options.license,
        languages=_split(options.languages),
        tags=_split(options.tags),
        datasets=_split(options.datasets),
        base_model=options.base_model,
        parity_report=options.parity_report,
    )
    facts = read_facts(options.model, name.repository, stated)
    _check_optimizer(facts, options)
    card = make_card(facts)
    if options.dry_run is not None:
        return _show(facts, card, Path(options.dry_run))
    return _upload(facts, card, options, name._replace(revision=options.revision))


def _check_optimizer(facts: Facts, options: PushOptions) -> None:
    """Raises ValueError if the optimizer's state would be published unasked."""
    from jax_transformer.storage.model_files import OPTIMIZER

    if OPTIMIZER in facts.sums and not (options.with_optimizer or options.card_only):
        raise ValueError(
            f"{facts.directory}: expected a model without an optimizer's state; received one with {OPTIMIZER} and its "
            "checkpoint's options, such as paths, which every reader would get; port the checkpoint without "
            "--with-optimizer, or push both with --with-optimizer"
        )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _show(facts: Facts, card: str, folder: Path) -> int:
    """Writes the card, and lists the files."""
    from jax_transformer.storage.model_files import MANIFEST

    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "README.md") as temporary:
        temporary.write_text(card, encoding="utf-8")
    print(f"card:  {folder / 'README.md'}")
    for name in (*facts.sums, MANIFEST):
        print(f"file:  {name}, {(facts.directory / name).stat().st_size:,} bytes")
    return 0


def _upload(facts: Facts, card: str, options: PushOptions, name: HubName) -> int:
    from huggingface_hub.utils import disable_progress_bars

    from jax_transformer.sharing.upload import Upload, upload

    what = "Replace the model card" if options.card_only else "Upload a model of jax-transformer"
    job = Upload(
        name=name,
        directory=facts.directory,
        sums=facts.sums,
        card=card,
        message=options.message or what,
        private=options.private,
        card_only=options.card_only,
        replace=options.replace,
    )
    if not sys.stderr.isatty():
        disable_progress_bars()
    address = upload(job)
    print(f"commit: {address}" if address else f"nothing to upload: {name} has this model and this card")
    print(f"translate with it: jax-transformer translate {name}")
    return 0
