"""Counts the operations, memory traffic and communication of one run of a compiled program on one device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jax_transformer.compiling.hlo import Computation, Instruction, Program
from jax_transformer.model.flash_kernels import kernel_flops

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"}
    | {"partition-id", "replica-id", "iota", "domain", "opt-barrier", "async-start", "async-update", "async-done"}
)
"""Operations that move no data of their own."""
DESTINATION = {"copy-start": 0, "slice-start": 1, "dynamic-slice-start": 1}
"""Transfers between memories in the TPU compiler's notation → the index of the result array that they write."""


@dataclass(frozen=True)
class Collective:
    """Sums up the collectives of one kind and group size."""

    kind: str
    group: int
    """Number of devices that take part."""
    dtype: str
    count: int
    """Number of these collectives in a step."""
    sent: float
    """Bytes that each device sends in a step, by the best algorithm on a ring."""


@dataclass(frozen=True)
class Costs:
    """Holds the costs of one run of a program on one device."""

    flops: float
    """Floating-point operations of matrix products: two for each multiplication and addition."""
    traffic: float
    """Bytes read from and written to the device's main memory."""
    collectives: tuple[Collective, ...]

    @property
    def sent(self) -> float:
        """Bytes that each device sends."""
        return sum(one.sent for one in self.collectives)


def count_costs(program: Program, devices: int, most_trips: int = 1) -> Costs:
    """Counts the costs of a program that `devices` devices run together; a loop counts as often as it runs.

    Args:
      program: the program.
      devices: number of devices that run it.
      most_trips: number of iterations of a loop whose condition has no constant bound, such as a search.
    """
    flops = traffic = 0.0
    sums: dict[tuple[str, int, str], list[float]] = {}
    seen: set[str] = set()
    for computation, times, fused in program.executed(most_trips):
        for instruction in computation.instructions.values():
            flops += times * _flops(computation, instruction)
            if not fused:
                traffic += times * _traffic(program, computation, instruction)
            channel = _channel(instruction) if fused else ""
            if channel in seen:  # a TPU's program has a collective in the fusions that start, carry and end it
                continue
            seen |= {channel} - {""}
            for kind, group, dtype, sent in _communication(computation, instruction, devices):
                entry = sums.setdefault((kind, group, dtype), [0, 0.0])
                entry[0] += times
                entry[1] += times * sent
    collectives = (Collective(*key, int(count), sent) for key, (count, sent) in sorted(sums.items()))
    return Costs(flops, traffic, tuple(collectives))


# --- matrix products


def _flops(computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode == "dot":
        return 2.0 * math.prod(instruction.result[0].shape) * _contracted(computation, instruction)
    if instruction.opcode == "convolution":
        return 2.0 * _multiplications(computation, instruction)
    if instruction.opcode == "custom-call" and "pallas_call" in instruction.attributes:
        shapes = [array.shape for operand in computation.operands(instruction) for array in operand.result[:1]]
        return kernel_flops(instruction.attributes, shapes)
    return 0.0


def _contracted(computation: Computation, dot: Instruction) -> int:
    """Returns the number of products that each element of a dot's result sums up."""
    left = computation.operands(dot)[0].result[0].shape
    axes = _numbers(dot.attributes, "lhs_contracting_dims")
    return math.prod(left[axis] for axis in axes)


def _multiplications(computation: Computation, convolution: Instruction) -> int:
    """Returns the multiplications of a convolution, as which the TPU's compiler writes matrix products.

    A spatial axis counts the pairs of an output's and a kernel's position that meet an element of the input, so that
    the batch axes of a product, written as dilated windows, count once.
    """
    left, right = (one.result[0].shape for one in computation.operands(convolution)[:2])
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.attributes)
    assert labels is not None
    input_axes, kernel_axes, output_axes = labels.groups()
    output = convolution.result[0].shape
    count = output[output_axes.index("b")] * output[output_axes.index("f")] * right[kernel_axes.index("i")]
    for number, axis in enumerate(sorted(set(output_axes) - {"b", "f"})):
        window = {
            name: _window(convolution.attributes, name, number)
            for name in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")
        }
        count *= _meeting(output[output_axes.index(axis)], left[input_axes.index(axis)], window)
    return count


def _window(attributes: str, name: str, number: int) -> int:
    """Returns one number of a window, such as `stride=63x15`; of a padding `1_0x0_0` the lower one."""
    match = re.search(rf"window=\{{[^}}]*\b{name}=([\d_x\-]+)", attributes)
    if match is None:
        return 0 if name == "pad" else 1
    return int(match.group(1).split("x")[number].split("_")[0])


def _meeting(outputs: int, inputs: int, window: dict[str, int]) -> int:
    """Counts the pairs of output and kernel positions that meet an element of the input along one axis."""
    at = np.arange(outputs)[:, None] * window["stride"] + np.arange(window["size"])[None] * window["rhs_dilate"]
    at -= window["pad"]
    inside = (at >= 0) & (at <= (inputs - 1) * window["lhs_dilate"])
    return int((inside & (at % window["lhs_dilate"] == 0)).sum())


