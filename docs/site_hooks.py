"""Builds pages of the site from files outside docs/: README, CHANGELOG, CONTRIBUTING, and the exported names."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INCLUDED = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
COPIED = {"certificate.schema.json": "jax_transformer/proof/certificate.schema.json"}
"""Files of the site that are no pages → files of the repository."""
PAGE_OF = {name: page for page, name in (INCLUDED | COPIED).items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NAMES = re.compile(r"^<!-- names of (\S+) -->$", re.MULTILINE)
REFERENCE = re.compile(r"^<!-- (commands|options of a run) -->$", re.MULTILINE)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Returns the site's files with those that are copied from elsewhere."""
    from mkdocs.structure.files import File

    for name, source in COPIED.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Returns a page's Markdown: the included file, one API entry for each exported name, and links that work here."""
    path = page.file.src_uri
    folder = posixpath.join("docs", posixpath.dirname(path))
    if path in INCLUDED:
        markdown, folder = (ROOT / INCLUDED[path]).read_text(encoding="utf-8"), ""
    if path.endswith(".md"):
        markdown = LINK.sub(lambda match: link(match, folder, posixpath.dirname(path), config.repo_url), markdown)
        markdown = NAMES.sub(lambda match: entries(match[1]), markdown)
        markdown = REFERENCE.sub(lambda match: reference(match[1]), markdown)
    return markdown


def link(match: re.Match[str], folder: str, page_folder: str, repo_url: str | None) -> str:
    """Returns a link as the site needs it: to a page, to a file of the repository, or only the text of such a link.

    Args:
      folder: the folder, from the repository's root, that the link is relative to.
      page_folder: the page's folder, from docs/.
    """
    image, text, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    path, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(folder, path))
    if path in PAGE_OF:
        path = f"docs/{PAGE_OF[path]}"
    if path == "docs/notebooks":
        path = "docs/notebooks/train_and_translate.ipynb"
    if path.startswith("docs/"):
        inside = posixpath.relpath(path.removeprefix("docs/"), page_folder or ".")
        return f"{image}[{text}]({inside}{'#' + anchor if anchor else ''})"
    return f"[{text}]({repo_url.rstrip('/')}/blob/main/{path})" if repo_url else text


def entries(package: str) -> str:
    """Returns a mkdocstrings entry for each name that a package exports from elsewhere.

    mkdocstrings reads sources without running them, and the packages load their names lazily. A name that the
    package of its home or a subpackage exports, too, is documented on that one's page and linked here.
    """
    tree, homes = exports(package)
    if not homes:  # not lazy: mkdocstrings finds what it defines
        return f"::: {package}\n"
    owners = {home.split(".")[1] for home in homes.values() if home.startswith("jax_transformer.")}
    children = {child.parent.name for child in (ROOT / package.replace(".", "/")).glob("*/__init__.py")}
    elsewhere = {}
    for other in sorted((owners | children) - {package.rpartition(".")[2]}):
        page, init = f"api/{other}.md", ROOT / "jax_transformer" / other / "__init__.py"
        if (ROOT / "docs" / page).exists() and init.exists():
            elsewhere |= dict.fromkeys(exports(f"jax_transformer.{other}")[1], page)
    here = sorted(homes.keys() - elsewhere.keys(), key=str.lower)
    linked = [
        f"- [`{name}`]({posixpath.basename(elsewhere[name])}#{homes[name]}.{name})"
        for name in sorted(homes.keys() & elsewhere)
    ]
    docstring = (ast.get_docstring(tree) or "").partition("\n\nExample:")[0]
    parts = [docstring, *(f"::: {homes[name]}.{name}" for name in here)]
    if linked:
        parts += ["## Names of the subpackages", "\n".join(linked)]
    return "\n\n".join(parts) + "\n"


def reference(what: str) -> str:
    """Returns the sections of all commands, or the tables of a run's options."""
    from jax_transformer.commands.reference import commands_in_markdown, run_options_in_markdown

    return commands_in_markdown() if what == "commands" else run_options_in_markdown()


def exports(package: str) -> tuple[ast.Module, dict[str, str]]:
    """Returns the source of a package, and the modules that define the names that it exports lazily (`_HOMES`)."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "_HOMES":
            modules: dict[str, tuple[str, ...]] = ast.literal_eval(statement.value)
            return tree, {name: module for module, names in modules.items() for name in names}
    return tree, {}
