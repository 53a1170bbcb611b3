"""Import rules: those of the package, read from the source, and the modules loaded in fresh processes."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jax_transformer
from jax_transformer.runtime.extras import EXTRAS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jax_transformer"

ALLOWED: dict[str, set[str]] = {
    "runtime": set(),
    "buckets": {"runtime"},
    "config": {"runtime"},
    "model": {"config"},
    "data": {"buckets", "config", "runtime"},
    "storage": {
        "buckets",
        "config",
        "data.tokenizers",
        "model",
        "runtime",
    },  # a model directory holds tensors and tokenizers
    "mapping": {"runtime", "storage.deferred", "storage.tensors"},
    "porting": {"config", "mapping", "model", "runtime", "storage"},
    "exporting": {"config", "data.tokenizers", "decoding", "mapping", "model", "porting", "runtime", "storage"},
    "parallel": {"config", "data.batching", "model", "runtime"},
    "decoding": {"config", "model", "parallel", "runtime", "storage"},
    "sharing": {"buckets", "config", "runtime", "storage"},
    "speech": {"config", "data.batching", "data.tables", "decoding", "model", "runtime", "storage"},
    "forecasting": {"config", "decoding", "runtime", "storage"},
    "serving": {"config", "data.tokenizers", "decoding", "pages", "runtime", "speech"},
    "pages": {"runtime"},
    "training": {
        *("buckets", "config", "data", "decoding", "model", "pages", "parallel", "runtime", "storage"),
    },
    "integrity": {"buckets", "config", "data", "runtime", "storage", "training"},
    "programs": {"runtime"},
    "proof": {"programs", "runtime"},
    "comparison": {"mapping", "pages", "programs", "proof", "runtime", "storage.tensor_files", "storage.tensors"},
    "matching": {"comparison", "mapping", "proof", "runtime", "storage.tensors"},
    "frozen": {
        *("comparison", "mapping", "matching", "programs", "proof", "runtime"),
        *("storage.safetensors_writer", "storage.tensor_files", "storage.tensors"),
    },
    "plugin": {"comparison.report", "parity", "proof", "runtime"},
    "plotting": {"config", "model", "pages", "runtime", "training.losses", "training.schedules"},
    "comparison.gates": {"runtime"},
    "comparison.report": {"comparison.findings", "comparison.gates", "pages", "proof"},
    "parity.oracle": {"config.positions", "config.short_names", "config.specs"},  # no plan: its wiring is its own
    "parity.names": {"mapping", "porting.names_of_dialects"},
    "parity.faults": {"comparison.gates", "config.positions", "config.specs", "parity.oracle"},
    "parity.diagnosis": {"comparison.findings", "comparison.gates", "parity.faults", "parity.oracle"},
    "parity.backends": {
        *("config", "data.batching", "decoding", "model", "parallel", "porting", "runtime", "storage", "training"),
        *("comparison", "mapping", "parity.names", "parity.oracle.graph", "parity.problems", "parity.rules"),
        *("programs", "proof"),
    },
    "parity": {
        *("comparison", "config", "data", "decoding", "exporting", "frozen", "mapping", "matching", "model", "pages"),
        *("parallel", "porting"),
        *("programs", "proof", "runtime", "storage", "training"),
    },
    "discover": {
        *("comparison", "config", "mapping", "model", "parity", "porting", "programs", "runtime.memory", "storage"),
    },
}
"""Part of the package → the parts it may import, anywhere in its source; a part is also free to import itself."""

FOREIGN: dict[str, set[str]] = {
    "buckets": {"fsspec", "huggingface_hub"},
    "model": {"flax", "jax", "numpy"},
    "comparison.gates": {"ml_dtypes", "numpy"},
    "parity.oracle": {"numpy"},
    "parity.names": set(),
    "parity.faults": {"numpy"},
    "parity.diagnosis": {"numpy"},
    "parity.stages": {"ctranslate2", "ml_dtypes", "numpy"},
    "comparison.report": {"numpy", "rich"},
    "comparison": {"jax", "ml_dtypes", "numpy", "rich", "torch"},
    "mapping": {"numpy", "yaml"},
    "matching": {"flax", "jax", "numpy"},
    "frozen": {"jax", "ml_dtypes", "numpy", "optax", "torch"},
    "plugin": {"pytest"},
    "programs": {"numpy", "torch"},
    "pages": {"numpy"},
    "proof": {"jax", "ml_dtypes", "numpy", "scipy", "torch"},
    "config": {"yaml"},
    "runtime": {"jax", "jsonschema", "yaml"},
    "decoding": {"jax", "numpy"},
    "exporting": {"ctranslate2", "flatbuffers", "jax", "jaxlib", "numpy", "safetensors", "tokenizers", "torch"},
    "speech": {"datasets", "jax", "numpy", "scipy", "soundfile", "tokenizers"},
    "forecasting": {"numpy"},
    "serving": {"fastapi", "h11", "jax", "numpy", "prometheus_client", "starlette", "uvicorn"},
    "parallel": {"jax", "jaxlib", "numpy"},
    "storage": {"huggingface_hub", "ml_dtypes", "numpy", "safetensors", "torch"},
    "porting": {
        "flax",
        "huggingface_hub",
        "ml_dtypes",
        "numpy",
        "safetensors",
        "tensorstore",
        "torch",
        "transformers",
        "yaml",
    },
    "sharing": {"huggingface_hub"},
    "data": {"datasets", "numpy", "pyarrow", "sentencepiece", "sacremoses", "spacy", "tokenizers"},
    "plotting": {"jax", "matplotlib", "numpy"},
    "discover": {"jax", "numpy", "torch", "yaml"},
}
"""Part → the libraries that it may import in addition to the standard library."""

IMPORTED_AS = {"orbax-checkpoint": "orbax", "pyyaml": "yaml"}
"""Distribution → the name it is imported by, where that is another."""
COME_WITH = {
    "absl": "orbax",
    "jaxlib": "jax",
    "ml_dtypes": "jax",
    "scipy": "jax",
    "tensorstore": "orbax",
    "fsspec": "tokenizers",
    "huggingface_hub": "tokenizers",
    "h11": "uvicorn",
    "starlette": "fastapi",
}
"""Package → the dependency that brings it."""


LATE = {"torch", "transformers", "pandas", "datasets", "pyarrow", "sentencepiece", "spacy", "wandb"}
"""Libraries that are imported inside functions only."""

OF_TORCH = {
    f"jax_transformer.proof.torch_{name}"
    for name in ("access", "complex", "exits", "memory", "moves", "programs", "promotion", "reruns", "rules")
} | {"jax_transformer.parity.backends.indictrans"}
"""Modules that subclass classes of PyTorch or transformers: they import them, and are imported inside functions
only."""


def imports(file: Path, *, for_annotations: bool = False) -> Iterator[str]:
    """Yields every module that a file imports anywhere.

    Args:
      for_annotations: whether imports for type checkers count, too.
    """
    tree = parsed(file)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_annotations
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            submodules = [name.name for name in node.names if is_module(f"{node.module}.{name.name}")]
            yield from [f"{node.module}.{name}" for name in submodules] or [str(node.module)]


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def files_of(part: str) -> list[Path]:
    path = PACKAGE.joinpath(*part.split("."))
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    assert files
    return files


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    allowed = {f"jax_transformer.{name}" for name in (part, *ALLOWED[part])}
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files_of(part)
        for module in imports(file)
        if module.startswith("jax_transformer")
        and not any(module == name or module.startswith(f"{name}.") for name in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("part", FOREIGN)
def test_a_part_uses_only_the_libraries_it_may(part: str) -> None:
    for file in files_of(part):
        libraries = {module.split(".")[0] for module in imports(file)} - sys.stdlib_module_names - {"jax_transformer"}
        assert libraries <= FOREIGN[part], file


def test_every_library_is_a_dependency_or_in_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in project["dependencies"]}
    known = {IMPORTED_AS.get(name, name) for name in names} | EXTRAS.keys()
    known |= {package for package, bringer in COME_WITH.items() if bringer in known}
    for file in sorted(PACKAGE.rglob("*.py")):
        libraries = {module.split(".")[0] for module in imports(file)} - sys.stdlib_module_names
        runner = {"pytest"} if file.parent.name == "plugin" else set()  # which loads it
        assert libraries <= known | runner | {"jax_transformer", "torch_reference"}, file


def test_no_modules_import_each_other() -> None:
    """Imports inside functions and for annotations count, too, but for those that a package exports lazily."""
    graph: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        found = set(imports(file, for_annotations=file.name != "__init__.py"))
        graph.setdefault(module_name(file), set()).update(found)
    order = TopologicalSorter({name: (found & graph.keys()) - {name} for name, found in graph.items()})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_no_parts_import_each_other() -> None:
    def part(module: str) -> str:
        return module.split(".")[1]

    graph: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent != PACKAGE:
            inner = {part(module) for module in imports(file) if module.startswith("jax_transformer.")}
            graph.setdefault(part(module_name(file)), set()).update(inner)
    TopologicalSorter({name: others - {name} for name, others in graph.items()}).prepare()


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


READS_FLAX = ("hugging_face.py", "programs.py", "t5x.py")
"""Files that read what Flax wrote, or run a user's modules."""


