"""Makes tables of the results, in Markdown: printed at the end of a measurement, and written into docs/gpu.md."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12}
"""Dense bfloat16, by NVIDIA's data sheets of the SXM modules."""
PREDICTED = Path(__file__).parent / "predicted.json"
T5X = "75.8 on an A100, and 174.1 on an H100 with FP8"
"""Sequences per second, as JAX-Toolbox's T5X table has them for T5-1.1-large."""
SHOWN_OPERATIONS = 10

Rows = list[dict[str, Any]]


SHORTENED: dict[str, tuple[str, Callable[[list[str]], bool]]] = {
    "Attention": ("gpu_attention.csv", lambda cells: cells[2] == "1024"),
}
"""Long tables: the CSV file of all rows, in tables/ next to the page, and which rows the page shows."""


def tables(rows: Rows) -> str:
    """Returns all tables for which there are results."""
    return _joined(sections(rows))


def page_tables(rows: Rows) -> tuple[str, dict[str, str]]:
    """Returns the tables of the page, and the text of the CSV files that it links, by name."""
    shown, files = [], {}
    for title, lines in sections(rows):
        if title in SHORTENED:
            name, is_shown = SHORTENED[title]
            head, rule, *body = lines
            files[name] = as_csv([head, *body])
            lines = [head, rule, *(line for line in body if is_shown(cells_of(line)))]
            lines += ["", f"[All {len(body)} rows](tables/{name})"]
        shown.append((title, lines))
    return _joined(shown), files


def as_csv(lines: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cells_of, lines))
    return text.getvalue()


def cells_of(line: str) -> list[str]:
    """Returns the cells of a line of a table in Markdown."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def _joined(made: Iterable[tuple[str, list[str]]]) -> str:
    return "\n\n".join(f"### {title}\n\n" + "\n".join(lines) for title, lines in made)


def sections(rows: Rows) -> list[tuple[str, list[str]]]:
    """Returns the title and the lines of each table for which there are results."""
    makers: tuple[tuple[str, Callable[[Rows], list[str]]], ...] = (
        ("Machine", machine),
        ("Training", training),
        ("T5-1.1-large's shape", t5_large),
        ("Fine-tuning", fine_tuning),
        ("Decoding", decoding),
        ("Attention", attention),
        ("Parity", parity),
        ("Predicted and measured", predicted),
        ("Kill and resume", resuming),
        ("Quality", quality),
        ("The longest operations of a step", longest),
        ("Not measured", failures),
    )
    return [(title, lines) for title, maker in makers if (lines := maker(rows))]


def table(head: Iterable[str], lines: Iterable[Iterable[Any]]) -> list[str]:
    """Returns a table, or nothing if it has no lines."""
    body = [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]
    head = list(head)
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body] if body else []


def of(rows: Rows, what: str, **facts: Any) -> Rows:
    return [
        row
        for row in rows
        if row.get("what") == what
        and "error" not in row
        and all(row.get(name) == value for name, value in facts.items())
    ]


def first(rows: Rows) -> dict[str, Any] | None:
    return rows[0] if rows else None


def device_of(rows: Rows) -> str:
    found = first(of(rows, "machine"))
    return "" if found is None else str(found["device"])


def peak_flops(rows: Rows) -> float | None:
    return next((peak for kind, peak in PEAK_FLOPS.items() if kind in device_of(rows)), None)


def machine(rows: Rows) -> list[str]:
    found = first(of(rows, "machine"))
    if found is None:
        return []
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        f"{found['device']}, {found['cores']} cores of {found['processor']}; Python {found['python']}, {versions}."
    ]
    ceilings = [f"{row['what']}: {row['tflops']:,.0f} TFLOP/s" for row in rows if "tflops" in row]
    ceilings += [f"copy: {row['terabytes_per_second']:.2f} TB/s" for row in of(rows, "copy")]
    return [*lines, "", f"Ceilings, measured: {'; '.join(ceilings)}."] if ceilings else lines


def training(rows: Rows) -> list[str]:
    rows_of = [row for row in of(rows, "train") if not row.get("finetuning") and row.get("model") != "t5_large"]
    names = list(dict.fromkeys(row["name"] for row in rows_of))
    peak = peak_flops(rows)
    lines = []
    for name in names:
        by_side = {row["side"]: row for row in rows_of if row["name"] == name}
        ours, others = by_side.get("jax"), [row for side, row in by_side.items() if side != "jax"]
        best = max((row["tokens_per_second"] for row in others), default=None)
        lines.append(
            [
                name,
                speed(ours),
                speed(by_side.get("torch eager")),
                speed(by_side.get("torch compiled")),
                "" if ours is None or best is None else f"{ours['tokens_per_second'] / best:.2f}",
                "" if ours is None or peak is None else f"{ours['flops'] / ours['seconds'] / peak:.0%}",
                ", ".join(gigabytes(by_side.get(side)) for side in ("jax", "torch eager", "torch compiled")),
                "" if ours is None else f"{ours['compile_seconds']:.0f}",
            ]
        )
    head: tuple[str, ...] = (
        "model, vocabulary, rows × tokens", "here, target tokens/s", "torch eager", "torch compiled", "ratio",
        "MFU", "GB: here, eager, compiled", "to the program, s",
    )  # fmt: skip
    return table(head, lines)


def speed(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['tokens_per_second']:,.0f}"


def gigabytes(row: dict[str, Any] | None) -> str:
    """Returns the memory of a step: that of the compiled program here, and PyTorch's peak."""
    size = None if row is None else planned_bytes(row) or row.get("peak_bytes")
    return "–" if size is None else f"{size / 1e9:.1f}"


