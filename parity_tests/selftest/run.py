"""The self-test: every system with every fault, and every system without."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from selftest.matrix import Kill, Prepared, false_alarms, kills_of
from selftest.other_stages import later_kills
from selftest.real_pairs import REAL_PAIRS, Verdict, judge
from selftest.subjects import MECHANISMS, SUBJECTS
from selftest.through_command import Command, command_kills

BLOCKS = ("DeepNorm", "LayerScale", "ResScale", "NormFormer", "GPT-J", "GPT-NeoX", "scaled positions")
"""Kinds of blocks that no published system here has, of `block_pairs`: faults enter their running modules alone, as
they have no checkpoints for the command, nor losses, steps and decoding of their own."""
PLACES = 2
"""Nodes of each system at which a fault is tried."""
BY_COMMAND = 2
"""Faults of each system that are tried through the command, too: a known one and an unknown one."""
SEEDS = 20
"""Weights that each system is drawn with, to see that nothing is found where nothing is wrong."""
LOCATED, NAMED = 0.98, 0.95
"""Shares that are required: of all faults found, those whose node is told; of those in the catalogue, those whose name
is."""


@dataclass(frozen=True)
class Result:
    """What a self-test found."""

    kills: Sequence[Kill]
    alarms: Mapping[str, int]
    """By system, how many of the seeds gave an alarm."""
    seeds: int
    seconds: float
    real_pairs: Sequence[Verdict] = ()

    def of(self, *, known: bool) -> list[Kill]:
        """Those of the catalogue, or of the open world."""
        return [kill for kill in self.kills if kill.known == known]

    @property
    def requirements(self) -> dict[str, bool]:
        """Each in words, and whether it is met; none is where nothing was tried."""
        known, unknown = (Counts.of(self.of(known=side)) for side in (True, False))
        return {
            "catalogue: every fault that makes a difference is detected": known.missed == 0 < known.found,
            f"catalogue: at least {LOCATED:.0%} are located": known.located >= LOCATED * known.found,
            f"catalogue: at least {NAMED:.0%} are named": known.named >= NAMED * known.found,
            "open world: every fault is detected": unknown.missed == 0 < unknown.found,
            f"open world: at least {LOCATED:.0%} are located": unknown.located >= LOCATED * unknown.found,
            "open world: none is given a wrong name": unknown.wrongly_named == 0,
            "real pairs: everything that differs is named": not any(verdict.missing for verdict in self.real_pairs),
            f"{self.seeds} seeds of each system without a fault: no alarm": bool(self.alarms)
            and not any(self.alarms.values()),
        }

    @property
    def meets_all(self) -> bool:
        return all(self.requirements.values())


@dataclass(frozen=True)
class Counts:
    """Of some faults."""

    found: int = 0
    missed: int = 0
    located: int = 0
    named: int = 0
    wrongly_named: int = 0
    equivalent: int = 0
    noted: int = 0
    """Those that are equivalent, and noted."""
    not_applicable: int = 0

    @classmethod
    def of(cls, kills: Sequence[Kill]) -> Counts:
        def count(fate: str) -> int:
            return sum(kill.fate == fate for kill in kills)

        found = [kill for kill in kills if kill.fate == "found"]
        return cls(
            len(found),
            count("missed"),
            sum(kill.located for kill in found),
            sum(kill.named for kill in found),
            sum(kill.wrongly_named for kill in kills if kill.fate in ("found", "equivalent (noted)")),
            count("equivalent"),
            count("equivalent (noted)"),
            count("not applicable"),
        )

    def summary(self) -> str:
        return (
            f"{self.found} found, {self.missed} missed, {self.located} located, {self.named} named, "
            f"{self.wrongly_named} wrongly named, "
            f"{self.equivalent} equivalent, {self.noted} equivalent and noted, {self.not_applicable} don't apply"
        )


def run(
    command: Command,
    systems: Sequence[str] = (*SUBJECTS, *MECHANISMS, *BLOCKS),
    *,
    seed: int = 0,
    seeds: int = SEEDS,
    tell: Callable[[str], None] = lambda line: None,
) -> Result:
    """Puts every fault into each of the systems, and returns the outcomes.

    Args:
      command: `jax-transformer parity`, which some of them are put to as well, in systems that have a dialect.
    """
    begin, kills, alarms = time.perf_counter(), [], {}
    with one_thread():
        for name in systems:
            system = Prepared.of(name, seed)
            of_system = [*kills_of(system, PLACES, seed)]
            if name not in BLOCKS:
                of_system += later_kills(system, seed)
            if name not in (*BLOCKS, *MECHANISMS):
                of_system += command_kills(system, command, BY_COMMAND, seed)
            kills += of_system
            alarms[name] = false_alarms(
                name, range(seed + 1, seed + 1 + seeds), lambda what: tell(f"  false alarm: {what}")
            )
            for known, title in ((True, "catalogue "), (False, "open world")):
                tell(f"{name}: {title} {Counts.of([kill for kill in of_system if kill.known == known]).summary()}")
            for kill in of_system:
                if kill.shortcomings:
                    tell(f"  {kill.fault}, at {kill.node}: {'; '.join(kill.shortcomings)}")
            tell(f"{name}: {alarms[name]} false alarms in {seeds} seeds; {time.perf_counter() - begin:.0f} s so far")
        pairs = [judge(pair, seed) for pair in REAL_PAIRS]
    result = Result(kills, alarms, seeds, time.perf_counter() - begin, pairs)
    for requirement, met in result.requirements.items():
        tell(f"{'✓' if met else '✗'} {requirement}")
    return result


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch by one thread: of models so small, more only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
