"""Put every fault into every published system and report what the parity check makes of each.

    python parity_tests/run_selftest.py --write docs/parity_selftest.md

Exits with 0 if every requirement is met, else with 4.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "zoo"))  # as pytest has it

from selftest.page import files, page
from selftest.run import run

from jax_transformer.commands.parity import parity


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and the choice of places")
    parser.add_argument("--write", type=Path, help="the page to write; tables/ next to it gets the counts")
    options = parser.parse_args()
    result = run(parity, seed=options.seed, tell=lambda line: print(line, flush=True))
    if options.write is not None:
        options.write.write_text(page(result), encoding="utf-8")
        for name, text in files(result).items():
            file = options.write.parent / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return 0 if result.meets_all else 4


if __name__ == "__main__":
    sys.exit(main())
