"""Several processes on one machine train as one does, save, stop and fail together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from forked import Forked
from test_mesh import FLOAT64, beyond
from test_runs import FLOAT32, config_file, records, small_run, values
from test_stream_runs import TIMINGS, pairs_of, write
from test_stream_runs import small_run as streamed_run

from jax_transformer.cli import main
from jax_transformer.commands.launch import _free_port
from jax_transformer.config.files import dump_config
from jax_transformer.config.parallel import ProcessConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.parallel.coordinator import start_coordinator
from jax_transformer.parallel.places import Place, find_place
from jax_transformer.training.checkpoints import saved_steps
from jax_transformer.training.run_directory import is_training

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROGRAM = Path(__file__).with_name("process_cases.py")
END_SECONDS = 60
"""Within which the other processes end when one is gone."""


def started(
    command: Sequence[object], devices: int = 1, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> Forked:
    return Forked(command, cwd, {"JAX_NUM_CPU_DEVICES": str(devices)} | (environment or {}))


def cases(names: str, folder: Path, processes: int) -> dict[str, dict[str, object]]:
    """Runs cases of process_cases.py in several processes with four devices in total, and returns their results."""
    port = _free_port()
    running = [
        started([PROGRAM, names, folder, f"127.0.0.1:{port}", processes, number], devices=4 // processes)
        for number in range(processes)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes, outputs
    found: dict[str, dict[str, object]] = json.loads(outputs[0].splitlines()[-1])
    return found


@contextmanager
def training(folder: Path, *options: object, processes: int = 2) -> Iterator[list[Forked]]:
    """Yields the processes of a run, one device each, and kills those that are left at the end."""
    port = _free_port()
    command = ["-m", "jax_transformer.cli", "train", *options]
    command += ["--parallel.coordinator", f"127.0.0.1:{port}", "--parallel.processes", processes]
    with ended(
        [started([*command, "--parallel.process-id", number], cwd=folder) for number in range(processes)]
    ) as all:
        yield all


@contextmanager
def ended(running: list[Forked]) -> Iterator[list[Forked]]:
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def with_patience(name: str, seconds: float) -> list[str]:
    """Returns the beginning of a command that trains and waits for less long, by a constant of the package."""
    module, _, constant = name.rpartition(".")
    program = (
        f"import sys, jax_transformer.{module} as module; module.{constant} = {seconds}\n"
        "from jax_transformer.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return ["-c", program, "train"]


def under_slurm(number: int, processes: int) -> dict[str, str]:
    """The variables of a step of `srun`, of two tasks on this machine."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(processes),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
    }


def wait_for(run: Path, steps: int, processes: Sequence[Forked]) -> None:
    deadline = time.monotonic() + 240
    while len(values(run, "loss")) < steps and time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), [one.communicate()[0] for one in processes]
        time.sleep(0.02)


def assert_same(received: Path, expected: Path) -> None:
    for name in ("loss", "valid_loss", "gradient_norm", "target_tokens"):
        np.testing.assert_allclose(values(received, name), values(expected, name), rtol=FLOAT32, err_msg=name)
    assert len(values(received, "loss")) == 12


def test_two_processes_equal_one_and_their_checkpoints_restore_in_four(tmp_path: Path) -> None:
    on_both = {"(1, 2, 2)": True, "(1, 1, 4)": True}
    found = cases("training,placing,decoding,saving", tmp_path, processes=2)
    assert found["training"].keys() == on_both.keys()
    assert beyond(found["training"], FLOAT64) == {}  # type: ignore[arg-type]
    assert found["placing"] == on_both
    assert found["decoding"] == {"scores": True, "greedy": True, "beams": True}
    assert cases("restoring", tmp_path, processes=1)["restoring"] == on_both
    (tmp_path / "checkpoints").rename(tmp_path / "of two")
    (tmp_path / "again").rename(tmp_path / "checkpoints")
    found = cases("restoring,placing", tmp_path, processes=4)
    assert found["restoring"] == found["placing"] == on_both


COUNTING = """
from jax_transformer.training import Callback

class Counting(Callback):
    def on_step(self, step, metrics):
        with open("steps.txt", "a") as file:
            print(step, file=file)
"""


