"""Checkpoints of T5X: a msgpack file named `checkpoint` with small arrays and the places of others, and a zarr
directory for each of those; or a directory of Orbax, with its list of arrays in `_METADATA`.

The trees in both are {"target": parameters, "state": the optimizer's}. A model whose layers were scanned has them on
axis 1 of each array; the example scalable_t5 gives heads an axis, too. Both are presented as the example t5 has them.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.runtime.directories import new_directory
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.tensors import Placed, PortingError

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

DIALECT = "t5x"
FILE, METADATA = "checkpoint", "_METADATA"
PLACEHOLDER = "PLACEHOLDER://"
"""How Orbax marks an array that has a directory of its own."""
VERSION = 3
"""The version of the file that T5X writes since 2021."""
STEP = re.compile(r"(?:checkpoint_)?(0|[1-9]\d*)")
"""A directory of one step, as T5X and Orbax name it."""
PARAMETERS = ("target", "params")
SCANNED = {"encoder/encoder/": "encoder/", "decoder/decoder/": "decoder/"}
"""The beginning of a scanned array's path → that of a layer's own."""
GATE = "encoder/layers_0/mlp/wi_0/kernel"
"""The array of a gated feed-forward: T5 1.0 has none, and ReLU; later ones have one, and GELU."""
ATTENTION = re.compile(r".*attention/(query|key|value|out)/kernel")
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_tanh", "swish": "silu", "silu": "silu"}
"""Activations of flax → ours. (Its gelu is the approximation by tanh.)"""


# --- places


def is_one(path: Path) -> bool:
    """Returns whether a path is T5X's: a step's directory, the file `checkpoint` in it, or the directory of a run."""
    return _step_directory(path) is not None


def is_destination(path: Path) -> bool:
    return not path.suffix


def _step_directory(path: Path) -> Path | None:
    """Returns the directory of the checkpoint that a path means: of a run's, the last."""
    if path.is_file() and path.name == FILE:
        path = path.parent
    if not path.is_dir():
        return None
    for inner in (path, path / "state"):
        if (inner / FILE).is_file() or (inner / METADATA).is_file():
            return inner
    steps = {int(match[1]): entry for entry in path.iterdir() if (match := STEP.fullmatch(entry.name))}
    return next((found for step in sorted(steps, reverse=True) if (found := _step_directory(steps[step]))), None)


# --- reading


def opened(path: Path) -> Foreign:
    """Reads a checkpoint; of the arrays only what is asked for later.

    Raises:
      PortingError: no tree of T5X; an array's directory that is missing or incomplete, or lies elsewhere; scanned
        arrays of several numbers of layers; an activation that isn't built here.
    """
    directory, parameters, others = _parts(path)
    problems = [problem for one in parameters.values() for problem in one.problems()]
    if problems:
        raise PortingError(f"{directory}: an incomplete checkpoint of T5X", problems)
    tensors = Unstacked(parameters, directory)
    fields, where = _settings(directory)
    return Foreign(
        title="checkpoint of T5X" + (", layers scanned" if tensors.is_scanned else ""),
        where=where,
        dialect=DIALECT,
        fields=fields,
        assumed={} if "activation" in fields else {"activation": "gelu_tanh" if GATE in tensors else "relu"},
        left=_left(others),
        layout={"scanned": tensors.is_scanned, "heads": tensors.has_heads, "step": _step(others)},
        tensors=tensors,
    )


def _parts(path: Path) -> tuple[Path, dict[str, StoredArray], dict[str, StoredArray]]:
    """Returns the directory of a checkpoint's step, its parameters by their own paths, and everything else."""
    directory = _step_directory(path)
    assert directory is not None
    tree = _metadata_tree(directory) if (directory / METADATA).is_file() else _msgpack_tree(directory)
    return directory, *_sorted(tree, directory)


def _step(others: Mapping[str, StoredArray]) -> int:
    step = others.get("state/step", others.get("step"))
    return 0 if step is None else int(step())


@dataclass(frozen=True)
class StoredArray:
    """Describes one array of a checkpoint; calling it reads the array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    missing: Callable[[], int] = lambda: 0
    """Returns how many of its chunks aren't there."""

    def __call__(self) -> np.ndarray:
        check_fits(8 * math.prod(self.shape), self.name, PortingError)
        return self.read()

    def problems(self) -> Iterator[str]:
        """Yields that chunks are missing. TensorStore would take them for zeros."""
        if missing := self.missing():
            yield f"{self.name}: {missing} of its chunks are missing"


