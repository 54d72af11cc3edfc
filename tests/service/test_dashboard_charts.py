"""The axes of charts, and timelines as they are drawn by the server."""

from __future__ import annotations

import re

import pytest

from threadcast.core import Placement, Plan
from threadcast.service.dashboard.charts import wants_log
from threadcast.service.dashboard.networks import Schedule


@pytest.mark.parametrize(("values", "log"), [([1.0, 9.0], True), ([1.0, 2.0], False), ([0.0, 9.0], False), ([], False)])
def test_axes_are_logarithmic_where_ratios_matter(values: list[float], log: bool) -> None:
    assert wants_log(values) is log


def test_a_track_a_core_and_short_ops_together() -> None:
    long = Placement("long", (0, 1), 2, 0.0, 1.0)
    short = [Placement(f"s{i}", (0,), 1, 1 + i * 1e-5, 1 + (i + 1) * 1e-5) for i in range(10_000)]
    kinds = {"long": "mm", **{op.id: "add" for op in short}}
    made = str(Schedule.drawn("plan", Plan(2, "fifo", (long, *short)), kinds, {"mm": 0}, span_s=1.1).drawing)
    assert re.findall(r">(core \d)<", made) == ["core 0", "core 1"]
    assert 'aria-label="Timeline of 10001 ops on 2 cores, over 1.10 s"' in made
    assert made.count("<rect") < 600
    assert made.count("long (mm), 2 threads") == made.count('class="tone-0"') == 2
    assert "short ops, add" in made
