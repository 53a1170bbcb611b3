"""Builds the sdist and, from it, the wheel; checks their files, installs both into empty folders, and tries them there.

    python .ci/check_package.py [DIST]

Needs the package `build` and an environment with the dependencies. DIST: a folder to leave both archives in. Exits with
1 and a line if a tracked file of the packages is missing, or if the command doesn't work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("jax_transformer", "torch_reference")
BESIDE = (
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "tests/test_imports.py",
    "train.py",
)
IMPORT = """
import sys
from pathlib import Path
import jax_transformer, torch_reference
target = Path(sys.argv[1]).resolve()
for package in (jax_transformer, torch_reference):
    assert Path(package.__file__).resolve().is_relative_to(target), package.__file__
"""
TRAIN = """
from jax_transformer import DataConfig, RunConfig, TrainConfig, TransformerConfig, load_model, train, translate
from jax_transformer.proof.certificate import _schema
assert _schema()["type"] == "object"
sizes = dict(d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, max_length=40)
data = dict(phrasebook_pairs=40, valid_pairs=4, test_pairs=4, max_length=32, batch_tokens=640, num_shapes=1)
train(RunConfig(
    model=TransformerConfig(**sizes), data=DataConfig(**data, cache_dir="cache"), run_dir="run",
    train=TrainConfig(schedule="constant", learning_rate=1e-3, warmup_steps=0, max_steps=1, evaluate_sentences=0),
))
assert Path("run/report.html").stat().st_size > 10_000
assert len(translate(load_model("run"), ["The dog sleeps."])) == 1
"""


def main(dist: str | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        archives = Path(dist) if dist else temporary / "dist"
        run(sys.executable, "-m", "build", "--outdir", str(archives), str(ROOT))
        (sdist,), (wheel,) = archives.glob("*.tar.gz"), archives.glob("*.whl")
        expected = {*tracked()}
        with tarfile.open(sdist) as stored:
            in_sdist = {name.partition("/")[2] for name in stored.getnames()}
        with zipfile.ZipFile(wheel) as stored:
            in_wheel = {*stored.namelist()}
        missing = [f"{sdist.name} has no {name}" for name in sorted({*expected, *BESIDE} - in_sdist)]
        missing += [f"{wheel.name} has no {name}" for name in sorted(expected - in_wheel)]
        missing += [
            f"{wheel.name}: {name} is no file of the packages" for name in sorted(strangers(in_wheel, expected))
        ]
        if missing:
            print("\n".join(missing))
            return 1
        for archive in (wheel, sdist):
            # the wheel is made from the sdist, so one of them trains
            try_out(archive, temporary / archive.suffix.removeprefix("."), IMPORT + (TRAIN if archive == wheel else ""))
            print(f"{archive.name}: {archive.stat().st_size:,} bytes, installed and tried")
    return 0


def tracked() -> list[str]:
    """Returns the files of the packages that git tracks."""
    command = ["git", "ls-files", "-z", *PACKAGES]
    files = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [name for name in files.split("\0") if name]


def strangers(in_wheel: set[str], expected: set[str]) -> set[str]:
    """Returns the files of a wheel that are neither the packages' nor its metadata."""
    return {name for name in in_wheel - expected if ".dist-info/" not in name}


def try_out(archive: Path, target: Path, code: str) -> None:
    """Installs an archive without its dependencies, runs `code` there, and asks the command for the version."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(target))
    run(*pip, str(archive))
    work = target / "trial"
    work.mkdir()
    environment = os.environ | {"PYTHONPATH": str(target), "JAX_PLATFORMS": "cpu"}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # one step: the time goes into compiling
    run(sys.executable, "-c", code, str(target), cwd=work, env=environment)
    script = target / "bin" / "jax-transformer"
    said = run(sys.executable, str(script), "--version", cwd=work, env=environment).split()
    version = archive.name.removesuffix(".tar.gz").split("-")[1]
    assert said == ["jax-transformer", version], f"--version prints {said}; the archive has {version}"


def run(*command: str, **options: object) -> str:
    """Runs a command, quiet unless it fails; returns its output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{done.stdout}\ncheck_package: {command[0]} ended with {done.returncode}")
    return str(done.stdout)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [None]))
