"""Checkpoints of the published systems go from either framework to the other and back through files without losing a
bit.

Every value is random, also in position tables, so that no tensor can stand for another; some are -0 or subnormal. The
tests compare names, their order, shapes, dtypes and bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from systems import SYSTEMS, Case, bits, make_case

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}
SUFFIXES = (".pt", ".safetensors")


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Draws values, among them -0 and a subnormal number."""
    values = rng.standard_normal(shape)
    values.flat[0] = -0.0
    values.flat[1] = 1e-44 if dtype == "float32" else 1e-310 if dtype == "float64" else 1e-39
    return values.astype(DTYPES[dtype])


def as_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def hints(case: Case, table: np.ndarray) -> dict[str, Any]:
    """Returns the hints for import, with the position table where no checkpoint holds it."""
    return dict(case.hints) | ({"position_table": table} if case.system.computes_positions else {})


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16, buffers in float32"])
def test_torch_to_jax_to_torch(name: str, suffix: str, dtype: str, tmp_path: Path) -> None:
    case, rng = make_case(name), np.random.default_rng(1)
    of_parameters, of_buffers = ("bfloat16", "float32") if dtype not in DTYPES else (dtype, dtype)
    parameters = dict(case.program.named_parameters())
    original = {
        key: as_tensor(draw(rng, tuple(tensor.shape), of_parameters if key in parameters else of_buffers))
        for key, tensor in case.program.state_dict().items()
    }
    if suffix == ".pt":
        original = {str(key): original[key] for key in rng.permutation(list(original))}  # .pt keeps any order
    (torch.save if suffix == ".pt" else save_file)(original, tmp_path / f"theirs{suffix}")
    table = draw(rng, (case.config.max_length, case.config.d_model), of_buffers)
    model = import_checkpoint(tmp_path / f"theirs{suffix}", case.system.dialect, **hints(case, table))
    if case.system.computes_positions:
        assert {leaf.tobytes() for leaf in model.params["constants"].values()} == {table.tobytes()}
    assert {str(leaf.dtype) for path, leaf in flatten(model.params).items() if not path.startswith("constants/")} == {
        of_parameters
    }
    export_checkpoint(model, tmp_path / f"back{suffix}")
    if suffix == ".pt":
        assert bits(torch.load(tmp_path / "back.pt", weights_only=True)) == bits(original)
    else:  # that format has an order of its own, the same for both files
        assert bits(load_file(tmp_path / "back.safetensors")) == bits(load_file(tmp_path / "theirs.safetensors"))
        assert sorted(bits(load_file(tmp_path / "back.safetensors"))) == sorted(bits(original))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_to_torch_to_jax(name: str, suffix: str, dtype: str, tmp_path: Path) -> None:
    case, rng = make_case(name), np.random.default_rng(2)
    shapes = {path: leaf.shape for path, leaf in flatten(abstract_params(case.config)).items()}
    tables = [path for path in shapes if path.endswith("_positions")]
    leaves = {path: draw(rng, shape, dtype) for path, shape in shapes.items()}
    if name.startswith(("stepwise", "pytorch")) or case.system.computes_positions:  # one table for both sides
        leaves |= {path: leaves[tables[0]].copy() for path in tables}
    model = Model(case.config, unflatten(leaves), None, None, GenerationConfig())
    export_checkpoint(model, tmp_path / f"ours{suffix}", case.system.dialect)
    table = leaves[tables[0]] if tables else np.empty(0)
    again = import_checkpoint(tmp_path / f"ours{suffix}", case.system.dialect, **hints(case, table))
    assert again.config == case.config
    assert bits(flatten(again.params)) == bits(leaves)
