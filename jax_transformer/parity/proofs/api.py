"""`prove`: reads what two programs are, and asks whether they are the same function for all weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jax_transformer.comparison.capture import OWN, check_module
from jax_transformer.comparison.gates.arrays import Arrays, ParityError, named_arrays
from jax_transformer.comparison.lowering import COTANGENT, INPUT, AnyProgram, AnyTwo, weights_of
from jax_transformer.comparison.report.summary import failure_text
from jax_transformer.comparison.sides import CannotRun, name_of, selected
from jax_transformer.parity.freezing import as_frozen, given_names
from jax_transformer.parity.problems import ALLOWANCES
from jax_transformer.parity.proofs.mapped import MappedPair
from jax_transformer.parity.proofs.witness_weights import kinds_for_any
from jax_transformer.parity.proofs.witnesses import Subject
from jax_transformer.parity.sides.options import Options, Side, as_side, kind_of
from jax_transformer.parity.sides.pairing import Sides, pair_models
from jax_transformer.parity.stages.proof import STAGES, Collected, prove_pair
from jax_transformer.proof import Certificate, UnknownOperation
from jax_transformer.proof.certificate import StageProof
from jax_transformer.proof.repair import Cause, Repair

ANY_STAGES = ("forward", "gradients")
"""The provable properties of any two programs."""


def prove(candidate: Any, reference: Any = None, options: Options | None = None, **changes: Any) -> Certificate:
    """Proves that two programs are the same function for all weights, or finds the operation at which they part.

    Both are read operation by operation, in the types in which they run, and evaluated in prime fields, where
    arithmetic is exact, at random weights (docs/proof.md). The proof holds for the shapes, ids and masks of the inputs,
    and not for rounding: `compare` judges that. Each call is one of these:

    - `prove(model)`, `prove(model, module)`, `prove(module)`, `prove(function, model=model)`: as of `compare`.
    - `prove(module, module, inputs={...})`: an NNX or Equinox module, or `Side(program, params=...)` of a Linen module
      or a function with its weights, and a PyTorch module or another of these. The map between their weights is found
      (`jax_transformer.matching.find_map`), and the certificate says what is known of it.
    - `prove(program, "reference.frozen")`: one of these JAX programs, and the program that `freeze` kept as data.
    - `prove(program, program, inputs={...})`: any two PyTorch modules, JAX functions, or one of each, with the same
      weights. A function is (params, inputs) → an array, or (array, trace) with a trace of named arrays; a module is
      called with the inputs by name. Their outputs are compared, and all activations that both name.

    Args:
      candidate, reference: as of `compare`. An optimizer of yours is proven for its own learning rates.
      options: see `Options`. Its stages are a selection of forward, loss, gradients and steps; of forward and gradients
        with `inputs`. None: all. steps are the parameters after one and three steps of the optimizer that `compare`
        takes, for all learning rates. With `allow` the ids have no place that shows such a difference, and nothing is
        claimed of it; "fully-masked" needs no mention. A function has the mesh of its own `jax.shard_map`.
      **changes: options by name, and hints, as of `compare`.

    Returns:
      A certificate. Its verdict is "proven", "refuted" or "unknown"; an unknown operation, or control flow that depends
      on weights, is named in the stage's reason.

    Raises:
      ValueError: the sides can't be compared, or run; an option doesn't apply to them.
      ImportError: PyTorch or transformers isn't installed.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from jax_transformer.parity import prove
      >>> def centred(params, inputs):
      ...     x = inputs["x"] @ params["kernel"]
      ...     return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1)
      >>> def at_once(params, inputs):
      ...     x = inputs["x"] @ params["kernel"]
      ...     return (x**2).mean(-1) - x.mean(-1) ** 2
      >>> arrays = {"inputs": {"x": np.ones((2, 3))}, "weights": {"kernel": np.ones((3, 5))}}
      >>> certificate = prove(at_once, centred, **arrays)
      >>> certificate.verdict, [(stage.name, len(stage.equal)) for stage in certificate.stages]
      ('proven', [('forward', 1), ('gradients', 1)])
    """
    ours, theirs, settings = as_side(candidate), as_side(reference), Options.of(options, changes)
    kinds = ours.kind, theirs.kind
    if "frozen" in kinds:
        theirs, settings = _with_frozen(ours, theirs, settings)
    if "weighted" in kinds:
        return _prove_mapped(ours, theirs, settings)
    if settings.inputs is not None:
        if not {*kinds} <= {"function", "module"}:
            raise ParityError("inputs: only two JAX functions or PyTorch modules take them")
        settings.check("two programs on inputs", ours, theirs)
        names = settings.names
        if names is not None and not isinstance(names, Mapping):
            kind = type(names).__name__
            raise ParityError(
                "names: two programs on inputs take a mapping from the reference's names of weights to the "
                f"candidate's; received a {kind} (--map is for models)"
            )
        shown = (ours.name, theirs.name)
        inputs = dict(named_arrays(settings.inputs, "inputs").arrays)
        if isinstance(settings.weights, str):
            raise ParityError(f"weights: expected arrays by name, or none; received {settings.weights!r}")
        two = _two(ours.program, theirs.program, inputs, settings.weights, names, shown)
        return _prove_any(two, selected(settings.stages, ANY_STAGES, "stages"), settings.seed, settings.progress)
    if "arrays" in kinds:
        raise ParityError("expected programs to prove: named arrays are numbers, which compare compares")
    settings.check("a proof of models", ours, theirs)
    sides = Sides.of(ours, theirs, kinds, settings)
    chosen = selected(settings.stages, STAGES, "stages")
    allowed = () if settings.allow is None else selected(settings.allow, ALLOWANCES, "allow")
    pair, _ = pair_models(sides)
    pair = replace(pair, allow=frozenset(allowed))
    return prove_pair(pair, stages=chosen, seed=settings.seed, progress=settings.progress)


# --- any two programs


def _two(
    candidate: Any,
    reference: Any,
    inputs: Arrays,
    weights: Mapping[str, Any] | None,
    names: Any,
    given_names: tuple[str | None, str | None],
) -> AnyTwo:
    """Returns both programs, and relates their weights. Raises ParityError if that can't be done."""
    if reference is None:
        raise ParityError("inputs: expected two programs; received one")
    shown = [given or name_of(one) for given, one in zip(given_names, (candidate, reference), strict=True)]
    for name, one in zip(shown, (candidate, reference), strict=True):
        if kind_of(one) == "module":
            check_module(one, name)
    ours, theirs = _weights(candidate, reference, weights, names)
    taken = {COTANGENT, *(INPUT + name for name, array in inputs.items() if array.dtype.kind == "f")}
    if wrong := sorted(taken & {*ours, *theirs}):
        raise ParityError(f"weights: expected other names than {wrong[0]!r}, as a proof calls another array; rename it")
    mapped = _mapped(ours, theirs, names, shown)
    both = (AnyProgram(shown[0], candidate, inputs, ours), AnyProgram(shown[1], reference, inputs, theirs))
    return AnyTwo(*both, mapped)