def test_flax_is_seen_in_the_model_alone() -> None:
    """Even there, it is only notation: no transforms, no optimizer, no state in modules."""
    for file in sorted(PACKAGE.rglob("*.py")):
        uses_flax = any(module.split(".")[0] == "flax" for module in imports(file))
        assert not uses_flax or file.parent.name == "model" or file.name in READS_FLAX, file
        if uses_flax:
            used = {ast.unparse(node) for node in ast.walk(parsed(file)) if isinstance(node, ast.Attribute)}
            assert not used & {"nnx.jit", "nnx.grad", "nnx.scan", "nnx.Optimizer", "nnx.Cache", "self.sow"}, file


def test_the_references_use_torch_and_numpy_alone() -> None:
    for file in sorted((ROOT / "torch_reference").rglob("*.py")):
        libraries = {module.split(".")[0] for module in imports(file)} - sys.stdlib_module_names
        assert libraries <= {"torch", "numpy", "torch_reference"}, file


def test_heavy_libraries_are_imported_inside_functions_only() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        if module_name(file) in OF_TORCH:
            continue
        for node in parsed(file).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & LATE, file
            assert not {*names} & OF_TORCH, file


def test_every_name_that_is_imported_exists() -> None:
    """Covers imports inside functions, in benchmarks, and in the examples in Markdown."""
    sources = {file: file.read_text(encoding="utf-8") for file in tracked("*.py")}
    for file in tracked("*.md"):
        blocks = re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
        sources |= {file.with_suffix(f".{number}"): block for number, block in enumerate(blocks)}
    wrong = [
        f"{file.relative_to(ROOT)} imports {node.module}.{alias.name}"
        for file, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("jax_transformer")
        for alias in node.names
        if not is_module(f"{node.module}.{alias.name}")
        and not hasattr(importlib.import_module(str(node.module)), alias.name)
    ]
    assert wrong == []


