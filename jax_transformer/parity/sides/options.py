"""The sides of a comparison and its options: which kind a side is, which options it takes, and how they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.sides import Path, name_of
from jax_transformer.matching.programs import is_jax_module
from jax_transformer.parity.rules import Programs

if TYPE_CHECKING:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.config.run import TrainConfig
    from jax_transformer.mapping.maps import NameMap
    from jax_transformer.parallel.mesh import AnyMesh

Kind = Literal["arrays", "model", "module", "function", "weighted", "frozen"]
"""What a side may be; weighted is a JAX program with weights of its own: a module, or a function and `Side.params`."""
Kinds: TypeAlias = tuple[Kind | None, Kind | None]
"""Those of candidate and reference; None: there is no reference."""

OPTIONS: dict[str, frozenset[str]] = {
    "named arrays": frozenset({"truth", "tolerance"}),
    "a function and a module on inputs": frozenset({"inputs", "names", "stages", "dtypes"}),
    "two programs by numbers": frozenset({"inputs", "weights", "names", "seed", "layers", "kl", "top_k"})
    | {"memory_limit", "time_limit"},
    "models": frozenset({"model", "names", "stages", "dtypes", "node", "seed", "allow", "dialect", "train"})
    | {"decoding", "mesh"},
    "two programs on inputs": frozenset({"inputs", "weights", "names", "stages", "seed"}),
    "a frozen reference": frozenset({"names", "stages", "seed", "loss", "optimizer"}),
    "a proof of models": frozenset({"model", "names", "stages", "seed", "allow", "dialect", "train", "mesh"}),
}
"""The options of each sort of comparison; those of models also take hints."""
OF_HINTS = ("models", "a proof of models")


@dataclass(frozen=True)
class Side:
    """Holds one side of a comparison, with a name and programs of its own.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import Side, compare
      >>> compare(Side({"x": np.ones(2)}, name="ours"), {"x": np.ones(2)}).candidate
      'ours'
    """

    program: Any = None
    """Any side that `compare` accepts without a name. None, as a reference: the program of the model's dialect."""
    name: str | None = None
    """Its name in the report. None: its path, or that of its function or class."""
    loss: Callable[..., Any] | None = None
    """A loss of yours in place of the built-in one: (logits [B, T, V], labels [B, T]) → a scalar in PyTorch, or losses
    [B, T] in JAX, as `make_train_step` takes it."""
    optimizer: Any = None
    """An optimizer of yours. In PyTorch, a function module → an object with `zero_grad()` and `step()`, whose step does
    everything that follows `loss.backward()`: clipping, the optimizer's step, the scheduler's. In JAX, an
    optax.GradientTransformation."""
    decode: Callable[..., Any] | None = None
    """A PyTorch decoder of yours, (module, source_ids [B, S], start_id=, eos_id=, max_new_tokens=) → ids [B, T] without
    the start token: up to the end token, then pads; or a list of each sentence's ids. It may return (ids, scores), the
    scores [B] as `generate` has them."""
    params: Any = None
    """The weights of a JAX function (params, inputs) or of a Linen module, a tree; None for programs that hold theirs.
    A proof finds the map to the other side's weights."""
    checkpoint: Any = None
    """The file or directory (.safetensors) that holds the weights that the program hasn't: parameters on PyTorch's meta
    device, and the `jax.ShapeDtypeStruct`s of `nnx.eval_shape`. Or a function that reads one by its name. Each is read
    when an operation needs it, and forgotten after that."""
    device: Any = None
    """Where the program runs in a comparison of two programs: "cpu", "cuda", "cuda:1" of PyTorch; a jax.Device, or
    "gpu", "tpu:1" of JAX. None: where it is."""

    @property
    def programs(self) -> Programs:
        """The programs alone."""
        return Programs(self.loss, self.optimizer, self.decode)

    @property
    def label(self) -> str:
        """The name in a report: the given one, or the program's."""
        return self.name or name_of(self.program)

    @property
    def kind(self) -> Kind | None:
        """The kind of side; None for one without a program.

        Raises:
          ParityError: it is of no kind that can be compared.
        """
        if self.params is not None or is_jax_module(self.program):
            return "weighted"
        return None if self.program is None else kind_of(self.program)


def as_side(given: Any) -> Side:
    """Returns a side as it was given, or one of a program."""
    return given if isinstance(given, Side) else Side(given)


