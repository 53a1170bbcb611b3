"""Compile models of several sizes for TPUs and GPUs that aren't here, and print the table of docs/devices.md.

    pip install -e '.[compile-tpu,compile-nvidia]'
    python benchmarks/compiled.py --out compiled           # all models and targets: about an hour on two cores
    python benchmarks/compiled.py --out compiled --models paper_base --targets nvidia:h200:8 --programs train

Each line is one call of `jax-transformer compile`, whose JSON report is kept in --out and not made again. Training
shares the state among all devices (fsdp), 16 rows of 128 tokens on each. Decoding shares the width among four devices
(tensor): 4 beams, 8 rows on each device, 128 tokens. Everything is in bfloat16 with float32 weights.

--growth compiles paper_base's training step for more devices, layers, rows and tokens, one at a time.

--attention compiles paper_base's training step for sentences of several lengths, with all attention weights in memory
and in blocks (8,192 tokens on each side, one device).

--beside-flax compiles a model of the sizes of flax's WMT example for a single device, and prints its figures beside
those recorded of the example itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LARGE = [
    "--model.num-encoder-layers", "24", "--model.num-decoder-layers", "24", "--model.max-length", "512",
    "--model.norm-placement", "pre", "--model.final-norm", "--model.share-embeddings", "--model.tie-head",
    "--model.dropout-rate", "0.1",
]  # fmt: skip
MODELS: dict[str, list[str]] = {
    "paper_base": ["paper_base", "--vocabulary", "37000"],
    "paper_big": ["paper_big", "--vocabulary", "37000"],
    # the sizes of T5-3B (Raffel et al. 2020, §3.7)
    "T5-3B's sizes": [
        "paper_big", *LARGE, "--model.d-model", "1024", "--model.num-heads", "32", "--model.head-dim", "128",
        "--model.d-ff", "16384", "--model.position-kind", "relative_bias", "--vocabulary", "32128",
    ],
    # the sizes of NLLB's dense 3.3B model (NLLB Team 2022, §8.1)
    "NLLB-3.3B's sizes": [
        "paper_big", *LARGE, "--model.d-model", "2048", "--model.num-heads", "16", "--model.d-ff", "8192",
        "--vocabulary", "256206",
    ],
}  # fmt: skip
TARGETS = {"tpu:v5e:4x4": 16, "tpu:v5p:2x2x1": 4, "tpu:v6e:2x4": 8, "nvidia:h100:8": 8, "nvidia:h200:8": 8}
PROGRAMS = ("train", "decode")
WMT = [
    "paper_big", "--model.norm-placement", "pre", "--model.final-norm", "--vocabulary", "32000", "--rows", "64",
    "--source-length", "64", "--target-length", "64", "--model.compute-dtype", "bfloat16",
    "--model.dropout-rate", "0.1", "--model.share-embeddings", "--model.tie-head", "--model.num-heads", "16",
]  # fmt: skip
FLAX = {
    "nvidia:h200:1": {"temporaries": 3.292e9, "compile_processor_seconds": 39.8, "program_flops": 5.193e12},
    "tpu:v5e:1x1": {"temporaries": 2.590e9, "compile_processor_seconds": 377.2, "program_flops": 5.193e12},
}
"""The training step of examples/wmt in flax, commit 18f8f311 (July 2026): 6+6 layers, d_model 1024, d_ff 4096,
16 heads, 32,000 shared tokens, 64 rows of 64 tokens, dropout 0.1, bfloat16, AdamW; jax 0.10.2, libtpu 0.0.42.1, two
cores of an AMD EPYC. Temporaries are the peak less the arguments."""
TITLES = (
    "model", "program", "target", "memory, GB", "temporaries, GB", "FLOPs ÷ model's", "sent, GB", "least ms, bound by",
    "MFU at most", "compile, processor s",
)  # fmt: skip


def report_of(model: str, program: str, target: str, out: Path) -> dict[str, Any]:
    """Returns the report of one line of the table, or {"failed": the reason}."""
    devices = TARGETS[target]
    shared = ["--rows", str(16 * devices), "--parallel.fsdp", str(devices)]
    if program == "decode":
        shared = ["--rows", str(8 * devices), "--beam-size", "4", "--parallel.tensor", "4"]
    lengths = ["--source-length", "128", "--target-length", "128", "--model.compute-dtype", "bfloat16"]
    file = out / f"{model} {program} {target}.json".replace(":", "_").replace("'", "").replace(" ", "_")
    return compiled([*MODELS[model], *shared, *lengths, "--program", program, "--target", target], file)


def compiled(arguments: list[str], file: Path) -> dict[str, Any]:
    """Returns the report of `jax-transformer compile`, kept in `file`; or {"failed": the reason}."""
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    command = [sys.executable, "-m", "jax_transformer.cli", "compile", *arguments, "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    print(result.stdout, file=sys.stderr, flush=True)
    if not file.exists():
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
        file.write_text(json.dumps({"failed": lines[-1] if lines else f"exit code {result.returncode}"}))
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def row(model: str, program: str, target: str, report: dict[str, Any]) -> str:
    """Returns a line of the table."""
    if "failed" in report:
        return f"| {model} | {program} | {target} | {report['failed']} |"
    sent = sum(one["sent"] for one in report["collectives"])
    cells = [
        model,
        program,
        target,
        f"{report['needed'] / 1e9:.2f} of {report['memory'] / 1e9:.0f}",
        f"{report['temporaries'] / 1e9:.2f}",
        f"{report['flops_ratio']:.2f}",
        f"{sent / 1e9:.2f}",
        f"{1e3 * report['roofline_seconds']:.1f}, {report['bound']}",
        f"{report['utilization']:.0%}",
        f"{report['compile_processor_seconds']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def print_growth(out: Path) -> None:
    """Prints what one change after another does to the training step of paper_base."""
    titles = ("what grows", "to", "arguments, GB", "temporaries, GB", "FLOPs, 1e12", "sent, GB", "compile, processor s")
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    base = {"devices": 4, "layers": 6, "rows on each device": 16, "tokens in a row": 128}
    changes = [("nothing", 0), ("devices", 8), ("layers", 12), ("layers", 24)]
    changes += [("rows on each device", 32), ("rows on each device", 64), ("tokens in a row", 256)]
    for what, size in changes:
        sizes = base | ({what: size} if size else {})
        devices, layers, rows, tokens = map(str, sizes.values())
        arguments = [
            "paper_base", "--vocabulary", "37000", "--model.compute-dtype", "bfloat16", "--parallel.fsdp", devices,
            "--target", f"nvidia:h200:{devices}", "--rows", str(int(rows) * int(devices)),
            "--model.num-encoder-layers", layers, "--model.num-decoder-layers", layers,
            "--source-length", tokens, "--target-length", tokens,
        ]  # fmt: skip
        report = compiled(arguments, out / f"growth_{'_'.join((devices, layers, rows, tokens))}.json")
        sent = sum(one["sent"] for one in report["collectives"])
        cells = [what, str(size or ""), *(f"{report[name] / 1e9:.2f}" for name in ("arguments", "temporaries"))]
        cells += [f"{report['program_flops'] / 1e12:.2f}", f"{sent / 1e9:.2f}"]
        cells.append(f"{report['compile_processor_seconds']:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def print_attention(out: Path) -> None:
    """Prints what the two ways of computing attention need, by the length of the sentences."""
    titles = ("target", "tokens", "attention", "temporaries, GB", "traffic, GB", "least ms, bound by")
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for target in ("tpu:v5e:1x1", "nvidia:h100:1"):
        for tokens in (128, 256, 512, 1024, 2048):
            for path in ("reference", "flash"):
                arguments = [
                    "paper_base", "--vocabulary", "37000", "--model.compute-dtype", "bfloat16", "--target", target,
                    "--rows", str(8192 // tokens), "--source-length", str(tokens), "--target-length", str(tokens),
                    "--model.attention-path", path, "--model.max-length", "2048",
                ]  # fmt: skip
                report = compiled(arguments, out / f"attention_{target}_{tokens}_{path}.json".replace(":", "_"))
                cells = [
                    target,
                    str(tokens),
                    path,
                    f"{report['temporaries'] / 1e9:.2f}",
                    f"{report['traffic'] / 1e9:.1f}",
                ]
                cells.append(f"{1e3 * report['roofline_seconds']:.1f}, {report['bound']}")
                print(f"| {' | '.join(cells)} |", flush=True)


def print_beside_flax(out: Path) -> None:
    """Prints the figures of a model of the example's sizes, and their ratios to the example's."""
    titles = ("target", "temporaries, GB", "÷ flax's", "compile, processor s", "÷ flax's", "FLOPs ÷ flax's")
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for target, theirs in FLAX.items():
        report = compiled([*WMT, "--target", target], out / f"wmt_{target.replace(':', '_')}.json")
        cells = [target]
        for name, unit, digits in (("temporaries", 1e9, 2), ("compile_processor_seconds", 1, 0)):
            cells += [f"{report[name] / unit:.{digits}f}", f"{report[name] / theirs[name]:.2f}"]
        cells.append(f"{report['program_flops'] / theirs['program_flops']:.3f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("compiled"), help="directory of the reports")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--beside-flax", action="store_true", help="compile the sizes of flax's WMT example instead")
    parser.add_argument("--growth", action="store_true", help="change one size after another instead")
    parser.add_argument("--attention", action="store_true", help="compare ways of computing attention instead")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.growth:
        print_growth(options.out)
        return
    if options.attention:
        print_attention(options.out)
        return
    if options.beside_flax:
        print_beside_flax(options.out)
        return
    print(f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|")
    for program in options.programs:
        for model in options.models:
            for target in options.targets:
                print(row(model, program, target, report_of(model, program, target, options.out)), flush=True)


if __name__ == "__main__":
    main()