def test_launch_trains_like_one_process(on_one: Path, tmp_path: Path) -> None:
    options = ["--config", config_file(tmp_path), "--parallel.fsdp", "2", "--callbacks", "counting:Counting"]
    (tmp_path / "counting.py").write_text(COUNTING)
    command = ["-m", "jax_transformer.cli", "launch", "--processes", "2", "--", "train", *options]
    with ended([started(command, cwd=tmp_path)]) as (process,):
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert (tmp_path / "steps.txt").read_text().split() == [str(step) for step in range(1, 13)], "from process 0 alone"
    assert "2 × cpu (data 1, fsdp 2, tensor 1)" in output
    assert output.count("run directory: ") == output.count("BLEU") / 5 == 1  # only process 0 prints
    assert_same(tmp_path / "run", on_one)
    environment = json.loads((tmp_path / "run" / "parameters.json").read_text())["environment"]
    assert environment["processes"] == "2"


def test_the_processes_of_a_launch_that_is_killed_save_their_run_and_end(tmp_path: Path) -> None:
    run, options = tmp_path / "run", ["--config", config_file(tmp_path), "--train.max-steps", "4000"]
    command = ["-m", "jax_transformer.cli", "launch", "--processes", "2", "--", "train", *options]
    with ended([started(command)]) as (process,):
        wait_for(run, 1, [process])
        process.kill()
        output, _ = process.communicate(timeout=END_SECONDS)  # the processes, too, have closed it
    (saved,) = (int(step) for step in re.findall(r"stopped and saved at step (\d+); ", output))
    assert saved_steps(run / "checkpoints")[-1] == saved < 4000
    assert not is_training(run)


