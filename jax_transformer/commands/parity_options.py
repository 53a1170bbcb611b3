"""The options of `jax-transformer parity`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from jax_transformer.commands.checkpoint_options import CheckpointOptions
from jax_transformer.commands.decode_options import STOPPING_ARGUMENT
from jax_transformer.commands.user_modules import load_factory, load_named
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.parallel import MeshConfig
from jax_transformer.parity.rules import SEARCH_FIELDS

FILE = tyro.conf.arg(metavar="FILE")
NAME = tyro.conf.arg(metavar="MODULE:NAME")


@dataclass(frozen=True)
class ProgramOptions:
    """Names programs of yours that run in place of the built-in ones in the stages loss, gradients, step, trajectory
    and decode. With --prove, a loss and an optimizer are proven."""

    train: Annotated[str | None, FILE] = None
    """The rule that --loss and --optimizer should follow: a config.yaml, or the directory of a run. Default: that of
    the run that MODEL is."""
    loss: Annotated[str | None, NAME] = None
    """A PyTorch loss of yours: (logits [B, T, V], labels [B, T]) → a scalar."""
    optimizer: Annotated[str | None, NAME] = None
    """A PyTorch optimizer of yours: a function module → an object with zero_grad() and step(). Its step does all that
    follows loss.backward(): clipping, the optimizer's step, the scheduler's."""
    decode: Annotated[str | None, NAME] = None
    """A PyTorch decoder of yours: (module, source_ids, start_id=, eos_id=, max_new_tokens=) → ids [B, T] without the
    start token, or (ids, scores [B])."""
    jax_loss: Annotated[str | None, NAME] = None
    """A JAX loss of yours on the model's side: (logits, labels) → losses [B, T]."""
    jax_optimizer: Annotated[str | None, NAME] = None
    """An optax.GradientTransformation of yours on the model's side, or a function without arguments that returns
    one."""
    beam_size: int | None = None
    """With --decode: the number of beams that it searches with. (Default: 1)"""
    max_new_tokens: int | None = None
    """With --decode: the most tokens that it decodes. (Default: 12)"""
    length_penalty: float | None = None
    """With --decode: the exponent of its length penalty. (Default: 1)"""
    semantics: Literal["huggingface", "gnmt"] | None = None
    """With --decode: its length penalty, n^p or ((5 + n) / 6)^p. (Default: huggingface)"""
    early_stopping: Annotated[bool | Literal["never"] | None, STOPPING_ARGUMENT] = None
    """With --decode: when a sentence is done. (Default: false)"""

    def by_side(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the candidate's and the reference's, as a `Side` takes them. Raises ValueError for a name that can't
        be found."""
        programs = {
            name: load_named(getattr(self, name), f"--{name.replace('_', '-')}")
            for name in ("loss", "optimizer", "decode", "jax_loss", "jax_optimizer")
        }
        if inspect.isfunction(programs["jax_optimizer"]):
            programs["jax_optimizer"] = load_factory(str(self.jax_optimizer), "--jax-optimizer")
        ours = {name: programs.pop(f"jax_{name}") for name in ("loss", "optimizer")}
        return ours, programs

    def decoding(self) -> DecodingConfig | None:
        """Returns the search that a decoder should make, if any of it is given."""
        search = {name: getattr(self, name) for name in SEARCH_FIELDS if getattr(self, name) is not None}
        return DecodingConfig(**search) if search else None


@dataclass(frozen=True)
class NumberOptions:
    """Says how --candidate and --reference, two programs with weights of their own, are compared on --inputs."""

    own_weights: bool = False
    """Each program has its own weights, loaded from one checkpoint. Default: one's are carried over to the other by the
    map that is found."""
    layers: str | None = None
    """Comma-separated pairs of layers, the reference's=the candidate's, such as 'model.layers.{}=layers.{}'. Default:
    lists of layers are paired in order."""
    kl: float | None = None
    """A gate: the largest mean KL divergence of the candidate's outputs from the reference's, in nats."""
    top_k: str | None = None
    """A gate, such as 5:0.999: the least share of the reference's largest 5 outputs that are among the candidate's."""
    candidate_device: str | None = None
    """Where the candidate runs: gpu or cpu:1 of JAX, cuda:1 of PyTorch."""
    reference_device: str | None = None
    """Where the reference runs."""
    memory_limit: float | None = None
    """The most GiB that the comparison may take, estimated before it. Default: the machine's memory."""
    time_limit: float | None = None
    """The most seconds that the comparison may take, estimated before it."""

    def changes(self) -> dict[str, Any]:
        """Returns the options of `compare`. Raises ValueError for layers in another form."""
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("kl", "top_k", "memory_limit", "time_limit")
            if getattr(self, name) is not None
        }
        if self.own_weights:
            changes["weights"] = "own"
        if self.layers is not None:
            pairs = [pair.partition("=") for pair in self.layers.split(",")]
            if not all(theirs.strip() and ours.strip() for theirs, _, ours in pairs):
                raise ValueError(f"--layers: expected 'reference=candidate,…'; received {self.layers!r}")
            changes["layers"] = {theirs.strip(): ours.strip() for theirs, _, ours in pairs}
        return changes


