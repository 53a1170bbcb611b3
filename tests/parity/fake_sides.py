"""A side of a parity run in NumPy alone: the truth, node by node, with faults put where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from selftest.subjects import constants

from jax_transformer.comparison.findings import Blamed
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.backends.side import Gradients, Hypotheses, Plan, Training, layer_by_layer
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.oracle.decoding import DecodeRule, decode, logits_of_model
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, nodes, parameter
from jax_transformer.parity.oracle.losses import LossRule, loss
from jax_transformer.parity.oracle.updates import UpdateRule, initial_state, step
from jax_transformer.parity.problems import Problem, randomised
from jax_transformer.parity.rules import SEARCH_FIELDS, SETUP
from jax_transformer.parity.run import run
from jax_transformer.parity.run_results import Pair
from jax_transformer.parity.stages.training import update_rule
from jax_transformer.runtime.trees import flatten, unflatten

CONFIG = TransformerConfig(
    source_vocab_size=23,
    target_vocab_size=19,
    d_model=12,
    num_heads=3,
    d_ff=16,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=15,
    source_pad_id=1,
    target_pad_id=2,
    activation="gelu",
    dropout_rate=0.0,
)
GENERATION = GenerationConfig(decoder_start_id=0, eos_id=3)
LAYER = "encoder.layers.0."
NORM, HIDDEN, QUERY = (
    f"{LAYER}self_attention_norm",
    "decoder.layers.1.feed_forward.hidden",
    "decoder.layers.0.cross_attention.query",
)
Trace = dict[str, np.ndarray]
Fault = Callable[[Replay], np.ndarray]
"""What a node computes instead of what it should."""


def make_params(config: TransformerConfig, seed: int = 0) -> dict[str, Any]:
    zeros = unflatten({path: np.zeros(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()})
    leaves = randomised(zeros, np.random.default_rng(seed)) | constants(config)
    return unflatten({path: leaf.astype(np.float32) for path, leaf in leaves.items()})


@cache
def own_params() -> dict[str, Any]:
    return make_params(CONFIG)


@dataclass
class FakeSide:
    """The truth of CONFIG, but for what a test changes."""

    name: str = "fake"
    config: TransformerConfig = CONFIG
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """By node."""
    after: Callable[[Trace], Trace] = lambda trace: trace
    """What is made of a whole trace before it is shown: nothing that was computed depends on it."""
    force: Mapping[str, Any] = field(default_factory=dict)
    """What is in force, where it is something else than was asked for."""
    held: Callable[[Trace], Trace] = lambda weights: weights
    loss_rule: LossRule = field(
        default_factory=lambda: LossRule(CONFIG.target_pad_id, SETUP.label_smoothing, SETUP.smoothing)
    )
    slope: float = 0.01
    """Of a parameter: its gradient."""
    update: UpdateRule = field(default_factory=lambda: update_rule(CONFIG))
    cannot: tuple[str, ...] = ()
    """What of forward, gradients, train, decode, beams it can't do."""
    decoded: Callable[[np.ndarray], np.ndarray] = lambda tokens: tokens
    doubts: tuple[str, ...] = ()
    runs: list[str] = field(default_factory=list)
    """What it was asked for."""

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        return {"dtype": dtype, "TF32": False} | dict(self.force)

    def get_ready(self, plan: Plan) -> None:
        pass

    def rest(self) -> None:
        pass

    def weights(self) -> Arrays:
        return self.held(_by_layer(own_params()))

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        self._asked("forward")
        known = dict(zip(MODEL_INPUTS, problem.ids, strict=True))
        for node in nodes(self.config):
            inputs = {argument: known[name] for argument, name in node.inputs.items()}
            parameters = {argument: parameter(problem.params, path) for argument, path in node.parameters.items()}
            replay = Replay(self.config, node, inputs, parameters, known, problem.params)
            with np.errstate(invalid="ignore"):  # −inf − −inf, as in fully masked rows
                known[node.name] = self.faults[node.name](replay) if node.name in self.faults else replay.compute()
        return self.after({name: _of(array, dtype) for name, array in known.items() if name not in MODEL_INPUTS})

    def gradients(self, problem: Problem) -> Gradients:
        self._asked("gradients")
        value = loss(self.loss_rule, self.forward(problem, "float64")["logits"], problem.labels)
        return Gradients(value, self._slopes(_trained(problem)), {})

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        self._asked("train")
        state, kept, gradients = initial_state(_trained(problem)), [_trained(problem)], []
        rates = (
            tuple(self.update.rates[min(number, 3)] for number in range(steps + 1))
            if isinstance(self.update.rates, tuple)
            else ()
        )
        rule = UpdateRule(**{**vars(self.update), "rates": rates})
        for _ in range(steps):
            gradients.append(self._slopes(state.parameters))
            state = step(rule, state, gradients[-1])
            kept.append(dict(state.parameters))
        losses = np.arange(steps, dtype=float)
        return Training(losses, tuple(kept), tuple(gradients)) if keep_all else Training(losses, (kept[-1],), ())

    def decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses:
        self._asked("decode" if decoding.beam_size == 1 else "beams")
        search = {name: getattr(decoding, name) for name in SEARCH_FIELDS}
        rule = DecodeRule(**search, decoder_start_id=0, eos_id=3, pad_id=self.config.target_pad_id)
        logits_of = logits_of_model(self.config, problem.params, problem.source_ids)
        return Hypotheses(self.decoded(decode(rule, logits_of, len(problem.source_ids)).sequences))

    def _asked(self, what: str) -> None:
        self.runs.append(what)
        if what in self.cannot:
            raise CannotRun(f"{self.name} has no {what}")

    def _slopes(self, parameters: Arrays) -> dict[str, np.ndarray]:
        return {path: self.slope * array for path, array in parameters.items()}


def _of(array: np.ndarray, dtype: Dtype) -> np.ndarray:
    if array.dtype == bool or dtype == "float64":
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16).astype(np.float32)


def _by_layer(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(params).items()})


def _trained(problem: Problem) -> dict[str, np.ndarray]:
    return {
        path: leaf.astype(np.float64)
        for path, leaf in _by_layer(problem.params).items()
        if not path.startswith("constants/")
    }


def showing(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Trace], Trace]:
    """Returns a function of a trace that shows one array otherwise than it was computed."""
    return lambda trace: {**trace, name: change(trace[name])}


def hiding(*names: str) -> Callable[[Trace], Trace]:
    return lambda trace: {name: array for name, array in trace.items() if name not in names}


def run_pair(candidate: FakeSide, reference: FakeSide, **options: Any) -> Report:
    """Runs only the forward pass in float64 by default."""
    options = {"stages": ("weights", "inputs", "masks", "forward"), "dtypes": ("float64",)} | options
    visible, allow = options.pop("visible", None), frozenset(options.pop("allow", ()))
    return run(Pair(CONFIG, own_params(), candidate, reference, GENERATION, visible, allow=allow), **options)


def blamed(report: Report, side: Blamed = "candidate") -> dict[str, str]:
    """By node, what this side computes there."""
    return {fault.finding.node: fault.finding.cause for fault in report.faults if fault.side == side}


def reasons(report: Report) -> list[str]:
    """Everything that is said against a pass, but for what diverged."""
    of_rows = [row.reason for stage in report.stages for row in stage.rows if row.verdict == "inconclusive"]
    return [*report.doubts, *(reason for stage in report.stages for reason in stage.reasons), *of_rows]
