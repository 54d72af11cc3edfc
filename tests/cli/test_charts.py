"""Plots of curves: where points lie."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from threadcast.cli.charts import CurvePlot, curve_plot
from threadcast.core import Case, Curve
from threadcast.drawing.html_page import html_page, html_table

CASES = tuple(Case(threads) for threads in (1, 2, 4, 8, 16))
INVERSE = Curve.exact(CASES, [1.0 / case.threads for case in CASES])


def points(svg: str, line: str) -> NDArray[np.float64]:
    """(n, 2): x and y of the line's points."""
    (found,) = re.findall(f'class="{line}" points="([^"]+)"', svg)
    return np.array([[float(number) for number in pair.split(",")] for pair in found.split()])


def test_tables_of_pages_scroll_by_themselves_on_narrow_screens() -> None:
    page = html_page("times", [html_table(["op", "s"], [["mm", "1"]])])
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", page)
    assert re.search(r'<div class="scroll"[^>]*aria-label="Table by op"[^>]*><table>.*</table></div>', page)
    assert '<meta name="viewport" content="width=device-width' in page


def test_linear_axes_start_from_zero_seconds() -> None:
    x, y = points(curve_plot(CurvePlot("op", INVERSE, {})), "line").T
    base = 128.0  # y of the axis
    np.testing.assert_allclose(base - y, (base - y[0]) / np.array([1, 2, 4, 8, 16]), atol=0.11)
    np.testing.assert_allclose(x - x[0], np.array([0, 1, 3, 7, 15]) * (x[1] - x[0]), atol=0.8)


def test_a_curve_of_one_case_is_drawn() -> None:
    svg = curve_plot(CurvePlot("op", Curve.exact(CASES[:1], [0.5]), {1: 0.5}))
    assert np.isfinite(points(svg, "line")).all()