def test_processes_of_slurm_find_each_other_and_sigterm_to_one_stops_all_after_the_same_step(
    on_one: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["-m", "jax_transformer.cli", "train", "--config", config_file(tmp_path)]
    with ended([started(command, environment=under_slurm(number, 2)) for number in range(2)]) as processes:
        wait_for(run, 1, processes)
        processes[1].send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [130, 130], outputs
    saved = max(int(step.name) for step in (run / "checkpoints").iterdir())
    assert f"stopped and saved at step {saved}; resume with: " in outputs[0]
    assert main(["train", "--resume", str(run), "--parallel.processes", "1"]) == 0
    assert_same(run, on_one)


def test_a_killed_process_is_named_and_the_run_goes_on_in_one_process_with_the_same_bits(tmp_path: Path) -> None:
    models = []
    for kills in (True, False):
        folder = tmp_path / str(kills)
        folder.mkdir()
        run, options = folder / "run", ("--config", config_file(folder), "--parallel.virtual-shards", "2")
        if kills:
            with training(folder, *options) as processes:
                wait_for(run, 6, processes)
                processes[1].kill()
                start = time.monotonic()
                output, _ = processes[0].communicate(timeout=2 * END_SECONDS)
                assert time.monotonic() - start < END_SECONDS
            assert processes[0].returncode == 1, output
            who = f"process 1 (pid {processes[1].pid} on {socket.gethostname()})"
            assert f"error: {who} died or stopped answering; resume with: jax-transformer train --resume " in output
            assert main(["train", "--resume", str(run)]) == 0
        else:
            assert main(["train", *options]) == 0
        models.append((run / "model" / "params.safetensors").read_bytes())
    assert models[0] == models[1]


BREAKING_OFF = """
import sys
from jax_transformer.cli import main
from jax_transformer.data import streaming
from jax_transformer.data.hub import StreamedPairs, Unreachable

def pairs_from(self, start):
    for number, pair in enumerate(whole(self, start), start=start):
        if number == 40 and self.name.endswith("part 2 of 2") and sys.argv[-1] == "1":
            raise Unreachable("dataset: expected more; received ConnectionError.")
        yield pair

whole, StreamedPairs.pairs_from, streaming.RETRY_SECONDS = StreamedPairs.pairs_from, pairs_from, ()
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""
"""Trains with a dataset whose second part breaks off in process 1, which reads it; without PyTorch."""


def test_a_stream_that_breaks_off_in_one_process_is_saved_by_all_and_goes_on_as_in_one(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "data", pairs_of(100)[number * 50 : (number + 1) * 50], f"train-{number}.jsonl")
    sizes = {"stream_parts": 2, "stream_pairs": 30, "packing": True, "cache_dir": str(tmp_path / "cache")}
    library = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "library")}
    options = []
    for name in ("one", "two"):
        config = streamed_run(tmp_path / name, tmp_path / "data", sizes, max_epochs=1)
        (tmp_path / f"{name}.yaml").write_text(dump_config(config))
        options.append(["--config", tmp_path / f"{name}.yaml", "--parallel.virtual-shards", "2"])
    place = ["--parallel.coordinator", f"127.0.0.1:{_free_port()}", "--parallel.processes", "2"]
    command = ["-c", BREAKING_OFF, "train", *options[1], *place, "--parallel.process-id"]
    running = [started([*command, number], environment=library) for number in range(2)]
    running.append(started(["-m", "jax_transformer.cli", "train", *options[0]], environment=library))
    with ended(running) as processes:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2, 0], outputs
    run = tmp_path / "two" / "run"
    saved = max(int(step.name) for step in (run / "checkpoints").iterdir())
    line = f"error: dataset: expected more; received ConnectionError. The run is saved at step {saved}; resume with: "
    assert [output.count(line) for output in outputs] == [1, 0, 0], outputs
    launch = ["-m", "jax_transformer.cli", "launch", "--processes", "2", "--", "train", "--resume", run]
    with ended([started(launch, environment=library)]) as (process,):
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert f"resumed at step {saved}" in output
    assert not (run / ".stream").exists()
    files = [tmp_path / name / "run" / "model" / "params.safetensors" for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    one, two = (
        [{name: value for name, value in record.items() if name not in TIMINGS} for record in records(path)]
        for path in (tmp_path / "one" / "run", run)
    )
    assert one == two
    assert [record["stream"]["read"] for record in one if "stream" in record][-1] == 96


def test_a_first_process_that_stops_answering_is_named(tmp_path: Path) -> None:
    with training(tmp_path, "--config", config_file(tmp_path), "--train.max-steps", "100000") as processes:
        wait_for(tmp_path / "run", 1, processes)
        processes[0].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        output, _ = processes[1].communicate(timeout=2 * END_SECONDS)
        assert time.monotonic() - start < END_SECONDS
    assert processes[1].returncode == 1, output
    assert f"error: process 0 (pid {processes[0].pid} on " in output


def test_processes_with_different_options_fail_at_the_start(tmp_path: Path) -> None:
    port, file = _free_port(), config_file(tmp_path)
    common = ["-m", "jax_transformer.cli", "train", "--config", file, "--parallel.processes", "2"]
    common += ["--parallel.coordinator", f"127.0.0.1:{port}"]
    running = [
        started([*common, "--parallel.process-id", number, "--train.learning-rate", rate])
        for number, rate in enumerate(("0.5", "0.25"))
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [2, 2], outputs
    printed = f"error: process 1 (pid {running[1].pid} on {socket.gethostname()}): expected the options of process 0 "
    assert printed in outputs[0]
    assert "--train.learning-rate: 0.5 in process 0, 0.25 in this; start all with the same options" in outputs[0]
    assert "error" not in outputs[1]  # process 0 has told it
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_hosts_dont_share_is_refused(tmp_path: Path) -> None:
    """Two folders stand for two hosts. Neither process is aborted by JAX, which would write more lines."""
    port, file = _free_port(), config_file(tmp_path)
    patience = with_patience("training.run_directory.APPEAR_SECONDS", 2)
    common = [*patience, "--config", file, "--run-dir", "run", "--parallel.processes", "2"]
    common += ["--parallel.coordinator", f"127.0.0.1:{port}"]
    running = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        running.append(started([*common, "--parallel.process-id", number], cwd=tmp_path / str(number)))
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [2, 2], outputs
    last = outputs[0].splitlines()[-1]
    assert last.startswith(
        "error: run: expected a run directory that all hosts share; received one in which process 1 "
    )


def test_failures_of_one_process_are_reported_by_the_first(tmp_path: Path) -> None:
    port = _free_port()
    run = small_run(tmp_path)
    file = config_file(tmp_path)
    common = [*with_patience("parallel.watch.OWN_WORD_SECONDS", 3), "--config", file, "--parallel.processes", "2"]
    common += ["--parallel.coordinator", f"127.0.0.1:{port}", "--data.cache-dir", "cache"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "cache").write_text("a file")
    running = [
        started([*common, "--parallel.process-id", number], cwd=folder)
        for number, folder in enumerate((tmp_path, tmp_path / "elsewhere"))
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [2, 2], outputs
    assert f"error: process 1 (pid {running[1].pid} on {socket.gethostname()}): cache_dir: expected a dir" in outputs[0]
    assert "error: cache_dir: expected a directory that can be written; received cache" in outputs[1]
    assert not Path(run.run_dir).exists()


def test_a_process_that_waits_in_vain_reports_it() -> None:
    """A process 0 alone, and one whose process 0 isn't there."""
    program = (
        "import jax_transformer.parallel.processes as p; p.JOIN_SECONDS = 3\n"
        "p.join_processes(p.ProcessConfig(coordinator='127.0.0.1:{}', processes=2, process_id={}))"
    )
    running = [started(["-c", program.format(_free_port(), number)]) for number in range(2)]
    for process in running:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1, output
        assert output.splitlines()[-1].startswith(
            "jax_transformer.config.validation.ConfigError: processes: expected 2 to join at 127.0.0.1:"
        )


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, Place()),  # a notebook in a pod
        ({**under_slurm(1, 4), "SLURM_STEP_NUM_TASKS": "1"}, Place()),  # a shell that srun --pty started
        (under_slurm(1, 2), Place("localhost:61448", 2, 1, "1")),
        ({**under_slurm(1, 2), "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, Place("localhost:61448", 2, 1)),
        ({**under_slurm(1, 2), "CUDA_VISIBLE_DEVICES": "3"}, Place("localhost:61448", 2, 1)),
        ({**under_slurm(1, 2), "JAX_LOCAL_DEVICE_IDS": "0,1"}, Place("localhost:61448", 2, 1, "0,1")),
    ],
)
def test_places_that_are_found(environment: dict[str, str], place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environment | ({"SLURM_JOB_ID": "8"} if "SLURM_JOB_ID" in environment else {})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_place(ProcessConfig()) == place


def test_processes_of_open_mpi_that_cant_be_found_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")  # and no address, as its version 5
    with pytest.raises(
        ConfigError, match="expected the address of 4 Open MPI processes; received none; give --parallel"
    ):
        find_place(ProcessConfig())


def test_a_port_in_use_is_reported() -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"expected a free port .*; received {port} \(Address already in use\)"):
            start_coordinator(port, 2)