@dataclass(frozen=True)
class Options:
    """Holds the options of a comparison or a proof that concern both sides. None: the default.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import Options, compare
      >>> options = Options(tolerance=1e-6)
      >>> compare({"x": np.ones(2)}, {"x": np.ones(2) + 1e-7}, options).verdict
      'passed'
    """

    model: Any = None
    """With a function, the model whose parameters it receives; a `Model` or a path."""
    inputs: Mapping[str, Any] | Path | None = None
    """With two functions or modules, their arguments by name; arrays or an `.npz`. In a proof, integers and booleans
    are what they are, and floats stand for all floats of their shapes."""
    weights: Mapping[str, Any] | Literal["own"] | None = None
    """In a proof of two functions, the parameters that both receive, a dict of arrays, whose values don't matter. In a
    comparison of programs that hold their weights, "own": each has its own, loaded from one checkpoint. None: one's are
    carried over to the other by the map that is found, or given as `names`."""
    names: NameMap | Mapping[str, str] | Callable[..., Any] | Path | None = None
    """A map from the reference's names to the candidate's, or the path of its YAML file, where no dialect names them.
    In a proof of two programs on inputs, the reference's names of weights → the candidate's. In one of programs that
    hold their weights, a map with axes, its file, or the function by which a port converts weights: tensors by name → a
    tree. None: that map is found."""
    stages: Sequence[str] | None = None
    """A selection of stages."""
    dtypes: Sequence[str] | None = None
    """A selection of float64, float32 and bfloat16. float64 decides; the others are judged by their distance from
    it."""
    node: str | None = None
    """The only activation to look at, in float64."""
    seed: int = 0
    """Seeds the inputs and the random weights; in a proof, ids, primes and weights."""
    allow: Sequence[str] | None = None
    """Differences that don't count: "fully-masked", what an attention gives a query that sees no key; "inner-padding",
    what depends on padding before a token of its sentence; "first-token", what a target's first token does: all begin
    with the model's decoder_start_id."""
    truth: Mapping[str, Any] | Path | None = None
    """With arrays in lower precision, the reference's arrays in float64, computed from weights and inputs rounded to
    that precision."""
    tolerance: float | None = None
    """With arrays, the largest relative RMS of the difference that passes. None: the gate of the dtype, 1e-12 in
    float64."""
    dialect: str | None = None
    """The dialect of the checkpoint's or module's names."""
    train: TrainConfig | Path | None = None
    """The rule that a loss and an optimizer of yours should follow; a config.yaml or the directory of a run. None: the
    config of the run that the candidate is."""
    decoding: DecodingConfig | None = None
    """The search that a decoder of yours should make: beam_size, max_new_tokens, semantics, length_penalty and
    early_stopping. None: greedy, 12 tokens."""
    mesh: AnyMesh | None = None
    """The devices that share the candidate's weights and rows, as `make_mesh` returns them; in a proof also as
    `make_abstract_mesh` does, whose devices needn't be there. None: one device."""
    layers: Mapping[str, str | Callable[..., Any]] | None = None
    """With two programs, the reference's layers → the candidate's, `{"model.layers.{}": "layers.{}"}`, each compared on
    the reference's own input. A layer of the candidate may be a function (weights, x, …) of a module. None: lists of
    layers are paired in order."""
    kl: float | None = None
    """With two programs, a gate: the largest mean KL divergence of the candidate's outputs from the reference's, in
    nats."""
    top_k: str | None = None
    """With two programs, a gate: "5:0.999" asks that 99.9 % of the reference's largest 5 outputs are among the
    candidate's."""
    memory_limit: float | None = None
    """With two programs, the most GiB that a comparison may take, estimated before it. None: the machine's memory."""
    time_limit: float | None = None
    """With two programs, the most seconds that a comparison may take, estimated before it."""
    progress: Callable[[str], None] = lambda work: None
    """Called with the name of each piece of work before it begins."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config that a checkpoint or module doesn't tell, as of `import_checkpoint`: `num_heads`,
    `source_pad_id`, …"""

    @classmethod
    def of(cls, options: Options | None, changes: Mapping[str, Any]) -> Options:
        """Returns options with some of them changed; what isn't an option is a hint.

        Raises:
          ParityError: one belongs to a side; a seed or tolerance out of range.
        """
        known = {one.name for one in fields(cls)} - {"hints"}
        side_options = [one.name for one in fields(Side) if one.name in changes]
        if side_options:
            name = side_options[0]
            raise ParityError(f"{name} belongs to one of the sides: expected Side(…, {name}=…) in its place")
        options = options or cls()
        hints = {**options.hints, **{name: value for name, value in changes.items() if name not in known}}
        made = replace(options, hints=hints, **{name: value for name, value in changes.items() if name in known})
        if not 0 <= made.seed < 2**63:
            raise ParityError(f"seed: expected an integer from 0 to 2^63 - 1; received {made.seed}")
        if made.tolerance is not None and not made.tolerance >= 0:
            raise ParityError(f"tolerance must be at least 0; received {made.tolerance}")
        for name in ("kl", "memory_limit", "time_limit"):
            if getattr(made, name) is not None and not getattr(made, name) >= 0:
                raise ParityError(f"{name} must be at least 0; received {getattr(made, name)}")
        return made

    def sort_of(self, kinds: Kinds) -> str:
        """Names the sort of comparison that sides of these kinds get with these options, one of `OPTIONS`.

        Raises:
          ParityError: they get none.
        """
        if "frozen" in kinds:
            if kinds[1] is None:
                raise ParityError("expected a candidate to compare with the frozen reference; received one side")
            return "a frozen reference"
        if "weighted" in kinds or (self.inputs is not None and kinds == ("module", "module")):
            if self.inputs is None or kinds[1] is None:
                raise ParityError("expected two programs, and inputs: the arguments of both by name, arrays or an .npz")
            return "two programs by numbers"
        if "arrays" in kinds:
            return "named arrays"
        if self.inputs is None:
            return "models"
        if kinds != ("function", "module"):
            raise ParityError("inputs: only a JAX function compared with a torch.nn.Module takes them")
        return "a function and a module on inputs"

    def check(self, comparison: str, candidate: Side, reference: Side) -> None:
        """Raises ParityError for options, and programs of a side, that this sort of comparison doesn't take."""
        allowed, usual = OPTIONS[comparison], Options()
        names = [one.name for one in fields(self) if one.name not in ("progress", "hints")]
        given = [name for name in names if getattr(self, name) is not getattr(usual, name)]
        if comparison not in OF_HINTS:
            sides = (candidate.programs, reference.programs)
            given += [name for side in sides for name, program in vars(side).items() if program is not None]
            given += self.hints
        if comparison != "two programs by numbers":
            sides_own = ("checkpoint", "device")
            given += [name for side in (candidate, reference) for name in sides_own if getattr(side, name) is not None]
        wrong = [name for name in given if name not in allowed]
        if wrong:
            raise ParityError(f"{wrong[0]} doesn't apply to {comparison}; expected only {', '.join(sorted(allowed))}")


