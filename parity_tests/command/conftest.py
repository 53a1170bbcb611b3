"""`jax-transformer parity` as tests run it: in a folder of checkpoints and maps, with programs compiled in a cache of
their own. Models are tiny and of one config wherever they can be, so that one process compiles each program once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import user_models
from parity_command import Outcome, Run

from jax_transformer.cli import main


@pytest.fixture(scope="module", autouse=True)
def no_cache_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("xla")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of checkpoints and maps."""
    path = tmp_path_factory.mktemp("checkpoints")
    for name in ("harvard", "hyunwoongko", "pytorch"):
        torch.save(getattr(user_models, name)().state_dict(), path / f"{name}.pt")
    (path / "names.yaml").write_text(user_models.FOREIGN_MAP)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns (*arguments) → what became of the command in the folder of checkpoints, by default of the forward pass in
    float64 alone."""
    monkeypatch.chdir(folder)

    def run_command(
        *arguments: str, stages: str | None = "weights,masks,forward", dtypes: str | None = "float64"
    ) -> Outcome:
        limits = [*(["--dtypes", dtypes] if dtypes else []), *(["--stages", stages] if stages else [])]
        try:
            code = main(["parity", *arguments, *limits])
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command
