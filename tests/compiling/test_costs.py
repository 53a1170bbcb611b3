"""Counting what a compiled program does, from its text and from programs that XLA compiles here."""

from __future__ import annotations

import pytest

from jax_transformer.compiling.costs import Costs, count_costs
from jax_transformer.compiling.hlo import parse

LOOP = """HloModule example, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p0: f32[6,8,16], p1: s32[]) -> f32[8,16] {
  %p0 = f32[6,8,16]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,16]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,8,16}
  ROOT %row = f32[8,16]{1,0} bitcast(%slice)
}

%body (state: (s32[], f32[4,8], f32[6,8,16])) -> (s32[], f32[4,8], f32[6,8,16]) {
  %state = (s32[], f32[4,8]{1,0}, /*index=2*/f32[6,8,16]{2,1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%state), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %kernels = f32[6,8,16]{2,1,0} get-tuple-element(%state), index=2
  %one = s32[] constant(STEP)
  %next = s32[] add(%counter, %one)
  %kernel = f32[8,16]{1,0} fusion(%kernels, %counter), kind=kLoop, calls=%fused
  %y = f32[4,16]{1,0} dot(%x, %kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %out = (s32[], f32[4,8]{1,0}, f32[6,8,16]{2,1,0}) tuple(%next, %x, %kernels)
}

%condition (state.1: (s32[], f32[4,8], f32[6,8,16])) -> pred[] {
  %state.1 = (s32[], f32[4,8]{1,0}, f32[6,8,16]{2,1,0}) parameter(0)
  %bound = s32[]{:T(128)} constant(6)
  %counter.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%counter.1, %bound), direction=LT
}

ENTRY %main (x: f32[4,8], kernels: f32[6,8,16]) -> f32[4,8] {
  %x.1 = f32[4,8]{1,0} parameter(0)
  %kernels.1 = f32[6,8,16]{2,1,0} parameter(1)
  %start = s32[] constant(0)
  %state.2 = (s32[], f32[4,8]{1,0}, f32[6,8,16]{2,1,0}) tuple(%start, %x.1, %kernels.1)
  %loop = (s32[], f32[4,8]{1,0}, f32[6,8,16]{2,1,0}) while(%state.2), condition=%condition, body=%bodyNOTE
  ROOT %result = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def costs_of(text: str, devices: int = 8, **options: int) -> Costs:
    return count_costs(parse(text), devices, **options)


def entry_costs(*lines: str, extra: str = "") -> Costs:
    """Returns the costs of a program of these instructions."""
    inside = "\n".join(f"  {line}" for line in lines)
    return costs_of(f"{extra}\nENTRY %main (p: f32[4]) -> f32[4] {{\n{inside}\n}}\n")


# --- loops


@pytest.mark.parametrize(
    ("step", "note", "trips"),
    [
        ("1", "", 6),
        ("2", "", 3),
        ("1", ', backend_config={"known_trip_count":{"n":"5"},"known_step":"1"}', 5),
    ],
)
def test_a_loop_counts_as_often_as_it_runs(step: str, note: str, trips: int) -> None:
    costs = costs_of(LOOP.replace("STEP", step).replace("NOTE", note))
    assert costs.flops == trips * 2 * 4 * 8 * 16
    slice_of_kernels, x, y = 8 * 16 * 4, 4 * 8 * 4, 4 * 16 * 4
    # the fusion reads one kernel of six and writes it; the product reads x and the kernel, and writes y; the counter
    assert costs.traffic == trips * (2 * slice_of_kernels + 4 + x + slice_of_kernels + y + 3 * 4)


def test_a_search_counts_the_callers_iterations() -> None:
    text = LOOP.replace("STEP", "1").replace("NOTE", "").replace("direction=LT", "direction=NE")
    assert costs_of(text, most_trips=4).flops == 4 * 2 * 4 * 8 * 16
    assert costs_of(text).flops == 2 * 4 * 8 * 16


# --- products


def test_a_tpus_batched_product_is_a_convolution_with_windows() -> None:
    """The batch axes of 64 and 16 are windows in which each output meets one input."""
    costs = entry_costs(
        "%q = bf16[64,64,16,64]{3,2,1,0} parameter(0)",
        "%k = bf16[64,64,16,64]{3,2,1,0} parameter(1)",
        "ROOT %c = f32[64,16,64,64]{2,3,1,0:T(8,128)} convolution(%q, %k), "
        "window={size=64x16 stride=63x15 lhs_dilate=64x16}, dim_labels=0b1f_0o1i->01bf",
    )
    assert costs.flops == 2 * 64 * 16 * 64 * 64 * 64


def test_a_plain_convolution_is_a_product() -> None:
    costs = entry_costs(
        "%x = bf16[4096,1024]{1,0} parameter(0)",
        "%w = bf16[1024,3072]{1,0} parameter(1)",
        "ROOT %c = bf16[4096,3072]{1,0:T(8,128)(2,1)} convolution(%x, %w), dim_labels=bf_io->bf",
    )
    assert costs.flops == 2 * 4096 * 1024 * 3072


# --- memory


def test_memory_on_the_chip_is_no_traffic() -> None:
    costs = entry_costs(
        "%x = f32[1024]{0:T(1024)} parameter(0)",
        "%y = f32[1024]{0:T(1024)S(1)} negate(%x)",
        "ROOT %z = f32[1024]{0:T(1024)S(1)} negate(%y)",
    )
    assert costs.traffic == 4 * 1024


@pytest.mark.parametrize(
    ("space", "bytes_moved"), [("", 2 * 400), ("S(1)", 400)], ids=["in main memory", "onto the chip"]
)
def test_a_transfer_counts_its_bytes(space: str, bytes_moved: int) -> None:
    """And not all of what it takes a slice of."""
    layout = f"{{1,0:T(8,128){space}}}"
    costs = entry_costs(
        "%x = f32[6,100]{1,0:T(8,128)} parameter(0)",
        f"%s = (f32[6,100]{{1,0:T(8,128)}}, f32[1,100]{layout}, s32[]) slice-start(%x), slice={{[0:1], [0:9]}}",
        f"ROOT %d = f32[1,100]{layout} slice-done(%s)",
    )
    assert costs.traffic == bytes_moved
    costs = entry_costs(
        "%x = f32[1,100]{1,0:T(8,128)} parameter(0)",
        f"%c = (f32[1,100]{layout}, f32[1,100]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%x)",
        f"ROOT %d = f32[1,100]{layout} copy-done(%c)",
    )
    assert costs.traffic == bytes_moved


def test_an_update_in_place_counts_as_the_update() -> None:
    fused = """%fused (p0: f32[6,100], p1: f32[1,100], p2: s32[]) -> f32[6,100] {
  %p0 = f32[6,100]{1,0} parameter(0)
  %p1 = f32[1,100]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %updated = f32[6,100]{1,0} dynamic-update-slice(%p0, %p1, %p2, %zero)
}
"""
    costs = entry_costs(
        "%all = f32[6,100]{1,0} parameter(0)",
        "%row = f32[1,100]{1,0} parameter(1)",
        "%at = s32[] parameter(2)",
        "ROOT %new = f32[6,100]{1,0} fusion(%all, %row, %at), kind=kLoop, calls=%fused",
        extra=fused,
    )
    assert costs.traffic == 400 + 400 + 4


# --- communication


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['data'=2,'fsdp'=4] {'fsdp'}", 4),
        ("mesh['a'=1,'b'=16] {'b':(1)4}", 4),
        ("mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("{}", 8),
    ],
)
def test_groups(groups: str, size: int) -> None:
    costs = entry_costs(
        "%x = f32[1000]{0} parameter(0)",
        f"ROOT %y = f32[1000]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add",
    )
    (one,) = costs.collectives
    assert (one.kind, one.group, one.count, one.dtype) == ("all-reduce", size, 1, "f32")
    assert one.sent == pytest.approx(2 * 4000 * (size - 1) / size)


@pytest.mark.parametrize(
    ("kind", "operand", "result", "sent"),
    [
        ("all-gather", "bf16[2,100]", "bf16[8,100]", 3 * 400),
        ("reduce-scatter", "f32[8,100]", "f32[2,100]", 3200 * 3 / 4),
        ("all-to-all", "f32[8,100]", "f32[8,100]", 3200 * 3 / 4),
        ("all-gather-start", "bf16[2,100]", "(bf16[2,100], bf16[8,100])", 3 * 400),
    ],
)
def test_bytes_sent(kind: str, operand: str, result: str, sent: float) -> None:
    costs = entry_costs(
        f"%x = {operand} parameter(0)", f"ROOT %y = {result} {kind}(%x), channel_id=3, replica_groups=[2,4]<=[8]"
    )
    assert costs.sent == pytest.approx(sent)


@pytest.mark.parametrize(("kept", "kind", "sent"), [(2, "reduce-scatter", 2400), (4, "all-reduce", 4800)])
def test_a_reduction_of_which_a_fusion_keeps_one_share(kept: int, kind: str, sent: float) -> None:
    fused = (
        f"%scatter (p: f32[8,100]) -> f32[{kept},100] {{\n  %p = f32[8,100] parameter(0)\n  %at = s32[] constant(0)\n"
        "  %sum = f32[8,100] all-reduce(%p), channel_id=7, replica_groups=[2,4]<=[8], to_apply=%add\n"
        f"  ROOT %own = f32[{kept},100] dynamic-slice(%sum, %at, %at), dynamic_slice_sizes={{{kept},100}}\n}}\n"
    )
    costs = entry_costs(
        "%x = f32[8,100] parameter(0)",
        f"ROOT %y = f32[{kept},100] fusion(%x), kind=kCustom, calls=%scatter",
        extra=fused,
    )
    assert [(one.kind, one.sent) for one in costs.collectives] == [(kind, sent)]


def test_a_collective_in_three_fusions_counts_once() -> None:
    fused = "".join(
        f"%{name} (p: f32[2,100]) -> f32[8,100] {{\n  %p = f32[2,100] parameter(0)\n"
        "  ROOT %g = f32[8,100] all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8]\n}\n"
        for name in ("start", "carry", "done")
    )
    costs = entry_costs(
        "%x = f32[2,100] parameter(0)",
        "%a = f32[8,100] fusion(%x), kind=kCustom, calls=%start",
        "%b = f32[8,100] fusion(%x), kind=kCustom, calls=%carry",
        "ROOT %c = f32[8,100] fusion(%x), kind=kCustom, calls=%done",
        extra=fused,
    )
    assert [one.count for one in costs.collectives] == [1]


def test_text_that_is_no_program() -> None:
    with pytest.raises(ValueError, match="found no entry computation"):
        parse("nothing")