@dataclass(frozen=True)
class ParityOptions:
    """Compare a model with one in PyTorch on the same weights and inputs, and name where and why they differ.

    Without --reference, the reference is the program that the checkpoint comes from: the published one, or
    transformers. Exit codes: 0 the same; 1 diverged, every cause named; 2 a mistake in the call; 3 inconclusive;
    4 diverged for an unknown reason.
    """

    model: tyro.conf.Positional[str] = ""
    """A model directory, a run directory, or a checkpoint: a torch file, or a directory of transformers; or the name of
    a model on the Hub. May be left out with --reference: the module's own weights are ported. If it is a model of
    transformers, its config replaces the options."""
    dialect: str | None = None
    """The dialect of the checkpoint's names, whose program is the reference. Needed if several fit."""
    reference: str | None = None
    """A frozen reference, a file of jax-transformer freeze; or a PyTorch module of yours, as package.module:factory: a
    function without arguments that returns the module in
    evaluation mode. Its forward takes ids of source and target, [B, T] or [T, B], in the order that the names of its
    arguments imply (src, tgt, trg, input_ids, …; else source first), and returns logits, log-probabilities or
    probabilities, alone or in a tuple, dict or object. Write an adapter for any other, such as one that takes masks."""
    candidate: str | None = None
    """A JAX function of yours that replaces the model, as package.module:factory: a function without arguments that
    returns (params, inputs) → (logits, trace). It receives the model's parameters and a dict of source_ids and
    decoder_input_ids."""
    inputs: Annotated[str | None, FILE] = None
    """With --candidate and --reference and no model: an .npz with the arguments of the module's forward, by name. A
    function receives them too, and the module's state_dict as its parameters. Factories may also return programs with
    weights of their own (see --own-weights)."""
    map: Annotated[str | None, FILE] = None
    """A YAML file that maps the reference's names to the model's, for names of no dialect."""
    draft_map: Annotated[str | None, FILE] = None
    """Write a draft of such a map, guessed from shapes and order, for you to edit; compare nothing."""
    stages: str | None = None
    """Comma-separated stages to compare. Default: all of
    weights,inputs,masks,forward,loss,gradients,step,trajectory,decode; with --inputs, of inputs,forward,gradients.
    If asked for, also resume: each side continues the training that the other began; and ctranslate2: that program
    scores the same sentences. With --prove, of forward,loss,gradients,steps; with --inputs, of forward,gradients."""
    prove: bool = False
    """Prove that both sides are one function for all weights, and compare nothing in floats. Exit codes: 0 proven;
    1 refuted, at an operation that is named; 3 unknown; 4 refuted. It takes all options that say what the sides are,
    and --stages, --seed, --allow, --train, --loss, --optimizer, --jax-loss, --jax-optimizer and --verbose; not those of
    floats (--dtypes, --node, --html), of decoding and of devices. Without it, comparisons end with a proof of
    forward, loss and gradients; --no-prove leaves that out."""
    certificate: Annotated[str | None, FILE] = None
    """With --prove: write the certificate, as JSON."""
    witness: Annotated[str | None, FILE] = None
    """With --prove: write weights that show a refutation in float64, if any were found, as an .npz for both
    programs."""
    verify: Annotated[str | None, FILE] = None
    """Make a certificate's proof again, of the programs that the command names as for --prove, and check that all it
    claims is the same. Nothing that the file names is imported or run. Its stages, seed and allowed differences are
    taken; so are its inputs, if it is of two programs and --inputs isn't given."""
    dtypes: str | None = None
    """Comma-separated precisions. float64 decides; the rest are judged by their distance from it. (Default:
    float64,float32,bfloat16)"""
    node: str | None = None
    """Compare this activation alone, in float64."""
    seed: int = 0
    """Seed of the inputs and random weights."""
    allow: str | None = None
    """Comma-separated differences that don't count: fully-masked, the result of attention for a query that sees no key;
    inner-padding, effects of padding before a token; first-token, effects of a target's first token: all begin with the
    model's decoder_start_id. With --prove, nothing is claimed of them."""
    verbose: bool = False
    """Print passing rows, versions and checksums, too. With --prove: all arrays, versions and programs."""
    json: Annotated[str | None, FILE] = None
    """Write the whole report as JSON: the verdict, the first difference, what is unknown, and all rows. With --prove,
    the verdict, the first difference, the repair and what is unknown."""
    html: Annotated[str | None, FILE] = None
    """Write the whole report as an HTML page."""
    diff: Annotated[tuple[str, str] | None, tyro.conf.arg(metavar="CANDIDATE REFERENCE")] = None
    """Compare two .npz files of named arrays, in execution order, instead of models."""
    truth: str | None = None
    """With --diff: an .npz of the reference's arrays in float64, computed from weights and inputs rounded to the lower
    precision. Lower precision is judged by it."""
    tolerance: float | None = None
    """With --diff: the largest relative RMS of the difference that passes. Default: the dtype's gate, 1e-12 in
    float64."""
    programs: tyro.conf.OmitArgPrefixes[ProgramOptions] = field(default_factory=ProgramOptions)
    numbers: tyro.conf.OmitArgPrefixes[NumberOptions] = field(default_factory=NumberOptions)
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)
    parallel: MeshConfig = field(default=MeshConfig(data=1))


