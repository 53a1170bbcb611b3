"""A dialect is how one family of PyTorch models names and shapes its parameters: one table file each, with its
`DIALECTS` in it."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule, not_finite
from jax_transformer.porting import one_level
from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.tensors import PortingError, Tensors

MODULES = (
    "pytorch",
    "floydhub",
    "annotated_zh",
    "harvard",
    "codersarts",
    "sayhello",
    "hyunwoongko",
    "stepwise",
    "marian",
    "bart",
    "pegasus",
    "m2m_100",
    "fsmt",
    "indictrans",
    "t5",
    "t5x",
    "marian_npz",
    "whisper",
    "encoder_decoder",
    "t5gemma",
    "opennmt",
    "joeynmt",
    "sockeye",
)
"""The modules of this package that hold `DIALECTS`."""


def _nothing_follows(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _nothing_ignored(tensors: Tensors) -> list[str]:
    return []


def _nothing_computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    return {}


def one_size_of_heads(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to a program with one number of heads, together as wide as the model."""
    encoder, decoder = config.encoder.heads, config.decoder.heads
    problems = []
    if decoder.num_heads != encoder.num_heads:
        problems.append(f"decoder_num_heads must be the encoder's {encoder.num_heads}; received {decoder.num_heads}")
    return problems + heads_as_wide_as_the_model(config, decoder_heads="num_heads")


def heads_as_wide_as_the_model(config: TransformerConfig, decoder_heads: str = "decoder_num_heads") -> list[str]:
    """Lists the obstacles of a config to a program whose heads are together as wide as the model.

    Args:
      decoder_heads: what the program calls the number of the decoder's heads.
    """
    problems = []
    for name, number, stack in (
        ("head_dim", "num_heads", config.encoder),
        ("decoder_head_dim", decoder_heads, config.decoder),
    ):
        heads = stack.heads
        if heads.num_heads * heads.head_dim != stack.d_model:
            width = stack.d_model / heads.num_heads
            problems.append(f"{name} must be d_model / {number} = {width:g}; received {heads.head_dim}")
    return problems


