"""A server process: hostile clients, signals, and mistakes on the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from jax_transformer.cli import main
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.translation import translate
from jax_transformer.serving.engine import Engine
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.server import Server, WarmingUp, bind, serve
from jax_transformer.serving.service import Service
from jax_transformer.storage.model_directory import Model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = ["--max-body-bytes", "4000", "--receive-seconds", "1.5", "--max-connections", "20", "--rows", "8"]


class Running:
    """A server process that is ready."""

    def __init__(self, model: Path, errors: Path, *options: str) -> None:
        self.errors = errors
        command = [sys.executable, "-m", "jax_transformer.cli", "serve", str(model), "--port", "0", *options]
        with open(errors, "wb") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on http://127.0.0.1:"), line + errors.read_text()
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.client = httpx.Client(base_url=self.url, timeout=60)
        while self.client.get("/readyz").status_code == 503:
            time.sleep(0.05)

    def translate(self, **fields: Any) -> httpx.Response:
        return self.client.post("/translate", json=fields)

    def end(self, number: signal.Signals) -> int:
        """Sends a signal; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def directory(served: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(served, path)
    return path


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory, quick_compilation: None) -> Iterator[Running]:
    """One server for all tests of this module, which SIGINT ends with exit code 0 and without a traceback."""
    running = Running(directory, tmp_path_factory.mktemp("server") / "errors", "--warm-up", "16", *SMALL)
    try:
        yield running
        running.client.close()
        code, errors = running.end(signal.SIGINT), running.errors.read_text()
        assert code == 0, errors
        assert "Traceback" not in errors, errors
        assert 'POST /translate HTTP/1.1" 200' in errors
    finally:
        running.close()


