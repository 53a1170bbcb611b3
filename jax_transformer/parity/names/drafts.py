"""Draft a map of names from shapes, words and order, for whoever knows the model to correct."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from jax_transformer.mapping.axes import Axes
from jax_transformer.mapping.files import activation_line, parameter_line
from jax_transformer.mapping.maps import differ_in_grouping
from jax_transformer.mapping.rules import NUMBER, Shapes
from jax_transformer.parity.names.words import Concepts, concepts, likeness

Key = TypeVar("Key")

HEADER = """\
# A DRAFT, made from shapes and from the words in names. It is a guess and proves nothing: read every line.
# Lines that are commented out are unsure: keep the correct name (the alternatives follow it) and remove the "#".
# {i} is a layer's number. Axes: the reference's -> ours.
"""


class Names(NamedTuple):
    """Holds the shapes of one side's activations, in execution order, and of its parameters."""

    activations: Shapes
    parameters: Shapes


def draft(reference: Names, ours: Names) -> str:
    """Returns a draft in YAML for `NameMap.read`.

    Args:
      reference: activations by the names of `capture`; parameters by their names in the state_dict.
      ours: activations by the names of our trace; parameters by path, numbered by layer, as in
        `encoder/layers/…/kernel[0]`.
    """
    activations = _propose(reference.activations, ours.activations, _fit_activation)
    parameters = _propose(reference.parameters, _in_usual_order(ours.parameters), _fit_parameter)
    lines = ["activations:", *_lines(activations, lambda key, name, _: activation_line(key, (name,)))]
    lines += ["parameters:", *_lines(parameters, parameter_line)]
    return HEADER + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Item:
    """Holds a name, with {i} for the layer's number if several layers have it, and the shape of each."""

    name: str
    layers: int
    """The number of layers; 0 if it is of no layer."""
    shape: tuple[int, ...]


class _Fit(NamedTuple):
    """Describes a possible match between a name of the reference and one of ours."""

    likeness: int
    axes: str = ""
    can_be_sure: bool = True
    """Whether the match is certain if there is no other candidate."""


@dataclass
class _Proposal:
    """Holds the reference's names that one of ours may have."""

    ours: _Item
    fits: dict[_Item, _Fit] = field(default_factory=dict)
    taken: _Item | None = None
    is_sure: bool = False

    @property
    def likeness(self) -> float:
        """Returns the likeness of the best fit."""
        return max((fit.likeness for fit in self.fits.values()), default=-math.inf)


Judge = Callable[[_Item, _Item], _Fit | None]
"""(theirs, ours) → a fit if they may be the same."""


def _propose(theirs: Shapes, ours: Shapes, judge: Judge) -> tuple[list[_Proposal], list[_Item]]:
    """Returns a proposal for each of our names, and the reference's names that are in none."""
    our_items = _items(ours, re.compile(r"(?<=layers\.)\d+(?=\.)|(?<=\[)\d+(?=\]$)"), None)
    counts = {item.layers for item in our_items}
    their_items = _items(theirs, re.compile(r"(?<![^.])\d+(?![^.@#])"), counts)

    def proposal(item: _Item) -> _Proposal:
        fits = {other: found for other in their_items if other.layers == item.layers and (found := judge(other, item))}
        return _Proposal(item, fits)

    proposals = _with_fused([proposal(item) for item in our_items], proposal)
    while sure := _surest(proposals):
        sure[0].taken, sure[0].is_sure = sure[1], True
    for one in proposals:
        if one.taken is None:
            left = _left(one, proposals)
            one.taken = max(left, key=lambda item: left[item], default=None)
    taken = {one.taken for one in proposals}
    return proposals, [item for item in their_items if item not in taken]


