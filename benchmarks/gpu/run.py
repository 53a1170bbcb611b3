"""Measure everything on a GPU within minutes: training, decoding, attention, parity, resuming, quality.

    python benchmarks/gpu/run.py --out gpu               # on a machine with an H100 or H200; stops after nine minutes
    python benchmarks/gpu/run.py --out gpu --only train attention
    python benchmarks/gpu/run.py --out gpu --small       # tiny models, on any machine: whether everything runs
    python benchmarks/gpu/run.py --out gpu --table       # print the table of results that are there
    cp gpu/results.json benchmarks/results/gpu.json && python benchmarks/gpu/run.py --write docs/gpu.md

Every part is a process with a limit of its own (`parts.py`). Several load and compile at once. One measures at a time,
while all others are stopped, so that nothing competes with it for the GPU or the processors. A part measures each thing
as soon as that is compiled, the most valuable first. Results are written to results.jsonl as soon as there are any; a
part that fails is a row with the reason, and ends alone. Compiled programs are kept in --out and used by the next call.

The project's packages must be installed; `wheels.txt` beside this lists those that such a machine may lack. --data
names a folder with Multi30k's files (train, val, test_2016_flickr; lc.norm.tok; gzipped or not) for the stage
`quality`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from parts import BY_NAME, STAGES, Context, Part, run_part  # noqa: E402
from tables import page_tables, tables  # noqa: E402

RESULTS = "results.jsonl"
KEPT = HERE.parent / "results" / "gpu.json"
"""A copy of the results.json that the documentation shows."""
BEGIN, END = "<!-- measured: written by benchmarks/gpu/run.py -->\n", "<!-- end of measured -->\n"
CORES_OF_A_PART = 3
"""Each part that loads and compiles has as many cores of the machine in the mean. XLA's compiler for GPUs takes all
that it can get: eight parts at once on 16 cores took longer than one after another."""
WITHOUT_TRITON = "--xla_gpu_enable_triton_gemm=false"
"""Makes XLA multiply by cuBLAS alone; otherwise it compiles hundreds of candidates, and times them."""
AS_BY_DEFAULT = ("train.jax_base", "train.jax_big")
TICK = 0.2
"""Seconds between looks at the parts' limits."""
GRACE = 5.0
"""Seconds that are left at the end for the table."""


