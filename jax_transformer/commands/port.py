"""The command jax-transformer port: a checkpoint to a model directory, a model directory to a checkpoint, or a look
into a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from jax_transformer.commands.checkpoint_options import CheckpointOptions
from jax_transformer.storage.model_directory import check_replaceable, is_model_directory
from jax_transformer.storage.tensor_files import SUFFIXES

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer
    from jax_transformer.storage.model_directory import Model

USAGE_HINT = (
    "name a checkpoint (a torch file, or a directory of transformers) and the model directory to write, or a model "
    "directory and what to "
    "write: a .pt or .safetensors file, or a directory for transformers"
)


@dataclass(frozen=True)
class PortOptions:
    """Port a checkpoint: a torch file, or a directory of transformers, to a model directory; or the other way round.

    What a file doesn't tell is asked for by name. Only the options that are needed say anything.
    """

    source: tyro.conf.Positional[str]
    """A file (.pt, .pth, .bin, .safetensors), or the .index.json of several; a directory that transformers wrote, or
    its name on the Hub; or a model directory, or a run directory with one in it."""
    destination: tyro.conf.Positional[str] = ""
    """The model directory to write, or the file (.pt, .pth, .bin, .safetensors): one that is there is replaced. Or a
    directory for transformers, whose name must be free."""
    inspect: bool = False
    """Only list the file's tensors, and the dialects that they could be of."""
    dialect: str | None = None
    """Whose names these are. Needed where they fit several."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Convert all values to it, but position tables not to bfloat16. Without it they stay as they are."""
    source_vocab: str | None = None
    """The source's vocabulary: a tokenizer.json, a sentencepiece .model, or a .txt of tokens, the line's number from 0
    being the id. Without it, of a directory of transformers: what its tokenizer files say."""
    target_vocab: str | None = None
    source_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    """How text is split for a .txt vocabulary. Without it: as the dialect's program does."""
    target_tokenizer: Literal["words", "whitespace", "characters", "spacy"] | None = None
    source_language: str = ""
    """For a .txt vocabulary of spaCy's words: the code of the language, such as en."""
    target_language: str = ""
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)