def planned_bytes(row: dict[str, Any]) -> int | None:
    """Returns the memory that the compiler planned for a program compiled here."""
    planned = row.get("planned_bytes")
    if planned is None:
        return None
    return sum(planned[kind] or 0 for kind in ("argument", "temp", "output")) - (planned["alias"] or 0)


def t5_large(rows: Rows) -> list[str]:
    row = first(of(rows, "train", model="t5_large"))
    if row is None:
        return []
    peak = peak_flops(rows)
    mfu = "" if peak is None else f", MFU {row['flops'] / row['seconds'] / peak:.0%}"
    return [
        f"{row['name']}, bfloat16, Adafactor: {row['rows_per_second']:.1f} sequences/s{mfu}, "
        f"{gigabytes(row)} GB. (T5X: {T5X}.)"
    ]


def fine_tuning(rows: Rows) -> list[str]:
    lines = []
    for ours in of(rows, "train", side="jax", finetuning=True):
        theirs = first(of(rows, "train", side="Trainer", name=ours["name"]))
        ratio = "" if theirs is None else f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}"
        lines.append(
            [ours["name"], f"{ours['rows']} × {ours['length']}", speed(ours), speed(theirs), ratio, gigabytes(ours),
             gigabytes(theirs)]
        )  # fmt: skip
    return table(("model", "rows × tokens", "here, tokens/s", "Trainer", "ratio", "GB", "Trainer's"), lines)


def decoding(rows: Rows) -> list[str]:
    lines: list[list[Any]] = []
    sides = ("transformers", "transformers compiled", "CTranslate2")
    for ours in of(rows, "decode", side="jax"):
        theirs = {side: first(of(rows, "decode", side=side, name=ours["name"])) for side in sides}
        best = max((row["tokens_per_second"] for row in theirs.values() if row), default=None)
        same = [row for row in theirs.values() if row]
        agree = "" if not same or not ours["tokens"] else f"{share_of_same_tokens(ours, same[0]):.0%}"
        ratio = "" if best is None else f"{ours['tokens_per_second'] / best:.2f}"
        lines.append([ours["name"], speed(ours), *(speed(theirs[side]) for side in sides), ratio, agree])
    return table(("work", "here, tokens/s", *sides, "ratio", "same tokens"), lines)


