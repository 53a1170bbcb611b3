"""The server under load: sentences per second and latency, beside `translate` in one process.

    python train.py                                  # the demo's model, in runs/demo
    pip install ctranslate2==4.8.5                   # for the last columns
    python benchmarks/serve.py [--model runs/demo] [--requests 400] [--seconds 60] [--rounds 3]

`jax-transformer serve` runs in a process of its own on a free port of 127.0.0.1. So many clients ask at once, each for
one sentence after the other on a connection of its own, until all requests are answered or the time is over; so the
load is bounded in number and in time. The same sentences are translated by one call of `translate_each` in another
process, before and after: the ratio is the share of that speed that the server reaches. CTranslate2 serves the same
weights behind the same queue (`serve_ctranslate2.py`). All programs are compiled before anything is measured. In every
round the loads and the servers take turns; medians are shown, and latencies of all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "serve.json"
HOST = "127.0.0.1"


class Load(NamedTuple):
    """Holds what one measurement asks for."""

    clients: int
    beams: int = 1
    texts: int = 1
    """Of each request."""


LOADS = [Load(clients, beams) for beams in (1, 4) for clients in (1, 8, 32, 64)] + [Load(8, texts=16)]
OWN, OTHER = "jax_transformer", "ctranslate2"


def sentences(count: int) -> list[str]:
    """Returns English sentences of the demo's kind."""
    from jax_transformer.data.phrasebook.pairs import sample_pairs

    return [source for source, _ in sample_pairs("test", count, seed=0)]


# --- the server and its clients


class Served:
    """Runs the server, and waits until its programs are compiled."""

    def __init__(self, name: str, model: str) -> None:
        own = ["-m", "jax_transformer.cli", "serve", model, "--port", "0"]
        other = [str(Path(__file__).parent / "serve_ctranslate2.py"), model]
        command = [sys.executable, *(own if name == OWN else other)]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads of CTranslate2 that wait shall sleep
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening"):
            raise SystemExit(f"the server ended with {self.process.wait()}")
        self.port = int(line.rpartition(":")[2])

    async def ready(self) -> None:
        while True:
            client = await Client.connect(self.port)
            status, _ = await client.ask("GET", "/readyz")
            client.close()
            if status == 200:
                return
            await asyncio.sleep(0.5)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            print(f"the server ended with {self.process.returncode}", file=sys.stderr)


class Client:
    """Asks on one connection: a client of few lines takes little of the two cores that the server runs on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection(HOST, port))

    async def ask(self, method: str, path: str, fields: Any = None) -> tuple[int, bytes]:
        """Returns the status and the body of the answer."""
        body = b"" if fields is None else json.dumps(fields).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        return int(answer.split()[1]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Measured(NamedTuple):
    """Holds the result of one load."""

    sentences: float
    """Per second."""
    latencies: list[float]
    """Seconds of each request."""
    failed: int


async def measure(port: int, load: Load, texts: Sequence[str], seconds: float) -> Measured:
    """Asks for all texts, from as many clients as the load has, for at most so many seconds."""
    clients = await asyncio.gather(*(Client.connect(port) for _ in range(load.clients)))
    remaining = iter([list(texts[start : start + load.texts]) for start in range(0, len(texts), load.texts)])
    latencies, done, failed = [], 0, 0
    begin = time.perf_counter()

    async def work(client: Client) -> None:
        nonlocal done, failed
        for asked in remaining:
            if (start := time.perf_counter()) > begin + seconds:
                return
            status, _ = await client.ask("POST", "/translate", {"texts": asked, "beam_size": load.beams})
            latencies.append(time.perf_counter() - start)
            done, failed = done + len(asked) * (status == 200), failed + (status != 200)

    await asyncio.gather(*map(work, clients))
    spent = time.perf_counter() - begin
    for client in clients:
        client.close()
    return Measured(done / spent, latencies, failed)


# --- translate, in a process of its own


def worker(model_path: str, count: int) -> None:
    """Translates all sentences for each number of beams read from a line, and answers with sentences per second."""
    from jax_transformer.decoding import prepare, translate_each
    from jax_transformer.storage.model_directory import load_model

    model, texts = prepare(load_model(model_path)), sentences(count)
    for line in sys.stdin:
        start = time.perf_counter()
        translate_each(model, texts, beam_size=int(line))
        print(count / (time.perf_counter() - start), flush=True)


class Translating:
    """Runs the process that translates."""

    def __init__(self, model: str, count: int) -> None:
        command = [sys.executable, __file__, "--worker", "--model", model, "--requests", str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def speed(self, beams: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{beams}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


# --- measuring


async def compare(model: str, count: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measures every load beside `translate`, with each server."""
    names = [OWN, *([OTHER] if importlib.util.find_spec(OTHER) else [])]
    texts, translating = sentences(count), Translating(model, count)
    servers = {name: Served(name, model) for name in names}
    found: dict[tuple[Load, str], list[tuple[Measured, float]]] = {}
    try:
        for server in servers.values():
            await server.ready()
        for load in LOADS:  # compiles
            translating.speed(load.beams)
            for server in servers.values():
                await measure(server.port, load, texts, seconds)
        for _ in range(rounds):
            for load in LOADS:
                for name, server in servers.items():
                    before = translating.speed(load.beams)
                    measured = await measure(server.port, load, texts, seconds)
                    speed = (before + translating.speed(load.beams)) / 2
                    found.setdefault((load, name), []).append((measured, speed))
    finally:
        translating.close()
        for server in servers.values():
            server.close()
    return [{**load._asdict(), **{name: summary(found[load, name]) for name in names}} for load in LOADS]


def summary(results: Sequence[tuple[Measured, float]]) -> dict[str, Any]:
    latencies = sorted(latency for measured, _ in results for latency in measured.latencies)
    return {
        "sentences_per_second": statistics.median(measured.sentences for measured, _ in results),
        "ratio_to_translate": statistics.median(measured.sentences / speed for measured, speed in results),
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        "failed": sum(measured.failed for measured, _ in results),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| clients | texts of a request | beams | sentences/s | of `translate` | p50, p99, ms "
        "| CTranslate2: sentences/s | p50, p99, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        own, other = each[OWN], each.get(OTHER)
        theirs = f"{other['sentences_per_second']:.0f} | {latencies_of(other)}" if other else "– | –"
        lines.append(
            f"| {each['clients']} | {each['texts']} | {each['beams']} | {own['sentences_per_second']:.0f} "
            f"| {own['ratio_to_translate']:.2f} | {latencies_of(own)} | {theirs} |"
        )
    return "\n".join(lines)


def latencies_of(found: dict[str, Any]) -> str:
    return f"{found['p50_ms']:.0f}, {found['p99_ms']:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo")
    parser.add_argument("--requests", type=int, default=400, help="sentences of each measurement")
    parser.add_argument("--seconds", type=float, default=60.0, help="most seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.model, options.requests)
        return 0
    rows = asyncio.run(compare(options.model, options.requests, options.seconds, options.rounds))
    print(table(rows))
    packages = {
        name: version(name)
        for name in ("jax", "fastapi", "uvicorn", OTHER)
        if name != OTHER or importlib.util.find_spec(OTHER)
    }
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), **packages}
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    return 1 if any(each[name]["failed"] for each in rows for name in (OWN, OTHER) if name in each) else 0


if __name__ == "__main__":
    sys.exit(main())
