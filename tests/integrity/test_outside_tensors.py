"""Files of tensors whose headers claim more than they hold."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from hostile import bounded_memory, failed_line, refusal, safetensors, sparse

from jax_transformer.comparison.gates.arrays import ParityError, read_arrays
from jax_transformer.runtime import limits
from jax_transformer.runtime.memory import VARIABLE
from jax_transformer.storage.tensor_files import read_array, read_tensors
from jax_transformer.storage.tensors import PortingError


def header_of(shape: list[int], start: int, end: int) -> dict:
    return {"w": {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}}


LYING = {
    "petabytes": (header_of([2**25, 2**25], 0, 2**52), 0),
    "overflow": (header_of([2**40, 2**40], 0, 8), 8),
    "negative": (header_of([2], -8, 0), 8),
    "overlap": (header_of([2], 0, 8) | {"v": header_of([2], 4, 12)["w"]}, 12),
}


@pytest.mark.parametrize(("header", "size"), LYING.values(), ids=LYING)
def test_safetensors_headers_that_lie(header, size, tmp_path, capsys):
    path = safetensors(tmp_path / "a.safetensors", header, size)
    assert "truncated, or no safetensors file" in failed_line(capsys, "port", path, "--inspect")


def test_a_safetensors_header_of_terabytes(tmp_path):
    path = safetensors(tmp_path / "a.safetensors", {}, length=2**40)
    message = refusal(lambda: read_tensors(path), PortingError)
    assert "expected at most 50,000,000 bytes of a safetensors header; received 1,099,511,627,776" in message


def test_more_tensors_than_any_model_has(tmp_path, monkeypatch):
    path = safetensors(tmp_path / "a.safetensors", {f"t{i}": header_of([0], 0, 0)["w"] for i in range(9)})
    monkeypatch.setenv(limits.TENSORS.variable, "8")
    assert "expected at most 8 tensors in a file; received 9" in refusal(lambda: read_tensors(path), PortingError)


@pytest.mark.parametrize("shape", [(2**25, 2**25), (2**62, 4)], ids=["petabytes", "overflow"])
def test_npy_headers_that_lie(shape, tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    (tmp_path / "a.npy").write_bytes(stream.getvalue())
    assert str(tmp_path / "a.npy") in refusal(lambda: read_array(tmp_path / "a.npy"), PortingError)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", stream.getvalue())
    assert str(tmp_path / "a.npz") in refusal(lambda: read_arrays(tmp_path / "a.npz"), ParityError)


def test_parity_tells_arrays_that_fit_no_memory_in_a_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(2**20))
    monkeypatch.setenv(VARIABLE, str(2**20))
    line = failed_line(capsys, "parity", "--diff", path, path)
    assert f"{path}: expected to fit into 1.0 MiB" in line
    sparse(tmp_path / "a.npy", 2**40)
    assert "expected to fit into" in refusal(lambda: read_array(tmp_path / "a.npy"), PortingError)


def torch_file(path, shape, stride, **parts):
    """Writes a torch file with one tensor over a storage of two numbers, whose shape and strides may lie."""
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2)}, path)
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}

    class Storage:
        pass

    class Tensor:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.FloatStorage, "0", "cpu", 2) if isinstance(value, Storage) else None

        def reducer_override(self, value):
            if not isinstance(value, Tensor):
                return NotImplemented
            return torch._utils._rebuild_tensor_v2, (Storage(), 0, shape, stride, False, OrderedDict())

    stream = io.BytesIO()
    Pickler(stream, 2).dump({"w": Tensor()})
    with zipfile.ZipFile(path, "w", **parts) as archive:
        for name, data in found.items():
            archive.writestr(name, stream.getvalue() if name.endswith("data.pkl") else data)
    return path


TORCH = {
    "one value, repeated": ((2**25, 2**25), (0, 0), "16 times the file's; received 4,503,599,627,370,496"),
    "beyond the storage": ((2**25, 2**25), (2**25, 1), "truncated, or no torch file"),
}


@pytest.mark.parametrize(("shape", "stride", "expected"), TORCH.values(), ids=TORCH)
def test_torch_tensors_that_lie(shape, stride, expected, tmp_path):
    path = torch_file(tmp_path / "a.pt", shape, stride)
    assert expected in refusal(lambda: read_tensors(path), PortingError)


def test_torch_files_in_an_archive_that_compresses(tmp_path):
    path = torch_file(tmp_path / "a.pt", (2,), (1,), compression=zipfile.ZIP_DEFLATED)
    assert "received a compressed" in refusal(lambda: read_tensors(path), PortingError)
    path = torch_file(tmp_path / "a.pt", (2,), (1,))
    with bounded_memory(8 * 2**30):
        assert read_tensors(path)["w"].shape == (2,)


def test_a_torch_file_of_names_alone(tmp_path, monkeypatch):
    path = torch_file(tmp_path / "a.pt", (2,), (1,))
    monkeypatch.setenv(limits.PICKLE_BYTES.variable, "9")
    assert "expected at most 9 bytes of names and shapes" in refusal(lambda: read_tensors(path), PortingError)


def test_a_torch_file_whose_dict_holds_itself(tmp_path):
    torch = pytest.importorskip("torch")
    content: dict = {"w": torch.zeros(2)}
    content["model"] = content
    torch.save(content, tmp_path / "a.pt")
    assert "received one that holds itself" in refusal(lambda: read_tensors(tmp_path / "a.pt"), PortingError)


def test_a_torch_file_with_code(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"w": pytest.fail}, protocol=2))
    assert "holds Python objects as well as tensors" in refusal(lambda: read_tensors(tmp_path / "a.pt"), PortingError)
