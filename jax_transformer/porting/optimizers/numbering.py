"""Which parameter each entry of an optimizer's state belongs to. PyTorch numbers parameters in the order in which the
optimizer received them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.porting.optimizers.kinds import Groups, Kind, kind_of
from jax_transformer.storage.tensors import PortingError

WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names that Trainer of transformers puts into its second group, which doesn't decay, with the parameters of every
nn.LayerNorm (Trainer.get_decay_parameter_names)."""


@dataclass(frozen=True)
class NamedState:
    """Holds an optimizer's state with the names of parameters in place of their numbers."""

    kind: Kind
    groups: list[dict[str, Any]]
    """Settings, with the names of the parameters under "params"."""
    state: dict[str, Mapping[str, Any]]
    """The state of each parameter that has been trained."""
    is_flat: bool = False
    """Whether the states of all lay in one, one after the other."""


def name_entries(
    state_dict: Mapping[str, Any],
    order: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    norms: Collection[str] = (),
    prefix: str = "",
) -> NamedState:
    """Returns the state with names.

    Args:
      state_dict: an optimizer's, with "state" and "param_groups".
      order: the names of the module's parameters in the order of `named_parameters`, with constants that it may count
        among them.
      shapes: the shapes of the parameters that the optimizer trains, by name.
      norms: the parameters of norms.
      prefix: the text before the names that the optimizer may have kept itself.

    Raises:
      PortingError: it is no optimizer's state; another number of parameters; entries of other shapes than the
        parameters that they should belong to.
    """
    groups, entries = _parts(state_dict)
    kind = kind_of(groups)
    trained = [name for name in order if name in shapes]
    flat = _split_flat(groups, entries, {name: shapes[name] for name in trained})
    if flat is not None:
        groups, entries = flat
    named = _names_of_groups(groups, trained, order, norms, prefix)
    names = {
        number: name
        for group, found in zip(groups, named, strict=True)
        for number, name in zip(group["params"], found, strict=True)
    }
    unknown = [names.get(number, number) for number in entries if names.get(number) not in shapes]
    if unknown:
        raise PortingError(f"optimizer: expected a state of trained parameters alone; received one of {unknown[0]} too")
    problems = [
        f"{key} of {names[number]}: expected shape {shapes[names[number]]}; received {tuple(np.shape(value))}"
        for number, entry in entries.items()
        for key, value in entry.items()
        if kind.slots.get(key) in ("first_moment", "second_moment", "momentum")
        and value is not None
        and tuple(np.shape(value)) != shapes[names[number]]
    ]
    if problems:
        raise PortingError("optimizer: its entries don't belong to these parameters in this order", problems)
    unread = {key for entry in entries.values() for key in entry} - {*kind.slots, *kind.extras, "step"}
    if unread:
        raise PortingError(
            f"optimizer: expected the state of {kind.title}, {', '.join(kind.slots)}; received also "
            f"{', '.join(sorted(unread))}"
        )
    with_names = [{**group, "params": found} for group, found in zip(groups, named, strict=True)]
    return NamedState(
        kind, with_names, {names[number]: entry for number, entry in entries.items() if entry}, flat is not None
    )


def _parts(state_dict: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[Any, Mapping[str, Any]]]:
    """Returns the groups, and the entries by number."""
    if not is_optimizer(state_dict):
        found = ", ".join(map(str, list(state_dict)[:5])) if isinstance(state_dict, Mapping) else type(state_dict)
        raise PortingError(f"optimizer: expected a state_dict with state and param_groups; received {found}")
    return [dict(group) for group in state_dict["param_groups"]], dict(state_dict["state"])


def is_optimizer(content: Any) -> bool:
    """Returns whether it has the form of an optimizer's state_dict."""
    return (
        isinstance(content, Mapping)
        and isinstance(content.get("state"), Mapping)
        and isinstance(groups := content.get("param_groups"), list | tuple)
        and len(groups) > 0
        and all(isinstance(group, Mapping) and isinstance(group.get("params"), list | tuple) for group in groups)
        and all(isinstance(entry, Mapping) for entry in content["state"].values())
    )


def _names_of_groups(
    groups: Groups, trained: Sequence[str], order: Sequence[str], norms: Collection[str], prefix: str
) -> list[list[str]]:
    """Returns the names of the parameters of each group."""
    if all("param_names" in group for group in groups):  # optimizers that received named parameters keep their names
        return [[_known(str(name), order, prefix) for name in group["param_names"]] for group in groups]
    sizes = [len(group["params"]) for group in groups]
    exempt = [name for name in trained if WITHOUT_DECAY.search(name)]
    by_decay, by_norm = (_in_two(trained, names) for names in (exempt, {*exempt, *norms}))
    for parts in ([list(trained)], by_decay, by_norm, [list(order)]):
        if sizes == [len(names) for names in parts]:
            return parts
    raise PortingError(
        f"optimizer: expected {len(trained)} parameters, in one group or in the two of transformers' Trainer "
        f"({len(by_norm[0])} and {len(by_norm[1])}); received {' and '.join(map(str, sizes))}. If it didn't receive "
        "all, name the rest with --frozen; or make it of named_parameters() (PyTorch 2.6 and later), so that its "
        "file says the names"
    )


def _in_two(names: Sequence[str], second: Collection[str]) -> list[list[str]]:
    return [[name for name in names if name not in second], [name for name in names if name in second]]


def _known(name: str, order: Sequence[str], prefix: str) -> str:
    """Returns a parameter's name without what wrappers put before it."""
    for before in ("", prefix, "module.", "_orig_mod."):
        if name.removeprefix(before) in order:
            return name.removeprefix(before)
    raise PortingError(f"optimizer: expected names of the model's parameters; received {name!r}")


def _split_flat(
    groups: Groups, entries: Mapping[Any, Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[dict[str, Any]], dict[Any, Mapping[str, Any]]] | None:
    """Returns groups and entries by parameter where all lie in one, one after the other, as fairseq's optimizer for
    mixed precision keeps them; None for any other state."""
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    if len(groups) != 1 or len(groups[0]["params"]) != 1 or len(entries) != 1 or len(shapes) == 1:
        return None
    (whole,) = entries.values()
    flat = {key: value for key, value in whole.items() if np.shape(value) == (total,)}
    if not flat:
        return None
    split: dict[Any, Mapping[str, Any]] = {}
    start = 0
    for number, shape in enumerate(shapes.values()):
        end = start + int(np.prod(shape))
        split[number] = {key: value[start:end].reshape(shape) if key in flat else value for key, value in whole.items()}
        start = end
    return [{**groups[0], "params": list(range(len(shapes)))}], split


def flatten_entries(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an optimizer's state_dict with the states of all parameters in one, one after the other."""
    entries = [state_dict["state"][number] for number in sorted(state_dict["state"])]
    flat = {
        key: np.concatenate([np.ravel(entry[key]) for entry in entries]) if np.ndim(value) else value
        for key, value in entries[0].items()
    }
    return {"state": {0: flat}, "param_groups": [{**state_dict["param_groups"][0], "params": [0]}]}
