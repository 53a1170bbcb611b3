"""A model that eight devices share is compared with PyTorch's program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import AXES
from jax_transformer.config.validation import ConfigError
from jax_transformer.model.functional import init_params
from jax_transformer.parallel import MeshConfig, make_abstract_mesh, make_mesh
from jax_transformer.parity import compare, prove
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.storage.model_directory import Model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoder layers, four heads, and a vocabulary that no mesh divides."""
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 24, "num_encoder_layers": 2, "num_decoder_layers": 1}
    vocabulary = {"source_vocab_size": 41, "target_vocab_size": 41, "max_length": 20}
    fixed = get_dialect("pytorch").fixed
    config = TransformerConfig(**{**fixed, **sizes, **vocabulary, "dropout_rate": 0.1})
    params = jax.tree.map(np.asarray, init_params(config, jax.random.key(0)))
    path = tmp_path_factory.mktemp("model") / "model"
    generation = GenerationConfig(decoder_start_id=2, eos_id=3)
    save_model(Model(config, params, None, None, generation, {"dialect": "pytorch"}), path)
    return path


def parity(*arguments: object, devices: int = 8) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jax_transformer.cli", "parity", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)},
        check=False,
    )


def test_a_model_on_a_mesh_is_pytorchs_function_in_every_stage(model: Path, tmp_path: Path) -> None:
    sizes = ("--parallel.data", 2, "--parallel.fsdp", 2, "--parallel.tensor", 2)
    result = parity(model, *sizes, "--dtypes", "float64,float32", "--json", tmp_path / "report.json")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "8 × cpu (data 2, fsdp 2, tensor 2)" in (tmp_path / "report.json").read_text()
    assert "one function for all weights: forward, loss, gradients" in result.stdout


def test_a_mesh_that_does_not_fit_is_refused(model: Path) -> None:
    result = parity(model, "--parallel.tensor", 8)
    assert result.returncode == 2
    assert "error: parallel.tensor: expected a divisor of model.num_heads=4; received 8" in result.stderr


def test_a_model_is_proven_on_a_mesh_without_its_devices(model: Path) -> None:
    certificate = prove(str(model), mesh=make_abstract_mesh(MeshConfig(data=4, tensor=2)), stages=["forward"])
    assert certificate.verdict == "proven", str(certificate)
    assert certificate.candidate.endswith("on 8 devices (data 4, fsdp 1, tensor 2)")


def test_a_mesh_of_other_axes_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="mesh: expected the axes data, fsdp, tensor, as make_mesh"):
        prove(str(model), mesh=AbstractMesh((2,), ("rows",)))


def test_explicit_axes_are_made_automatic(model: Path) -> None:
    """As jax.make_mesh makes them by default."""
    mesh = AbstractMesh((4, 1, 2), AXES, (AxisType.Explicit,) * 3)
    certificate = prove(str(model), mesh=mesh, stages=["forward"])
    assert certificate.verdict == "proven", str(certificate)


def test_an_abstract_mesh_computes_no_numbers(model: Path) -> None:
    report = compare(str(model), mesh=make_abstract_mesh(MeshConfig(data=4)), stages=["forward"], dtypes=["float64"])
    assert report.verdict == "inconclusive"
    assert "the mesh is abstract, and its devices compute nothing" in str(report)


def test_a_function_has_no_mesh(model: Path) -> None:
    with pytest.raises(ParityError, match="mesh: expected a model, which computes on it; received a function"):
        compare(lambda params, inputs: inputs, model=str(model), mesh=make_mesh())