LEAVING = """
import sys, threading, time
from jaxlib import _jax
from jax_transformer.parallel.coordinator import finish, start_coordinator
port = int(sys.argv[1])
coordinator = start_coordinator(port, 1)
client = _jax.get_distributed_runtime_client(f"127.0.0.1:{port}", 0, init_timeout=60)
client.connect()
finishing = threading.Thread(target=finish, args=[coordinator])
finishing.start()
time.sleep(0.2)
client.shutdown()
finishing.join()
print(coordinator.returncode)
"""


def test_a_process_that_leaves_while_the_service_finishes_is_not_aborted() -> None:
    leaving = started(["-c", LEAVING, _free_port()])
    output, _ = leaving.communicate(timeout=60)
    assert (leaving.returncode, output.splitlines()[-1:]) == (0, ["0"]), output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"processes": 2}, "belong together; received no coordinator and no process_id"),
        ({"coordinator": "host", "processes": 2, "process_id": 0}, "coordinator must be HOST:PORT"),
        ({"coordinator": "host:1", "processes": 2, "process_id": 2}, "process_id must be from 0 to 1; received 2"),
        ({"coordinator": "host:1", "processes": 0, "process_id": 0}, "processes must be at least 1; received 0"),
    ],
)
def test_process_options_that_contradict_each_other(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProcessConfig(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0", "--", "train"], "--processes: expected at least 1; received 0"),
        (["--processes", "2", "--", "evaluate", "m"], "launch: expected `-- train …` after its own options; received"),
        (["--processes", "2"], "launch: expected `-- train …` after its own options; received none"),
        (["--processes", "2", "--", "train", "nothing"], "nothing"),
        (["--processes", "2", "--", "train", "--parallel.processes", "1"], "without --parallel.coordinator, processes"),
    ],
)
def test_launch_tells_a_mistake_once(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert message in error
