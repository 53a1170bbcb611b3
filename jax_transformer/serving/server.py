"""Runs the process: its socket, its connections, its signals and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from jax_transformer.serving.app import error_text, make_app
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.service import Host, Service
from jax_transformer.serving.speech_service import SpeechService

LAST_SECONDS = 5.0
"""How long the device's thread has for the program in progress when all else has ended."""
SECONDS_BETWEEN_LINES = 10.0
"""How often a server that isn't on a terminal says what it compiles."""
HEADER_BYTES = 16_384
LOGS = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stderr"}},
    "loggers": {
        "uvicorn.error": {"handlers": ["stderr"], "level": "ERROR", "propagate": False},
        "uvicorn.access": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "jax_transformer.serving": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to the address, and doesn't listen yet.

    Raises:
      ValueError: the port is in use or not allowed, or the host is unknown.
    """
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port must be from 0 to 65535; received {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"--host {host} --port {port}: expected an address that is free; received {reason}") from None
    return bound


def serve(service: Service | SpeechService, bound: socket.socket, *, grace_seconds: float) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code: 0, or 1 if requests were cut off.

    A second signal ends the process at once.

    Args:
      service: answers the requests.
      bound: the socket, from `bind`.
      grace_seconds: how long requests in progress may take after the signal.
    """
    host, port = bound.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    ended = True

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal ended
        bound.listen(config.backlog)  # uvicorn would do so after this
        print(f"listening on {address}", flush=True)
        warming_up = WarmingUp()
        service.start(on_ready=warming_up.ready, on_compile=warming_up.compiling)
        yield
        ended = service.stop(LAST_SECONDS)

    limits = service.limits
    config = uvicorn.Config(
        make_app(service, lifespan),
        http=_protocol(limits),
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=LOGS,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,  # type: ignore[arg-type]  # asyncio takes fractions
    )
    server = Server(config, service)
    server.run(sockets=[bound])
    code = 1 if service.cut_off else 0
    if not ended:  # a thread inside XLA can't be interrupted
        _end_now(code)
    return code


class WarmingUp:
    """Says on standard error what the server compiles before it is ready: on a terminal in one line that changes,
    elsewhere in a line now and then."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._last, self._total = -SECONDS_BETWEEN_LINES, 0
        self._is_terminal = sys.stderr.isatty()

    def compiling(self, number: int, total: int, name: str) -> None:
        """Says that it compiles number `number` of `total`."""
        self._total, seconds = total, time.perf_counter() - self._start
        line = f"compiling {number} of {total}: {name}"
        if self._is_terminal:
            print(f"\r\033[K{line} …", end="", file=sys.stderr, flush=True)
        elif seconds - self._last >= SECONDS_BETWEEN_LINES:
            print(line, file=sys.stderr, flush=True)
            self._last = seconds

    def ready(self) -> None:
        """Says that the server is ready, after how long, and for how many kinds of batches programs are compiled."""
        begin = "\r\033[K" if self._is_terminal and self._total else ""
        kinds = f"; compiled for {self._total} kinds of batches" if self._total else ""
        print(f"{begin}ready after {time.perf_counter() - self._start:.1f} s{kinds}", file=sys.stderr, flush=True)


class Server(uvicorn.Server):
    """Runs the application. Ends with the exit code of the command instead of the signal."""

    def __init__(self, config: uvicorn.Config, service: Host) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server; doesn't keep the signal, which uvicorn would raise again at the end."""
        if self.should_exit:
            _end_now(128 + sig)
        self.should_exit = True
        with contextlib.suppress(OSError):
            os.write(2, b"stopping: a second signal ends at once\n")  # print can't be called while it is called

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.state = "stopping"
        await super().shutdown(sockets)


def _end_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # closed, or being written
            stream.flush()
    os._exit(code)


class StrictConnection(h11.Connection):
    """Refuses a request whose body may end elsewhere for another reader (request smuggling: RFC 9112, §6.1, §11.2)."""

    problem = ""
    """Why a request was refused; "" if h11 did."""

    def next_event(self) -> Any:
        """Returns the next event. Raises h11.RemoteProtocolError for a request that states the end of its body twice
        or in a way that its version doesn't have."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                self.problem = "expected Content-Length or Transfer-Encoding; received both"
            elif b"transfer-encoding" in names and event.http_version < b"1.1":
                self.problem = "expected Transfer-Encoding in HTTP/1.1 alone; received it in an older version"
            if self.problem:
                raise h11.RemoteProtocolError(self.problem)
        return event


def _protocol(limits: Limits) -> type[H11Protocol]:
    """Returns the protocol of a connection: uvicorn's, with a limit on connections and on the time of a header."""

    class Connection(H11Protocol):
        conn: StrictConnection
        _timer: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn = StrictConnection(h11.SERVER, HEADER_BYTES)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                most = f"expected at most {limits.max_connections} connections (--max-connections); received another"
                self._refuse(503, "Service Unavailable", most)
            else:
                self._watch_header(is_begun=True)

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch_header(is_begun=False)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_header(is_begun=self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

        def send_400_response(self, msg: str) -> None:
            usual = f"expected an HTTP/1.1 request with a header of at most {HEADER_BYTES:,} bytes"
            self._refuse(400, "Bad Request", self.conn.problem or usual)

        def _watch_header(self, *, is_begun: bool) -> None:
            """Starts the timer of a header that has begun, unless it runs, or stops it."""
            if not is_begun and self._timer:
                self._timer.cancel()
                self._timer = None
            elif is_begun and self._timer is None:
                self._timer = self.loop.call_later(limits.receive_seconds, self._late)

        def _late(self) -> None:
            most = f"expected the header within {limits.receive_seconds:g} seconds (--receive-seconds)"
            self._refuse(408, "Request Timeout", most)

        def _refuse(self, status: int, reason: str, message: str) -> None:
            """Answers without the application, and closes the connection."""
            if self.transport.is_closing():
                return
            self.access_logger.info("%s:%d - refused: %s", *(self.client or ("", 0)), message)
            body = (error_text(message) + "\n").encode()
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
            self.transport.close()

    return Connection