def port(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer port ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: whatever can't be ported; nothing is written then.
    """
    options = tyro.cli(PortOptions, args=list(arguments), prog="jax-transformer port")
    if options.inspect:
        _refuse_others(options, {"inspect"}, "with --inspect")
        return _inspect(options)
    if not options.destination:
        raise ValueError(f"port: expected two paths; received {options.source} alone; {USAGE_HINT}")
    _check_places(options)
    return _export(options) if _is_ours(options.source) else _import(options)


def _is_ours(source: str) -> bool:
    """Returns whether it is a model directory or a run directory, and not one of transformers, whose only sign may
    be its config.json."""
    return Path(source).is_dir() and (is_model_directory(source) or not (Path(source) / "config.json").is_file())


def _check_places(options: PortOptions) -> None:
    """Raises ValueError for paths, and options beside them, that can't be meant, before anything is read."""
    from jax_transformer.porting.hugging_face import is_hub_name

    source, destination = Path(options.source), Path(options.destination)
    to_file = destination.suffix in SUFFIXES
    if not source.exists() and not is_hub_name(options.source):
        raise ValueError(f"{source}: no such file or directory; {USAGE_HINT}")
    if not _is_ours(options.source):
        if to_file:
            raise ValueError(f"port: expected a directory to write; received {destination}; {USAGE_HINT}")
        check_replaceable(destination.resolve())
        return
    _refuse_others(options, {"destination", "dialect", "dtype"}, f"with the directory {source} as the source")
    if not destination.parent.is_dir():
        raise ValueError(f"{destination}: there is no directory {destination.parent}")
    if source.resolve() in (destination.resolve(), *destination.resolve().parents):
        raise ValueError(
            f"port: expected a name outside of {source}, whose files are under checksums; received {destination}"
        )


def _refuse_others(options: PortOptions, used: Collection[str], when: str) -> None:
    """Raises ValueError for options that have no effect here, and so aren't what was meant."""
    others = [
        field.name
        for field in dataclasses.fields(options)
        if field.name not in {"source", "checkpoint", *used} and getattr(options, field.name) != field.default
    ]
    if "checkpoint" not in used:
        others += options.checkpoint.given()
    if others:
        named = ", ".join(
            f"--{name}".replace("_", "-") if name != "destination" else options.destination for name in others
        )
        raise ValueError(f"port: expected none of these {when}; received {named}")


# --- a file → a model directory


def _import(options: PortOptions) -> int:
    from jax_transformer.porting.convert import read_checkpoint
    from jax_transformer.storage.model_directory import save_model

    hints = options.checkpoint.hints()
    model = read_checkpoint(options.source, options.dialect, hints)
    if options.dtype:
        _cast(model.params, options.dtype)
    model, of_text = _with_vocabularies(model, options)
    save_model(model, options.destination)
    origin = model.origin or {}
    prefix = f", all named {origin['prefix']}…" if origin["prefix"] else ""
    print(f"dialect:  {origin['dialect']}")
    label = "files:" if "hugging_face" in origin else "file:"
    print(f"{label:9} {options.source}, {len(origin['tensors'])} tensors{prefix}")
    if "ignored" in origin:
        print(f"ignored:  {', '.join(origin['ignored'])} (its programs don't read them)")
    if model.generation.decoding:
        print(f"decoding: {_listed(model.generation.decoding)}")
    if left_out := _not_decoded(origin):
        print(f"          not decoded by: {_listed(left_out)} (kept for export)")
    if of_text:
        print(f"text:     {of_text}")
    if assumed := _assumed(model, hints):
        print(f"assumed:  {_listed(assumed)} (as its program has it; --set says otherwise)")
    print(f"model:    {options.destination}, {_num_parameters(model):,} parameters, {_use(model)}")
    return 0


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _not_decoded(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decoding settings of a Hugging Face model that aren't built here."""
    from jax_transformer.porting.generation_config import in_effect, not_decoded

    files = origin.get("hugging_face", {"config": {}, "generation_config": ""})
    return not_decoded(in_effect(files["config"], files["generation_config"]))


def _assumed(model: Model, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that neither the checkpoint nor the user gave."""
    from jax_transformer.porting.dialects import get_dialect

    origin = model.origin or {}
    if "hugging_face" in origin or origin.get("has_settings"):
        return {}  # config.json, or the file's own metadata, says it
    told = dict(origin["config"])
    if get_dialect(origin["dialect"]).computes_positions and "position_table" not in hints:
        told["max_length"] = model.config.max_length
    return {name: value for name, value in told.items() if name not in hints}


def _use(model: Model) -> str:
    """Describes what a model can be used for."""
    if model.source_tokenizer is None:
        return "without vocabularies"
    if model.generation.decoder_start_id is None or model.generation.eos_id is None:
        return "which doesn't know how sentences begin and end: give --decoder-start-id and --eos-id"
    return "which translates"


def _cast(tree: dict[str, Any], dtype: str) -> None:
    """Replaces all leaves by others of the dtype, one at a time; but not position tables, which bfloat16 would
    spoil."""
    import jax.numpy as jnp

    for name, value in tree.items():
        if not isinstance(value, dict):
            if not (name.endswith("_positions") and dtype == "bfloat16"):
                tree[name] = value.astype(jnp.dtype(dtype), copy=False)
        else:
            _cast(value, dtype)


def _num_parameters(model: Model) -> int:
    """Values that are trained: not those of position tables."""
    from jax_transformer.runtime.trees import flatten

    return sum(leaf.size for path, leaf in flatten(model.params).items() if not path.startswith("constants/"))


def _with_vocabularies(model: Model, options: PortOptions) -> tuple[Model, str]:
    """The model with the tokenizers that the options name, or else those of its own files, and the ids that these say;
    and what is to be told of them.

    Raises:
      ValueError: one vocabulary without the other, or an option of a vocabulary that isn't there; a vocabulary of
        another size than the embedding, with another pad, or with an <eos> other than the option's.
    """
    files = {"source": options.source_vocab, "target": options.target_vocab}
    if not any(files.values()):
        _refuse_others(options, _WITHOUT_VOCABULARIES, "without --source-vocab and --target-vocab")
        return _with_own_vocabularies(model)
    if not all(files.values()):
        raise ValueError(
            f"--source-vocab and --target-vocab: expected both, or neither; received {options.source_vocab} and "
            f"{options.target_vocab}"
        )
    source, target = (_tokenizer(model, side, str(file), options) for side, file in files.items())
    return _with_tokenizers(model, source, target, str(options.target_vocab)), _tags(source)


def _with_own_vocabularies(model: Model) -> tuple[Model, str]:
    """The model with the tokenizers of its directory's files, if it has some that can be used; and how it went."""
    from jax_transformer.data.tokenizers.hugging_face import cleans_up, read_tokenizers

    files = model.tokenizer_files
    if not files:
        return model, ""
    try:
        source, target = read_tokenizers(files, (model.origin or {})["hugging_face"]["config"])
        source, target = (
            _fitting(model, "source", source, "its tokenizer"),
            _fitting(model, "target", target, "its tokenizer"),
        )
        model = _with_tokenizers(model, source, target, "its tokenizer")
    except ValueError as error:
        return model, f"its tokenizer files are kept for export, but not used: {error}"
    told = [f"by {', '.join(files)}", _tags(source)]
    if cleans_up(files):
        told.append("not done: clean_up_tokenization_spaces, so that spaces before punctuation stay")
    return model, "\n          ".join(filter(None, told))


def _tags(source: Tokenizer) -> str:
    """Describes the values of --source-tag and --target-tag; "" if there are none."""
    tags = source.tags
    return f"tags {', '.join(tags[:10])}{f', … ({len(tags)})' if len(tags) > 10 else ''}" if tags else ""


def _with_tokenizers(model: Model, source: Tokenizer, target: Tokenizer, file: str) -> Model:
    """The model with tokenizers, and the ids that the target's says. Raises ValueError where the model's are others."""
    generation = model.generation
    specials = {index for index in (target.bos_id, target.eos_id, target.unk_id, target.pad_id) if index >= 0}
    if generation.decoder_start_id not in {None, *specials}:
        raise ValueError(
            f"--decoder-start-id: expected a special token of {file}, {' or '.join(map(str, sorted(specials)))}; "
            "received "
            f"{generation.decoder_start_id}"
        )
    if generation.decoder_start_id is None and max(target.bos_id, target.eos_id) >= 0:
        generation = dataclasses.replace(
            generation, decoder_start_id=target.bos_id if target.bos_id >= 0 else target.eos_id
        )
    if generation.eos_id is None and target.eos_id >= 0:
        generation = dataclasses.replace(generation, eos_id=target.eos_id)
    elif generation.eos_id != target.eos_id >= 0:
        raise ValueError(f"--eos-id: expected {target.eos_id}, as {file} says; received {generation.eos_id}")
    return dataclasses.replace(model, source_tokenizer=source, target_tokenizer=target, generation=generation)


_OF_VOCABULARIES = {f"{side}_{name}" for side in ("source", "target") for name in ("vocab", "tokenizer", "language")}
_WITHOUT_VOCABULARIES = {field.name for field in dataclasses.fields(PortOptions)} - _OF_VOCABULARIES


def _tokenizer(model: Model, side: str, file: str, options: PortOptions) -> Tokenizer:
    """The tokenizer of one side, in agreement with the model."""
    from jax_transformer.data.tokenizers import load_tokenizer
    from jax_transformer.porting.dialects import get_dialect

    usual = get_dialect((model.origin or {})["dialect"]).text[side]
    kind, language = getattr(options, f"{side}_tokenizer"), getattr(options, f"{side}_language")
    is_list = Path(file).suffix == ".txt"
    if (kind or language) and not is_list:
        raise ValueError(
            f"--{side}-tokenizer, --{side}-language: expected with a .txt vocabulary; {file} says itself how text is "
            "split"
        )
    kind = kind or usual.kind
    if language and kind != "spacy":
        raise ValueError(f"--{side}-language: expected with --{side}-tokenizer spacy; received with {kind}")
    if is_list and kind == "spacy" and not language:
        raise ValueError(
            f"--{side}-language: expected the code of the language, such as en, by which spaCy splits text; received "
            "none"
        )
    tokenizer = load_tokenizer(
        file,
        kind=kind,
        specials=None,
        lowercase=usual.lowercase and is_list,
        language=language,
        add_bos=usual.add_bos,
        add_eos=usual.add_eos,
    )
    return _fitting(model, side, tokenizer, file)


def _fitting(model: Model, side: str, tokenizer: Tokenizer, file: str) -> Tokenizer:
    """The tokenizer with as many ids as the side's embedding has rows, of which models of transformers have more than
    they have tokens.

    Raises:
      ValueError: another size, or another padding.
    """
    size, pad_id = (getattr(model.config, f"{side}_{name}") for name in ("vocab_size", "pad_id"))
    may_be_fewer = "hugging_face" in (model.origin or {})
    if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not may_be_fewer):
        at_most = "at most " if may_be_fewer else ""
        raise ValueError(
            f"{file}: expected {at_most}{size} tokens, the rows of the {side} embedding; received "
            f"{tokenizer.vocab_size}"
        )
    if pad_id not in (tokenizer.pad_id, tokenizer.unk_id):  # some programs pad with <unk>, whatever else their list has
        received = "without any" if tokenizer.pad_id < 0 else f"whose padding is {tokenizer.pad_id}"
        raise ValueError(f"{file}: expected {side}_pad_id={pad_id} to be its padding; received a list {received}")
    return tokenizer.filled(size)


# --- a model directory → a file, or a directory of transformers


def _export(options: PortOptions) -> int:
    from jax_transformer.porting.convert import export_checkpoint
    from jax_transformer.porting.dialects import get_dialect
    from jax_transformer.porting.state_dicts import computes_position_table
    from jax_transformer.storage.model_directory import load_model

    model = load_model(options.source, mapped=True)
    name, count = options.dialect or (model.origin or {}).get("dialect"), _num_parameters(model)
    as_computed = name is None or computes_position_table(model, name)
    if options.dtype:
        _cast(model.params, options.dtype)
    export_checkpoint(model, options.destination, name, consume=True)
    print(f"dialect:  {name}")
    label = "file:" if options.destination.endswith(SUFFIXES) else "files:"
    print(f"{label:9} {options.destination}, {count:,} parameters")
    if get_dialect(str(name)).leaves_out_positions(model.config):
        other = (
            "" if as_computed else "; this model's are others than are computed here, so keep those that it was given"
        )
        print(f"          without position tables, which its programs compute{other}")
    return 0


# --- a look into a checkpoint


def _inspect(options: PortOptions) -> int:
    from jax_transformer.porting.checkpoint import open_checkpoint
    from jax_transformer.porting.dialects import all_dialects, candidates, get_dialect
    from jax_transformer.porting.exported_settings import parse_settings
    from jax_transformer.porting.hugging_face import of_family, open_directory

    directory = open_directory(options.source)
    source = options.source if directory is None else directory.tensors
    prefixes = {table.base_prefix for table in all_dialects().values()}
    checkpoint = open_checkpoint(source, lambda names: bool(candidates(names)), prefixes)
    width = max((len(name) for name in checkpoint.tensors), default=0)
    total = 0
    for name, tensor in checkpoint.tensors.items():
        print(f"{name:{width}}  {tensor.dtype!s:8}  {'×'.join(map(str, tensor.shape)) or 'a number'}")
        total += tensor.size
    print(f"\n{len(checkpoint.tensors)} tensors, {total:,} values")
    if checkpoint.described():
        print(checkpoint.described())
    possible = candidates(checkpoint.tensors.keys())
    if checkpoint.settings is not None:
        settings = parse_settings(checkpoint.settings, options.source)
        print(f"exported by jax-transformer with its settings, as dialect {settings.dialect}")
        possible = [get_dialect(settings.dialect)]
    if directory is not None:
        print(f"config.json says {of_family(directory.table).model_type}")
        possible = [directory.table]
    for dialect in possible:
        print(f"could be {dialect.name}: {dialect.title}")
    if not possible:
        print("of no known dialect")
    return 0
