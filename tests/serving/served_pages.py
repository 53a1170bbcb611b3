"""A server on a thread of this process, for a browser."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from jax_transformer.serving.app import make_app
from jax_transformer.serving.server import bind
from jax_transformer.serving.service import Service
from jax_transformer.serving.speech_service import SpeechService

Open = Callable[..., Any]


@contextlib.contextmanager
def on_a_thread(service: Service | SpeechService) -> Iterator[str]:
    """Yields the address of a server."""
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    service.start()
    while not server.started or service.state != "ready":
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)
    assert service.stop(30)
    bound.close()
