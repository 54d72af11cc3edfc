"""What the site has beside the pages of this folder: pages made from the code, and documents that lie elsewhere.

Links are written for readers of the repository; here they are made to lead to the site's pages: one to the code that a
page is made from leads to that page. One to a file that has no page becomes plain text.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

import commands_page
import routes_page
import settings_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from threadcast.service.openapi import description

ROOT = Path(__file__).parents[1]
MADE: dict[str, tuple[str, Callable[[], str]]] = {
    "threadcast/cli/main.py": ("commands.md", commands_page.render),
    "threadcast/core/settings_table.py": ("settings.md", settings_page.render),
    "threadcast/service/openapi.py": ("routes.md", lambda: routes_page.render(json.loads(description()))),
    "docs/openapi.json": ("openapi.json", description),
    "docs/decisions": ("decisions/index.md", lambda: _list_of_decisions()),
}
"""What a page is made from -> its path in the site, and what makes its text."""
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "data/README.md": "data/index.md",
    **{
        path.relative_to(ROOT).as_posix(): f"data/{path.parent.name if path.stem == 'README' else path.stem}.md"
        for path in sorted((ROOT / "data").glob("*/*.md"))
    },
}
"""Path in the repository -> path in the site, of documents that lie elsewhere."""
FIGURES = ("steps", "public-models", "many-cores", "forecasts", "planner", "shared-machine", "service", "papers")
"""Pages of docs/figures in the order in which they are listed; others follow."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List what is found in folders in the navigation."""
    assert config.nav is not None
    data = sorted(page for page in PAGES.values() if page.startswith("data/") and page != "data/index.md")
    listed = {
        "How it works": [{"Decisions": ["decisions/index.md", *map(_site_path, decisions())]}],
        "Figures": [*map(_site_path, figures()), {"Data": ["data/index.md", *data]}],
    }
    config.nav = [{name: [*pages, *listed.get(name, [])] for name, pages in entry.items()} for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, make in MADE.values():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the repository lead to the site's pages."""
    sources = {site: source for source, site in PAGES.items()}
    site = page.file.src_uri
    return relinked(markdown, source=sources.get(site, f"docs/{site}"), site=site)


def relinked(markdown: str, *, source: str, site: str) -> str:
    """`markdown` of the file `source` of the repository, with links as the page `site` needs them."""

    pages = PAGES | {made_from: page for made_from, (page, _) in MADE.items()}

    def link(match: re.Match[str]) -> str:
        path, sharp, anchor = match["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = pages.get(linked) or (linked.removeprefix("docs/") if linked.startswith("docs/") else None)
        if target is None:
            return match["text"]
        return f"{match['image']}[{match['text']}]({posixpath.relpath(target, posixpath.dirname(site))}{sharp}{anchor})"

    return _LINK.sub(link, markdown)


def decisions() -> list[Path]:
    """The decision records, in the order of their numbers."""
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def figures() -> list[Path]:
    """The pages of figures, as they are listed."""
    found = {path.stem: path for path in sorted((ROOT / "docs" / "figures").glob("*.md"))}
    return [found.pop(name) for name in FIGURES if name in found] + list(found.values())


def _list_of_decisions() -> str:
    """The index: records by the subject that begins their titles, "# 8. Engine: crews in place of pools"."""
    subjects: dict[str, list[str]] = {}
    for path in decisions():
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        subject, _, choice = title.partition(": ")
        subjects.setdefault(subject, []).append(f"- {number}: [{choice}]({path.name})")
    head = "# Decisions\n\nOne page a choice that stands: what was chosen, why, and what was tried and lost.\n"
    return head + "".join(f"\n## {subject}\n\n" + "\n".join(rows) + "\n" for subject, rows in subjects.items())


def _site_path(path: Path) -> str:
    return path.relative_to(ROOT / "docs").as_posix()