def _msgpack_tree(directory: Path) -> dict[str, StoredArray]:
    """Returns the arrays of the file `checkpoint`, by path."""
    from flax import serialization

    path = directory / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror or type(error).__name__}") from None
    if data.startswith(b"model_checkpoint_path"):
        raise PortingError(
            f"{path}: expected a checkpoint of T5X; received TensorFlow's list of checkpoints, of T5 in Mesh TensorFlow"
        )
    try:
        content = serialization.msgpack_restore(data)
    except Exception as error:  # foreign bytes end in any exception
        raise PortingError(f"{path}: truncated, or no checkpoint of T5X ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise PortingError(f"{path}: expected a checkpoint of T5X; received {type(content).__name__}")
    tree = content.get("optimizer", content.get("_optimizer", content))
    return {name: _leaf(directory, name, leaf) for name, leaf in _flat(tree if isinstance(tree, dict) else {})}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a tree by path: arrays, numbers, placeholders, and places of arrays."""
    for key, value in tree.items():
        if isinstance(value, dict) and not value.keys() >= {"driver", "kvstore"}:
            yield from _flat(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value


def _leaf(directory: Path, name: str, leaf: Any) -> StoredArray:
    """Describes a leaf of the file `checkpoint`."""
    if isinstance(leaf, dict):
        store = leaf["kvstore"] if isinstance(leaf["kvstore"], dict) else {}
        return _zarr(directory, str(store.get("path") or leaf.get("path") or ""), name)
    if isinstance(leaf, str) and leaf.startswith(PLACEHOLDER):
        return _zarr(directory, leaf.removeprefix(PLACEHOLDER), name)
    array = np.asarray(leaf)
    return StoredArray(name, array.shape, array.dtype.name, lambda: array)


def _metadata_tree(directory: Path) -> dict[str, StoredArray]:
    """Returns the arrays of Orbax's `_METADATA`, by path."""
    path = directory / METADATA
    try:
        content = parse_json(read_text(path, JSON_BYTES, PortingError))
        keys = [
            [str(part["key"]) for part in entry["key_metadata"]]
            for entry in content["tree_metadata"].values()
            if entry["value_metadata"]["value_type"] not in ("None", "Dict", "List", "Tuple")
        ]
        is_ocdbt, is_zarr3 = bool(content.get("use_ocdbt")), bool(content.get("use_zarr3"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PortingError(f"{path}: expected Orbax's list of arrays ({type(error).__name__})") from None
    if is_zarr3:
        raise PortingError(f"{path}: expected arrays in zarr 2, as T5X has them; received zarr 3")
    return {"/".join(key): _zarr(directory, ".".join(key), "/".join(key), is_ocdbt=is_ocdbt) for key in keys}


def _zarr(directory: Path, place: str, name: str, *, is_ocdbt: bool = False) -> StoredArray:
    """Describes an array in a zarr directory of the checkpoint, or in its database."""
    folder = place.rstrip("/").rpartition("/")[2]  # tests of T5X name it by a path from elsewhere
    if folder in ("", ".", "..") or (not is_ocdbt and (directory / folder).is_symlink()):
        raise PortingError(f"{directory}: {name}: expected an array in this directory; received {place!r}")
    files = {"driver": "file", "path": f"{directory.resolve()}/" + ("" if is_ocdbt else f"{folder}/")}
    store = {"driver": "ocdbt", "base": files, "path": f"{folder}/"} if is_ocdbt else files
    try:
        array = _opened_store(store)
    except ValueError:
        raise PortingError(
            f"{directory}: an incomplete checkpoint of T5X: the array {folder} is missing, or no zarr array"
        ) from None
    return StoredArray(
        name,
        tuple(array.shape),
        array.dtype.name,
        lambda: np.asarray(array.read().result()),
        lambda: _missing_chunks(array, store),
    )


def _opened_store(store: dict[str, Any]) -> Any:
    import tensorstore

    return tensorstore.open({"driver": "zarr", "kvstore": store}, open=True, read=True).result()


def _missing_chunks(array: Any, store: dict[str, Any]) -> int:
    """Returns how many chunks of an array aren't stored."""
    import tensorstore

    chunks = array.chunk_layout.read_chunk.shape
    expected = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, chunks, strict=True))
    keys = tensorstore.KvStore.open(store).result().list().result()
    return max(0, expected - sum(1 for key in keys if not key.startswith(b".z")))


def _sorted(tree: Mapping[str, StoredArray], directory: Path) -> tuple[dict[str, StoredArray], dict[str, StoredArray]]:
    """Returns a tree's parameters by their own paths, and everything else."""
    root = next((root for root in PARAMETERS if any(name.startswith(f"{root}/") for name in tree)), None)
    if root is None:
        some = ", ".join(list(tree)[:3]) or "none"
        raise PortingError(f"{directory}: expected the parameters of T5X under target; received {some}")
    inside = {name: array for name, array in tree.items() if name.startswith(f"{root}/")}
    return (
        {name.removeprefix(f"{root}/"): array for name, array in inside.items()},
        {name: array for name, array in tree.items() if name not in inside},
    )


def _left(others: Mapping[str, StoredArray]) -> tuple[str, ...]:
    """Describes what isn't read."""
    states = [name for name in others if "param_states" in name or name.startswith(("state/", "opt_state/"))]
    arrays = [name for name in states if not name.endswith("step")]
    kind = "Adafactor's" if any(name.endswith("/v_row") for name in arrays) else "the optimizer's"
    return (f"{kind} state ({len(arrays)} arrays)",) if arrays else ()


class Unstacked(Placed):
    """Presents arrays with one array for each layer and with heads joined, as the example t5 has them."""

    def __init__(self, stored: Mapping[str, StoredArray], directory: Path) -> None:
        """Stores the arrays by path. Raises PortingError for scanned ones with several numbers of layers."""
        self._stored = stored
        self._places: dict[str, tuple[str, int | None]] = {}
        self._last: tuple[str, np.ndarray] | None = None
        problems = []
        for begin, plain in SCANNED.items():
            scanned = {name: array for name, array in stored.items() if name.startswith(begin)}
            counts: dict[int, list[str]] = {}
            for name, array in scanned.items():
                counts.setdefault(array.shape[1] if len(array.shape) > 1 else 0, []).append(name)
            if len(counts) > 1:
                listed = ", ".join(f"{count} ({names[0]})" for count, names in sorted(counts.items()))
                problems.append(f"{begin.split('/')[0]}: expected one number of layers on axis 1; received {listed}")
            layers = next(iter(counts), 0)
            for name in scanned:
                rest = name.removeprefix(begin)
                self._places |= {f"{plain}layers_{layer}/{rest}": (name, layer) for layer in range(layers)}
        if problems:
            raise PortingError(f"{directory}: scanned layers that don't fit together", problems)
        self.is_scanned = bool(self._places)
        self._places |= {name: (name, None) for name in stored if not name.startswith(tuple(SCANNED))}
        kernels = [array.shape for name, array in stored.items() if ATTENTION.fullmatch(name)]
        self.has_heads = any(len(shape) == 3 + self.is_scanned for shape in kernels)

    def __getitem__(self, name: str) -> np.ndarray:
        stored, layer = self._places[name]
        if self._last is None or self._last[0] != stored:  # the layers of one array are asked for in turn
            self._last = stored, self._stored[stored]()
        array = self._last[1]
        return joined_heads(name, array if layer is None else array[:, layer])


def joined_heads(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an attention's kernel as a matrix; other arrays as they are."""
    match = ATTENTION.fullmatch(name)
    if match is None or array.ndim != 3:
        return array
    return array.reshape(-1, array.shape[-1]) if match[1] == "out" else array.reshape(array.shape[0], -1)


# --- Adafactor's state

STATES = "state/param_states/"
"""The beginning of the path of a parameter's state."""
ROWS_LAST = ("/out/kernel", "/wo/kernel")
"""Ends of the names of matrices whose rows, in the rules by which T5X factors stacked ones, are their outputs."""


@dataclass(frozen=True)
class AdafactorState:
    """Holds the state of T5X's Adafactor, with layers apart and heads joined."""

    step: int
    moments: Mapping[str, Mapping[str, np.ndarray]]
    """By the dialect's name: "rows" and "columns", the means of a matrix's squared gradients over the other axis; or
    "squares", in the parameter's shape."""
    settings: Mapping[str, Any]
    """Arguments of Adafactor that the gin file sets."""


def adafactor_state(path: Path) -> AdafactorState:
    """Reads the optimizer's state of a checkpoint.

    Raises:
      PortingError: there is none, or another optimizer's; parameters without one, arrays of other shapes or with
        missing chunks, and momentum, which no Adafactor here has; all problems together.
    """
    directory, parameters, others = _parts(path)
    states: dict[str, dict[str, StoredArray]] = {}
    for name, array in others.items():
        if name.startswith(STATES):
            parameter, _, key = name.removeprefix(STATES).rpartition("/")
            states.setdefault(parameter, {})[key] = array
    if not any({"v", "v_row", "v_col"} & state.keys() for state in states.values()):
        received = sorted({key for state in states.values() for key in state}) or ["none"]
        raise PortingError(
            f"{directory}: expected Adafactor's state of T5X, v_row, v_col and v under {STATES}; received "
            f"{', '.join(received[:5])}"
        )
    moments: dict[str, dict[str, np.ndarray]] = {}
    problems = [f"{name}: it has a state, and is no parameter" for name in states if name not in parameters]
    for name, array in parameters.items():
        state = states.get(name, {})
        problems += [problem for one in state.values() for problem in one.problems()]
        try:
            moments |= _moments(name, array.shape, state)
        except PortingError as error:
            problems.append(str(error))
    if problems:
        raise PortingError(f"{directory}: an incomplete state of T5X's Adafactor", problems)
    gin = _gin_file(directory)
    return AdafactorState(_step(others), moments, {} if gin is None else _gin_values(gin, "Adafactor"))


def _moments(name: str, shape: tuple[int, ...], state: Mapping[str, StoredArray]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the moments of a stored array, of each of its layers if it is scanned.

    T5X factors a matrix over its two axes, of which the longer, or of two equal ones the second, is averaged in v_row.
    Arrays of more axes have rules by their axes' names: v_row keeps the model's width, and the layers.
    """
    if "m" in state and state["m"].shape == shape:
        raise PortingError(f"{name}: expected no momentum (beta1 = None), which no Adafactor here has; received m")
    begin = next((begin for begin in SCANNED if name.startswith(begin)), None)
    kept = {key: tuple(state[key].shape) for key in ("v_row", "v_col", "v") if key in state}
    if kept.get("v") == shape:
        arrays = {"squares": (state["v"](), 1)}
    else:
        in_rule = len(shape) > 2
        rows_first = not name.endswith(ROWS_LAST) if in_rule else shape[0] <= shape[-1]
        first, second = ("v_row", "v_col") if rows_first else ("v_col", "v_row")
        inputs, outputs = _sides(name, shape, is_scanned=begin is not None)
        if len(shape) < 2 or kept.get(first) != inputs or kept.get(second) != outputs:
            expected = f"{first} {list(inputs)} and {second} {list(outputs)}, or v {list(shape)}"
            received = ", ".join(f"{key} {list(found)}" for key, found in kept.items()) or "none"
            raise PortingError(f"{name}: expected {expected}; received {received}")
        arrays = {"rows": (state[first](), 1), "columns": (state[second](), 0)}
    if begin is None:
        return {name: {slot: _of_layer(name, slot, array) for slot, (array, _) in arrays.items()}}
    plain, rest = SCANNED[begin], name.removeprefix(begin)
    return {
        f"{plain}layers_{layer}/{rest}": {
            slot: _of_layer(name, slot, np.take(array, layer, axis)) for slot, (array, axis) in arrays.items()
        }
        for layer in range(shape[1])
    }


def _sides(name: str, shape: tuple[int, ...], *, is_scanned: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of what remains of a matrix when its outputs, or its inputs, are averaged; the layers stay."""
    layers = shape[1:2] if is_scanned else ()
    axes = shape[:1] + shape[1 + len(layers) :]
    split = len(axes) - 1 if name.endswith(ROWS_LAST) else 1
    inputs, outputs = axes[:split], axes[split:]
    return (inputs[:1] + layers + inputs[1:], layers + outputs)


def _of_layer(name: str, slot: str, array: np.ndarray) -> np.ndarray:
    return joined_heads(name, array) if slot == "squares" else array.reshape(-1)


# --- settings: the gin file that T5X writes next to its checkpoints


def _gin_file(directory: Path) -> Path | None:
    """Returns the nearest gin file of a step's directory."""
    folders = (directory, directory.parent, directory.parent.parent)
    found = (folder / name for folder in folders for name in ("config.gin", "operative_config.gin"))
    return next((path for path in found if path.is_file()), None)


def _settings(directory: Path) -> tuple[dict[str, Any], str]:
    """Returns the config fields that the nearest gin file decides, and its name."""
    path = _gin_file(directory)
    return ({}, "config.gin") if path is None else (_gin_fields(path), path.name)


def _gin_values(path: Path, name: str) -> dict[str, Any]:
    """Returns the arguments of a class or function that a gin file sets to plain values. (A macro isn't one.)"""
    lines = rf"(?m)^\s*(?:[\w./]+/)?(?:\w+\.)?{name}\.(\w+)\s*=\s*(.+?)\s*$"
    said = {}
    for key, text in re.findall(lines, read_text(path, JSON_BYTES, PortingError)):
        try:
            said[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
    return said


def _gin_fields(path: Path) -> dict[str, Any]:
    said = _gin_values(path, "T5Config")  # tensors decide as well what a macro sets
    fields = {
        "head_dim": said.get("head_dim"),
        "num_heads": said.get("num_heads"),
        "dropout_rate": said.get("dropout_rate"),
    }
    activations = said.get("mlp_activations")
    if isinstance(activations, list | tuple) and activations:
        known = [name for name in activations if name != "linear"]
        if len(known) != 1 or known[0] not in ACTIVATIONS:
            raise PortingError(
                f"{path}: mlp_activations must be one of {', '.join(ACTIVATIONS)}, with or without 'linear'; received "
                f"{activations}"
            )
        fields |= {"activation": ACTIVATIONS[known[0]], "feed_forward_gated": len(activations) > 1}
    return {name: value for name, value in fields.items() if value is not None}


# --- writing


def write(model: Model, tensors: Mapping[str, Any], path: Path) -> None:
    """Writes a step's directory as T5X has it since 2021: the file `checkpoint`, and each array in zarr.

    Args:
      model: the model, whose origin may say how the layers and heads lay.
      tensors: the tensors by the dialect's names.
      path: the new directory.

    Raises:
      PortingError: there is something at `path`, or no directory to put it in.
    """
    layout = (model.origin or {}).get("layout", {})
    heads = model.config.encoder.heads.num_heads if layout.get("heads") else None
    with new_directory(path, PortingError) as directory:
        _write_directory(directory, tensors, layout, heads)


def _write_directory(directory: Path, tensors: Mapping[str, Any], layout: Mapping[str, Any], heads: int | None) -> None:
    from flax import serialization

    arrays = dict(_stacked(tensors, heads) if layout.get("scanned") else _unstacked(tensors, heads))
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        spec = _write_zarr(directory, f"target.{name.replace('/', '.')}", array)
        *parts, last = name.split("/")
        inner = tree
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = spec
    step = np.int32(layout.get("step", 0))
    content = {"version": VERSION, "optimizer": {"target": tree, "state": {"step": step, "param_states": {}}}}
    (directory / FILE).write_bytes(serialization.msgpack_serialize(content))


def _unstacked(tensors: Mapping[str, Any], heads: int | None) -> Iterator[tuple[str, np.ndarray]]:
    for name in tensors:
        yield name, split_heads(name, np.asarray(tensors[name]), heads)


def _stacked(tensors: Mapping[str, Any], heads: int | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays with the layers on axis 1."""
    layers: dict[str, list[str]] = {}
    for name in tensors:
        stack, dot, rest = re.sub(r"^(encoder|decoder)/layers_\d+/", r"\1/\1/", name).partition("/")
        layers.setdefault(f"{stack}{dot}{rest}", []).append(name)
    for name, parts in layers.items():
        arrays = [split_heads(part, np.asarray(tensors[part]), heads) for part in parts]
        yield name, np.stack(arrays, axis=1) if name.startswith(tuple(SCANNED)) else arrays[0]


def split_heads(name: str, array: np.ndarray, heads: int | None) -> np.ndarray:
    """Returns an attention's kernel with an axis of heads: the inverse of `joined_heads`. None: as it is."""
    match = ATTENTION.fullmatch(name)
    if match is None or heads is None:
        return array
    if match[1] == "out":
        return array.reshape(heads, -1, array.shape[1])
    return array.reshape(array.shape[0], heads, -1)


def _write_zarr(directory: Path, folder: str, array: np.ndarray) -> dict[str, Any]:
    """Writes an array, and returns its place as the file `checkpoint` has it."""
    import tensorstore

    chunks = [max(1, size) for size in array.shape]
    while math.prod(chunks) * array.itemsize > 64 * 2**20:  # T5X's own size of a chunk
        longest = max(range(len(chunks)), key=lambda axis: chunks[axis])
        chunks[longest] = -(-chunks[longest] // 2)
    metadata = {"compressor": {"id": "gzip", "level": 1}, "shape": list(array.shape), "chunks": chunks}
    spec = {"driver": "zarr", "dtype": array.dtype.name, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    place = {"driver": "file", "path": f"{directory.resolve()}/{folder}/"}
    stored = tensorstore.open(
        {**spec, "kvstore": place, "metadata": metadata, "store_data_equal_to_fill_value": True}, create=True
    ).result()
    stored.write(array).result()
    return {**spec, "metadata": json.loads(json.dumps(metadata))}
