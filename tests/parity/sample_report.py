"""A report like those of real runs, computed: a model with faults against the one that has none, on two batches."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.comparison.findings import Fault
from jax_transformer.comparison.gates.compare import max_error, relative_rms
from jax_transformer.comparison.gates.stages import Stage, compare_stage, merge_stages
from jax_transformer.comparison.report.report import Depth, Effect, HeatMap, Report
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.oracle import Node, forward, nodes, recompute
from jax_transformer.parity.oracle.formulas import sinusoid_table
from jax_transformer.parity.oracle.graph import parameter
from jax_transformer.runtime.trees import flatten, unflatten

Arrays = dict[str, np.ndarray]
CONFIG = TransformerConfig(
    source_vocab_size=17,
    target_vocab_size=13,
    d_model=24,
    num_heads=3,
    d_ff=28,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=20,
    source_pad_id=1,
    target_pad_id=2,
    activation="gelu",
    masked_value=-1e9,
)
NORMS, ACTIVATION, UNKNOWN = "_norm", "decoder.layers.1.feed_forward.hidden", "decoder.layers.1.cross_attention.output"
"""What is wrong in the candidate: ε in every norm, one activation, and something that no catalogue has."""
COMMAND = "jax-transformer parity candidate.safetensors --reference reference.safetensors --node {} --case '{}'"


class Problem(NamedTuple):
    """Ids, and what either side makes of them."""

    source_ids: np.ndarray
    decoder_input_ids: np.ndarray
    candidate: Arrays
    reference: Arrays


def changed(node: Node, captured: Arrays, params: dict[str, Any]) -> np.ndarray | None:
    """What a faulty node makes of what the candidate feeds it; None for a node without fault."""
    replay = Replay(
        CONFIG,
        node,
        {argument: captured[name] for argument, name in node.inputs.items()},
        {role: parameter(params, path) for role, path in node.parameters.items()},
        captured,
        params,
    )
    if node.name.endswith(NORMS):
        return replay.under(eps_outside=True)
    if node.name == ACTIVATION:
        return replay.under(activation="gelu_tanh")
    return np.clip(replay.compute(), -1.5, 1.5) if node.name == UNKNOWN else None


@cache
def make_params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {path: leaf.shape for path, leaf in flatten(abstract_params(CONFIG)).items()}
    leaves = {path: 0.4 * rng.standard_normal(shape) + path.endswith("scale") for path, shape in shapes.items()}
    tables = {
        path: sinusoid_table(CONFIG.encoder.positions, CONFIG.d_model, CONFIG.max_length)
        for path in leaves
        if path.endswith("_positions")
    }
    return unflatten(leaves | tables)


def make_problem(seed: int, is_faulty: bool) -> Problem:
    rng, params = np.random.default_rng(seed), make_params()
    source, target = rng.integers(3, 17, (4, 7)), rng.integers(3, 13, (4, 9))
    if seed:
        source[1, 5:] = source[2, :2] = source[3, 3] = 1
        target[0, 3:] = target[1, :2] = target[2, 2] = 2
    reference = forward(CONFIG, params, source, target)
    replaced: Arrays = {}
    candidate = reference
    for node in nodes(CONFIG) if is_faulty else ():
        value = changed(node, with_ids(candidate, source, target), params)
        if value is not None:
            replaced[node.name] = value
            candidate = forward(CONFIG, params, source, target, replace=replaced)
    return Problem(source, target, {name: rounded(value, rng) for name, value in candidate.items()}, reference)


def floats(trace: Arrays) -> Arrays:
    return {name: value for name, value in trace.items() if value.dtype != bool}


def rounded(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With another rounding of the last bit, but for masks and masked values."""
    if value.dtype == bool:
        return value
    return np.where(np.abs(value) < 1e6, value * (1 + 2e-16 * rng.standard_normal(value.shape)), value)