def read_names(names: NameMap | Mapping[str, str] | Callable[..., Any] | Path | None) -> NameMap | None:
    """Returns a map of names, read from its file if need be.

    Raises:
      ParityError: a mapping or a function, which some proofs take.
      PortingError: see `NameMap.read`.
    """
    from jax_transformer.mapping.maps import NameMap

    if isinstance(names, NameMap) or names is None:
        return names
    if isinstance(names, Mapping) or callable(names):
        raise ParityError("names: models take a map of names, or its file")
    return NameMap.read(names)


def kind_of(program: Any) -> Kind:
    """Returns the kind of a program without weights in `Side.params`.

    Raises:
      ParityError: it is of no kind that can be compared.
    """
    from jax_transformer.frozen.record import SUFFIX, Frozen
    from jax_transformer.storage.model_directory import Model

    if isinstance(program, str | os.PathLike):
        suffixes: dict[str, Kind] = {".npz": "arrays", SUFFIX: "frozen"}
        return next((kind for suffix, kind in suffixes.items() if os.fspath(program).endswith(suffix)), "model")
    classes: dict[type, Kind] = {Frozen: "frozen", Mapping: "arrays", Model: "model"}
    for base, kind in classes.items():
        if isinstance(program, base):
            return kind
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(program, torch.nn.Module):
        return "module"
    if callable(program):
        return "function"
    raise ParityError(
        "expected a model, a path, a torch.nn.Module, a function or a mapping of arrays to compare; received "
        f"{type(program).__name__}"
    )