def share_of_same_tokens(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    pairs = [
        (a, b)
        for own, other in zip(ours["tokens"], theirs["tokens"], strict=False)
        for a, b in zip(own, other, strict=False)
    ]
    return sum(a == b for a, b in pairs) / max(len(pairs), 1)


def attention(rows: Rows) -> list[str]:
    lines = []
    measured = of(rows, "attention")
    extras = list(dict.fromkeys(row["extra"] for row in measured))
    keys = sorted(
        {(row["extra"], row["backward"], row["length"]) for row in measured},
        key=lambda key: (extras.index(key[0]), *key[1:]),
    )
    paths = ("flash", "reference", "cudnn", "SDPA")
    for extra, backward, length in keys:
        found = {
            path: first(of(rows, "attention", path=path, extra=extra, backward=backward, length=length))
            for path in paths
        }
        if found["flash"] is None and of(rows, "attention", side="jax"):
            continue
        lines.append(
            [
                extra,
                "forwards and backwards" if backward else "forwards",
                length,
                *("" if row is None else f"{1e3 * row['seconds']:.2f}" for row in found.values()),
                ", ".join(
                    "–" if row is None or row["temporary_bytes"] is None else f"{row['temporary_bytes'] / 1e9:.2f}"
                    for row in found.values()
                ),
            ]
        )
    head = ("variant", "pass", "tokens", *(f"{path}, ms" for path in paths), "GB, in the same order")
    return table(head, lines)


def parity(rows: Rows) -> list[str]:
    lines = []
    quantities = ("logits", "loss", "gradients", "step")
    keys = dict.fromkeys((row["model"], row["precision"], row["path"]) for row in of(rows, "parity"))
    for model, precision, path in keys:
        cells = []
        for quantity in quantities:
            row = first(of(rows, "parity", model=model, precision=precision, path=path, quantity=quantity))
            if row is None:
                cells.append("")
            else:
                passed = "" if row["arrays"] == 1 else f"{row['passed']} of {row['arrays']}, "
                cells.append(f"{passed}{row['relative_rms']:.1e} ({row['ratio']:.2f})")
        lines.append([model, precision, path, *cells])
    made = table(("model", "precision", "attention", *quantities), lines)
    for row in of(rows, "parity command"):
        made += ["", f"`jax-transformer parity` on the GPU: exit code {row['exit_code']}.", *row["lines"]]
    return made


def predicted(rows: Rows) -> list[str]:
    if not PREDICTED.exists():
        return []
    target = next((f"nvidia:{kind.lower()}:1" for kind in PEAK_FLOPS if kind in device_of(rows)), None)
    lines = []
    for row in json.loads(PREDICTED.read_text()):
        measured = first(of(rows, "train", side="jax", name=row["name"]))
        if measured is not None and row["target"] == target:
            needed = planned_bytes(measured) or 0
            lines.append(
                [
                    row["name"],
                    f"{row['needed'] / 1e9:.2f}",
                    f"{needed / 1e9:.2f}",
                    f"{1e3 * row['roofline_seconds']:.1f}, {row['bound']}",
                    f"{1e3 * measured['seconds']:.1f}",
                    f"{row['utilization']:.0%}",
                    f"{row['program_flops'] / row['model_flops']:.2f}",
                ]
            )
    head = (
        "step", "GB predicted", "GB planned on the device", "least ms, bound by", "ms measured",
        "MFU at most", "program's FLOPs ÷ model's",
    )  # fmt: skip
    return table(head, lines)


def resuming(rows: Rows) -> list[str]:
    lines = []
    for row in of(rows, "resume") + of(rows, "two runs of one seed"):
        flags = row["flags"] or "XLA's defaults"
        what = f"killed at step {row['killed_at']} and resumed" if "killed_at" in row else row["what"]
        lines.append([what, flags, f"{'the same' if row['same_bits'] else 'other'} bits after {row['steps']} steps"])
    return table(("runs of the demo's model with dropout", "flags", "at the end"), lines)


def quality(rows: Rows) -> list[str]:
    lines = []
    for row in of(rows, "trained"):
        scored = first(of(rows, "quality", name=row["name"]))
        lines.append([row["name"], f"{row['minutes']:.1f}", " ".join(scored["printed"]) if scored else ""])
    return table(("run", "minutes", "test, beam 5"), lines)


def longest(rows: Rows) -> list[str]:
    found = of(rows, "profile")
    lines = [
        [f"`{row['operation'][:70]}`", f"{row['milliseconds']:.2f}", f"{row['count']:.0f}", f"{row['share']:.1%}"]
        for row in found[: SHOWN_OPERATIONS + 1]
    ]
    title = [f"{found[0]['name']}:", ""] if found else []
    return [*title, *table(("operation", "ms in a step", "times", "share"), lines)] if found else []


def failures(rows: Rows) -> list[str]:
    reasons = [(row, row.get("error") or row.get("reason")) for row in rows]
    lines = [[row["part"], row.get("what", ""), reason.replace("\n", " ")[:160]] for row, reason in reasons if reason]
    return table(("part", "what", "reason"), lines)
