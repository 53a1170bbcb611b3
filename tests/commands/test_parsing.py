"""The options of commands: what their help says, and what a command gets."""

from __future__ import annotations

import pytest

from jax_transformer.cli import main
from jax_transformer.commands.completion import KINDS_OF_COMMANDS
from jax_transformer.commands.parity_options import ParityOptions
from jax_transformer.commands.parsing import parsed


@pytest.mark.parametrize("command", KINDS_OF_COMMANDS)
def test_help_says_what_can_be_typed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No default that is none, and arguments by their names; in groups of options, too."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "None" not in text.replace("(Default: None)", "")
    assert "STR" not in text.splitlines()[0]


def test_a_command_gets_instances_of_its_own_classes() -> None:
    options = parsed(ParityOptions, ["model", "--beam-size", "2", "--num-heads", "4"], "parity")
    assert type(options) is ParityOptions
    assert (options.model, options.programs.beam_size, options.checkpoint.num_heads) == ("model", 2, 4)
    assert options.numbers == ParityOptions().numbers
