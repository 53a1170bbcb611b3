"""The command jax-transformer port: a torch file to a model directory, a model directory to a torch file, or a look into a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from jax_transformer.model_directory import Model

USAGE_HINT = "name a torch file and the model directory to write, or a model directory and the .pt or .safetensors file to write"


@dataclass(frozen=True)
class PortOptions:
    """Port a checkpoint: a torch file to a model directory, or a model directory to a torch file.

    What a file doesn't tell is asked for by name. Only the options that are needed say anything.
    """

    source: tyro.conf.Positional[str]
    """A file (.pt, .pth, .bin, .safetensors); or a model directory, or a run directory with one in it."""
    destination: tyro.conf.Positional[str] = ""
    """The model directory to write; or the file (.pt, .pth, .bin, .safetensors)."""
    inspect: bool = False
    """Only list the file's tensors, and the dialects that they could be of."""
    dialect: str | None = None
    """Whose names these are. Needed where they fit several."""
    num_heads: int | None = None
    """Heads of its attentions."""
    source_pad_id: int | None = None
    """The id that pads source sentences."""
    target_pad_id: int | None = None
    """The id that pads target sentences."""
    start_id: int | None = None
    """The id that the decoder starts with. (With vocabularies: theirs.)"""
    eos_id: int | None = None
    """The id that ends a sentence."""
    position_table: str | None = None
    """A file with the live model's position table [rows, d_model], where the checkpoint holds none: .npy, .pt, .safetensors."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Convert all values to it, but position tables not to bfloat16. Without it they stay as they are."""
    source_vocab: str | None = None
    """The source's vocabulary: a tokenizer.json, a sentencepiece .model, or a .txt of tokens, the line's number from 0 being the id."""
    target_vocab: str | None = None
    source_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    """How text is split for a .txt vocabulary. Without it: as the dialect's program does."""
    target_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    source_language: str = ""
    """For spacy: the code of the language, such as en."""
    target_language: str = ""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FIELD=VALUE")] = ()
    """Any other field of the config, such as norm_placement=pre or dropout_rate=0.3."""


