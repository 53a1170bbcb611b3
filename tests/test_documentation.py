"""The Markdown pages: what they link to exists in the repository, too, where no site builder looks. Words of other
programs lead to options that there are."""

import re
from pathlib import Path

import pytest

from jax_transformer.commands.completion import KINDS_OF_COMMANDS, words_of_commands
from jax_transformer.commands.model_options import run_options
from jax_transformer.commands.reference import commands_in_markdown, run_options_in_markdown

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"```.*?```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
URL = re.compile(r"[a-z]+:")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    assert [link for link in links if not URL.match(link) and not (page.parent / link).exists()] == []


def test_the_reference_has_every_option() -> None:
    commands, options = commands_in_markdown(), run_options_in_markdown()
    assert "| `MODEL` | Model directory" in commands
    assert "| `--beam-size INT` | Hypotheses to follow side by side; 1 is greedy decoding. (Default: 1) |" in commands
    assert re.search(r"^\| `--train\.max-steps INT` \| .* Default: `100000`\. \|$", options, re.MULTILINE)
    assert {*re.findall(r"^\| `(--[\w.-]+)", options, re.MULTILINE)} == run_options()
    assert [*re.findall(r"^## (\w+)$", commands, re.MULTILINE)] == sorted(KINDS_OF_COMMANDS)


def test_words_of_other_programs_are_options_here() -> None:
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    ours = [line.split("|")[-2] for line in text.splitlines() if line.startswith("|")]
    named = {word.rstrip(".") for cell in ours for word in re.findall(r"--[a-z][\w.-]*\w", cell)}
    assert len(named) > 40
    assert named <= {word for words in words_of_commands().values() for word in words}
