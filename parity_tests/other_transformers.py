"""Runs a script with another version of transformers than the installed one."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_with(version: str, script: str, arguments: Sequence[str], packages: Sequence[str] = ()) -> int:
    """Runs a script in an environment that has everything of this one, and another version of transformers; returns its
    exit code.

    Args:
      version: of transformers.
      script: a path.
      arguments: those of the script.
      packages: what else pip installs there, without dependencies.
    """
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        site = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        (Path(site) / "zz_installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"transformers=={version}"], check=True)
        if packages:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run([python, script, *arguments], env=environment).returncode
