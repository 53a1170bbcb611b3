"""Export of a model as StableHLO programs, which JAX runs on CPUs, GPUs and TPUs without this package.

    NAME.jax_export          each program, as `jax.export.deserialize` reads it
    NAME.stablehlo           the same program alone, a portable artifact of StableHLO, for other tools
    params.safetensors       the parameters by path: the programs' argument `params`
    source_tokenizer.json    for the library `tokenizers`, if it can express the model's tokenizers
    target_tokenizer.json
    tokenizer/               the original tokenizer files of a Hugging Face model
    signature.json           the programs' arguments and results, special ids, sizes, versions
    run.py                   translates standard input with the files in this directory
    digests.json             sha256 of each file

`programs.py` makes the programs. Weights are arguments, so a program's size depends on the number of layers, not on
their width. Attention uses plain operations, no kernels of a device.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.checks import check_decoding, starts_and_ends
from jax_transformer.decoding.generation import make_search_params
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.target_tags import with_target_tag
from jax_transformer.exporting.options import ExportError
from jax_transformer.exporting.programs import (
    Program,
    Search,
    Sizes,
    largest_sizes,
    make_search,
    model_programs,
    named,
    shapes_of,
)
from jax_transformer.exporting.texts import standard_files, text_rules
from jax_transformer.runtime.directories import check_free, new_directory
from jax_transformer.runtime.environment import environment
from jax_transformer.runtime.extras import require
from jax_transformer.runtime.json_text import indented_json
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.model_files import PARAMS, TOKENIZER_FOLDER
from jax_transformer.storage.tensor_files import write_tensors

FORMAT = "jax-transformer stablehlo 1"
SIGNATURE, SCRIPT = "signature.json", "run.py"
EXPORTED, MODULE = ".jax_export", ".stablehlo"
GREEDY, BEAM_SEARCH = "greedy", "beam_search"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
ROWS = (2, 8, 64)
"""Rows of a batch that `run.py` fills; two at least, which XLA multiplies three times as fast as one on a CPU."""
SHORTEST = 16
"""Lengths to which `run.py` pads sources are this times a power of two."""


@dataclass(frozen=True)
class ProgramReport:
    """Describes one exported program."""

    name: str
    num_bytes: int
    seconds: float


def export_stablehlo(
    model: Model,
    path: str | os.PathLike[str],
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    batch: int | None = None,
    source_length: int | None = None,
    max_new_tokens: int | None = None,
    beam_size: int = 1,
    source_tag: str = "",
    target_tag: str = "",
) -> list[ProgramReport]:
    """Writes a model's programs, parameters and tokenizers to a new directory.

    Args:
      model: the model.
      path: the directory to write: a name that is free, or an empty directory.
      platforms: where the programs run: cpu, cuda, rocm, tpu.
      batch: rows of a batch. None: any number.
      source_length: tokens of a source, including padding. None: any number that the model allows.
      max_new_tokens: maximum number of tokens to decode. None: the model's own setting.
      beam_size: with 2 or more, exports a beam search as well.
      source_tag: token that `run.py` puts before every source.
      target_tag: token that every translation begins with.

    Returns:
      A report on each program.

    Raises:
      ExportError: `path` isn't free; no platform, or an unknown one; sizes that the model doesn't allow; parameters in
        float64.
      DecodingError, ValueError: the model can't decode with these options, or lacks a tag.
      MissingPackage: flatbuffers, which jax.export needs, isn't installed.
    """
    path = Path(path)
    check_free(path, ExportError)
    require("flatbuffers", "stablehlo")
    _check_platforms(platforms)
    _check_dtypes(model)
    model, forced = with_target_tag(model, target_tag)
    options = DecodingConfig(max_new_tokens=max_new_tokens).updated(forced_bos_id=forced)
    searches = {GREEDY: _search(model, options.updated(beam_size=1))}
    if beam_size != 1:
        searches[BEAM_SEARCH] = _search(model, options.updated(beam_size=beam_size))
    sizes = Sizes(batch, source_length, int(searches[GREEDY].params.max_new))
    _check_sizes(model, sizes)
    # not the paths of kernels, which are custom calls of a device and a version
    config = model.config.replace(attention_path="reference")
    programs = model_programs(config, shapes_of(model.params), sizes, searches)
    files = standard_files(model)
    signature = _signature(model, sizes, platforms, [*searches][-1]) | {"text": text_rules(model, files, source_tag)}
    reports = []
    with new_directory(path, ExportError) as temporary:
        for name, program in programs.items():
            start = time.perf_counter()
            signature["programs"][name] = _write_program(temporary, name, program, platforms)
            num_bytes = (temporary / f"{name}{EXPORTED}").stat().st_size
            reports.append(ProgramReport(name, num_bytes, time.perf_counter() - start))
        write_tensors(temporary / PARAMS, flatten(model.params))
        _write_tokenizers(model, temporary, files)
        (temporary / SIGNATURE).write_text(indented_json(signature), encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name(SCRIPT), temporary / SCRIPT)
    return reports


def _check_platforms(platforms: Sequence[str]) -> None:
    unknown = [platform for platform in platforms if platform not in PLATFORMS]
    if unknown or not platforms or len({*platforms}) < len(platforms):
        received = ", ".join(platforms) or "none"
        raise ExportError(f"platforms: expected some of {', '.join(PLATFORMS)}, each once; received {received}")


def _check_dtypes(model: Model) -> None:
    for name, leaf in flatten(model.params).items():
        if np.dtype(leaf.dtype) == np.float64:
            raise ExportError(
                f"parameter {name}: expected float32 or narrower, the precision of the programs; received float64. "
                "Cast the model where it is ported, with --dtype float32"
            )


def _check_sizes(model: Model, sizes: Sizes) -> None:
    config = model.config
    for name, size, most in (
        ("batch", sizes.batch, largest_sizes(config).get("batch")),
        ("length", sizes.source_length, limit(model, "source")),
    ):
        if size is not None and not 1 <= size <= (most or size):
            upper = f", and at most {most}, for which the model has positions" if most else ""
            raise ExportError(f"{name} must be at least 1{upper}; received {size}")
    trained = model.generation.source_length
    if sizes.source_length not in (None, trained) and not config.source_padding_is_invisible:
        raise ExportError(
            f"length: expected {trained or 'none'}, for this model attends to padding, which would change its "
            f"translations; received {sizes.source_length}"
        )


def _search(model: Model, options: DecodingConfig) -> Search:
    """Merges the search options in order of precedence: arguments, the model's own, the defaults."""
    if model.config.stem is not None:
        raise ExportError("stablehlo: expected a model whose sources are tokens; received one with a stem")
    decoding, most = options.resolved(model.generation), limit(model, "target")
    check_decoding(model, decoding)
    return make_search(decoding, make_search_params(model, decoding, min(decoding.max_new_tokens or most, most)))