def tracked(pattern: str) -> list[Path]:
    """Returns the project's files, without those of a virtual environment inside it."""
    folders = ("benchmarks", "docs", "jax_transformer", "parity_tests", "tests", "torch_reference")
    return [*ROOT.glob(pattern), *(file for folder in folders for file in sorted((ROOT / folder).rglob(pattern)))]


# --- in a process


def modules_after(code: str) -> set[str]:
    """Returns the modules loaded after `code` has run in a fresh interpreter."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(result.stdout.splitlines()[-1]))


HEAVY = {"tensorflow", *LATE}


def test_importing_the_package_costs_little() -> None:
    """It loads itself and a few modules of the standard library."""
    loaded = modules_after("import jax_transformer") - modules_after("")
    ours = {f"jax_transformer{name}" for name in ("", ".runtime", ".runtime.compiler_flags", ".runtime.lazy")}
    assert {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names} == ours
    assert len(loaded) < 20
    assert {"jax", "jax_transformer.model.functional"} <= modules_after("from jax_transformer import apply")


def test_reading_and_comparing_programs_loads_no_transformer() -> None:
    files = [
        file for room in ("mapping", "programs", "proof", "comparison", "matching", "frozen") for file in files_of(room)
    ]
    loaded = modules_after("\n".join(f"import {module_name(file)}" for file in files))
    ours = {name.split(".")[1] for name in loaded if name.startswith("jax_transformer.")}
    assert ours == {"mapping", "programs", "proof", "comparison", "matching", "frozen", "runtime", "storage"}
    assert not {name for name in loaded if name.startswith("jax_transformer.storage.model")}


def test_no_part_has_the_name_of_a_public_function() -> None:
    """Importing such a part would put it in the function's place."""
    parts = {file.parent.name for file in PACKAGE.glob("*/__init__.py")} | {file.stem for file in PACKAGE.glob("*.py")}
    functions = {name for name in jax_transformer.__all__ if not inspect.ismodule(getattr(jax_transformer, name))}
    assert not parts & functions


