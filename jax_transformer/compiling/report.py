"""Reports the memory, operations, communication and lower bound on time of a compiled program."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from jax_transformer.compiling import hlo
from jax_transformer.compiling.costs import Collective, count_costs
from jax_transformer.compiling.programs import ModelProgram, Shape
from jax_transformer.compiling.targets import Chip, DoesNotFit, Target
from jax_transformer.parallel.mesh import described


@dataclass(frozen=True)
class Roofline:
    """Holds the seconds of a step if only one thing limited it (Williams et al. 2009)."""

    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """Returns the time of a step that overlaps all three."""
        return max(self.compute, self.memory, self.network)

    @property
    def bound(self) -> str:
        """Returns the resource that limits the step."""
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


@dataclass(frozen=True)
class CompileReport:
    """Holds the requirements of a compiled program on each device."""

    target: str
    program: str
    mesh: str
    devices: int
    shape: Shape
    arguments: int
    """Bytes of the arguments: the state and the batch."""
    temporaries: int
    """Maximum bytes of temporary buffers."""
    output: int
    """Bytes of the results that don't reuse an argument's memory."""
    memory: float | None
    """Bytes of the device's memory; None if it isn't known."""
    compile_seconds: float
    compile_processor_seconds: float
    model_flops: float
    """Operations of the model on one device."""
    program_flops: float
    """Operations of the compiled program on one device."""
    traffic: float
    """Bytes between the device and its memory."""
    collectives: tuple[Collective, ...]
    roofline: Roofline | None
    utilization: float | None
    """The share of the device's FLOP/s that the model could use at most (MFU)."""

    @property
    def needed(self) -> int:
        """Bytes that the program needs at once."""
        return self.arguments + self.temporaries + self.output

    @property
    def fits(self) -> bool:
        return self.memory is None or self.needed <= self.memory

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON has it: bytes, seconds and FLOPs."""
        derived = {
            "needed": self.needed,
            "fits": self.fits,
            "flops_ratio": self.program_flops / self.model_flops,
            "bound": None if self.roofline is None else self.roofline.bound,
            "roofline_seconds": None if self.roofline is None else self.roofline.seconds,
        }
        return dataclasses.asdict(self) | derived

    def lines(self) -> Iterator[str]:
        """Yields the report as text."""
        shape = self.shape
        yield f"{self.program} on {self.mesh}"
        yield f"  batch                  {shape.rows} rows of {shape.source} source and {shape.target} target tokens"
        capacity = "" if self.memory is None else f" of {_bytes(self.memory)}"
        yield (
            f"  memory of each device  {_bytes(self.needed)}{capacity}: {_bytes(self.arguments)} arguments, "
            f"{_bytes(self.temporaries)} temporaries, {_bytes(self.output)} output"
        )
        processors = f"{self.compile_processor_seconds:.1f} s of processors"
        yield f"  compilation            {self.compile_seconds:.1f} s, {processors}"
        ratio = self.program_flops / self.model_flops
        yield (
            f"  FLOPs of each device   {self.program_flops:.3e} in the program, {self.model_flops:.3e} in the model "
            f"({ratio:.3f}×)"
        )
        yield f"  memory traffic         {_bytes(self.traffic)}"
        for one in self.collectives:
            yield f"  {one.kind:<22} {one.count} × {one.dtype} among {one.group} devices: {_bytes(one.sent)} sent"
        if self.roofline is not None:
            roof = self.roofline
            yield (
                f"  least time of a step   {1e3 * roof.seconds:.2f} ms, bound by {roof.bound}: compute "
                f"{1e3 * roof.compute:.2f}, memory {1e3 * roof.memory:.2f}, network {1e3 * roof.network:.2f} ms"
            )
            yield f"  MFU at most            {self.utilization:.0%}"


def compile_program(
    target: Target, name: str, shape: Shape, mesh: Mesh, lower: Callable[[], ModelProgram], *, wide: bool
) -> CompileReport:
    """Compiles a program and reports what it needs.

    Args:
      target: the devices.
      name: name of the program.
      shape: shape of the batch.
      mesh: the devices.
      lower: returns the program.
      wide: whether it computes in float32.

    Raises:
      DoesNotFit: the compiler refuses the program.
    """
    program = lower()
    wall, processors = time.perf_counter(), time.process_time()
    try:
        compiled = program.lowered.compile()
    except Exception as error:  # XLA's, whose classes depend on the backend
        raise DoesNotFit(f"{name} on {target}, {described(mesh)}: {_reason(str(error))}") from error
    seconds, processor_seconds = time.perf_counter() - wall, time.process_time() - processors
    usage = compiled.memory_analysis()
    arguments, output = usage.argument_size_in_bytes, usage.output_size_in_bytes - usage.alias_size_in_bytes
    costs = count_costs(hlo.parse(compiled.as_text()), mesh.size, most_trips=shape.target)
    peak = usage.peak_memory_in_bytes - arguments - output
    model_flops = program.flops / mesh.size
    roofline = utilization = None
    if target.chip is not None:
        flops_per_second = target.chip.flops_float32 if wide else target.chip.flops
        roofline = _roofline(target.chip, costs.flops / flops_per_second, costs.traffic, costs.sent)
        utilization = model_flops / (roofline.seconds * flops_per_second)
    return CompileReport(
        target=str(target),
        program=name,
        mesh=described(mesh),
        devices=mesh.size,
        shape=shape,
        arguments=arguments,
        temporaries=peak if target.platform == "tpu" else usage.temp_size_in_bytes,  # which counts some twice there
        output=output,
        memory=None if target.chip is None else target.chip.memory,
        compile_seconds=seconds,
        compile_processor_seconds=processor_seconds,
        model_flops=model_flops,
        program_flops=costs.flops,
        traffic=costs.traffic,
        collectives=costs.collectives,
        roofline=roofline,
        utilization=utilization,
    )


def _roofline(chip: Chip, compute: float, traffic: float, sent: float) -> Roofline:
    return Roofline(compute, traffic / chip.bandwidth, sent / chip.network)


def _reason(message: str) -> str:
    """Returns the sentence of a compiler's error that states the cause."""
    used = re.search(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm", message)
    if used:
        return f"it needs {used.group(1)} of memory on a device that has {used.group(2)}"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:300] if lines else "the compiler refuses it"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def largest_batch(compile_rows: Callable[[int], CompileReport], multiple: int, start: int) -> CompileReport:
    """Returns the report of the largest batch that fits, to within a sixteenth of its rows.

    Memory grows linearly with the rows, so two compilations give an estimate, and a few more refine it.

    Args:
      compile_rows: compiles for a number of rows; may raise DoesNotFit.
      multiple: the divisor of the number of rows.
      start: the first number of rows to try.

    Raises:
      DoesNotFit: not even the smallest batch fits.
    """

    def attempt(rows: int) -> CompileReport | None:
        try:
            report = compile_rows(rows)
        except DoesNotFit as error:
            reasons.append(error)
            return None
        return report if report.fits else None

    def rounded(rows: float) -> int:
        return max(int(rows) // multiple, 1) * multiple

    reasons: list[DoesNotFit] = []
    rows, best = rounded(start), attempt(rounded(start))
    while best is None and rows > multiple:
        rows = rounded(rows / 2)
        best = attempt(rows)
    if best is None:
        raise reasons[-1] if reasons else DoesNotFit("the smallest batch doesn't fit")
    if best.memory is None:
        raise DoesNotFit("largest batch: the target's memory isn't known")
    too_many: int | None = None
    while too_many is None or too_many - best.shape.rows > max(multiple, best.shape.rows // 16):
        guess = rounded(_guess(best, too_many))
        guess = max(guess, best.shape.rows + multiple)
        if too_many is not None:
            guess = min(guess, too_many - multiple)
        report = attempt(guess)
        best, too_many = (report, too_many) if report is not None else (best, guess)
    return best


def _guess(best: CompileReport, too_many: int | None) -> float:
    """Estimates the rows that fill the memory, if all temporaries grow with the rows."""
    if too_many is not None:
        return (best.shape.rows + too_many) / 2
    assert best.memory is not None
    return best.shape.rows * min((best.memory - best.arguments) / max(best.temporaries, 1), 64.0)
