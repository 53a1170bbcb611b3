"""Python runs this first in the processes that tests start while mutants are measured."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import mutant_hook as hook

hook.install()
