"""Releases: one version, a dated section of the changelog for each tag, and workflows that run what is here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import jax_transformer
from jax_transformer.cli import main

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SECTIONS = (
    "# Changelog\n\n## Unreleased\n\n- later\n\n## 0.2.0 (2026-12-01)\n\n- now\n\n## 0.1.0 (2026-11-01)\n\n- before\n"
)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jax-transformer {jax_transformer.__version__}\n"


def test_the_version_is_written_once_for_the_package_and_once_for_citations() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == jax_transformer.__version__


def test_the_changelog_has_unreleased_changes_above_versions() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_notes_are_the_section_of_the_tag() -> None:
    notes = script("release_notes").notes
    assert notes("v0.2.0", SECTIONS, "0.2.0") == "- now"
    with pytest.raises(ValueError, match=r"expected v0\.2\.0, .* received v0\.2\.1"):
        notes("v0.2.1", SECTIONS, "0.2.0")
    with pytest.raises(ValueError, match=r"expected a section 0\.3\.0 \(YYYY-MM-DD\); received Unreleased, 0\.2\.0"):
        notes("v0.3.0", SECTIONS, "0.3.0")
    with pytest.raises(ValueError, match="expected a section"):
        notes("v0.2.0", SECTIONS.replace("(2026-12-01)", "(not released yet)"), "0.2.0")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_files_and_extras_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert all(job["steps"] and job["runs-on"] for job in jobs.values())
    assert all((ROOT / name).is_file() for name in re.findall(r"\.ci/\w+(?:\.py)?", text))
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in re.findall(r"-e '\.\[(\w+)\]'", text):
        assert f"\n{name} = [" in extras


def test_ci_runs_each_python_that_the_package_supports() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert ci["jobs"]["run"]["strategy"]["matrix"]["python"] == versions
