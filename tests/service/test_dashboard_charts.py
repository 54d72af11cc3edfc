"""Charts and timelines as they are drawn by the server."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from threadcast.core import Placement, Plan
from threadcast.service.dashboard.charts import Chart, Line, wants_log
from threadcast.service.dashboard.timeline import strips

UNIT_CHART = {"x_label": "threads", "y_label": "seconds", "unit": "s"}


def chart(*values: float | None, **options: object) -> Chart:
    x = tuple(float(2**i) for i in range(len(values)))
    return Chart("a chart", x, (Line("one", values, 0, marks="dots"),), **{**UNIT_CHART, **options})  # type: ignore[arg-type]


def places(image: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', image)]


def test_on_logarithmic_axes_equal_ratios_are_equally_far_apart() -> None:
    drawn = places(str(chart(8e-3, 4e-3, 2e-3, 1e-3, x_log=True, y_log=True).svg()))
    for axis in (0, 1):
        steps = [after[axis] - before[axis] for before, after in pairwise(drawn)]
        assert steps == pytest.approx([steps[0]] * 3, abs=0.2)


def test_values_that_are_not_there_are_not_drawn() -> None:
    assert len(places(str(chart(1.0, None, 3.0).svg()))) == 2
    assert str(chart(None, None).svg()) == ""


def test_what_lies_beyond_the_values_to_show_is_drawn_at_the_edge() -> None:
    (_, low), (_, inside), (_, high) = places(str(chart(1e-9, 1.0, 1e9, y_log=True, within=(0.5, 2.0)).svg()))
    assert high < inside < low
    assert high == pytest.approx(14.0)


def test_names_in_a_chart_are_escaped() -> None:
    line = Line("<script>", (1.0, 2.0), 0, marks="dots")
    image = str(Chart("<b>", (1.0, 2.0), (line,), **UNIT_CHART).svg())  # type: ignore[arg-type]
    assert "<script>" not in image
    assert "&lt;script&gt;" in image


@pytest.mark.parametrize(("values", "log"), [([1.0, 9.0], True), ([1.0, 2.0], False), ([0.0, 9.0], False), ([], False)])
def test_axes_are_logarithmic_where_ratios_matter(values: list[float], log: bool) -> None:
    assert wants_log(values) is log


def test_a_strip_a_core_and_short_ops_together() -> None:
    long = Placement("long", (0, 1), 2, 0.0, 1.0)
    short = [Placement(f"s{i}", (0,), 1, 1 + i * 1e-5, 1 + (i + 1) * 1e-5) for i in range(10_000)]
    kinds = {"long": "mm", **{op.id: "add" for op in short}}
    made = strips(Plan(2, "fifo", (long, *short)), kinds, {"mm": 0}, span_s=1.1)
    assert [strip.label for strip in made] == ["core 0", "core 1"]
    assert str(made[0].image).count("<rect") < 200
    assert "long (mm), 2 threads" in str(made[1].image)
    assert "short ops, add" in str(made[0].image)