def make_stages(problems: dict[str, Problem]) -> tuple[Stage, ...]:
    """Of each stage the worst of the problems. Lower precision is played by rounding what float64 gave."""

    def merged(stage: str, keep: Any, of_truth: bool = False) -> Stage:
        sides = {case: (keep(one.candidate), keep(one.reference), one.reference) for case, one in problems.items()}
        return merge_stages(
            {
                case: compare_stage(stage, a, b, truth=truth if of_truth else None)
                for case, (a, b, truth) in sides.items()
            }
        )

    weights = flatten(make_params())
    ids = [{"source_ids": one.source_ids, "decoder_input_ids": one.decoder_input_ids} for one in problems.values()]
    return (
        compare_stage("weights", weights, weights),
        merge_stages({case: compare_stage("inputs", one, one) for case, one in zip(problems, ids, strict=True)}),
        merged("masks", lambda trace: {name: value for name, value in trace.items() if value.dtype == bool}),
        merged("forward", floats),
        merged(
            "forward float32",
            lambda trace: {name: value.astype(np.float32) for name, value in floats(trace).items()},
            True,
        ),
        Stage("forward bfloat16", not_run="the candidate has no bfloat16"),
    )


def make_faults(case: str, problem: Problem) -> tuple[Fault, ...]:
    captured = with_ids(problem.candidate, problem.source_ids, problem.decoder_input_ids)
    return tuple(
        Fault(
            "candidate",
            "forward",
            finding,
            relative_rms(problem.candidate[finding.node], problem.reference[finding.node]),
            case,
            COMMAND.format(finding.node, case),
        )
        for finding in diagnose(CONFIG, make_params(), captured)
    )


def make_depth(problem: Problem) -> tuple[Depth, ...]:
    def local(node: Node, trace: Arrays) -> float:
        captured = with_ids(trace, problem.source_ids, problem.decoder_input_ids)
        return distance(trace[node.name], recompute(node, CONFIG, captured, make_params()))

    def in_float32(trace: Arrays, name: str) -> float:
        return relative_rms(trace[name].astype(np.float32), problem.reference[name])

    return tuple(
        Depth(
            node.name,
            relative_rms(problem.candidate[node.name], problem.reference[node.name]),
            local(node, problem.candidate),
            local(node, problem.reference),
            in_float32(problem.candidate, node.name),
            in_float32(problem.reference, node.name),
        )
        for node in nodes(CONFIG)
        if node.kind != "mask"
    )


def make_heat_map(name: str, case: str, problem: Problem) -> HeatMap:
    reference = problem.reference[name]
    values = np.abs(problem.candidate[name] - reference) / np.sqrt(np.mean(np.square(reference)))
    labels = tuple(f"{b}, {t}" for b in range(reference.shape[0]) for t in range(reference.shape[1]))
    return HeatMap(
        name,
        case,
        "row of the batch, position",
        "feature",
        labels,
        tuple(map(tuple, values.reshape(len(labels), -1).tolist())),
    )


def make_effect(case: str, problem: Problem) -> Effect:
    ours, theirs = problem.candidate["logits"], problem.reference["logits"]
    log_ours, log_theirs = (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)) for logits in (ours, theirs))
    changes = ours.argmax(axis=-1) != theirs.argmax(axis=-1)
    divergence = float((np.exp(log_theirs) * (log_theirs - log_ours)).sum(axis=-1).mean())
    return Effect(
        case, relative_rms(ours, theirs), max_error(ours, theirs), divergence, int(changes.sum()), changes.size
    )


@cache
def make_report(is_faulty: bool = True) -> Report:
    """Diverged at every norm, at an activation, and at an attention; or the same but for rounding."""
    problems = {case: make_problem(seed, is_faulty) for seed, case in enumerate(("no padding", "padding inside"))}
    case, problem = "padding inside", problems["padding inside"]
    stages = make_stages(problems)
    found = {
        "faults": make_faults(case, problem),
        "effect": make_effect(case, problem),
        "heat_map": make_heat_map("encoder.layers.0.self_attention_norm", case, problem),
    }
    return Report(
        "candidate.safetensors",
        "reference.safetensors",
        stages if is_faulty else stages[:-1],
        {
            "jax": "0.11.1",
            "torch": "2.9.0",
            "jax_default_matmul_precision": "highest",
            "tf32": "off",
            "machine": "AMD EPYC, 2 cores",
        },
        {
            "candidate.safetensors": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "reference.safetensors": "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
        },
        depth=make_depth(problem),
        **(found if is_faulty else {}),
    )