def _signature(model: Model, sizes: Sizes, platforms: Sequence[str], run: str) -> dict[str, Any]:
    """Returns the content of signature.json, without text and programs; `run` is the program that translates."""
    return {
        "format": FORMAT,
        "versions": environment(("jax-transformer", "jax", "jaxlib")),
        "platforms": [*platforms],
        "run": run,
        "ids": _ids(model),
        "batch": batch_rules(model, sizes),
        "programs": {},
    }


def _ids(model: Model) -> dict[str, int]:
    start_id, eos_id = starts_and_ends(model)
    pads = {"source_pad": model.config.source_pad_id, "target_pad": model.config.target_pad_id}
    return {**pads, "decoder_start": start_id, "eos": eos_id}


def batch_rules(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Returns the shapes in which `run.py` decodes: `batch` of signature.json.

    There are few shapes, since each is compiled. A sentence runs alone if its batch or its padding would change its
    result.
    """
    config, most = model.config, sizes.source_length or limit(model, "source")
    may_share = config.batch_rows_are_independent and config.source_padding_is_invisible
    lengths = [SHORTEST << i for i in range(32) if SHORTEST << i < most] + [most]
    if not config.source_padding_is_invisible:
        lengths = [model.generation.source_length] if model.generation.source_length else []
    rows = [sizes.batch] if sizes.batch else [*ROWS] if may_share else [1]
    return {
        "sentences": rows[-1] if may_share else 1,
        "rows": rows,
        "lengths": [sizes.source_length] if sizes.source_length else lengths,
        "most_tokens": most,
    }


# --- writing


def _write_program(directory: Path, name: str, program: Program, platforms: Sequence[str]) -> dict[str, Any]:
    """Writes a program's files; returns its entry of signature.json."""
    with _without_source_paths():
        exported = export.export(jax.jit(_called(name, program.function)), platforms=platforms)(
            *program.inputs.values()
        )
    (directory / f"{name}{EXPORTED}").write_bytes(exported.serialize())
    (directory / f"{name}{MODULE}").write_bytes(exported.mlir_module_serialized)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    names = [*named(program.inputs)]
    index = ["platform_index"] if len(platforms) > 1 else []
    return {
        "file": f"{name}{EXPORTED}",
        "module": f"{name}{MODULE}",
        "calling_convention": exported.calling_convention_version,
        "inputs": {key: PARAMS if key == "params" else _described(value) for key, value in program.inputs.items()},
        "outputs": {key: _described(value) for key, value in outputs.items()},
        "module_inputs": index + [names[i] for i in exported.module_kept_var_idx],
    }


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function under the name that JAX's messages give it."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = name
    return call


@contextmanager
def _without_source_paths() -> Iterator[None]:
    """Removes the paths of this package's files, which JAX records with each operation, from exported programs."""
    before = jax.config.values["jax_traceback_in_locations_limit"]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def _described(value: Any) -> dict[str, Any]:
    """Returns the shape and dtype of an array, or of each array of a dict."""
    if isinstance(value, Mapping):
        return {name: _described(one) for name, one in value.items()}
    return {"shape": [size if isinstance(size, int) else str(size) for size in value.shape], "dtype": value.dtype.name}


def _write_tokenizers(model: Model, directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    if model.tokenizer_files:
        (directory / TOKENIZER_FOLDER).mkdir()
        for name, data in model.tokenizer_files.items():
            (directory / TOKENIZER_FOLDER / name).write_bytes(data)
