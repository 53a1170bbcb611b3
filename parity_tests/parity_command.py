"""Arguments of `jax-transformer parity` and what becomes of them, for the tests in the folder command."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

SIZES = ["--num-heads", "3", "--source-pad-id", "1", "--target-pad-id", "2"]
PYTORCH = [*SIZES, "--dialect", "pytorch", "--set", "norm_placement=post", "--set", "activation=relu"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def output(self) -> str:
        """All that was printed, without its line breaks."""
        return " ".join((self.out + self.err).split())

    @property
    def is_one_clear_message(self) -> bool:
        """Whether it is how a mistake of the user's is answered."""
        return self.code == 2 and self.out == "" and self.err.startswith("error: ") and "Traceback" not in self.err


Run = Callable[..., Outcome]


def module(name: str) -> list[str]:
    return ["--reference", f"user_models:{name}"]


def function(name: str) -> list[str]:
    return ["--candidate", f"user_models:{name}"]