def port(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer port ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: whatever can't be ported; nothing is written then.
    """
    options = tyro.cli(PortOptions, args=list(arguments), prog="jax-transformer port")
    if options.inspect:
        return _inspect(options)
    if not options.destination:
        raise ValueError(f"port: expected two paths; received {options.source} alone; {USAGE_HINT}")
    return _export(options) if Path(options.source).is_dir() else _import(options)


# --- a file → a model directory


def _import(options: PortOptions) -> int:
    from jax_transformer.model_directory import save_model
    from jax_transformer.porting.convert import import_checkpoint

    if Path(options.destination).suffix in (".pt", ".pth", ".bin", ".safetensors"):
        raise ValueError(f"port: expected a directory to write; received {options.destination}; {USAGE_HINT}")
    model = import_checkpoint(options.source, options.dialect, **_hints(options))
    if options.dtype:
        model = dataclasses.replace(model, params=_cast(model.params, options.dtype))
    model = _with_vocabularies(model, options)
    save_model(model, options.destination)
    origin = model.origin or {}
    tensors, prefix = origin["tensors"], origin["prefix"]
    print(f"dialect:  {origin['dialect']}")
    print(f"tensors:  {len(tensors)}, {_count(model.params):,} values" + (f", all named {prefix}…" if prefix else ""))
    print(f"model:    {options.destination} ({'translates' if model.source_tokenizer else 'without vocabularies'})")
    return 0


def _hints(options: PortOptions) -> dict[str, Any]:
    given = {
        "num_heads": options.num_heads,
        "source_pad_id": options.source_pad_id,
        "target_pad_id": options.target_pad_id,
        "decoder_start_id": options.start_id,
        "eos_id": options.eos_id,
        "position_table": options.position_table,
    }
    hints = {name: value for name, value in given.items() if value is not None}
    for assignment in options.set:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set: expected FIELD=VALUE; received {assignment!r}")
        hints[name.strip().replace("-", "_")] = _value(text.strip())
    return hints


def _value(text: str) -> Any:
    """A number, true, false or null as such; any other text as text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except ValueError:
        return text


def _cast(tree: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """All leaves in another dtype, but for position tables, which bfloat16 would spoil."""
    import jax.numpy as jnp

    wanted = jnp.dtype(dtype)

    def cast(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value if name == "constants" and dtype == "bfloat16" else {key: cast(key, leaf) for key, leaf in value.items()}
        return value.astype(wanted)

    return {name: cast(name, value) for name, value in tree.items()}


def _count(tree: Any) -> int:
    return sum(map(_count, tree.values())) if isinstance(tree, Mapping) else tree.size


def _with_vocabularies(model: Model, options: PortOptions) -> Model:
    """The model with the tokenizers that the options name, and the ids that these say.

    Raises:
      ValueError: one vocabulary without the other; a vocabulary of another size than the embedding, or with another pad.
    """
    files = {"source": options.source_vocab, "target": options.target_vocab}
    if not any(files.values()):
        return model
    if not all(files.values()):
        raise ValueError(
            f"--source-vocab and --target-vocab: expected both, or neither; received {options.source_vocab} and {options.target_vocab}"
        )
    from jax_transformer.data.tokenizers import load_tokenizer
    from jax_transformer.porting.dialects import get_dialect

    text = get_dialect((model.origin or {})["dialect"]).text
    tokenizers = {}
    for side, file in files.items():
        usual = text[side]
        is_list = Path(str(file)).suffix == ".txt"  # the other files say more of themselves
        tokenizer = load_tokenizer(
            str(file), kind=getattr(options, f"{side}_tokenizer") or usual.kind, specials=None, lowercase=usual.lowercase and is_list,
            language=getattr(options, f"{side}_language"), add_bos=usual.add_bos, add_eos=usual.add_eos,
        )  # fmt: skip
        size, pad_id = (getattr(model.config, f"{side}_{name}") for name in ("vocab_size", "pad_id"))
        if tokenizer.vocab_size != size:
            raise ValueError(f"{file}: expected {size} tokens, the rows of the {side} embedding; received {tokenizer.vocab_size}")
        if tokenizer.pad_id != pad_id:
            raise ValueError(
                f"{file}: expected {side}_pad_id={pad_id} to be its padding; received a list whose padding is {tokenizer.pad_id}"
            )
        tokenizers[side] = tokenizer
    target = tokenizers["target"]
    generation = model.generation
    if generation.decoder_start_id is None:
        generation = dataclasses.replace(generation, decoder_start_id=target.bos_id)
    if generation.eos_id is None:
        generation = dataclasses.replace(generation, eos_id=target.eos_id)
    return dataclasses.replace(model, source_tokenizer=tokenizers["source"], target_tokenizer=target, generation=generation)


# --- a model directory → a file


def _export(options: PortOptions) -> int:
    from jax_transformer.model_directory import load_model
    from jax_transformer.porting.convert import export_checkpoint

    model = load_model(options.source)
    if options.dtype:
        model = dataclasses.replace(model, params=_cast(model.params, options.dtype))
    export_checkpoint(model, options.destination, options.dialect)
    dialect = options.dialect or (model.origin or {})["dialect"]
    print(f"dialect:  {dialect}\nfile:     {options.destination}, {_count(model.params):,} values")
    return 0


# --- a look into a file


def _inspect(options: PortOptions) -> int:
    from jax_transformer.porting.checkpoint import open_checkpoint
    from jax_transformer.porting.dialects import candidates

    if options.destination:
        raise ValueError(f"port --inspect: expected one file; received also {options.destination}")
    checkpoint = open_checkpoint(options.source, lambda names: bool(candidates(names)))
    width = max((len(name) for name in checkpoint.tensors), default=0)
    total = 0
    for name, tensor in checkpoint.tensors.items():
        print(f"{name:{width}}  {tensor.dtype!s:8}  {'×'.join(map(str, tensor.shape)) or 'a number'}")
        total += tensor.size
    print(f"\n{len(checkpoint.tensors)} tensors, {total:,} values")
    if checkpoint.described():
        print(checkpoint.described())
    possible = candidates(checkpoint.tensors.keys())
    for dialect in possible:
        print(f"could be {dialect.name}: {dialect.title}")
    if not possible:
        print("of no known dialect")
    return 0
