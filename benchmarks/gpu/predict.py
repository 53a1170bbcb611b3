"""Compile the measured training steps by XLA's own compiler for an H100 and an H200 that aren't here.

    pip install -e '.[compile-nvidia]'     # in an environment of its own
    python benchmarks/gpu/predict.py       # adds to benchmarks/gpu/predicted.json; --again: makes it anew

Each is a call of `jax-transformer compile`, whose report says how much memory the program needs, its FLOPs, and the
least time of a step. `run.py` shows them beside what it measured. Packed batches aren't among them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from shapes import train_cases  # noqa: E402

PREDICTED = HERE / "predicted.json"
TARGETS = ("nvidia:h100:1", "nvidia:h200:1")
KEPT = (
    "arguments", "temporaries", "output", "needed", "memory", "program_flops", "model_flops", "traffic",
    "roofline_seconds", "bound", "utilization", "compile_processor_seconds",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="make all anew, as after a change of the programs")
    keeps = PREDICTED.exists() and not parser.parse_args().again
    predicted = json.loads(PREDICTED.read_text()) if keeps else []
    done = {(row["name"], row["target"]) for row in predicted}
    for target in TARGETS:
        for case in [case for model in ("paper_base", "paper_big") for case in train_cases(model, small=False)]:
            if case.packed or (case.name, target) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "report.json"
                command = [
                    sys.executable, "-m", "jax_transformer.cli", "compile", case.model, "--target", target,
                    "--rows", str(case.rows), "--source-length", str(case.length), "--target-length", str(case.length),
                    "--vocabulary", str(case.vocabulary), "--model.compute-dtype", "bfloat16",
                    "--model.layer-loop", case.layer_loop, "--model.remat", case.remat, "--json", str(file),
                ]  # fmt: skip
                subprocess.run(command, check=True)
                report = json.loads(file.read_text())
            predicted.append({"name": case.name, "target": target, **{name: report[name] for name in KEPT}})
            PREDICTED.write_text(json.dumps(predicted, indent=1) + "\n")


if __name__ == "__main__":
    main()