def _weights(
    candidate: Any, reference: Any, weights: Mapping[str, Any] | None, names: Mapping[str, str] | None
) -> tuple[Arrays, Arrays]:
    """Returns the weights of both programs: a module's own, and those that a function receives. Without `weights`, they
    are those of the other side's module, by the function's names for them."""
    module_weights = [weights_of(one, None) if kind_of(one) == "module" else None for one in (candidate, reference)]
    if weights is not None:
        given = dict(named_arrays(weights, "weights").arrays)
        ours, theirs = (given if one is None else one for one in module_weights)
        return ours, theirs
    ours, theirs = module_weights  # type: ignore[assignment]
    if ours is None and theirs is None:
        raise ParityError("weights: expected the parameters that both functions receive, a dict of arrays by name")
    names = {} if names is None else names
    if ours is None:
        ours = {names.get(name, name): array for name, array in theirs.items()}
    elif theirs is None:
        renamed = {*names.values()}
        known = {name: array for name, array in ours.items() if name not in renamed}
        theirs = known | {name: ours[own] for name, own in names.items() if own in ours}
    return ours, theirs


def _mapped(ours: Arrays, theirs: Arrays, names: Any, shown: Sequence[str]) -> dict[str, str]:
    """Returns the reference's names of weights → the candidate's. Raises ParityError unless each has a partner of its
    shape."""
    mapped = {name: name for name in theirs} | ({} if names is None else dict(names))
    wrong = [name for name, other in mapped.items() if name not in theirs or other not in ours]
    wrong += [name for name in mapped if name not in wrong and ours[mapped[name]].shape != theirs[name].shape]
    unused = [name for name in ours if name not in {*mapped.values()}]
    if wrong or unused:
        name = wrong[0] if wrong else unused[0]
        raise ParityError(
            f"expected weights of {shown[1]} and {shown[0]} with the same names and shapes; {name!r} has no partner "
            f"({len(wrong) + len(unused)} haven't): name it in names"
        )
    return mapped


