"""Importing and exporting LoRA adapters as PEFT's directories, for models of transformers' families.

model = import_adapter("adapter", model)     # merged
export_adapter(model, "adapter")

PEFT names A and B after the linear layers that they adapt, so a dialect's table gives their names, too: a rule
`q_proj.weight ↔ query/kernel, (N H) D -> D N H` gives `q_proj.lora_A.weight ↔ query/lora_a, R D -> D R` and
`q_proj.lora_B.weight ↔ query/lora_b, (N H) R -> R N H`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.config.shapes import param_shapes
from jax_transformer.mapping.axes import Axes
from jax_transformer.mapping.rules import Rule, leaves_from_tensors, not_finite, tensors_from_leaves
from jax_transformer.model.lora import KERNEL, A, B
from jax_transformer.porting.dialects import Dialect, get_dialect
from jax_transformer.porting.hugging_face import family_file
from jax_transformer.porting.peft_config import PeftConfig, peft_config, read_peft_config
from jax_transformer.runtime.directories import check_free, new_directory
from jax_transformer.runtime.json_text import read_json
from jax_transformer.runtime.trees import flatten, nearest, unflatten
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays, read_tensors, write_tensors
from jax_transformer.storage.tensors import PortingError

CONFIG, TENSORS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
"""The beginning of all names in a PEFT file."""
A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


class Pair(NamedTuple):
    """Holds the adapter of one linear layer, as PEFT has it."""

    a: np.ndarray  # [R, inputs]
    b: np.ndarray  # [outputs, R]
    scale: float
    alpha: float


def is_adapter_directory(path: str | os.PathLike[str]) -> bool:
    """Returns whether a directory holds PEFT's adapters."""
    return (Path(path) / CONFIG).is_file()


def base_of(path: str | os.PathLike[str]) -> str:
    """Returns the name or path of the model that an adapter directory says it is for; "" if it says nothing.

    Raises:
      PortingError: see `import_adapter`.
    """
    return _read_config(Path(path)).base


def import_adapter(path: str | os.PathLike[str], model: Model) -> Model:
    """Returns a model with PEFT's LoRA adapters merged into its parameters.

    If all adapters have one rank and one scale, and reach all layers of a stack, the result also holds them by
    themselves: training can go on from them, and `export_adapter` writes them back. It leaves out the model's scores
    and training state, which belong to other parameters.

    Args:
      path: a directory that PEFT's save_pretrained wrote.
      model: the model of transformers that the adapters were trained on, as `import_checkpoint` or `load_model` returns
        it.

    Raises:
      PortingError: a file that is missing or malformed; another method than LoRA, or more than LoRA; adapters of layers
        that the model doesn't have, or of other shapes. Reports all problems together.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> from jax_transformer import GenerationConfig, LoraConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.porting import all_dialects
      >>> from jax_transformer.storage.adapters import Adapters
      >>> marian = all_dialects()["marian"].fixed
      >>> config = TransformerConfig(**marian, source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, share_embeddings=True, tie_head=True)
      >>> query = {"lora_a": np.ones((1, 8, 2), np.float32), "lora_b": np.ones((1, 2, 2, 4), np.float32)}
      >>> adapters = Adapters(LoraConfig(rank=2), {"encoder": {"layers": {"self_attention": {"query": query}}}})
      >>> params, generation = init_params(config, jax.random.key(0)), GenerationConfig(decoder_start_id=1)
      >>> model = Model(config, params, None, None, generation, {"dialect": "marian"}, adapters=adapters)
      >>> export_adapter(model, "adapter")
      >>> import_adapter("adapter", model).adapters.config.scale
      4.0
    """
    path = Path(path)
    config = _read_config(path)
    table = _family(model, None)
    rules, shapes = _kernel_rules(table, model), param_shapes(model.config)
    tensors = _read_tensors(path, table, rules, shapes)
    pairs = _pairs(config, tensors, rules, shapes)
    leaves = {key: np.asarray(leaf) for key, leaf in flatten(model.params).items()}
    for rule in rules:
        layers = {
            place.index: pairs[module] for place in rule.places(shapes) if (module := _module(place.names)) in pairs
        }
        if layers:
            leaves[rule.paths[0]] = _merged(rule, leaves[rule.paths[0]], layers)
    adapters = _kept(config, tensors, pairs, rules, shapes)
    return dataclasses.replace(model, params=unflatten(leaves), adapters=adapters, training=None, training_state=None)


