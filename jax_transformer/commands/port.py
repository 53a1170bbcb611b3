"""jax-transformer port: converts a checkpoint to a model directory or back, or lists a checkpoint's contents.

LoRA adapters in PEFT's directories: commands/port_adapters.py; optimizers' states: commands/port_training.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_transformer import buckets
from jax_transformer.buckets import address_of, local_directory, local_file
from jax_transformer.commands import port_adapters, port_training
from jax_transformer.commands.checkpoint_options import CheckpointOptions
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.port_training import TrainingStateOptions
from jax_transformer.commands.vocabulary_options import VocabularyOptions, with_vocabularies
from jax_transformer.porting.formats import is_format
from jax_transformer.runtime.files import naming_errors
from jax_transformer.storage.hub import hub_name, is_model_on_hub
from jax_transformer.storage.model_directory import check_replaceable, load_model
from jax_transformer.storage.model_files import is_model_directory, model_in_bucket
from jax_transformer.storage.tensor_files import SUFFIXES

if TYPE_CHECKING:
    from jax_transformer.mapping.maps import NameMap
    from jax_transformer.storage.model_directory import Model

FILE = tyro.conf.arg(metavar="FILE")
USAGE_HINT = (
    "name a checkpoint (a torch file, or a directory of transformers) and the model directory to write, or a model "
    "directory and a destination: a .pt or .safetensors file, or a directory for transformers"
)


@dataclass(frozen=True)
class PortOptions:
    """Port a checkpoint to a model directory, or a model directory to a checkpoint.

    A checkpoint is a torch file, a directory of transformers, or one of T5X, Marian, JoeyNMT or Sockeye. Most options
    supply what a file omits; error messages ask for missing ones by name. Checkpoints of any other program need a map
    of names and a config.
    A directory of LoRA adapters that PEFT wrote is merged into the model at --base; --adapters writes one.
    """

    source: tyro.conf.Positional[str]
    """A file (.pt, .pth, .bin, .safetensors) or the .index.json of several; a directory that transformers wrote, or
    its name on the Hub; a checkpoint of T5X, Marian's .npz; a directory of JoeyNMT or Sockeye; a directory of PEFT's
    adapters; or a model directory, a run directory that contains one, or its name on the Hub."""
    destination: tyro.conf.Positional[str] = ""
    """The model directory to write, or the file (.pt, .pth, .bin, .safetensors); an existing one is replaced. Or a new
    directory for transformers, T5X, JoeyNMT or Sockeye, or Marian's .npz."""
    inspect: bool = False
    """Only list the file's tensors and the dialects that match them."""
    dialect: str | None = None
    """Dialect of the tensor names. Required if several match."""
    map: Annotated[str | None, FILE] = None
    """A YAML file that maps the names of a program of no dialect. The model directory keeps it for export."""
    config: Annotated[str | None, FILE] = None
    """With --map: a YAML file with the fields of the model's config, or a run's config.yaml, which has them under
    model. Default: the fields in a file that was exported by a map."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Convert all values to this dtype, except position tables to bfloat16. Default: keep their dtypes."""
    adapters: bool = False
    """Write the LoRA adapters of a model directory, as a new directory for PEFT, and not the model."""
    base: str = ""
    """The model that adapters are for. To merge PEFT's: a model directory, or a directory of transformers or its name
    on the Hub; default: the name that they record. With --adapters: the name that PEFT shall read."""
    add_tokens: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TOKEN …")] = ()
    """Add tokens to a model of transformers: texts that become one token. New rows are drawn as by
    resize_token_embeddings of transformers."""
    add_tags: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TAG …")] = ()
    """Add special tokens, such as the codes of languages, for --source-tag and --target-tag."""
    seed: int = 0
    """Seed for the rows of added tokens."""
    vocabularies: tyro.conf.OmitArgPrefixes[VocabularyOptions] = field(default_factory=VocabularyOptions)
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)
    training: tyro.conf.OmitArgPrefixes[TrainingStateOptions] = field(default_factory=TrainingStateOptions)

    def given(self) -> list[str]:
        """Returns the names of the options that were set."""
        groups = (self, self.vocabularies, self.checkpoint, self.training)
        fields = [(group, field) for group in groups for field in dataclasses.fields(group)]
        own = [
            (group, field) for group, field in fields if field.name not in ("vocabularies", "checkpoint", "training")
        ]
        return [field.name for group, field in own if getattr(group, field.name) != field.default]