class Process:
    """Holds a part's process: preparing, ready, measuring, or ended."""

    def __init__(self, part: Part, options: argparse.Namespace, messages: queue.Queue[Any]) -> None:
        self.part, self.state, self.is_stopped, self.ran = part, "preparing", False, 0.0
        self._seen = time.monotonic()
        arguments = ["--worker", part.name, "--out", str(options.out)]
        arguments += ["--small"] if options.small else []
        arguments += ["--data", str(options.data)] if options.data else []
        log = options.out / "logs" / f"{part.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "run.py"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=environment(options, part), start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(messages,), daemon=True)
        self._reader.start()

    def _read(self, messages: queue.Queue[Any]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("MESSAGE "):
                messages.put((self, json.loads(line.removeprefix("MESSAGE "))))
            else:
                self._log.write(line)
        messages.put((self, {"kind": "ended", "code": self._process.wait()}))

    def begin(self) -> None:
        """Lets a part that is ready measure."""
        assert self._process.stdin is not None
        self.state = "measuring"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def stop(self, stopped: bool) -> None:
        """Stops the process and all that it started, or lets them go on."""
        if stopped != self.is_stopped and self.state != "ended":
            self.is_stopped = stopped
            self._signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    def tick(self) -> bool:
        """Counts the time that the part has run; returns whether its limit is passed."""
        now = time.monotonic()
        if not self.is_stopped and self.state in ("preparing", "measuring"):
            self.ran += now - self._seen
        self._seen = now
        return self.ran > self.part.limit

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Ends the process, if it hasn't ended, and closes its files."""
        self.kill()
        self._process.wait()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def log_tail(self) -> str:
        """Returns the last line that the process wrote of an error."""
        self._log.flush()
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Run:
    """Starts the parts in order, lets one measure at a time, and writes what they report."""

    def __init__(self, options: argparse.Namespace, parts: list[Part]) -> None:
        self.options, self.waiting, self.processes = options, parts, []  # type: ignore[var-annotated]
        self.messages: queue.Queue[Any] = queue.Queue()
        self.began, self.number = time.monotonic(), int(time.time())
        self.file = (options.out / RESULTS).open("a")
        cores = len(os.sched_getaffinity(0))
        self.at_once = options.at_once or max(1, cores if options.small else cores // CORES_OF_A_PART)

    def run(self) -> None:
        while (self.waiting or self.active()) and self.left() > GRACE:
            self.receive()
            self.start_more()
            self.let_one_measure()
            for process in self.active():
                if process.tick():
                    self.end(process, f"stopped after {process.part.limit:.0f} s")
        for process in self.active():
            self.end(process, "stopped: no time was left")
        for part in self.waiting:
            self.write(part.name, {"error": "not begun: no time was left"})

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.file.close()

    def left(self) -> float:
        return 60 * self.options.minutes - (time.monotonic() - self.began)

    def active(self) -> list[Process]:
        return [process for process in self.processes if process.state != "ended"]

    def is_measuring(self) -> bool:
        return any(process.state == "measuring" for process in self.active())

    def start_more(self) -> None:
        busy = sum(process.state == "preparing" for process in self.active())
        while self.waiting and busy < self.at_once and not self.is_measuring():
            part = self.waiting.pop(0)
            self.say(f"{part.name}: begins")
            self.processes.append(Process(part, self.options, self.messages))
            busy += 1

    def let_one_measure(self) -> None:
        """Lets the first of the parts that are ready measure, and stops all others until it has ended."""
        if self.is_measuring():
            return
        ready = next((process for process in self.active() if process.state == "ready"), None)
        if ready is None:
            return
        for process in self.active():
            process.stop(process is not ready)
        ready.begin()

    def receive(self) -> None:
        try:
            process, message = self.messages.get(timeout=TICK)
        except queue.Empty:
            return
        kind = message.pop("kind")
        if kind == "ready":
            process.state = "ready"
        elif kind == "measured":
            process.state = "preparing"
            self.let_others_go_on()
        elif kind == "row":
            self.write(process.part.name, message)
        elif process.state != "ended":
            code = message["code"]
            self.end(process, "" if code == 0 else f"exit code {code}: {process.log_tail()}")

    def end(self, process: Process, error: str) -> None:
        if error:
            self.write(process.part.name, {"error": error})
        process.state = "ended"
        process.kill()
        self.say(f"{process.part.name}: ended after {process.ran:.0f} s of its own {error}")
        self.let_others_go_on()

    def let_others_go_on(self) -> None:
        if not self.is_measuring():
            for other in self.active():
                other.stop(False)

    def write(self, part: str, row: dict[str, Any]) -> None:
        """Writes a row of a part's results, or of the options of this run."""
        at = round(time.monotonic() - self.began, 1)
        self.say(f"{part}: {row.get('what', '')} {row.get('name', '')} {row.get('error', '')}")
        self.file.write(json.dumps({"run": self.number, "part": part, "at": at, **row}) + "\n")
        self.file.flush()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)


def environment(options: argparse.Namespace, part: Part) -> dict[str, str]:
    """Returns the environment of a part: memory as it is needed, and caches of compiled programs."""
    cache = options.out.resolve() / "cache"
    flags = os.environ.get("XLA_FLAGS", "")
    if options.quick_compile and part.name not in AS_BY_DEFAULT:
        flags = f"{flags} {WITHOUT_TRITON}".strip()
    own = {
        "XLA_FLAGS": flags,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    return {**os.environ, **own}


def chosen(options: argparse.Namespace) -> list[Part]:
    parts = [BY_NAME[name] for name in BY_NAME if not options.only or {name, BY_NAME[name].stage} & {*options.only}]
    return [part for part in parts if (part.least or not options.least) and not (options.small and part.repeats)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of results and compiled programs")
    parser.add_argument("--small", action="store_true", help="tiny models, on any machine")
    parser.add_argument("--least", action="store_true", help="only the parts that CI runs")
    parser.add_argument("--only", nargs="*", metavar="STAGE", choices=[*STAGES, *BY_NAME], help="stages, or parts")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which everything is stopped")
    parser.add_argument("--at-once", type=int, help="parts that load and compile at once")
    parser.add_argument("--quick-compile", action="store_true", help=f"set {WITHOUT_TRITON} but in {AS_BY_DEFAULT}")
    parser.add_argument("--data", type=Path, help="folder of Multi30k, for quality")
    parser.add_argument("--table", action="store_true", help="print the table of earlier results, and measure nothing")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the tables of benchmarks/results/gpu.json into a page"
    )
    parser.add_argument("--worker", choices=[*BY_NAME], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_page(options.write, json.loads(KEPT.read_text()) if KEPT.exists() else [])
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        os.environ["GPU_DATA"] = str(options.data or "")
        run_part(options.worker, Context(options.out, options.small))
        return 0
    if not options.table:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        run = Run(options, chosen(options))
        run.write("options", {"what": "options", "quick_compile": options.quick_compile})
        try:
            run.run()
        finally:
            run.close()
    rows = read(options.out)
    print(tables(rows), flush=True)
    (options.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if options.small and any("error" in row for row in rows) else 0


def write_page(page: Path, rows: list[dict[str, Any]]) -> None:
    """Puts the tables between the markers of a page, or says that there are no measurements.

    Long tables become CSV files in tables/ next to the page.
    """
    text = page.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    measured, files = page_tables(rows) if rows else ("Nothing has been measured yet.", {})
    for name, content in files.items():
        (page.parent / "tables").mkdir(exist_ok=True)
        (page.parent / "tables" / name).write_text(content, encoding="utf-8")
    page.write_text(f"{text[:before]}\n{measured}\n\n{text[after:]}", encoding="utf-8")


def read(out: Path) -> list[dict[str, Any]]:
    """Returns the rows of results; of a part that ran again, those of its last run."""
    rows = [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]
    last = {row["part"]: row["run"] for row in rows}
    return [row for row in rows if row["run"] == last[row["part"]]]


if __name__ == "__main__":
    sys.exit(main())