def _numbers(attributes: str, name: str) -> list[int]:
    match = re.search(rf"\b{name}=\{{([\d,]*)\}}", attributes)
    return [int(number) for number in match.group(1).split(",") if number] if match else []


# --- memory


def _traffic(program: Program, computation: Computation, instruction: Instruction) -> float:
    """Returns the bytes of main memory that an instruction outside of fusions reads and writes."""
    if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
        return 0.0
    operands = computation.operands(instruction)
    if instruction.opcode == "fusion":
        return _fusion_traffic(program.computations[instruction.calls["calls"][0]], instruction, operands)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _main(operands[1])
    if instruction.opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * _main(instruction)
    if instruction.opcode in DESTINATION:
        moved = instruction.result[DESTINATION[instruction.opcode]]
        return sum(moved.bytes for array in (operands[0].result[0], moved) if not array.on_chip)
    if instruction.opcode.endswith("-start"):  # its result repeats its operands
        return 2 * sum(_main(operand) for operand in operands)
    return _main(instruction) + sum(_main(operand) for operand in operands)


def _main(instruction: Instruction) -> float:
    return sum(array.bytes for array in instruction.result if not array.on_chip)


def _fusion_traffic(fused: Computation, fusion: Instruction, operands: list[Instruction]) -> float:
    """Returns the traffic of a fusion. An operand counts as the slices that are used, and a result that is updated in
    place as the update."""
    parameters = {int(one.literal): one for one in fused.instructions.values() if one.opcode == "parameter"}
    total = 0.0
    for number, operand in enumerate(operands):
        users = [one for one in fused.instructions.values() if parameters[number].name in one.operands]
        if users and all(_uses_slice(one, parameters[number]) for one in users):
            slices = (one for one in users if one.opcode != "dynamic-update-slice")
            total += 0.0 if any(array.on_chip for array in operand.result) else sum(one.bytes for one in slices)
        else:
            total += _main(operand)
    return total + sum(_written(fused, one, fusion, k) for k, one in enumerate(_roots(fused)))


def _uses_slice(user: Instruction, parameter: Instruction) -> bool:
    if user.operands[0] != parameter.name:
        return False
    return user.opcode in ("dynamic-slice", "slice", "gather", "dynamic-update-slice")


def _roots(fused: Computation) -> list[Instruction]:
    return fused.operands(fused.root) if fused.root.opcode == "tuple" else [fused.root]


def _written(fused: Computation, root: Instruction, fusion: Instruction, number: int) -> float:
    while root.opcode == "bitcast":
        root = fused.operands(root)[0]
    if fusion.result[min(number, len(fusion.result) - 1)].on_chip:
        return 0.0
    return fused.operands(root)[1].bytes if root.opcode == "dynamic-update-slice" else root.bytes


# --- communication


def _communication(
    computation: Computation, instruction: Instruction, devices: int
) -> Iterator[tuple[str, int, str, float]]:
    """Yields the kind, the group's size, the dtype and the bytes that a device sends."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return
    group = _group(instruction.attributes, devices)
    if kind == "all-reduce" and _keeps_a_share(computation, instruction, group):
        kind = "reduce-scatter"
    arrays = [array for operand in computation.operands(instruction) for array in operand.result]
    size = sum(array.bytes for array in arrays)
    share = {
        "all-gather": group - 1,
        "reduce-scatter": (group - 1) / group,
        "all-reduce": 2 * (group - 1) / group,
        "all-to-all": (group - 1) / group,
        "collective-permute": 1,
    }[kind]
    yield kind, group, arrays[0].dtype, size * share


def _keeps_a_share(computation: Computation, reduction: Instruction, group: int) -> bool:
    """Returns whether a fusion keeps one device's share of a reduction alone, as the TPU's compiler writes a
    reduce-scatter."""
    root = computation.root
    is_slice = root.opcode == "dynamic-slice" and root.operands[0] == reduction.name
    return is_slice and root.bytes * group == reduction.bytes


def _channel(instruction: Instruction) -> str:
    """Returns the channel id of a collective; "" for another instruction."""
    if instruction.opcode.removesuffix("-start") not in COLLECTIVES:
        return ""
    match = re.search(r"channel_id=(\d+)", instruction.attributes)
    return match.group(1) if match else ""


def _group(attributes: str, devices: int) -> int:
    """Returns the number of devices in a collective, from `replica_groups={{0,1},{2,3}}`, `[2,4]<=[8]` or
    `mesh['x'=2,'y'=4] {'y'}`."""
    by_axes = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes)
    if by_axes:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", by_axes.group(1)))
        joined = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", by_axes.group(2))
        return math.prod(int(part or sizes[axis]) for axis, part in joined)
    by_shape = re.search(r"replica_groups=\[([\d,]+)\]", attributes)
    if by_shape:
        return int(by_shape.group(1).split(",")[-1])
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return len(listed.group(1).split(","))
    return 2 if "source_target_pairs" in attributes else devices