OF_COMPARISONS = ("diff", "truth", "tolerance", "dtypes", "node", "html", "draft_map")
REFUSED = dict.fromkeys(OF_COMPARISONS, "a proof compares no floats")
REFUSED |= dict.fromkeys(("decode", *SEARCH_FIELDS), "decoding isn't proven")
"""Options that say nothing to a proof → why."""
OF_CERTIFICATE = dict.fromkeys(("stages", "seed", "allow"), "the certificate says that")
OF_CERTIFICATE |= dict.fromkeys(
    ("prove", "certificate", "witness", "json"), "it makes a certificate, and --verify checks one"
)
"""Further options that --verify doesn't take → why."""


def check_proof(options: ParityOptions) -> None:
    """Raises ValueError for options that say nothing to a proof."""
    if options.numbers != NumberOptions():
        given = next(
            one for one in vars(options.numbers) if getattr(options.numbers, one) != getattr(NumberOptions(), one)
        )
        raise ValueError(f"--prove: expected no --{given.replace('_', '-')} with it: a proof compares no floats")
    _refuse(options, "--prove", REFUSED)


def check_verification(options: ParityOptions) -> None:
    """Raises ValueError for options that --verify doesn't take."""
    _refuse(options, "--verify", {**REFUSED, **OF_CERTIFICATE})


def _refuse(options: ParityOptions, option: str, refused: Mapping[str, str]) -> None:
    usual, programs = ParityOptions(), ProgramOptions()
    for name, reason in refused.items():
        part, default = (options, usual) if hasattr(usual, name) else (options.programs, programs)
        if getattr(part, name) != getattr(default, name):
            raise ValueError(f"{option}: expected no --{name.replace('_', '-')} with it: {reason}")
