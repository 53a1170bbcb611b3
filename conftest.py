"""For both suites of tests, whose time goes into compiling: programs are compiled once and, where a module asks for it,
quickly.

Tests run beside each other, one on a core, so that what a library would do in several threads takes least in one: XLA's
compiler would also split each program into up to 32 modules, and threads of PyTorch and NumPy wait for each other in
loops. XLA's newer way to write a fused loop for a CPU takes twice as long to compile as its older one, and computes the
same. Only jaxlib before 0.11 has the older one. `XLA_FLAGS=` and `OMP_NUM_THREADS=` in the environment take what users
have. JAX writes down where each operation of a program was called: that takes 3 % of the time, and no test reads it. A
process that has compiled thousands of programs lets go of them before its memory, or its memory mappings, run out.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

FLAGS = [
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_multi_thread_eigen=false",
]
if metadata.version("jaxlib").startswith("0.10."):  # a flag that XLA doesn't know ends the process
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))  # read when the first program is compiled
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy and PyTorch are imported
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

gc.disable()  # until the tests are collected: what is imported until then stays

import jax  # noqa: E402 (after the environment that it reads)
import pytest  # noqa: E402
from jax._src import compilation_cache  # noqa: E402 (there is no public way to keep a loaded program)

from jax_transformer.runtime.allocator import trim  # noqa: E402

NIGHTLY = frozenset((Path(__file__).parent / "tests/mutants/nightly.txt").read_text("utf-8").splitlines())
"""Tests that wait for the night, which `tests/mutants/run_mutants.py night` chooses."""
MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Linux gives a process 65,530 (vm.max_map_count). XLA's CPU compiler takes several for each program, and crashes where
none are left."""
STATM = Path("/proc/self/statm")
MORE_BYTES = 2**31
"""How much a process may grow before it lets go of programs, and of what only a garbage collection finds. After
thousands of tests, two processes would otherwise fill 24 GB."""
TESTS_BETWEEN = 10

_load = compilation_cache.get_executable_and_time
_loaded: dict[tuple[str, Any], tuple[Any, Any]] = {}
_most_bytes = 3 * 2**30
_finished = 0


@pytest.fixture(scope="session", autouse=True)
def shared_compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A program is compiled once for all tests, those of the other workers and the processes that they start included,
    and none is kept at home."""
    own = tmp_path_factory.getbasetemp()
    options = {
        "jax_compilation_cache_dir": str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "xla"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            patch.setenv(name.upper(), str(value))
            jax.config.update(name, value)
        patch.setattr(compilation_cache, "get_executable_and_time", _loaded_once)
        if not any(getattr(compilation_cache, name, None) for name in ("zstd", "zstandard")):  # which JAX prefers
            patch.setattr(compilation_cache, "compress_executable", _compressed)
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def _loaded_once(cache_key: str, options: Any, backend: Any, devices: Any, *callbacks: Any) -> tuple[Any, Any]:
    """Returns a program of the cache on the disk, and how long its compilation took. JAX loads it for every function
    that compiles to the same, which takes a fourth of the time to compile it."""
    key = cache_key, devices
    if any(callbacks) or key not in _loaded:
        program, seconds = _load(cache_key, options, backend, devices, *callbacks)
        if any(callbacks) or program is None:
            return program, seconds
        _loaded[key] = program, seconds
    return _loaded[key]


def _compressed(program: bytes) -> bytes:
    """Returns what JAX reads as it reads its own, a fourth larger, in a third of the time."""
    return zlib.compress(program, level=1)


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Programs of this module, and of the processes it starts, run a few times on small arrays: the time goes into
    compiling them."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in NIGHTLY:
            item.add_marker(pytest.mark.nightly)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves the modules and the thousands of tests out of garbage collections, which would take a twelfth of the
    time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forgets the compiled programs when there are many, or when the process has grown. They are compiled anew when
    they are needed."""
    global _finished, _most_bytes
    _finished += 1
    if _finished % TESTS_BETWEEN or not MAPPINGS.exists():
        return
    if MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS or _resident_bytes() > _most_bytes:
        jax.clear_caches()
        _loaded.clear()
        gc.collect()
        trim()  # a run of training in this process lets glibc keep what is freed
        _most_bytes = _resident_bytes() + MORE_BYTES


def _resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