def export_adapter(model: Model, path: str | os.PathLike[str], dialect: str | None = None, *, base: str = "") -> None:
    """Writes a model's LoRA adapters as a directory that PEFT's `PeftModel.from_pretrained(base_model, path)` reads.

    Args:
      model: a model that was trained with `train.lora`, or the result of `import_adapter`.
      path: a new or an empty directory.
      dialect: the family of transformers. None: the one that the model was imported from.
      base: name or path of the model of transformers that the adapters are for, for adapter_config.json.

    Raises:
      PortingError: the model has no adapters; its dialect is none of transformers' families; the path can't be written.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> from jax_transformer import GenerationConfig, LoraConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.porting import all_dialects
      >>> from jax_transformer.storage.adapters import Adapters
      >>> marian = all_dialects()["marian"].fixed
      >>> config = TransformerConfig(**marian, source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, share_embeddings=True, tie_head=True)
      >>> query = {"lora_a": np.ones((1, 8, 2), np.float32), "lora_b": np.ones((1, 2, 2, 4), np.float32)}
      >>> adapters = Adapters(LoraConfig(rank=2), {"encoder": {"layers": {"self_attention": {"query": query}}}})
      >>> params, generation = init_params(config, jax.random.key(0)), GenerationConfig(decoder_start_id=1)
      >>> model = Model(config, params, None, None, generation, {"dialect": "marian"}, adapters=adapters)
      >>> export_adapter(model, "adapter")
      >>> from pathlib import Path
      >>> sorted(file.name for file in Path("adapter").glob("adapter_*"))
      ['adapter_config.json', 'adapter_model.safetensors']
    """
    if model.adapters is None:
        raise PortingError(
            "this model has no adapters: expected one that was trained with train.lora.rank above 0, or into which "
            "PEFT's were merged"
        )
    check_free(path, PortingError)
    table = _family(model, dialect)
    leaves, shapes = flatten(model.adapters.params), param_shapes(model.config)
    kernels = _kernel_rules(table, model)
    adapted = [rule for rule in kernels if _part(rule, A) in leaves]
    reached = {_part(rule, part) for rule in adapted for part in (A, B)}
    if missing := [name for name in leaves if name not in reached]:
        raise PortingError(
            f"dialect {table.name}: no linear layers for these adapters, each with a tensor of its own",
            [f"{name} {tuple(leaves[name].shape)}" for name in missing],
        )
    own = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    tensors = tensors_from_leaves(
        _adapter_rules(adapted), {name: np.asarray(leaf) for name, leaf in leaves.items()}, own, what="adapters"
    )
    modules = [_module(place.names) for rule in adapted for place in rule.places(shapes)]
    others = [_module(names) for names in _all_names(table, model) if _module(names) not in modules]
    content = peft_config(model.adapters.config, _ends(modules, others), base)
    with new_directory(path, PortingError) as temporary:
        (temporary / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_tensors(temporary / TENSORS[0], {PREFIX + name: tensors[name] for name in sorted(tensors)})


# --- names


def _family(model: Model, dialect: str | None) -> Dialect:
    """Returns the dialect of a model's family of transformers."""
    name = dialect or (model.origin or {}).get("dialect")
    if name is None:
        raise PortingError(
            "this model was not imported from transformers, so PEFT's names aren't known: give its family's dialect"
        )
    table = get_dialect(name)
    family_file(table)
    if problems := table.refusals(model.config):
        raise PortingError(f"dialect {table.name} has no models of this config", problems)
    return table


def _kernel_rules(table: Dialect, model: Model) -> list[Rule]:
    """Returns the rules of kernels that are the weight of one linear layer each."""
    return [
        rule
        for rule in table.rules(model.config)
        if len(rule.paths) == 1
        and rule.paths[0].endswith(f"/{KERNEL}")
        and rule.axes is not None
        and len(rule.axes.torch) == 2
        and not rule.axes.counts
    ]


def _all_names(table: Dialect, model: Model) -> Iterator[tuple[str, ...]]:
    """Yields the names of every tensor with its copies."""
    shapes = param_shapes(model.config)
    for rule in table.rules(model.config):
        if all(path in shapes for path in rule.paths):
            yield from (place.names for place in rule.places(shapes))


def _adapter_rules(kernels: list[Rule]) -> list[Rule]:
    """Returns the rules of A and B for the rules of kernels."""
    return [rule for kernel in kernels for rule in (_rule(kernel, A), _rule(kernel, B))]


def _rule(kernel: Rule, part: str) -> Rule:
    """Returns the rule of A or B of a kernel, whose weight is [outputs, inputs]."""
    outputs, inputs = _axes(kernel).torch
    side = inputs if part == A else outputs
    merged, apart = f"({' '.join(side)})", " ".join(axis for axis in _axes(kernel).leaf_flat if axis in side)
    axes = f"R {merged} -> {apart} R" if part == A else f"{merged} R -> R {apart}"
    return Rule(_module(kernel.names) + (A_SUFFIX if part == A else B_SUFFIX), _part(kernel, part), axes)


def _axes(kernel: Rule) -> Axes:
    """Returns the correspondence of a kernel's axes, which `_kernel_rules` has made sure of."""
    if kernel.axes is None:
        raise TypeError(f"{kernel}: expected axes")
    return kernel.axes


def _part(rule: Rule, name: str) -> str:
    """Returns the path of a part of the adapter of a rule's kernel."""
    return rule.paths[0].removesuffix(KERNEL) + name


def _module(names: tuple[str, ...]) -> str:
    """Returns the name of the module that has these tensors."""
    return names[0].removesuffix(".weight")


def _ends(modules: list[str], others: Collection[str]) -> list[str]:
    """Returns the last parts of the modules' names, if no other module's name ends so; else the names in full."""
    ends = sorted({module.rsplit(".", 1)[-1] for module in modules})
    return modules if any(other.rsplit(".", 1)[-1] in ends for other in others) else ends


# --- reading


def _read_config(path: Path) -> PeftConfig:
    try:
        content = read_json(path / CONFIG, PortingError)
    except (OSError, ValueError) as error:
        raise PortingError(f"{path / CONFIG}: expected PEFT's config of adapters; {error}") from None
    if not isinstance(content, dict):
        raise PortingError(f"{path / CONFIG}: expected a JSON object; received {type(content).__name__}")
    try:
        return read_peft_config(content)
    except PortingError as error:
        raise PortingError(f"{path / CONFIG}: no adapters that this ports", error.problems) from None


def _read_tensors(path: Path, table: Dialect, rules: list[Rule], shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors of an adapter file by their names in the model.

    Raises:
      PortingError: no file, or tensors that aren't A or B of one of the model's linear layers.
    """
    file = next((path / name for name in TENSORS if (path / name).is_file()), None)
    if file is None:
        raise PortingError(f"{path}: expected adapters, one of {', '.join(TENSORS)}; received none of them")
    content = as_arrays(read_tensors(file), str(file))
    known = {
        _module(place.names) + part for rule in rules for place in rule.places(shapes) for part in (A_SUFFIX, B_SUFFIX)
    }
    tensors, problems = {}, []
    for full_name in content:
        name = full_name.removeprefix(PREFIX)
        if name not in known and table.base_prefix + name in known:  # of the family's class without a head
            name = table.base_prefix + name
        if name in known:
            tensors[name] = np.asarray(content[full_name])
        else:
            problems.append(_why_unknown(full_name, tuple(content[full_name].shape), known))
    problems += [
        f"missing tensor {PREFIX}{other}, the counterpart of {PREFIX}{name}"
        for name in tensors
        if (other := _other(name)) not in tensors
    ]
    problems += not_finite(tensors)
    if not content:
        problems.append("expected adapters of one layer at least; received no tensor")
    if problems:
        raise PortingError(f"{file} doesn't fit a model of dialect {table.name}", problems)
    return tensors


def _other(name: str) -> str:
    """Returns the name of B for that of A, and of A for that of B."""
    return name.replace(A_SUFFIX, B_SUFFIX) if name.endswith(A_SUFFIX) else name.replace(B_SUFFIX, A_SUFFIX)


def _why_unknown(name: str, shape: tuple[int, ...], known: Collection[str]) -> str:
    if "lora_embedding_" in name:
        return f"tensor {name} {shape}: adapters of embeddings have no place here"
    if "lora_magnitude_vector" in name:
        return f"tensor {name} {shape}: DoRA's magnitudes have no place here"
    if A_SUFFIX in name or B_SUFFIX in name:
        return (
            f"tensor {name} {shape}: the model has no such linear layer, or its weight is tied to an embedding"
            f"{nearest(name.removeprefix(PREFIX), known)}"
        )
    return f"tensor {name} {shape}: expected {A_SUFFIX[1:]} and {B_SUFFIX[1:]} of linear layers alone"


def _pairs(
    config: PeftConfig, tensors: Mapping[str, np.ndarray], rules: list[Rule], shapes: Mapping[str, Any]
) -> dict[str, Pair]:
    """Returns the adapters by the names of their modules. Raises PortingError for adapters of other shapes."""
    pairs, problems = {}, []
    for rule in rules:
        outputs, inputs = rule.torch_shape(shapes)
        for module in (_module(place.names) for place in rule.places(shapes)):
            if module + A_SUFFIX not in tensors:
                continue
            a, b = tensors[module + A_SUFFIX], tensors[module + B_SUFFIX]
            rank = a.shape[0] if a.ndim else 0
            if not rank or a.shape != (rank, inputs) or b.shape != (outputs, rank):
                problems.append(
                    f"{module}: expected A [rank, {inputs}] and B [{outputs}, rank]; received {a.shape} and {b.shape}"
                )
                continue
            lora = config.lora(rank, config.alpha_of(module), (rule.paths[0],))
            pairs[module] = Pair(a, b, lora.scale, lora.alpha)
    if problems:
        raise PortingError("adapters that don't fit the model", problems)
    return pairs


def _merged(rule: Rule, kernel: np.ndarray, layers: Mapping[Any, Pair]) -> np.ndarray:
    """Returns a kernel with the adapters of its layers added in float64, in its own dtype."""
    merged = kernel.copy()
    for index, pair in layers.items():
        delta = pair.scale * (pair.b.astype(np.float64) @ pair.a.astype(np.float64))
        (change,) = _axes(rule).split([delta], kernel[index].shape)
        merged[index] = (kernel[index].astype(np.float64) + change).astype(kernel.dtype)
    return merged


def _kept(
    config: PeftConfig,
    tensors: Mapping[str, np.ndarray],
    pairs: Mapping[str, Pair],
    rules: list[Rule],
    shapes: Mapping[str, Any],
) -> Adapters | None:
    """Returns the adapters in our axes; None if they differ in rank, scale or dtype, or leave out layers of a stack."""
    kinds = {(len(pair.a), pair.alpha, pair.a.dtype, pair.b.dtype) for pair in pairs.values()}
    modules = {rule: [_module(place.names) for place in rule.places(shapes)] for rule in rules}
    adapted = [rule for rule in rules if any(module in pairs for module in modules[rule])]
    if len(kinds) != 1 or any(module not in pairs for rule in adapted for module in modules[rule]):
        return None
    ((rank, alpha, *_),) = kinds
    own: dict[str, tuple[int, ...]] = {}
    for rule in adapted:
        layers, kernel = shapes[rule.paths[0]][: int(rule.stacked)], rule.leaf_shape(shapes)
        split = len(_axes(rule).torch[1])
        own |= {_part(rule, A): (*layers, *kernel[:split], rank), _part(rule, B): (*layers, rank, *kernel[split:])}
    leaves = leaves_from_tensors(_adapter_rules(adapted), tensors, own, "adapters")
    lora = config.lora(rank, alpha, tuple(rule.paths[0] for rule in adapted))
    return Adapters(lora, unflatten({name: np.asarray(leaf) for name, leaf in leaves.items()}))