def _items(shapes: Shapes, number: re.Pattern[str], counts: Iterable[int] | None) -> list[_Item]:
    """Merges names that differ only in a layer's number.

    The layer's number is the first one in the names that takes all values from 0; with `counts`, as many as one of
    these.
    """
    groups: dict[str, dict[int, str]] = {}
    templates: dict[str, list[str]] = {}
    for name in shapes:
        for match in number.finditer(name):
            template = name[: match.start()] + NUMBER + name[match.end() :]
            groups.setdefault(template, {})[int(match[0])] = name
            templates.setdefault(name, []).append(template)

    def is_whole(template: str) -> bool:
        group = groups[template]
        alike = len({tuple(shapes[name]) for name in group.values()}) == 1
        return (
            len(group) > 1
            and set(group) == set(range(len(group)))
            and alike
            and (counts is None or len(group) in counts)
        )

    items: dict[_Item, None] = {}
    for name, shape in shapes.items():
        whole = next((template for template in templates.get(name, []) if is_whole(template)), None)
        items[_Item(whole or name, len(groups[whole]) if whole else 0, tuple(shape))] = None
    return list(items)


def _surest(proposals: list[_Proposal]) -> tuple[_Proposal, _Item] | None:
    """Returns a pair in which each is the other's best match."""
    open_ones = [one for one in proposals if one.taken is None]
    left = {id(one): _left(one, proposals) for one in open_ones}
    for one in open_ones:
        best = _best(left[id(one)])
        if best is None or not one.fits[best].can_be_sure:
            continue
        rivals = {id(other): left[id(other)][best] for other in open_ones if best in left[id(other)]}
        if _best(rivals) == id(one):
            return one, best
    return None


def _left(one: _Proposal, proposals: list[_Proposal]) -> dict[_Item, int]:
    """Returns the matches that are in no other proposal → likeness."""
    taken = {other.taken for other in proposals}
    return {item: fit.likeness for item, fit in one.fits.items() if item not in taken}


def _best(scores: Mapping[Key, int]) -> Key | None:
    """Returns the key with the highest score; None if there are several, or none."""
    highest = [item for item, score in scores.items() if score == max(scores.values())]
    return highest[0] if len(highest) == 1 else None


def _with_fused(proposals: list[_Proposal], propose: Callable[[_Item], _Proposal]) -> list[_Proposal]:
    """Merges query, key and value if the three together fit a tensor better than one of them."""
    result: list[_Proposal] = []
    dropped: set[str] = set()
    for one in proposals:
        name = one.ours.name
        if "/query/" in name:
            together = propose(_Item(name.replace("/query/", "/{query,key,value}/"), one.ours.layers, one.ours.shape))
            if together.likeness > one.likeness:
                dropped |= {name.replace("/query/", f"/{part}/") for part in ("query", "key", "value")}
                result.append(together)
        result.append(one)
    return [one for one in result if one.ours.name not in dropped]


# --- matches


def _fit_parameter(theirs: _Item, ours: _Item) -> _Fit | None:
    axes = _axes(ours.name, ours.shape, theirs.shape)
    their_words, our_words = _parameter_concepts(theirs.name), _parameter_concepts(ours.name)
    score = likeness(their_words, our_words)
    if axes is None or score is None or ("norm" in their_words.get("role", ()) and "role" not in our_words):
        return None
    is_unusual = axes == "" and "/kernel" in ours.name  # torch has the kernels of linear maps transposed
    return _Fit(score - 3 * is_unusual, axes)


def _parameter_concepts(name: str) -> Concepts:
    return concepts(re.sub(r"\[[^\]]*\]$", "", name), is_parameter=True)


