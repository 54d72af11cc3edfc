"""How links of the repository become links of the documentation's site. `make docs` builds it and follows them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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
        ("docs/decisions/0001-a.md", "decisions/0001-a.md", "[words](../concepts.md)", "[words](../concepts.md)"),
        ("data/graphs/README.md", "data/graphs.md", "[form](../../docs/formats.md)", "[form](../formats.md)"),
        ("docs/concepts.md", "concepts.md", "[below](#planning)", "[below](#planning)"),
    ],
)
def test_links_lead_to_pages_of_the_site(hooks: ModuleType, source: str, site: str, link: str, expected: str) -> None:
    assert hooks.relinked(link, source=source, site=site) == expected


def test_every_decision_is_in_the_navigation(hooks: ModuleType) -> None:
    assert len(hooks.decisions()) == len(list((ROOT / "docs" / "decisions").glob("*.md"))) > 18
