"""Some of the faults through the command itself: `jax-transformer parity MODEL --reference …` with a program that has
one."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.backends.systems import SystemReference
from jax_transformer.parity.backends.traces import record_corrupted
from jax_transformer.parity.problems import Problem
from jax_transformer.storage.model_directory import save_model
from selftest.injections import Corruption, Injection, known_faults, unknown_faults
from selftest.matrix import Kill, Prepared, try_injection

if TYPE_CHECKING:
    import torch
    from torch import nn

MAKER = "selftest.through_command:program"
COMMAND = "through the command"
_PROGRAMS: list[Any] = []
"""The one that `program` gives."""


def program() -> nn.Module:
    """What the command's --reference names while the self-test runs."""
    module: nn.Module = _PROGRAMS[-1]
    return module


Command = Callable[[Sequence[str]], int]
"""(its arguments) → its exit code."""


def command_kills(system: Prepared, command: Command, count: int, seed: int = 0) -> Iterator[Kill]:
    """Faults that were found in process, again by the command: half of them known ones, spread over the catalogue."""
    rng, config = np.random.default_rng([seed, 7, *system.name.encode()]), system.model.config
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save_model(system.model, directory)
        for faults in (known_faults(config, rng), unknown_faults(config, rng)):
            choices = list(faults)
            for injection in _found(system, [choices[i] for i in rng.permutation(len(choices))], -(-count // 2)):
                yield _by_command(system, command, injection, directory, Path(folder) / "report.json")


def _found(system: Prepared, injections: Sequence[Injection], count: int) -> Iterator[Injection]:
    """So many that are found in process, of other kinds of nodes as long as there are any."""
    seen: dict[str, int] = {}
    for injection in sorted(injections, key=lambda injection: _turn(injection, seen)):
        if count and try_injection(system, injection).fate == "found":
            yield injection
            count -= 1


def _turn(injection: Injection, seen: dict[str, int]) -> int:
    """Of each kind the first comes first."""
    seen[injection.node.kind] = seen.get(injection.node.kind, -1) + 1
    return seen[injection.node.kind]


def _by_command(system: Prepared, command: Command, injection: Injection, directory: Path, report: Path) -> Kill:
    _PROGRAMS[:] = [faulty_program(system, injection)]
    arguments = [
        str(directory),
        "--reference",
        MAKER,
        "--stages",
        "masks,forward",
        "--dtypes",
        "float64",
        "--json",
        str(report),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        code = command(arguments)
    content = json.loads(report.read_text(encoding="utf-8"))
    nodes = {fault["node"] for fault in content["faults"] if fault["side"] == "reference"}
    causes = tuple(match["variant"] for fault in content["faults"] for match in fault["matches"])
    kill = Kill(
        system.name,
        injection.name,
        injection.known,
        injection.node.name,
        injection.node.kind,
        "missed" if code in (0, 3) else "found",
    )
    named = injection.name in causes and code == 1
    return dataclasses.replace(
        kill, located=nodes == {injection.node.name}, named=named, causes=causes, problem=COMMAND
    )


def faulty_program(system: Prepared, injection: Injection) -> nn.Module:
    """The system's program with the model's weights, in which one activation gets another value."""
    import torch

    reference: Any = system.program.reference
    module: Any = reference.build(torch.float32).eval()
    held = module.state_dict()
    for name, array in reference.state_dict(system.model.params, held.keys()).items():
        held[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
    kind: Any = type(module)

    class Faulty(kind):
        """Records what becomes of each activation, and goes on with it."""

        def forward(self, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor, trace: Any = None) -> torch.Tensor:
            from torch_reference.trace import Trace

            trace = Trace() if trace is None else trace
            problem = _problem(self, reference, source_ids, decoder_input_ids)
            record_corrupted(trace, _where_it_makes_sense(Corruption(injection, system.model.config, problem)))
            logits: torch.Tensor = super().forward(source_ids, decoder_input_ids, trace=trace)
            return logits

    module.__class__ = Faulty
    return module


def _where_it_makes_sense(corruption: Corruption) -> Any:
    """The right value where the fault can't be had, as on sentences that are too long for it."""

    def corrupt(name: str, before: Any, right: Any) -> Any:
        try:
            return corruption(name, before, right)
        except (LookupError, ValueError):
            return right

    return corrupt


def _problem(
    module: nn.Module, reference: SystemReference, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
) -> Problem:
    """The weights that the module has at the moment, and its inputs."""
    from jax_transformer.runtime.trees import unflatten
    from jax_transformer.storage.tensor_files import as_arrays

    leaves = unflatten(
        dict(reference.leaves(as_arrays({name: tensor.clone() for name, tensor in module.state_dict().items()})))
    )
    ids = source_ids.numpy(), decoder_input_ids.numpy()
    return Problem("as it is run", leaves, *ids, ids[1])
