"""Files of tensors: what is written is what is read, and what can't be read says why in one line."""

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

from jax_transformer.storage import tensor_files
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.tensor_files import as_arrays, read_tensors, write_tensors
from jax_transformer.storage.tensors import PortingError


def make_arrays():
    rng = np.random.default_rng(0)
    return {
        "z.strided": rng.standard_normal((6, 8)).astype("float32")[::2, ::3],
        "y.transposed": rng.standard_normal((3, 5)).T,
        "x.bfloat16": rng.standard_normal((4, 2)).astype(ml_dtypes.bfloat16).T,
        "w.scalar": np.float32(3.5).reshape(()),
        "v.half": rng.standard_normal(7).astype("float16"),
        "u.reversed": np.arange(9.0)[::-1],
    }


@pytest.mark.parametrize("suffix", tensor_files.SUFFIXES)
def test_round_trip(suffix, tmp_path):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    arrays = make_arrays()
    write_tensors(tmp_path / f"a{suffix}", arrays)
    received = read_tensors(tmp_path / f"a{suffix}")
    assert set(received) == set(arrays)
    assert len(received) == len(arrays)
    for name, array in arrays.items():
        assert (received[name].shape, received[name].dtype) == (array.shape, array.dtype), name
        assert received[name].tobytes() == array.tobytes(), name
    assert [file.name for file in tmp_path.iterdir()] == [f"a{suffix}"]
    if suffix != ".safetensors":
        assert list(received) == list(arrays)


@pytest.mark.parametrize("suffix", tensor_files.SUFFIXES)
@pytest.mark.parametrize("key", [None, "model"])
def test_a_file_that_is_mapped_anew_reads_the_same(suffix, key, tmp_path, monkeypatch):
    """Here after every tensor. Arrays that were read before stay what they are."""
    monkeypatch.setattr(tensor_files, "MAPPED_BYTES", {"safetensors": 0, "torch": 0})
    arrays = {f"{name}.{i}": array for name, array in make_arrays().items() for i in range(5)}
    path = tmp_path / f"a{suffix}"
    write_tensors(path, arrays)
    opened = []

    def counted(own):
        return lambda file: opened.append(1) or own(file)

    opening, loading = tensor_files.SafetensorsFile._open, tensor_files.load_torch
    monkeypatch.setattr(tensor_files.SafetensorsFile, "_open", counted(opening))
    monkeypatch.setattr(tensor_files, "load_torch", counted(loading))
    if suffix == ".safetensors":
        tensors = read_tensors(path)
    else:
        torch = pytest.importorskip("torch")
        if key:
            torch.save({"epoch": 3, key: torch.load(path, weights_only=True)}, path)
        content = read_tensors(path)
        assert not key or content["epoch"] == 3
        tensors = content[key] if key else content
    received = [(name, tensors[name]) for name in [*arrays, *arrays]]
    assert len(opened) > 2
    assert all(array.tobytes() == arrays[name].tobytes() for name, array in received)


DTYPES = [
    "float32",
    "bool",
    "int64",
    "bfloat16",
    "float16",
    "uint8",
    "float64",
    "int32",
    "int8",
    "int16",
    "uint16",
    "uint32",
    "uint64",
]


def test_a_file_is_what_safetensors_writes(tmp_path):
    """In every bit, whatever the dtypes, names and shapes; and its sha256 is told."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {
        name: (4 * rng.standard_normal((3, 5))).astype(dtype)
        for dtype in DTYPES
        for name in (f"z.{dtype}", f"a.{dtype}")
    }
    arrays |= {
        "scalar": np.float32(3.0),
        "empty": np.zeros((0, 4), np.float32),
        'é "quoted" \\ 名': np.ones(2, np.float32),
    }
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    assert len(DTYPES) == len(tensor_files.SAFETENSORS_DTYPES)
    save_file(arrays, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    deferred = {
        name: Deferred(array.shape, array.dtype, lambda array=array: iter(array[None]))
        for name, array in arrays.items()
    }
    for given in (arrays, deferred, {name: array.T.copy().T for name, array in arrays.items()}):
        digest = write_tensors(tmp_path / "ours.safetensors", given)
        content = (tmp_path / "ours.safetensors").read_bytes()
        assert content == (tmp_path / "theirs.safetensors").read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()
    write_tensors(tmp_path / "none.safetensors", {})
    assert dict(read_tensors(tmp_path / "none.safetensors")) == {}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_piece_that_fails_leaves_nothing(suffix, tmp_path):
    if suffix == ".pt":
        pytest.importorskip("torch")

    def pieces():
        yield np.zeros(2, np.float32)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="the disk went away"):
        write_tensors(tmp_path / f"model{suffix}", {"a": Deferred((4,), np.dtype(np.float32), pieces)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_mapped(tmp_path):
    """Views of it, that can't be written to."""
    arrays = {name: np.arange(6.0).reshape(2, 3).astype(name) for name in ("float32", "float16", "bfloat16", "float64")}
    write_tensors(tmp_path / "model.safetensors", arrays)
    mapped = tensor_files.map_tensors(tmp_path / "model.safetensors")
    assert {name: array.dtype.name for name, array in mapped.items()} == {name: name for name in arrays}
    for name, array in mapped.items():
        np.testing.assert_array_equal(array, arrays[name])
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    write_tensors(tmp_path / "whole.safetensors", {"step": np.zeros(2, np.int64)})
    with pytest.raises(PortingError, match=r"tensor step has a dtype that no parameter has \(I64\)"):
        tensor_files.map_tensors(tmp_path / "whole.safetensors")
    write_tensors(tmp_path / "none.safetensors", {})
    assert tensor_files.map_tensors(tmp_path / "none.safetensors") == {}


