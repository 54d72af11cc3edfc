"""How links of the repository become links of the documentation's site. `make docs` builds it and follows them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.config import load_config

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """The module as mkdocs loads it: the modules beside it can be imported."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "site", "link", "expected"),
    [
        ("README.md", "index.md", "[words](docs/concepts.md#planning)", "[words](concepts.md#planning)"),
        ("README.md", "index.md", "![a plan](docs/images/timeline.png)", "![a plan](images/timeline.png)"),
        ("README.md", "index.md", "[why](docs/decisions)", "[why](decisions/index.md)"),
        ("README.md", "index.md", "[all](notebooks)", "all"),
        ("README.md", "index.md", "[there](https://example.org/docs/a.md)", "[there](https://example.org/docs/a.md)"),
        ("docs/dashboard.md", "dashboard.md", "[cards](../data/README.md)", "[cards](data/index.md)"),
        ("README.md", "index.md", "[all](threadcast/core/settings_table.py)", "[all](settings.md)"),
        ("docs/http.md", "http.md", "[all](../threadcast/service/openapi.py)", "[all](routes.md)"),
        ("docs/decisions/a.md", "decisions/a.md", "[words](../concepts.md)", "[words](../concepts.md)"),
        ("data/graphs/README.md", "data/graphs.md", "[form](../../docs/formats.md)", "[form](../formats.md)"),
        ("docs/concepts.md", "concepts.md", "[below](#planning)", "[below](#planning)"),
    ],
)
def test_links_lead_to_pages_of_the_site(hooks: ModuleType, source: str, site: str, link: str, expected: str) -> None:
    assert hooks.relinked(link, source=source, site=site) == expected


def test_every_page_has_a_place_in_the_navigation(hooks: ModuleType) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    assert [next(iter(entry)) for entry in config.nav] == ["Start", "Guides", "Reference", "How it works", "Figures"]
    listed = re.findall(r"[\w/-]+\.md", str(hooks.on_config(config).nav))
    stored = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {page for page, _ in hooks.MADE.values() if page.endswith(".md")}
    assert sorted(listed) == sorted(stored | made | set(hooks.PAGES.values()))
