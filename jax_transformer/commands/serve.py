"""jax-transformer serve MODEL [options]."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from jax_transformer.buckets import address_of
from jax_transformer.commands.decode_options import DecodeOptions, check_rows, load
from jax_transformer.commands.parsing import parsed
from jax_transformer.config.parallel import MeshConfig
from jax_transformer.runtime.extras import require
from jax_transformer.serving.limits import Limits

if TYPE_CHECKING:
    from jax_transformer.serving.service import Service
    from jax_transformer.serving.speech_service import SpeechService

OF_REQUESTS = ("sampling", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed")
"""Options of searches that transcripts set for themselves."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Limits, DecodeOptions):
    """Serve translations, or transcripts by a Whisper, over HTTP, until SIGTERM or SIGINT.

    The address that it prints is a page to translate or transcribe on, and /docs a page of the API. POST /translate and
    /score take JSON; of a Whisper, POST /v1/audio/transcriptions and /v1/audio/translations take recordings. /healthz,
    /readyz, /metrics and /openapi.json describe the server. Decoding options hold for requests that don't set their
    own.
    """

    model: tyro.conf.Positional[str]
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own lets other machines send requests."""
    port: int = 8000
    """Port to listen on; 0 for any free one."""
    seed: tyro.conf.Suppress[int | None] = None
    source_tag: str = ""
    """Token to put before every text, such as <2de>, for requests that set none."""
    rows: int = 64
    """Maximum number of sentences decoded at once; of a recording's windows, at most 8."""
    batch_tokens: int = 4096
    """Maximum number of source tokens decoded at once, padding included."""
    max_wait_ms: float = 5.0
    """Milliseconds that a sentence or a window waits for a batch to fill."""
    warm_up: int = 64
    """Compile the programs for texts of up to this many tokens before the server is ready; 0 for none. A Whisper's are
    for windows of up to 64 tokens."""
    grace_seconds: float = 30.0
    """Seconds that requests in progress may take after the first signal."""
    parallel: MeshConfig = field(default=MeshConfig())


def serve(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer serve ARGUMENTS`; returns the exit code: 1 if requests were cut off at the end."""
    options = parsed(ServeOptions, arguments, "serve")
    _check(options)
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, "serve")
    from jax_transformer.serving.server import bind
    from jax_transformer.serving.server import serve as run

    with bind(options.host, options.port) as bound:
        return run(_service(options), bound, grace_seconds=options.grace_seconds)


def _service(options: ServeOptions) -> Service | SpeechService:
    """Loads the model under the options."""
    from jax_transformer.decoding.prepared import prepare
    from jax_transformer.parallel.mesh import make_mesh
    from jax_transformer.serving.engine import Engine
    from jax_transformer.serving.service import Service
    from jax_transformer.serving.speech_engine import SpeechEngine
    from jax_transformer.serving.speech_service import SpeechService

    model = load(options.model, options.source_tag, options.dtype)
    is_speech = model.config.stem is not None and model.generation.speech is not None
    if is_speech:
        _check_speech(options)
    generation = dataclasses.replace(model.generation, **options.config().given)
    model = prepare(dataclasses.replace(model, generation=generation), make_mesh(options.parallel))
    limits = Limits(**{each.name: getattr(options, each.name) for each in dataclasses.fields(Limits)})
    given: dict[str, Any] = {
        "max_wait_ms": options.max_wait_ms,
        "warm_up": options.warm_up,
        "name": _name(options.model),
    }
    if is_speech:
        return SpeechService(SpeechEngine(model, limits, rows=options.rows), **given)
    tags = {"source_tag": options.source_tag, "target_tag": options.target_tag}
    return Service(Engine(model, limits, rows=options.rows, batch_tokens=options.batch_tokens, **tags), **given)


def _check_speech(options: ServeOptions) -> None:
    """Raises ValueError for options that a model of speech doesn't have, and without the package that reads audio."""
    require("soundfile", "serve")
    wrong = [name for name in ("source_tag", "target_tag") if getattr(options, name)]
    wrong += [name for name in OF_REQUESTS if name in options.config().given]
    if wrong:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise ValueError(f"{names}: expected none of a model of speech, whose requests set a temperature of their own")


def _name(model: str) -> str:
    """Returns a model's name for readers of the page, who needn't know where its directory is."""
    address = address_of(model)
    if address is not None:
        return address.name
    path = Path(model).resolve()
    return path.name if path.exists() else model


def _check(options: ServeOptions) -> None:
    """Raises ValueError for options that are out of range."""
    check_rows(options.rows)
    options.config()
    problems = options.problems()
    for name, least in (("batch_tokens", 1), ("max_wait_ms", 0), ("warm_up", 0), ("grace_seconds", 0)):
        value = getattr(options, name)
        if not least <= value < float("inf"):
            problems.append(f"--{name.replace('_', '-')} must be at least {least}; received {value}")
    if problems:
        raise ValueError("; ".join(problems))