@pytest.fixture
def start(directory: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """(*options) → a server of the test's own."""
    servers: list[Running] = []

    def make(*options: str) -> Running:
        servers.append(Running(directory, tmp_path / "errors", *options))
        return servers[-1]

    yield make
    for running in servers:
        running.close()


def test_clients_may_connect_when_the_server_says_that_it_listens(
    served: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def start_and_stop(server: Server, sockets: list[socket.socket]) -> None:
        async def run() -> None:
            app: Any = server.config.app
            async with app.router.lifespan_context(app):
                pass

        asyncio.run(run())

    with bind("127.0.0.1", 0) as bound:

        def say(line: str, **options: Any) -> None:
            said.append((line.split()[0], bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)))

        monkeypatch.setattr("builtins.print", say)
        monkeypatch.setattr(Server, "run", start_and_stop)
        monkeypatch.setattr(Service, "start", lambda *args, **kwargs: None)
        monkeypatch.setattr(Service, "stop", lambda *args: True)
        monkeypatch.setattr("jax_transformer.serving.server.LOGS", None)
        serve(Service(Engine(prepare(served), Limits())), bound, grace_seconds=1)
        monkeypatch.undo()
    assert said == [("listening", 1)]


def answer_to(port: int, *parts: bytes, pause: float = 0.0, seconds: float = 10.0) -> tuple[int, str]:
    """Sends bytes; returns the status and the body, once the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(OSError):  # refused meanwhile
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


HEAD = b"POST /translate HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nconnection: close\r\n"
BODY = b'{"texts": ["eins"]}'
ENDLESS = [b"4\r\n    \r\n" * 200] * 60


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (400, [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40]),
        (400, [b"GET / HTTP/1.1\r\n\r\n"]),
        (400, [b"GET / HTTP/1.1\r\nhost: test\r\nx: " + b"x" * 100_000]),
        (400, [b"GET / HTTP/1.1\r\nhost: test\r\n" + b"a: b\r\n" * 20_000]),
        (400, [HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}"]),
        (400, [HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n"]),
        (400, [HEAD + b"content-length: 19\r\ntransfer-encoding: chunked\r\n\r\n13\r\n" + BODY + b"\r\n0\r\n\r\n"]),
        (400, [HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n"]),
        (400, [HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n13\r\n" + BODY + b"\r\n0\r\n\r\n"]),
        (200, [HEAD + b"transfer-encoding: chunked\r\n\r\n13\r\n" + BODY + b"\r\n0\r\n\r\n"]),
        (408, [HEAD + b"content-length: 60000\r\n\r\n" + b"["]),
        (408, [b"GET / HTTP/1.1\r\nhost: te"]),
        (408, [HEAD + b"content-length: 100\r\n\r\n{"]),
        (413, [HEAD + b"content-length: 5000\r\n\r\n" + b" " * 5000]),
        (413, [HEAD + b"transfer-encoding: chunked\r\n\r\n", *ENDLESS]),
        (422, [HEAD + b"content-length: 23\r\n\r\n" + b'{"texts": ["\\ud800 e"]}']),
        (200, [HEAD + b"content-length: 19\r\n\r\n" + BODY[:7], BODY[7:]]),
    ],
)
def test_hostile_bytes(server: Running, status: int, parts: list[bytes]) -> None:
    """Each is answered by one line, and the server goes on."""
    received, body = answer_to(server.port, *parts)
    assert received == status, body
    assert (body.count("\n"), body[-1]) == (1, "\n")
    assert ("error" in json.loads(body)) == (status != 200)
    assert server.translate(texts=["eins"]).status_code == 200


def test_a_request_behind_one_with_two_ends_is_not_read(server: Running) -> None:
    """By its Content-Length the second request is a part of the first one's body; a proxy in between may say so."""
    head = HEAD.replace(b"connection: close\r\n", b"")
    hidden = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
    both = f"content-length: {5 + len(hidden)}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".encode()
    status, body = answer_to(server.port, head + both + hidden)
    assert status == 400
    assert json.loads(body) == {"error": "expected Content-Length or Transfer-Encoding; received both"}


def test_the_server_says_what_it_compiles(server: Running) -> None:
    text = server.errors.read_text()
    assert "\ncompiling 1 of 12: 1 text of up to 8 tokens\n" in text
    assert re.search(r"\nready after \d+\.\d s; compiled for 12 kinds of batches\n", text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_has_one_line_of_what_is_compiled(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file has one in ten seconds."""
    now = [0.0]
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    warming_up = WarmingUp()
    for number in range(1, 6):
        warming_up.compiling(number, 5, f"{number} texts")
        now[0] += 4.0
    warming_up.ready()
    said = capsys.readouterr().err
    last = "ready after 20.0 s; compiled for 5 kinds of batches\n"
    if is_terminal:
        assert said.split("\r\033[K")[1:] == [f"compiling {n} of 5: {n} texts …" for n in range(1, 6)] + [last]
    else:
        assert said == f"compiling 1 of 5: 1 texts\ncompiling 4 of 5: 4 texts\n{last}"


def test_answers_equal_translate(server: Running, served: Model) -> None:
    texts = ["eins zwei drei", "zehn", "", "acht neun " * 5]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: server.translate(texts=texts[number % 4 :], beam_size=2), range(16)))
    wanted = translate(served, texts, beam_size=2)
    for number, answer in enumerate(answers):
        assert [each["text"] for each in answer.json()["translations"]] == wanted[number % 4 :]


def test_a_stream_comes_in_pieces_and_may_be_left(server: Running) -> None:
    fields = {"texts": ["eins zwei"], "stream": True, "min_new_tokens": 20}
    with server.client.stream("POST", "/translate", json=fields) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: ")).keys() == {"piece"}
    for _ in range(200):  # the stream that was left ends soon
        if "jax_transformer_streams 0.0" in server.client.get("/metrics").text:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the stream goes on")
    events = [line for line in server.translate(**fields).text.split("\n\n") if line]
    *pieces, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(piece["piece"] for piece in pieces) == last["text"]


def test_connections_are_bounded(server: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(19):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        time.sleep(0.2)
        status, body = answer_to(server.port, b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        assert (status, "--max-connections" in body) == (503, True)
    time.sleep(0.1)
    assert server.client.get("/healthz").status_code == 200


def test_requests_in_progress_are_answered_after_sigterm(start: Callable[..., Running]) -> None:
    """A sentence waits two seconds for others; meanwhile the server receives a request to stop."""
    running = start("--warm-up", "0", "--max-wait-ms", "2000", *SMALL)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(running.translate, texts=["eins zwei"])
        while "jax_transformer_queue_sentences 1.0" not in httpx.get(f"{running.url}/metrics").text:
            time.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/healthz")
        assert answer.result().status_code == 200
    assert running.process.wait(60) == 0


@pytest.mark.parametrize(("options", "signals", "code"), [(("--grace-seconds", "0.3"), 1, 1), ((), 2, 128 + 15)])
def test_requests_are_cut_off(start: Callable[..., Running], options: tuple[str, ...], signals: int, code: int) -> None:
    """After the grace period, or by a second signal."""
    running = start("--warm-up", "0", "--max-wait-ms", "60000", *SMALL, *options)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(running.translate, texts=["eins zwei"])
        while "jax_transformer_queue_sentences 1.0" not in httpx.get(f"{running.url}/metrics").text:
            time.sleep(0.01)
        for _ in range(signals):
            running.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert running.process.wait(20) == code
        assert isinstance(answer.exception(), httpx.HTTPError) or answer.result().status_code >= 500
    assert "Traceback" not in running.errors.read_text()


# --- the command line


@pytest.fixture
def serve_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """(*arguments) → exit code, standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        return main(["serve", *arguments]), capsys.readouterr().err

    return run


def test_a_port_in_use_gives_one_line(serve_command: Callable[..., tuple[int, str]], directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = serve_command(str(directory), "--port", port)
    assert code == 2
    assert (
        errors
        == f"error: --host 127.0.0.1 --port {port}: expected an address that is free; received Address already in use\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no such directory"),
        (["--port", "70000"], "--port must be from 0 to 65535; received 70000"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
        (
            ["--max-texts", "0", "--request-seconds", "nan"],
            "--max-texts must be greater than 0; received 0; --request-seconds",
        ),
        (["--grace-seconds", "-1"], "--grace-seconds must be at least 0; received -1.0"),
        (["--beam-size", "0"], "beam_size must be at least 1"),
        (["--rows", "0"], "--rows must be at least 1"),
    ],
)
def test_mistakes_give_one_line(
    serve_command: Callable[..., tuple[int, str]], options: list[str], message: str
) -> None:
    code, errors = serve_command("no/such/model", "--port", "0", *options)
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target-tag", "<fr>"], "--target-tag: expected one of <de>, <nl>"),
        (["--source-tag", "<de>"], "source tag: expected one of <2de>"),
        (["--beam-size", "100"], "beam_size must be at most the target vocabulary"),
        (["--beam-size", "9"], "--max-beam-size must be at least 9"),
    ],
)
def test_options_that_the_model_cannot_follow(
    serve_command: Callable[..., tuple[int, str]], directory: Path, options: list[str], message: str
) -> None:
    code, errors = serve_command(str(directory), "--port", "0", *options)
    assert code == 2
    assert message in errors