def _axes(name: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> str | None:
    """Returns the equation from their tensor to our leaf, empty if the axes are the same; None if no usual one fits."""
    *_, module, leaf = ("", *re.sub(r"\[[^\]]*\]$", "", name).split("/"))
    equations = {
        ("kernel", 2): "O I -> I O",
        ("kernel", 3): "D (N H) -> N H D" if module == "output" else "(N H) D -> D N H",
        ("bias", 2): "(N H) -> N H",
    }
    if "," in module:
        equations = {("kernel", 3): "(3 N H) D -> D N H", ("bias", 2): "(3 N H) -> N H"}
    equation = equations.get((leaf, len(ours)))
    if equation and Axes.parse(equation).torch_shape(ours) == theirs:
        return equation
    if "," in module or (equation and len(theirs) != len(ours)):
        return None
    if theirs == ours:
        return ""
    if [size for size in theirs if size != 1] == list(ours):
        letters = iter("PQRST"[: len(ours)])
        return (
            " ".join("1" if size == 1 else next(letters) for size in theirs) + " -> " + " ".join("PQRST"[: len(ours)])
        )
    return None


def _fit_activation(theirs: _Item, ours: _Item) -> _Fit | None:
    path, _, what = theirs.name.partition("@")
    last = ours.name.rpartition(".")[2]
    feeds_softmax = last in ("logits", "weights") and "." in ours.name
    reads = {"context": "output", "hidden": "output", "embedding": ""}
    suits = (
        what.startswith(last)
        if feeds_softmax
        else (what == "" and last != "context") or (what == "input" and last in reads)
    )
    if ours.name.startswith("mask.") or not suits or not differ_in_grouping(theirs.shape, ours.shape):
        return None
    name = ours.name.removesuffix(last) + reads[last] if what == "input" else ours.name
    their_words, our_words = (
        _activation_concepts(path, _place_theirs(path)),
        _activation_concepts(name, _place_ours(name)),
    )
    score = likeness(their_words, our_words)
    say_as_much = all((group in their_words) == (group in our_words) for group in ("role", "part"))
    may_be_another_step = (
        last in ("token_embedding", "embedding") or ours.name == "logits"
    )  # before a scale, positions or a bias
    is_dropout = "drop" in path.lower()  # its result has already a name from the module that computed it
    return None if score is None else _Fit(score - 2 * is_dropout, can_be_sure=say_as_much and not may_be_another_step)


def _activation_concepts(name: str, place: str | None) -> Concepts:
    """Returns the concepts of a name, with its place as role instead of its parts, if it has a place."""
    found = dict(concepts(name))
    if place:
        found.pop("part", None)
        found["role"] = frozenset({place})
    return found


def _place_ours(name: str) -> str | None:
    if name == "logits":
        return "head"
    if name.endswith("_residual"):
        return "residual"
    return {2: "stack", 4: "layer"}.get(name.count(".") + 1) if name.endswith(".output") else None


def _place_theirs(path: str) -> str | None:
    """Returns "stack" if the path is that of a stack, "layer" if it ends in a number."""
    parts = path.removesuffix(".0").split(".")
    if parts[-1] == NUMBER:
        return "layer"
    return "stack" if parts[-1] in ("encoder", "decoder") and len(parts) <= 2 else None


# --- writing


def _lines(found: tuple[list[_Proposal], list[_Item]], line: Callable[[str, str, str], str]) -> list[str]:
    """Returns sure lines, unsure ones commented out, and the unused names."""
    proposals, unused = found
    lines = []
    for one in proposals:
        others = ", ".join(item.name for item in one.fits if item != one.taken)
        if one.taken is not None:
            text = line(one.taken.name, one.ours.name, one.fits[one.taken].axes)
            lines.append(text if one.is_sure else f"  # {text.strip()}" + f"  # or {others}" * bool(others))
        elif not one.ours.name.startswith("mask."):
            lines.append(
                f"  # {one.ours.name} {list(one.ours.shape)}: " + (f"perhaps {others}" if others else "nothing fits")
            )
    return lines + [
        f"  # not used: {item.name} {list(item.shape)}" for item in unused if not item.name.endswith("@input")
    ]


_ORDER = (
    ("source", "target", "shared", "encoder", "decoder", "head", "constants"),
    ("embedding_norm", "self_attention", "cross_attention", "feed_forward", "final_norm"),
    ("query", "key", "value", "hidden", "gate", "output"),
    ("kernel", "scale", "embedding", "bias"),
)


def _in_usual_order(parameters: Shapes) -> Shapes:
    """Sorts parameters as programs define them: by stack, sublayer, part and kind."""

    def rank(name: str) -> list[int]:
        return [next((n for n, word in enumerate(words) if word in name), len(words)) for words in _ORDER]

    return {name: parameters[name] for name in sorted(parameters, key=rank)}