@pytest.mark.parametrize("suffix", tensor_files.SUFFIXES)
def test_files_may_be_read_by_whom_other_files_may(suffix, tmp_path):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    (tmp_path / "other").touch()
    write_tensors(tmp_path / f"model{suffix}", {"a": np.ones(2)})
    assert (tmp_path / f"model{suffix}").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_tied_names_stay_tied_in_torch_files(tmp_path):
    torch = pytest.importorskip("torch")
    shared = np.ones((2, 3))
    shared.flags.writeable = False
    write_tensors(tmp_path / "a.pt", {"a": shared, "b": shared, "c": np.ones((2, 3))})
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert content["a"].data_ptr() == content["b"].data_ptr() != content["c"].data_ptr()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": np.ones(3)})

    def fail(arrays, temporary, metadata):
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tensor_files, "save_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        write_tensors(path, {"a": np.zeros(3)})
    np.testing.assert_array_equal(read_tensors(path)["a"], np.ones(3))
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def refusal(path):
    with pytest.raises(PortingError) as error:
        read_tensors(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_missing_and_unknown_files(tmp_path):
    assert "no such file" in refusal(tmp_path / "a.safetensors")
    assert "expected a name that ends in .safetensors, .pt, .pth, .bin; received .npz" in refusal(tmp_path / "a.npz")
    (tmp_path / "a.pt").mkdir()
    assert "is no file" in refusal(tmp_path / "a.pt")
    with pytest.raises(PortingError, match="received no suffix"):
        write_tensors(tmp_path / "a", {})
    with pytest.raises(PortingError, match="there is no directory"):
        write_tensors(tmp_path / "b" / "a.safetensors", {})


@pytest.mark.parametrize("suffix", tensor_files.SUFFIXES)
@pytest.mark.parametrize("kept", [0, 5, 100, -7])
def test_truncated_files(suffix, kept, tmp_path):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    path = tmp_path / f"a{suffix}"
    write_tensors(path, make_arrays())
    path.write_bytes(path.read_bytes()[:kept])
    assert "truncated, or no" in refusal(path)


@pytest.mark.parametrize("suffix", tensor_files.SUFFIXES)
def test_foreign_files(suffix, tmp_path):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    path = tmp_path / f"a{suffix}"
    path.write_text("Once upon a time, there was no checkpoint at all in this file, but a fairy tale.")
    assert "truncated, or no" in refusal(path)


class Attack:
    """A pickle that does something when it is loaded."""

    def __reduce__(self):
        return print, ("executed",)


def test_torch_files_are_never_executed(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    torch.save({"a": Attack()}, tmp_path / "a.pt")
    assert "holds Python objects as well as tensors (builtins.print)" in refusal(tmp_path / "a.pt")
    torch.save({"a": Attack()}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    refusal(tmp_path / "b.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "c.pt")
    assert "torch.nn.modules.linear.Linear" in refusal(tmp_path / "c.pt")
    assert "executed" not in capsys.readouterr().out


def test_torch_files_that_are_no_state_dict(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save([torch.ones(2)], tmp_path / "b.pt")
    assert "received list" in refusal(tmp_path / "b.pt")


def test_the_old_torch_format(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.arange(3.0)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    np.testing.assert_array_equal(read_tensors(tmp_path / "a.pt")["a"], np.arange(3.0))


@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_protocols(zipped, tmp_path):
    """torch.load warns of 3, which loads all the same; a warning fails the test."""
    torch = pytest.importorskip("torch")
    path, options = tmp_path / "a.pt", {"_use_new_zipfile_serialization": zipped}
    for protocol in (2, 3):
        torch.save({"a": torch.arange(3.0)}, path, pickle_protocol=protocol, **options)
        np.testing.assert_array_equal(read_tensors(path)["a"], np.arange(3.0))
    for protocol in (4, 5):
        torch.save({"a": torch.arange(3.0)}, path, pickle_protocol=protocol, **options)
        output = f"expected pickle protocol 2, the default of torch.save; received {protocol}, which torch loads only"
        assert output in refusal(path)


def test_tensors_become_arrays_without_a_copy():
    torch = pytest.importorskip("torch")
    state = {
        "a": torch.randn(3, 4).T,
        "b": torch.randn(3, 4).to(torch.bfloat16).T,
        "c": torch.nn.Parameter(torch.ones(2)),
    }
    arrays = as_arrays(state)
    for name, tensor in state.items():
        assert arrays[name].shape == tensor.shape
        assert arrays[name].ctypes.data == tensor.data_ptr()
        np.testing.assert_array_equal(arrays[name].astype("float32"), tensor.detach().float().numpy())
    assert arrays["b"].dtype == ml_dtypes.bfloat16
    with pytest.raises(PortingError, match="tensor q has a dtype that NumPy doesn't have"):
        as_arrays({"q": torch.ones(2).to(torch.float8_e4m3fn)})["q"]


# --- several files


def shards(folder, suffix=".safetensors"):
    """Two files and an index, which orders their tensors in its own way."""
    write_tensors(folder / f"one{suffix}", {"a": np.ones(2), "c": np.zeros((2, 3), "float32")})
    write_tensors(folder / f"two{suffix}", {"b": np.arange(3.0)})
    return index(folder, {"a": f"one{suffix}", "b": f"two{suffix}", "c": f"one{suffix}"})


def index(folder, places):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_the_files_of_an_index_are_one_checkpoint(suffix, tmp_path):
    if suffix == ".bin":
        pytest.importorskip("torch")
    tensors = read_tensors(shards(tmp_path, suffix))
    assert list(tensors) == ["a", "b", "c"]
    assert len(tensors) == 3
    np.testing.assert_array_equal(tensors["b"], np.arange(3.0))
    assert tensors["c"].shape == (2, 3)


def test_a_link_leads_no_farther_than_a_name(tmp_path):
    """Out of the directory, but in a cache of the Hub, whose snapshots are links."""
    here, elsewhere = tmp_path / "models" / "snapshots" / "abc", tmp_path / "elsewhere"
    here.mkdir(parents=True)
    elsewhere.mkdir()
    expected = read_tensors(shards(here))["b"]
    (here / "two.safetensors").rename(here / "three.safetensors")
    (here / "two.safetensors").symlink_to("three.safetensors")
    np.testing.assert_array_equal(read_tensors(here / "model.safetensors.index.json")["b"], expected)
    for folder, is_read in ((elsewhere, False), (tmp_path / "models" / "blobs", True)):
        folder.mkdir(exist_ok=True)
        for file in (here / "one.safetensors", here / "model.safetensors.index.json"):
            if file.is_symlink():
                file.unlink()
                (elsewhere / file.name).rename(file)
            file.rename(folder / file.name)
            file.symlink_to(folder / file.name)
        if is_read:
            assert list(read_tensors(here / "model.safetensors.index.json")) == ["a", "b", "c"]
            continue
        with pytest.raises(PortingError, match="expected files in its folder") as error:
            read_tensors(here / "model.safetensors.index.json")
        assert error.value.problems == [
            f"one.safetensors: a link to {elsewhere}/one.safetensors, outside of the directory"
        ]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"a": "../one.safetensors"},
            "expected names of files in its own folder; received '../one.safetensors'",
        ),
        ({"a": "/etc/one.safetensors"}, "in its own folder; received '/etc/one.safetensors'"),
        ({"a": ".."}, "in its own folder; received '..'"),
        ({"a": "three.safetensors"}, "three.safetensors: no such file"),
        ({"a": "one.safetensors", "b": "one.safetensors", "c": "one.safetensors"}, "one.safetensors: no tensor b"),
        ({"a": "one.safetensors"}, "one.safetensors: c isn't in the index"),
        ({"a": 3}, "expected JSON with a weight_map, from tensors to files; received weight_map names no files"),
        (None, "expected JSON with a weight_map"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(places, message, tmp_path):
    shards(tmp_path)
    with pytest.raises(PortingError) as error:
        read_tensors(index(tmp_path, places))
    assert message in str(error.value)
    assert "model.safetensors.index.json" in str(error.value)


def test_an_index_that_is_no_json(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text("{")
    with pytest.raises(PortingError, match="expected JSON with a weight_map"):
        read_tensors(path)