def one_target_pad_id(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to a program whose decoder masks the target's padding."""
    if config.decoder_padding_id in (None, config.target_pad_id):
        return []
    return [
        f"decoder_padding_id must be None or target_pad_id={config.target_pad_id}; received {config.decoder_padding_id}"
    ]


def _usual_refusals(config: TransformerConfig) -> list[str]:
    return one_size_of_heads(config) + one_target_pad_id(config)


PROGRAM_FIELDS = ("norm_eps", "position_index", "relative_max_distance")
"""Config fields that decide what is computed, where a checkpoint only has them from its program."""
SIZES = (
    "source_vocab_size", "target_vocab_size", "d_model", "d_ff", "decoder_d_ff", "num_encoder_layers",
    "num_decoder_layers", "max_length", "decoder_max_length", "num_heads", "decoder_num_heads", "head_dim",
    "decoder_head_dim", "source_pad_id", "target_pad_id", "decoder_padding_id",
)  # fmt: skip
"""Config fields of every dialect: tensors or hints determine them, and `refuses` checks what programs can't have."""


@dataclass(frozen=True)
class Text:
    """Describes how a program turns the sentences of one side into tokens."""

    kind: Literal["words", "whitespace", "characters", "spacy"] = "whitespace"
    lowercase: bool = False
    add_bos: bool = False
    add_eos: bool = False
    """Targets get neither here: the batch adds their first and last token."""


Json = Mapping[str, Any]
"""An object of a JSON file."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """Describes how a family of transformers stores in config.json what its tensors don't contain."""

    model_type: str
    architectures: tuple[str, ...]
    """Classes whose checkpoints these are: the one with the head, which is written, the one without, and former names
    of these."""
    aliases: Mapping[str, str]
    """Other names of keys, which prevail over these."""
    defaults: Json
    """The values of keys that are left out."""
    allowed: Mapping[str, tuple[Any, ...]]
    """The values that keys may have. Other values mark models that this table isn't for."""
    read: Callable[[Json], dict[str, Any]]
    """Config fields from a config.json with all defaults filled in, each by its short name or by the path of an option.
    Raises PortingError for values that no config has."""
    write: Callable[[TransformerConfig], dict[str, Any]]
    """Returns the keys of config.json that follow from a config."""
    starts_with_tag: bool = False
    """Whether the tag of the target's language starts the decoder, unless config.json gives another token."""
    start_in: str = ""
    """The part of config.json whose bos_token_id starts targets in its training; "" if decoder_start_token_id does."""
    kept: tuple[str, ...] = ()
    """Tensors that its programs load and the table ignores, which export writes back as they came."""
    always_there: tuple[str, ...] = ()
    """Optional tensors that its programs expect where the two sides have embeddings of their own."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Describes one family's checkpoints.

    A config consists of `fixed`, of the fields that `read` finds in a checkpoint, of hints for the rest, and of
    `defaults` without a hint. The other way round, a config that differs from `fixed`, or has none of the `choices`,
    has no checkpoint in this dialect. Options that change the function and that the table doesn't mention must have the
    default of TransformerConfig.
    """

    name: str
    title: str
    recognises: Callable[[Collection[str]], bool]
    """Whether a state_dict with these names could be one of the family's."""
    by_names: bool = True
    """Whether names alone may be taken for the family's. False: another family has the same names, and computes what
    it computes."""
    fixed: Mapping[str, Any]
    """Config fields that all of its models agree in."""
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Config fields in which they differ, and the values that occur."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config fields that no checkpoint contains, as the published program has them; hints may say otherwise."""
    read: Callable[[Tensors], dict[str, Any]]
    """Reads the config fields that names, shapes and equal tensors determine, each by its short name or by the path of
    an option. Raises PortingError where it can't."""
    asks: Mapping[str, str]
    """The config fields that it doesn't determine, or not always, and what to say about them when asking for them."""
    rules: Callable[[TransformerConfig], list[Rule]]
    """The correspondence of names, for models of this config."""
    may_differ: Collection[str] = ()
    """Short names whose values may differ between the stacks, of which config.json has each."""
    determines: Collection[str] = ()
    """Other config fields that its tensors determine, or that follow from other fields and that `refuses` checks."""
    refuses: Callable[[TransformerConfig], list[str]] = _usual_refusals
    """Lists the other obstacles of a config."""
    has_all_options: bool = False
    """Whether models of every config can have such checkpoints."""
    computed: Callable[[TransformerConfig], dict[str, np.ndarray]] = _nothing_computed
    """Leaves by path that its checkpoints don't hold, because the program computes them. Some checkpoints hold leaves
    that have a rule."""
    ignores: Callable[[Tensors], list[str]] = _nothing_ignored
    """Lists the tensors of a checkpoint that no program of the family reads."""
    base_prefix: str = ""
    """The beginning of all names, which checkpoints that were saved without the head lack."""
    config_file: ConfigFile | None = None
    """The form of config.json, for a family of transformers."""
    aliases: Mapping[str, tuple[str, Mapping[Any, Any]]] | None = None
    """The family's own words for a config field: {"norm_first": ("norm_placement", {True: "pre", False: "post"})}."""
    text: Mapping[str, Text] = field(default_factory=lambda: {"source": Text(add_eos=True), "target": Text()})
    """How to tokenize each side, for checkpoints that come with lists of tokens."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Fields of GenerationConfig as the published program has them; hints may say otherwise."""
    follows: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing_follows
    """Returns the config fields that follow from other fields."""

    @property
    def computes_positions(self) -> bool:
        """Returns whether its checkpoints hold no position tables."""
        return self.computed is not _nothing_computed and self.fixed.get("position_kind") == "sinusoidal"

    def leaves_out_positions(self, config: TransformerConfig) -> bool:
        """Returns whether its checkpoints of models of this config have no place for position tables that are
        computed."""
        paths = [path for rule in self.rules(config) for path in rule.paths]
        return self.computes_positions and "constants/encoder_positions" not in paths

    def refusals(self, config: TransformerConfig) -> list[str]:
        """Lists the obstacles of a config to this dialect: each field with its value and the allowed ones, by its path
        where two places of a model differ in it."""
        if self.has_all_options:
            return []
        more = self.refuses(config) if one_level.is_readable(config, self.may_differ) else []
        allowed = {name: (value,) for name, value in self.fixed.items()} | dict(self.choices)
        differ = self.may_differ.__contains__
        return [*map(str, one_level.obstacles(config, allowed, self.mentions, may_differ=differ)), *more]

    def check_config(self, config: TransformerConfig) -> None:
        """Raises PortingError for a config that has obstacles to this dialect."""
        problems = self.refusals(config)
        if problems:
            raise PortingError(f"dialect {self.name} has no models of this config", problems)

    @property
    def mentions(self) -> frozenset[str]:
        """Returns the config fields that the table says something of. Other options have their defaults."""
        return frozenset({*self.fixed, *self.choices, *self.asks, *self.defaults, *self.determines, *SIZES})


@cache
def all_dialects() -> Mapping[str, Dialect]:
    """Returns every dialect by name.

    Example:
      >>> "marian" in all_dialects()
      True
    """
    modules = (importlib.import_module(f"{__name__}.{name}") for name in MODULES)
    return MappingProxyType({dialect.name: dialect for module in modules for dialect in module.DIALECTS})


def get_dialect(name: str) -> Dialect:
    """Returns the dialect of this name. Raises PortingError, naming the known ones, if there is none."""
    known = all_dialects()
    if name not in known:
        raise PortingError(f"dialect must be one of {', '.join(known)}; received {name!r}{nearest(str(name), known)}")
    return known[name]


def candidates(names: Collection[str]) -> list[Dialect]:
    """Returns every dialect that a state_dict with these tensor names could have."""
    return [dialect for dialect in all_dialects().values() if dialect.by_names and dialect.recognises(names)]


def detect(names: Collection[str]) -> Dialect:
    """Returns the only dialect that recognises these tensor names.

    Raises:
      PortingError: no dialect does, or several do; the message lists them, to choose from by name.
    """
    possible = candidates(names)
    if len(possible) == 1:
        return possible[0]
    some = ", ".join(list(names)[:3]) or "none"
    if possible:
        titles = [f"dialect={dialect.name!r}: {dialect.title}" for dialect in possible]
        raise PortingError("several dialects have tensors of these names; say which this is", titles)
    titles = [f"{name}: {dialect.title}" for name, dialect in all_dialects().items()]
    titles.append("another program: --map and --config, or names= and config= in Python, say what its tensors are")
    raise PortingError(f"no known dialect has tensors of these names ({len(names)}: {some}, …); known are", titles)


class Reader:
    """Reads sizes off a checkpoint's shapes, and collects what is missing."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.problems: list[str] = []

    def size(self, name: str, axis: int, rank: int) -> int:
        """Returns the length of one axis of the tensor `name`, which must have `rank` axes; 1 if the tensor is missing
        or wrong."""
        if name not in self.tensors:
            self._add(f"missing tensor {name}, which gives the model's size{nearest(name, self.tensors)}")
            return 1
        shape = self.tensors[name].shape
        if len(shape) != rank:
            self._add(f"tensor {name}: expected {rank} axes; received shape {tuple(shape)}")
            return 1
        return int(shape[axis])

    def layers(self, pattern: str) -> int:
        """Returns how many layers, from 0 without a gap, have tensors that start with `pattern`, in which {i} is the
        layer's number; 1 if none has."""
        expression = re.compile(re.escape(pattern).replace(re.escape("{i}"), r"(0|[1-9]\d*)"))
        found = {int(match[1]) for match in map(expression.match, self.tensors) if match}
        count = next(number for number in itertools.count() if number not in found)
        if count == 0:
            self._add(f"no tensor starts with {pattern.replace('{i}', '0')}, so the number of layers is unknown")
        return max(count, 1)

    def equal(self, first: str, second: str) -> bool:
        """Returns whether two tensors are there and hold the same values."""
        if first not in self.tensors or second not in self.tensors:
            return False
        return np.array_equal(self.tensors[first], self.tensors[second])

    def differ(self, first: str, second: str) -> bool:
        """Returns whether two tensors are there and hold other values: of tied ones a file has one, or equal ones."""
        return first in self.tensors and second in self.tensors and first != second and not self.equal(first, second)

    def finished(self, what: str, **fields: Any) -> dict[str, Any]:
        """Returns the fields that were read, without the decoder's where they equal the encoder's.

        Raises:
          PortingError: a tensor or field is missing.
        """
        if self.problems:
            raise PortingError(f"this is no {what} checkpoint", self.problems + not_finite(self.tensors))
        encoder_fields = {f"decoder_{name}": value for name, value in fields.items()}
        return {
            name: value for name, value in fields.items() if name not in encoder_fields or value != encoder_fields[name]
        }

    def _add(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