def test_asking_for_help_loads_no_xla() -> None:
    code = (
        "import sys; sys.argv = ['jax-transformer', '--help']\nfrom jax_transformer.cli import main\ntry: "
        "main()\nexcept SystemExit: pass"
    )
    loaded = modules_after(code)
    assert not loaded & {*HEAVY, "jax", "flax", "orbax"}


def test_matplotlib_is_loaded_when_something_is_drawn() -> None:
    assert "matplotlib" not in modules_after("import jax_transformer.cli")
    code = (
        "from jax_transformer.cli import main\nassert main(['plot', '--help']) == 0\nassert main(['plot', 'flow']) == 2"
    )
    assert not modules_after(code) & {*HEAVY, "jax", "matplotlib"}
    loaded = modules_after("import jax_transformer.plotting.model_figures, jax_transformer.plotting.style")
    assert "matplotlib" in loaded
    assert not loaded & {*HEAVY, "matplotlib.pyplot"}


TRAIN = """
from jax_transformer import DataConfig, RunConfig, TrainConfig, TransformerConfig, train
train(RunConfig(
    model=TransformerConfig(d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, max_length=40),
    data=DataConfig(
        phrasebook_pairs=40, valid_pairs=4, test_pairs=4, max_length=32, batch_tokens=640, num_shapes=1,
        cache_dir={cache!r},
    ),
    train=TrainConfig(schedule="constant", learning_rate=1e-3, warmup_steps=0, max_steps=1, evaluate_sentences=0),
    run_dir={run!r},
))
"""


PREPARE = """
from jax_transformer.data.preparation import prepare
from jax_transformer.config.run import DataConfig
prepare(DataConfig(tokenizer="whitespace", cache_dir={cache!r}, {options}))
"""
ROW = '{"source": "a", "target": "b"}\n'


def test_only_parquet_and_datasets_need_their_libraries_and_only_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "library"))
    cache = str(tmp_path / "cache")
    (tmp_path / "dataset").mkdir()
    for name, text in (
        ("a.csv", "a,b\n"),
        ("a.jsonl", ROW),
        ("dataset/train.jsonl", ROW),
        ("dataset/validation.jsonl", ROW),
    ):
        (tmp_path / name).write_text(text)
    for name in ("a.csv", "a.jsonl"):
        files = PREPARE.format(
            cache=cache, options=f"train=({str(tmp_path / name)!r},), valid=({str(tmp_path / name)!r},)"
        )
        assert not modules_after(files) & HEAVY, name
    dataset = PREPARE.format(cache=cache, options=f"dataset={str(tmp_path / 'dataset')!r}")
    assert {"datasets", "pyarrow"} <= modules_after(dataset)
    assert not modules_after(dataset) & HEAVY, "what is prepared needs neither"


@pytest.mark.usefixtures("quick_compilation")
def test_neither_training_nor_translating_imports_what_it_does_not_need(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    loaded = modules_after(TRAIN.format(cache=str(tmp_path / "cache"), run=run))
    assert "optax" in loaded
    assert not loaded & {*HEAVY, "jsonschema", "matplotlib"}
    loaded = modules_after(
        f"from jax_transformer import load_model, translate\ntranslate(load_model({run!r}), ['The dog sleeps.'])"
    )
    assert "jax" in loaded
    assert not loaded & {*HEAVY, "jsonschema", "matplotlib", "jax_transformer.training", "sacrebleu", "tyro"}


def test_importing_touches_no_device() -> None:
    """No module of the package initialises a JAX backend when it is imported."""
    names = [module_name(file) for file in sorted(PACKAGE.rglob("*.py")) if file.stem != "__main__"]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
    code += "from jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
