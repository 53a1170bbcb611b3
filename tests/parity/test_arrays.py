"""Named arrays in files: as they were, in their order, and never anything that runs code."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_transformer.comparison.gates.arrays import NOTES, ParityError, read_arrays, save_arrays


def test_arrays_come_back_in_their_order(tmp_path: Path) -> None:
    arrays = {
        "z.1/kernel[0]": np.arange(6.0).reshape(2, 3),
        "a": np.array(3, np.int32),
        "mask.cross": np.array([True, False]),
        "half": np.ones(2, np.float16),
        "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
        "none": np.zeros((0, 2)),
    }
    save_arrays(tmp_path / "a.npz", arrays, {"framework": "jax"})
    kept = read_arrays(tmp_path / "a.npz")
    assert list(kept.arrays) == list(arrays)
    assert kept.notes == {"framework": "jax", "widened": {"brain": "bfloat16"}}
    for name, array in arrays.items():
        assert kept.arrays[name].dtype == ("float32" if name == "brain" else array.dtype)
        np.testing.assert_array_equal(kept.arrays[name], array.astype(kept.arrays[name].dtype))
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_files_that_others_wrote_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", first=np.ones(2), second=np.zeros(3))
    kept = read_arrays(tmp_path / "a.npz")
    assert (list(kept.arrays), kept.notes) == (["first", "second"], {})


def write_objects(path: Path) -> None:
    np.savez(path, fine=np.ones(2), wrong=np.array([{}, 1], object))


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def write_half(path: Path) -> None:
    np.savez(path, a=np.ones(1000))
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_objects, "wrong: expected numbers; received an array of objects, which isn't read"),
        (write_npy, "received a single array"),
        (write_half, "it can't be read"),
        (lambda path: path.write_text("hello"), "received a file of another kind"),
        (lambda path: path.write_bytes(b""), "it can't be read"),
        (lambda path: np.savez(path), "it holds none"),
        (lambda path: path.mkdir(), "it can't be read"),
        (lambda path: None, "there is no such file"),
    ],
    ids=["objects", "npy", "cut", "text", "empty", "none", "directory", "missing"],
)
def test_other_files_are_refused(write, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write(path)
    with pytest.raises(ParityError, match=message):
        read_arrays(path)


def test_arrays_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="x: expected numbers; received an array of objects"):
        save_arrays(tmp_path / "a.npz", {"x": np.array([None])})
    with pytest.raises(ParityError, match="can't be named"):
        save_arrays(tmp_path / "a.npz", {NOTES: np.ones(2)})
    assert list(tmp_path.iterdir()) == []