def assert_same(candidate: Any, reference: Any, inputs: Mapping[str, Any] | None = None, **changes: Any) -> Certificate:
    """Raises AssertionError unless two programs are proven to be one function.

    For tests: where they differ, the text says in which lines, and with which edit of one they are the same; the whole
    certificate follows. A map of
    weights in which a layer is unlike its siblings, such as one transposed kernel, is a failure, too.

    Args:
      candidate, reference: as of `prove`: PyTorch, NNX and Equinox modules; `Side(module, params=variables)` of a Linen
        module, or of a function (params, inputs). The reference may be frozen (`freeze`), or its file.
      inputs: their arguments by name; arrays. Integers and masks are what they are; floats stand for all. None: those
        of a frozen reference.
      **changes: options of `prove`, such as stages=("forward",).

    Returns:
      The certificate.

    Raises:
      AssertionError: the programs differ, or it isn't known whether they do.
      ValueError: the programs can't be called on these inputs; an option doesn't apply to them.

    Example:
      >>> import numpy as np
      >>> import torch
      >>> from flax import nnx
      >>> from jax_transformer.parity import assert_same
      >>> ours, theirs = nnx.Linear(3, 5, rngs=nnx.Rngs(0)), torch.nn.Linear(3, 5).eval()
      >>> assert_same(ours, theirs, {"input": np.ones((2, 3), np.float32)}).map["found"]
      ('2 of 2 weights of Linear have a partner',)
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    certificate = prove(candidate, reference, inputs=inputs, **changes)
    if certificate.verdict != "proven" or certificate.map.get("irregular"):
        raise AssertionError(failure_text(certificate))
    return certificate


def _with_frozen(ours: Side, theirs: Side, settings: Options) -> tuple[Side, Options]:
    """Returns a reference that is read from its file, and its inputs. Raises ParityError unless a JAX program with
    weights of its own is proven against a frozen reference."""
    frozen = as_frozen(theirs.program)
    if frozen is None or ours.kind != "weighted":
        raise ParityError(
            "expected a JAX program with its weights as the candidate, and the frozen reference as the other side of a "
            "proof; compare takes a PyTorch module or two frozen references"
        )
    inputs = frozen.inputs if settings.inputs is None else settings.inputs
    kept = [stage for stage in ANY_STAGES if any(one.stage == stage for one in frozen.programs)]
    stages = kept if settings.stages is None and kept else settings.stages
    return replace(theirs, program=frozen, name=theirs.name or frozen.path), replace(
        settings, inputs=inputs, stages=stages
    )


def _prove_mapped(ours: Side, theirs: Side, settings: Options) -> Certificate:
    """Proves programs with weights of their own through the map between these, which it finds."""
    if settings.inputs is None:
        raise ParityError("inputs: expected the arguments of both programs by name, arrays or an .npz")
    settings.check("two programs on inputs", ours, theirs)
    if settings.weights is not None:
        raise ParityError("weights: expected none with programs that hold their weights")
    given = given_names(settings.names)
    stages = selected(settings.stages, ANY_STAGES, "stages")
    settings.progress("map of the weights")
    inputs = dict(named_arrays(settings.inputs, "inputs").arrays)
    try:
        pair = MappedPair(ours, theirs, inputs, settings.seed, given)
    except (UnknownOperation, CannotRun) as error:
        return _unknown(ours, theirs, inputs, stages, f"no map of the weights: {error}", settings.seed)
    if pair.found.missing:
        reason = f"no map of the weights: {pair.found.missing[0]} has no partner"
        certificate = _unknown(ours, theirs, inputs, stages, reason, settings.seed)
    else:
        certificate = _prove_any(pair.two, stages, settings.seed, settings.progress)
        is_guess = bool(pair.found.by_name or (pair.found.unused and not pair.is_given))
        repair = certificate.repair
        if is_guess and not (_is_of_no_map(repair) or (repair is not None and pair.has_too_few())):
            certificate = _undecided(certificate)
        certificate = replace(certificate, conditions=pair.conditions if certificate.tasks else ())
    return replace(certificate, map=pair.facts())


def _is_of_no_map(repair: Repair | None) -> bool:
    """Returns whether a repair changes what no map of weights could: another constant, an operation left out or
    missing. To read another weight, or a value of other weights, may be what another map does, and so may the
    exchange of two constants or of an operation. A repair that computes as the reference does can always be found."""
    causes = () if repair is None else repair.causes
    kinds = {cause.kind for cause in causes}
    numbers = [_numbers(cause) for cause in causes if cause.kind == "constant"]
    ours, theirs = ([pair[side] for pair in numbers] for side in (0, 1))
    is_exchanged = {"left out", "missing"} <= kinds or (len(numbers) > 1 and sorted(ours) == sorted(theirs))
    return bool(kinds) and kinds <= {"constant", "left out", "missing"} and not is_exchanged


def _numbers(cause: Cause) -> tuple[str, str]:
    """Returns the constants of both programs that a cause names, as text."""
    ours, _, theirs = cause.text.partition(f", {cause.reference} has ")
    return ours.removeprefix(f"{cause.candidate} has "), theirs


def _undecided(certificate: Certificate) -> Certificate:
    """Returns a certificate that refutes nothing: with another map the programs may be the same."""
    reason = (
        "with the map that was found, they differ; some weights were matched by name alone, or have no partner, and "
        "with another map they may be the same"
    )
    stages = (
        replace(stage, verdict="unknown", reason=reason) if stage.verdict == "refuted" else stage
        for stage in certificate.stages
    )
    return replace(certificate, stages=tuple(stages))


def _unknown(ours: Side, theirs: Side, inputs: Arrays, stages: Sequence[str], reason: str, seed: int) -> Certificate:
    collected = Collected(seed, output=OWN)
    collected.stages = [StageProof(name, "unknown", reason=reason) for name in stages]
    candidate, reference = ours.label, theirs.label
    return replace(collected.certificate(candidate, reference, inputs), kind="programs")


def _prove_any(two: AnyTwo, stages: Sequence[str], seed: int, progress: Callable[[str], None]) -> Certificate:
    subject = Subject(lambda: kinds_for_any(two.own(), seed), two.carried, two.written)
    collected = Collected(seed, subject, OWN)
    for name in stages:
        progress(f"proof: {name}")
        collected.prove((name,), partial(two.task, gradients=name == "gradients"))
    certificate = collected.certificate(two.candidate.name, two.reference.name, two.candidate.inputs)
    return replace(certificate, kind="programs", conditions=two.conditions if collected.tasks else ())
