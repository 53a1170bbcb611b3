"""Fetch the wheels of wheels.txt, to be carried to a machine that can download nothing.

python benchmarks/gpu/fetch_wheels.py WHEELS
# there:
python3 -m pip install --no-index --no-deps --target site WHEELS/*.whl && export PYTHONPATH=site
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

WHEELS = Path(__file__).with_name("wheels.txt")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="WHEELS")
    parser.add_argument("--python", default="3.12", help="the version of Python there")
    options = parser.parse_args()
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", options.python, "--implementation", "cp", *platforms]
    return subprocess.run([*command, "-d", str(options.folder), "-r", str(WHEELS)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
