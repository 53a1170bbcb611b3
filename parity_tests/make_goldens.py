"""Regenerate goldens/<system>.npz: the results of each reference at tiny sizes with random weights.

    python parity_tests/make_goldens.py [system ...]

They show a change that both sides make at once. Regenerate one only if its system is meant to compute something else,
and say why. A file has `meta` (JSON: the reference's class and arguments, the dialect, what import is
told, and each tensor's name and shape), `parameters` and `buffers` (the tensors' values in this order), `source_ids`,
`decoder_input_ids`, the masks, `encoder.output` and `logits` in float64, and `position_table` where the state_dict
holds none.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from systems import SYSTEMS, System, balance, randomise

from torch_reference.trace import Trace

FOLDER = Path(__file__).parent / "goldens"


def make_arguments(name: str, system: System) -> dict[str, Any]:
    """Of the reference's class: small sizes, no two of them equal, and those of the variant."""
    is_ladder = system.dialect.startswith("stepwise")
    num_heads = 1 if is_ladder and name != "stepwise" else 2
    arguments: dict[str, Any] = {
        "source_vocab_size": 13,
        "target_vocab_size": 11,
        "d_model": 6,
        "num_heads": num_heads,
        "d_ff": 9,
        "max_length": 8,
        "source_pad_id": 2,
        "target_pad_id": 1,
    }
    if not is_ladder:
        arguments |= {"num_encoder_layers": 2, "num_decoder_layers": 1}
    else:
        arguments["num_layers"] = 2 if name in ("stepwise", "stepwise_sublayers", "stepwise_layers") else 1
    return arguments | (system.build.keywords if isinstance(system.build, partial) else {})


def make_batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """source_ids [4, 7] and decoder_input_ids [4, 5], padded right, left, inside and wholly."""
    source, target = rng.choice([0, *range(3, 13)], (4, 7)), rng.choice([0, *range(2, 11)], (4, 5))
    source[0, 5:] = source[1, :2] = source[2, 3] = source[3] = 2
    target[0, :1] = target[1, 3:] = target[2, 2] = 1
    target[3, 1] = 2  # the source's pad
    return source, target


def make(name: str) -> dict[str, np.ndarray]:
    """The golden's arrays."""
    system, rng = SYSTEMS[name], np.random.default_rng([*name.encode()])
    arguments, batch = make_arguments(name, system), make_batch(rng)
    reference: Any = system.build.func if isinstance(system.build, partial) else system.build
    drawn = reference(**arguments).eval()
    randomise(drawn, rng)
    balance(drawn, batch)
    model = reference(**arguments, dtype=torch.float64).eval()
    model.load_state_dict(model.state_dict() | dict(drawn.named_parameters()))
    trace = Trace()
    with torch.no_grad():
        model(*map(torch.from_numpy, batch), trace=trace)

    hints = {key: arguments[key] for key in ("num_heads", "source_pad_id", "target_pad_id")} | dict(system.hints)
    if system.dialect.startswith("stepwise") and system.dialect != "stepwise":
        del hints["num_heads"]
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    held = model.state_dict()
    meta = {
        "reference": f"{reference.__module__}.{reference.__qualname__}",
        "arguments": arguments,
        "dialect": system.dialect,
        "hints": hints,
        "parameters": {path: list(parameters[path].shape) for path in held if path in parameters},
        "buffers": {path: list(buffers[path].shape) for path in held if path in buffers},
    }
    tensors = {
        "parameters": np.concatenate([held[path].numpy().ravel() for path in meta["parameters"]]).astype(np.float32),
        "buffers": np.concatenate([np.empty(0), *(held[path].numpy().ravel() for path in meta["buffers"])]),
    }
    table = {"position_table": model.encoder.emb.positions.numpy()} if system.computes_positions else {}
    kept = {
        key: value.numpy()
        for key, value in trace.items()
        if key.startswith("mask.") or key in ("encoder.output", "logits")
    }
    return {
        "meta": np.array(json.dumps(meta)),
        "source_ids": batch[0],
        "decoder_input_ids": batch[1],
        **tensors,
        **table,
        **kept,
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SYSTEMS:
        np.savez_compressed(FOLDER / f"{name}.npz", **make(name))
        print(f"{FOLDER / name}.npz: {(FOLDER / name).with_suffix('.npz').stat().st_size:,} bytes")