def port(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer port ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the source can't be ported; nothing is written.
    """
    from jax_transformer.porting.adapters import is_adapter_directory

    options = parsed(PortOptions, arguments, "port")
    options = dataclasses.replace(options, source=_local(options.source, with_run=options.training.with_optimizer))
    if options.inspect:
        _refuse_others(options, ("inspect",), "with --inspect")
        if is_adapter_directory(options.source):
            raise ValueError(f"--inspect: expected a checkpoint; received PEFT's adapters, {options.source}")
        return _inspect(options)
    if options.adapters or is_adapter_directory(options.source):
        return _port_adapters(options)
    if options.base:
        raise ValueError(f"--base {options.base}: expected --adapters, or PEFT's adapters as the source")
    if options.map and options.dialect:
        raise ValueError(f"port: expected --map or --dialect; received both, {options.map} and {options.dialect}")
    if options.config and not options.map:
        raise ValueError(f"--config {options.config}: expected --map; dialects define what their programs compute")
    state_options = {field.name for field in dataclasses.fields(TrainingStateOptions)} & {*options.given()}
    if state_options and not options.training.with_optimizer:
        raise ValueError(f"--{min(state_options).replace('_', '-')}: expected --with-optimizer; received none")
    if options.seed != 0 and not (options.add_tokens or options.add_tags):
        raise ValueError(f"--seed {options.seed}: expected --add-tokens or --add-tags, whose rows it draws")
    if not options.destination:
        raise ValueError(f"port: expected two paths; received {options.source} alone; {USAGE_HINT}")
    _check_places(options)
    return _export(options) if _is_ours(options.source) else _import(options)


def _local(source: str, *, with_run: bool) -> str:
    """Returns a local path of the source, of which one in a bucket is downloaded: a model without the rest of its run,
    unless that is wanted."""
    if address_of(source) is None:
        return source
    model = None if with_run else model_in_bucket(source)
    try:
        return str(model or local_directory(source))
    except FileNotFoundError:
        return str(local_file(source))


def _is_ours(source: str) -> bool:
    """Returns whether the source is a model or run directory, or a model on the Hub, and not one of transformers, which
    a config.json alone may mark."""
    if Path(source).is_dir():
        return is_model_directory(source) or not ((Path(source) / "config.json").is_file() or is_format(source))
    return is_model_on_hub(source)


def _check_places(options: PortOptions) -> None:
    """Raises ValueError for unusable paths, and for options that don't apply to them, before reading anything."""
    source, destination = Path(options.source), Path(options.destination)
    to_file = destination.suffix in (*SUFFIXES, ".npz")
    if not source.exists() and hub_name(options.source) is None:
        raise ValueError(f"{source}: no such file or directory; {USAGE_HINT}")
    if not _is_ours(options.source):
        if to_file:
            raise ValueError(f"port: expected a directory to write; received {destination}; {USAGE_HINT}")
        check_replaceable(options.destination)
        return
    used = ("destination", "dialect", "map", "dtype", "with_optimizer", "step", "add_tokens", "add_tags", "seed")
    _refuse_others(options, used, f"with the directory {source} as the source")
    address = address_of(options.destination)
    if address is not None:
        buckets.check_free(address)
    elif not destination.parent.is_dir():
        raise ValueError(f"{destination}: there is no directory {destination.parent}")
    _check_outside(source, destination)


def _check_outside(source: Path, destination: Path) -> None:
    """Raises ValueError for a destination inside of the source directory."""
    if source.resolve() in (destination.resolve(), *destination.resolve().parents):
        raise ValueError(
            f"port: expected a name outside of {source}, whose files are under checksums; received {destination}"
        )


def _refuse_others(options: PortOptions, used: Collection[str], when: str) -> None:
    """Raises ValueError for options that were set but have no effect; `when` describes the case."""
    unused = [name for name in options.given() if name not in {"source", *used}]
    if unused:
        named = [options.destination if name == "destination" else f"--{name.replace('_', '-')}" for name in unused]
        raise ValueError(f"port: expected none of these {when}; received {', '.join(named)}")


# --- a file → a model directory


def _import(options: PortOptions) -> int:
    from jax_transformer.porting.importing import read_checkpoint
    from jax_transformer.porting.position_tables import described, other_tables
    from jax_transformer.storage.model_directory import save_model

    hints = options.checkpoint.hints()
    with naming_errors(options.source):
        model = read_checkpoint(options.source, options.dialect, hints, names=options.map, config=options.config)
        if options.training.with_optimizer:
            model = port_training.read(model, options.source, options.training)
    if options.dtype:
        _cast(model.params, options.dtype)
    model, text = with_vocabularies(model, options.vocabularies)
    model, added = _with_tokens(model, options)
    save_model(model, options.destination)
    origin = model.origin or {}
    is_everywhere = "names" not in origin or all(name.startswith(origin["prefix"]) for name in origin["tensors"])
    prefix = f", {'all ' if is_everywhere else ''}named {origin['prefix']}…" if origin["prefix"] else ""
    _print_names(origin)
    if "format" in origin:
        print(f"format:   {origin['format']}")
    label = "files:" if "hugging_face" in origin else "file:"
    print(f"{label:9} {options.source}, {len(origin['tensors'])} tensors{prefix}")
    if "ignored" in origin:
        kept = "kept for export" if "names" in origin else "its programs don't read them"
        print(f"ignored:  {_some(origin['ignored'])} ({kept})")
    if left := origin.get("left"):
        print(f"left:     {', '.join(left)}")
    if computed := _computed(model):
        print(f"computed: {', '.join(computed)} (the map doesn't name them)")
    if tables := other_tables(model.config, model.params):
        print(f"note:     {described(tables)}; kept as the checkpoint has them")
    if model.generation.decoding:
        print(f"decoding: {_listed(model.generation.decoding)}")
    if lacking := _lacking(origin):
        print(f"ids:      {_listed(lacking)}, from config.json: transformers' generate has none")
    if left_out := _not_decoded(origin):
        print(f"          not decoded by: {_listed(left_out)} (kept for export)")
    if model.training_state is not None:
        print(f"training: {port_training.described(model.training_state)}")
    if series := model.generation.series:
        print(
            f"series:   {series.num_bins:,} bins from {series.low:g} to {series.high:g}; reads "
            f"{series.context_length} values and predicts {series.prediction_length}"
        )
    if text:
        print(f"text:     {text}")
    if added:
        print(f"added:    {added}")
    if assumed := _assumed(model, hints):
        print(f"assumed:  {_listed(assumed)} (the dialect's defaults; change them with --set)")
    print(f"model:    {options.destination}, {_num_parameters(model):,} parameters, {_use(model)}")
    return 0


def _with_tokens(model: Model, options: PortOptions) -> tuple[Model, str]:
    """Returns the model with the tokens to add, and a line about them."""
    if not (options.add_tokens or options.add_tags):
        return model, ""
    from jax_transformer.storage.added_tokens import add_tokens

    rows = model.config.target_vocab_size
    try:
        model = add_tokens(model, options.add_tokens, tags=options.add_tags, seed=options.seed)
    except ValueError as error:
        option = "--add-tokens" if options.add_tokens else "--add-tags"
        raise ValueError(f"{option}: {str(error).removeprefix('add_tokens: ')}") from None
    more = model.config.target_vocab_size - rows
    drawn = f"{more} new rows" if more else "no new rows: the embedding had some beyond its vocabulary"
    return model, f"{', '.join([*options.add_tokens, *options.add_tags])}; {drawn}"


def _print_names(origin: Mapping[str, Any]) -> None:
    """Prints the dialects whose names the tensors have."""
    from jax_transformer.porting.names_of_dialects import map_of_origin

    names = map_of_origin(origin)
    if names is None:
        print(f"dialect:  {origin['dialect']}")
    else:
        print(f"map:      {len(names.parameters)} entries")


def _computed(model: Model) -> list[str]:
    """Returns the position tables that a map leaves to be computed."""
    from jax_transformer.porting.names_of_dialects import computed_positions, map_of_origin

    names = map_of_origin(model.origin)
    return [] if names is None else list(computed_positions(names.rules(), model.config))


def _some(names: Sequence[str]) -> str:
    """Lists names, the first of many."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown}, … ({len(names)} tensors)"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _not_decoded(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decoding settings of a Hugging Face model that aren't built here."""
    from jax_transformer.porting.hugging_face import in_effect, not_decoded

    files = origin.get("hugging_face", {"config": {}, "generation_config": ""})
    return not_decoded(in_effect(files["config"], files["generation_config"]))


def _lacking(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the start and end ids that transformers' `generate` has none for, where the files leave them out."""
    from jax_transformer.porting.dialects import get_dialect
    from jax_transformer.porting.hugging_face import family_file, in_effect, resolved_config, start_and_end

    if "hugging_face" not in origin:
        return {}
    files, file = origin["hugging_face"], family_file(get_dialect(origin["dialect"]))
    content = in_effect(files["config"], files["generation_config"])
    return start_and_end(content, resolved_config(file, files["config"]), starts_with_tag=file.starts_with_tag)[1]


def _assumed(model: Model, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that neither the checkpoint nor the user gave."""
    from jax_transformer.porting.dialects import get_dialect

    origin = model.origin or {}
    if "hugging_face" in origin or origin.get("has_settings") or "names" in origin:
        return {}  # config.json, the file's own metadata or the user's config has all settings
    assumed = {**origin["config"], **origin.get("assumed", {})}
    if get_dialect(origin["dialect"]).computes_positions and "position_table" not in hints:
        assumed["max_length"] = model.config.encoder.max_length
    return {name: value for name, value in assumed.items() if name not in hints}


def _use(model: Model) -> str:
    """Describes the model's use."""
    if model.generation.series is not None:
        return "ready to forecast"
    if model.source_tokenizer is None:
        return "without vocabularies"
    if model.generation.decoder_start_id is None or model.generation.eos_id is None:
        return "without the ids that begin and end sentences: pass --decoder-start-id and --eos-id"
    return "ready to translate"


def _cast(tree: dict[str, Any], dtype: str) -> None:
    """Casts all leaves in place, one at a time, but no position table to bfloat16, which would round it too much."""
    import jax.numpy as jnp

    for name, value in tree.items():
        if isinstance(value, dict):
            _cast(value, dtype)
        elif not (name.endswith("_positions") and dtype == "bfloat16"):
            tree[name] = value.astype(jnp.dtype(dtype), copy=False)


def _num_parameters(model: Model) -> int:
    """Counts the trained values, without position tables."""
    from jax_transformer.runtime.trees import flatten

    return sum(leaf.size for path, leaf in flatten(model.params).items() if not path.startswith("constants/"))


# --- a model directory → a file, or a directory of transformers


def _export(options: PortOptions) -> int:
    from jax_transformer.mapping.maps import NameMap
    from jax_transformer.porting.exporting import export_checkpoint
    from jax_transformer.porting.names_of_dialects import map_of_origin

    with_optimizer = options.training.with_optimizer
    source, step = options.source, options.training.step
    model = port_training.load(source, step) if with_optimizer else load_model(source, mapped=True)
    state = model.training_state
    model, added = _with_tokens(model, options)
    own = None if options.dialect else map_of_origin(model.origin)
    names = own if options.map is None else NameMap.read(options.map)
    dialect = None if names else options.dialect or (model.origin or {}).get("dialect")
    count, ignored = _num_parameters(model), len(model.ignored_tensors or {}) if names and names == own else 0
    left_out = _left_out(model, dialect) if names is None else _left_out_by(names, model)
    if options.dtype:
        _cast(model.params, options.dtype)
    with buckets.written(options.destination) as local:
        export_checkpoint(model, local, dialect, names=names, with_optimizer=with_optimizer, consume=True)
    print(f"dialect:  {dialect}" if names is None else f"map:      {len(names.parameters)} entries")
    label = "file:" if options.destination.endswith((*SUFFIXES, ".npz")) else "files:"
    dropped = f", {ignored} ignored tensor{'s' if ignored > 1 else ''}" if ignored else ""
    print(f"{label:9} {options.destination}, {count:,} parameters{dropped}")
    if with_optimizer and state is not None:
        print(f"training: {port_training.written(state)}")
    if added:
        print(f"added:    {added}")
    if left_out:
        other = "; this model's tables differ from the computed ones, so keep the original file"
        print(f"          without position tables, which its programs compute{other if left_out == 'others' else ''}")
    return 0


def _left_out(model: Model, dialect: str | None) -> Literal["computed", "others"] | None:
    """Returns the kind of position tables that a dialect's checkpoint can't hold, if any: computed or other tables."""
    from jax_transformer.porting.dialects import get_dialect
    from jax_transformer.porting.state_dicts import computes_position_table

    table = None if dialect is None else get_dialect(dialect)
    if table is None or not table.leaves_out_positions(model.config):
        return None
    return "computed" if computes_position_table(model, table) else "others"


def _left_out_by(names: NameMap, model: Model) -> Literal["computed", "others"] | None:
    """Returns the same of a map."""
    import numpy as np

    from jax_transformer.porting.names_of_dialects import computed_positions
    from jax_transformer.runtime.trees import flatten

    computed, leaves = computed_positions(names.rules(), model.config), flatten(model.params)
    if not computed:
        return None
    return "computed" if all(np.array_equal(leaves[path], leaf) for path, leaf in computed.items()) else "others"


# --- LoRA adapters


def _port_adapters(options: PortOptions) -> int:
    """Merges PEFT's adapters into a model, or writes a model's adapters for PEFT."""
    from jax_transformer.porting.adapters import is_adapter_directory
    from jax_transformer.porting.importing import read_checkpoint

    if not options.destination:
        raise ValueError(f"port: expected two paths; received {options.source} alone; {USAGE_HINT}")
    if options.adapters:
        _refuse_others(options, ("destination", "dialect", "adapters", "base"), "with --adapters")
        if is_adapter_directory(options.source) or not _is_ours(options.source):
            raise ValueError(f"--adapters: expected a model or run directory; received {options.source}")
        _check_outside(Path(options.source), Path(options.destination))
        port_adapters.export(options.source, options.destination, options.dialect, options.base)
        return 0
    _refuse_others(options, ("destination", "dtype", "base"), f"with PEFT's adapters, {options.source}, as the source")
    check_replaceable(options.destination)
    base = port_adapters.base_path(options.source, options.base)
    if _is_ours(base):
        model = load_model(base)
    else:
        model, _ = with_vocabularies(read_checkpoint(base, None, {}), options.vocabularies)
    if options.dtype:
        _cast(model.params, options.dtype)
    port_adapters.merge(options.source, model, options.destination)
    return 0


# --- listing a checkpoint


def _inspect(options: PortOptions) -> int:
    from jax_transformer.porting.checkpoint import open_checkpoint, open_directory, parse_settings
    from jax_transformer.porting.dialects import all_dialects, candidates, get_dialect
    from jax_transformer.porting.formats import open_format, read_settings_of
    from jax_transformer.porting.hugging_face import family_file
    from jax_transformer.storage.tensor_files import read_tensors

    foreign = open_format(options.source)
    directory = open_directory(options.source) if foreign is None else None
    source = options.source if directory is None else directory.tensors
    if foreign is None and directory is None:
        foreign = read_settings_of(options.source, read_tensors(options.source))
    if foreign is not None and foreign.tensors is not None:
        source = foreign.tensors
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
        names = "by a map of names" if settings.names else f"as dialect {settings.dialect}"
        print(f"exported by jax-transformer with its settings, {names}")
        if settings.names:
            return 0
        possible = [get_dialect(settings.dialect)]
    if directory is not None:
        print(f"config.json says {family_file(directory.table).model_type}")
        possible = [directory.table]
    if foreign is not None:
        print(f"format: {foreign.title}")
        if foreign.fields:
            print(f"{foreign.where} says {_listed(foreign.fields)}")
        if foreign.left:
            print(f"not read: {', '.join(foreign.left)}")
        if foreign.missing:
            print(f"missing: {', '.join(foreign.missing)}")
    for dialect in possible:
        print(f"could be {dialect.name}: {dialect.title}")
    if not possible:
        print("matches no known dialect")
    return 0
