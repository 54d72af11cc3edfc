"""The page of `compare --html` in a real browser, as wide as a laptop and as a phone, with the longest names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.services import need
from threadcast.cli.comparison_page import comparison_page
from threadcast.models.evaluation import Evaluation
from threadcast.models.judgement import Outcome, Row, row_of
from threadcast.models.lead import lead_of
from threadcast.models.op_score import OpScore
from threadcast.models.registry_of_kinds import names

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.system

WIDTHS = """[document.documentElement.scrollWidth - innerWidth,
    ...[...document.querySelectorAll('.scroll:not(.plot)')].map(box => box.scrollWidth - box.clientWidth)]"""
"""By how many pixels the page and each table are too wide."""
LINES = """[...document.querySelectorAll('td:first-child')].map(
    cell => cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight))"""
"""How many lines high the cells of names are."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every registered model."""
    random, rows, outcomes = np.random.default_rng(1), list[Row](), list[list[Outcome]]()
    for name in names():
        times = 1.0 + random.random((20, 4, 3))
        scores = {
            i: OpScore(t, np.zeros(3, bool), 1.2 + random.random(), 1.0, 2.0, 3, 0.1) for i, t in enumerate(times)
        }
        outcomes.append([Outcome(scores, call_s=123e-6, fit_s=12.3, predict_s=0.1)])
        rows.append(replace(row_of(name, "new_shape", "all", outcomes[-1], steps=10_000), as_good_as_best=True))
    found = tmp_path_factory.mktemp("page") / "page.html"
    evaluation = Evaluation(tuple(rows), (), {}, lead=lead_of(rows, outcomes))
    found.write_text(comparison_page(evaluation, title="judged by new_shape"))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=need("chromium"), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_tables_fit_a_laptop_and_a_phone_and_no_name_breaks(browser: Any, path: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(path.as_uri())
    assert max(page.evaluate(WIDTHS)) <= 0
    assert max(page.evaluate(LINES)) < 2
    page.close()
