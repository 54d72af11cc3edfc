"""A curve through known points: interpolated between them, constant beyond them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from threadcast.core import Affinity, Case, Curve, CurveTable, Measurement, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.models.doubts import widened
from threadcast.models.intervals import bounds_of_median
from threadcast.models.measured import by_case, defect_of

Between = Literal["threads", "log"]
"""Time between two points is linear in this quantity: threads p (as in the paper); or log p, with log time, exact for
any power of p."""

OTHER_AFFINITY_FACTOR = 2.0
"""Factor by which the times of two affinities may differ at equal thread counts: of two threads that share a cache or
a core's memory path each has half of it. It widens the interval of a point taken from the other affinity."""


class Knot(NamedTuple):
    """One known point of a curve: its time and interval, in seconds, and their source."""

    seconds: float
    low: float
    high: float
    source: Source


def measured_knots(observed: Sequence[Measurement]) -> dict[Case, Knot]:
    """The medians of `observed` by case; ModelError for a time that no op can have."""
    return knots_of(by_case(observed))


def knots_of(measured_at: Mapping[Case, Measurement]) -> dict[Case, Knot]:
    """The median of each case's measurement, `extrapolated` where it is stale; ModelError for a time that no op can
    have."""
    knots = {}
    for case, measurement in measured_at.items():
        refuse_defect(measurement)
        low, high = bounds_of_median([sample.seconds for sample in measurement.samples])
        seconds, source, doubt = measurement.seconds, Source.MEASURED, measurement.doubt
        if doubt is not None:
            low, high = low * math.exp(-doubt.low), high * math.exp(doubt.high)
            source = Source.EXTRAPOLATED if doubt.stale else source
        knots[case] = Knot(seconds, min(low, seconds), max(high, seconds), source)
    return knots


def refuse_defect(measurement: Measurement) -> None:
    """Raise ModelError for a time that no op can have."""
    if defect := defect_of(measurement):
        raise ModelError(f"{measurement.op.key} has {defect}")


def with_measured(table: CurveTable, knots: Iterable[Mapping[Case, Knot]]) -> CurveTable:
    """The table with measured points in place of forecasts; `knots` has one mapping for each op, in the table's
    order."""
    seconds, low, high = (array.copy() for array in (table.seconds, table.low, table.high))
    source = table.source.copy()
    codes = {name: code for code, name in enumerate(Source)}
    position = {case: i for i, case in enumerate(table.cases)}
    # Flat lists: a tuple for each of many points would make the garbage collector look through all objects.
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, known in enumerate(knots):
        for case, knot in known.items():
            if (i := position.get(case)) is not None:
                rows.append(row)
                columns.append(i)
                values += (knot.seconds, knot.low, knot.high, codes[knot.source])
    if rows:
        given = np.reshape(values, (-1, 4)).T
        seconds[rows, columns], low[rows, columns], high[rows, columns], source[rows, columns] = given
    return CurveTable(table.cases, seconds, low, high, source, table.model)


def forecast_table(
    cases: Sequence[Case], seconds: Floats, low: Floats, high: Floats, model: str, source: Source = Source.LEARNED
) -> CurveTable:
    """The table of forecasts, (n_ops, n_cases) each in seconds, all of this source."""
    codes = np.full(seconds.shape, list(Source).index(source), dtype=np.int8)
    return CurveTable(tuple(cases), seconds, low, high, codes, model)


def with_known(table: CurveTable, known: Sequence[Mapping[Case, Measurement]]) -> CurveTable:
    """The table with what holds now of each op (`known`, in the table's order): intervals wider where the op has
    changed (`doubts`), and measured points in place of forecasts."""
    return with_measured(widened(table, known), map(knots_of, known))


def through_forecasts(
    learned: Sequence[Case], forecast: Sequence[Floats], known: Sequence[Mapping[Case, Measurement]],
    cases: Sequence[Case], *, between: Between, model: str,
) -> CurveTable:  # fmt: skip
    """The table over `cases` of curves through the `forecast` seconds and their bounds at the `learned` cases, (n_ops,
    n_learned) each, and through what was measured of each op."""
    curves = []
    for row, measured_at in enumerate(known):
        points = zip(learned, *(array[row].tolist() for array in forecast), strict=True)
        guessed = {case: Knot(seconds, low, high, Source.LEARNED) for case, seconds, low, high in points}
        curves.append(curve_through({**guessed, **knots_of(measured_at)}, cases, between=between))
    return CurveTable.of(curves, model=model)


def curve_through(knots: Mapping[Case, Knot], cases: Sequence[Case], *, between: Between = "threads") -> Curve:
    """The curve over `cases` through `knots`, each affinity by itself.

    Between two knots time is linear in `between`, its source is `interpolated`, and its interval spans both knots'
    intervals: it holds where time is monotone in between; no probability is claimed. Beyond the outermost knot time is
    constant, `extrapolated`, and the interval reaches from perfect scaling to its inverse. An affinity without a knot
    uses the other one's curve, `extrapolated` and widened by `OTHER_AFFINITY_FACTOR`. ModelError without any knot.
    """
    if not knots:
        raise ModelError("nothing was measured of this op; measure the cases that the model proposes first")
    lines = {a: sorted((c.threads, k) for c, k in knots.items() if c.affinity is a) for a in Affinity}
    points = [knots.get(case) or _point(lines, case, between) for case in cases]
    seconds, low, high = np.array([point[:3] for point in points], dtype=np.float64).T
    return Curve(tuple(cases), seconds, low, high, tuple(point.source for point in points))


def _point(lines: Mapping[Affinity, Sequence[tuple[int, Knot]]], case: Case, between: Between) -> Knot:
    line = lines[case.affinity]
    if line:
        return _on_line(line, case.threads, between)
    other = next(line for line in lines.values() if line)
    knot = _on_line(other, case.threads, between)
    return Knot(knot.seconds, knot.low / OTHER_AFFINITY_FACTOR, knot.high * OTHER_AFFINITY_FACTOR, Source.EXTRAPOLATED)


def _on_line(line: Sequence[tuple[int, Knot]], threads: int, between: Between) -> Knot:
    right = bisect_left(line, threads, key=lambda point: point[0])
    if right < len(line) and line[right][0] == threads:
        return line[right][1]
    if right in (0, len(line)):
        count, knot = line[min(right, len(line) - 1)]
        stretch = max(count / threads, threads / count)
        return Knot(knot.seconds, knot.low / stretch, knot.high * stretch, Source.EXTRAPOLATED)
    (before, a), (after, b) = line[right - 1], line[right]
    if between == "log" and a.seconds > 0 and b.seconds > 0:
        share = math.log(threads / before) / math.log(after / before)
        seconds = a.seconds * (b.seconds / a.seconds) ** share
    else:
        seconds = a.seconds + (threads - before) / (after - before) * (b.seconds - a.seconds)
    return Knot(seconds, min(a.low, b.low), max(a.high, b.high), Source.INTERPOLATED)
