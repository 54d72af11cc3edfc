"""What the site has beside the pages of this folder: documents that lie elsewhere in the repository.

Links are written for readers of the repository; here they are made to lead to the site's pages. One to a file that
has no page becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "data/README.md": "data/index.md",
    "data/graphs/README.md": "data/graphs.md",
    "data/papers/README.md": "data/papers.md",
    "data/recorded/README.md": "data/recorded.md",
    **{f"data/published/{path.name}": f"data/{path.name}" for path in (ROOT / "data" / "published").glob("*.md")},
    "docs/decisions": "decisions/index.md",
}
"""Path in the repository -> path in the site, of pages that do not lie in docs/."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List what is found in folders in the navigation."""
    assert config.nav is not None
    data = sorted(page for page in PAGES.values() if page.startswith("data/") and page != "data/index.md")
    listed = {"Data": ["data/index.md", *data], "Decisions": ["decisions/index.md", *map(_site_path, decisions())]}
    config.nav = [{name: listed.get(name, pages) for name, pages in entry.items()} for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for source, page in PAGES.items():
        path = ROOT / source
        content = path.read_text() if path.is_file() else _list_of_decisions()
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the repository lead to the site's pages."""
    sources = {site: source for source, site in PAGES.items()}
    site = page.file.src_uri
    return relinked(markdown, source=sources.get(site, f"docs/{site}"), site=site)


def relinked(markdown: str, *, source: str, site: str) -> str:
    """`markdown` of the file `source` of the repository, with links as the page `site` needs them."""

    def link(match: re.Match[str]) -> str:
        path, sharp, anchor = match["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = PAGES.get(linked) or (linked.removeprefix("docs/") if linked.startswith("docs/") else None)
        if target is None:
            return match["text"]
        return f"{match['image']}[{match['text']}]({posixpath.relpath(target, posixpath.dirname(site))}{sharp}{anchor})"

    return _LINK.sub(link, markdown)


def decisions() -> list[Path]:
    """The decision records, in the order of their numbers."""
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def _list_of_decisions() -> str:
    rows = [
        f"- [{path.read_text().partition(chr(10))[0].removeprefix('# ')}](decisions/{path.name})"
        for path in decisions()
    ]
    head = "# Decisions\n\nWhy things are as they are, and what was tried and lost. Numbers 49 and 62 are not used.\n\n"
    return head + "\n".join(rows) + "\n"


def _site_path(path: Path) -> str:
    return path.relative_to(ROOT / "docs").as_posix()
