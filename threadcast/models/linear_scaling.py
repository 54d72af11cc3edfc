"""What was measured limits forecasts: more threads make no op faster than linear scaling from one thread does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Case, CurveTable, Measurement, Source
from threadcast.core.curve import Floats
from threadcast.core.curve_table import ARRAYS
from threadcast.models.doubts import widened
from threadcast.models.interpolation import Knot, forecast_table, knots_of, with_measured
from threadcast.models.measured import by_case

BEYOND = 1.1
"""How much faster than by linear scaling from one thread an op may be, as several cores have more cache. Of real curves
one in a thousand is beyond 1.05: sgemm at 1 to 96 threads (1.11 at most), sdot, networks of ncnn."""


def measured_or_forecast(
    observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], model: str,
    forecast: Callable[[Sequence[int], Sequence[Mapping[Case, Measurement]]], CurveTable],
) -> CurveTable:  # fmt: skip
    """The curves of ops at `cases`: measured points where there are any, and elsewhere what `forecast` returns for the
    rows that lack some, within what the measured points allow. It gets the rows, and what holds now of each."""
    known = [by_case(measured) for measured in observed]
    knots = [knots_of(measured_at) for measured_at in known]
    seconds, low, high = np.ones((3, len(known), len(cases)))
    table = forecast_table(cases, seconds, low, high, model)
    wanting = [row for row, measured_at in enumerate(known) if not all(case in measured_at for case in cases)]
    if wanting:  # the others need no forecast, and many samples take long
        found = forecast(wanting, [known[row] for row in wanting])
        for name in ARRAYS:
            getattr(table, name)[wanting] = getattr(found, name)
    return with_measured(within_linear_scaling(widened(table, known), knots), knots)


def within_linear_scaling(table: CurveTable, knots: Sequence[Mapping[Case, Knot]]) -> CurveTable:
    """The table with times of at least t1 / threads, where t1 was measured on one thread, and on one thread of at most
    threads times what was measured on several; intervals may be beyond that by `BEYOND`.

    `knots` has one mapping for each op, in the table's order. Where what was measured is beyond linear scaling itself,
    as after the machine has changed, forecasts may be as far beyond it. What is known to be stale limits nothing.
    """
    threads = np.array([case.threads for case in table.cases], dtype=np.float64)
    least, most = np.zeros((2, len(knots))), np.full((2, len(knots)), np.inf)
    for row, known in enumerate(knots):
        held = [(case.threads, knot) for case, knot in known.items() if knot.source is Source.MEASURED]
        if any(count == 1 for count, _ in held):
            least[:, row] = min(n * knot.seconds for n, knot in held), min(n * knot.low for n, knot in held)
        elif held:
            most[:, row] = min(n * knot.seconds for n, knot in held), min(n * knot.high for n, knot in held)
    limited: Floats = np.maximum(table.seconds, least[0][:, None] / threads)
    low: Floats = np.maximum(table.low, least[1][:, None] / (BEYOND * threads))
    high, single = table.high.copy(), threads == 1
    limited[:, single] = np.minimum(limited[:, single], most[0][:, None])
    high[:, single] = np.minimum(high[:, single], BEYOND * most[1][:, None])
    return replace(table, seconds=limited, low=np.minimum(low, limited), high=np.maximum(high, limited))
