"""Intervals of forecasts for ops that have changed: wider where nothing was measured since."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Affinity, Case, CurveTable, Measurement
from threadcast.core.curve import Floats
from threadcast.models.intervals import NORMAL_95


def widened(table: CurveTable, known: Sequence[Mapping[Case, Measurement]]) -> CurveTable:
    """The table with intervals of forecast cases that enclose what the measured cases next to them may be now.

    `known` has what holds now of each op (`store.holding`), in the table's order; the table has forecasts of all cases,
    measured ones too. Only ops with a measurement in doubt get other intervals. So what a model does not follow, as it
    was learned before the change or takes a sample for an outlier, is in the interval.
    """
    changed = [
        row
        for row, of_op in enumerate(known)
        if any(m.doubt is not None for m in of_op.values()) and not all(case in of_op for case in table.cases)
    ]
    if not changed:
        return table
    low, high = table.low.copy(), table.high.copy()
    for row in changed:
        down, up = _reaches(known[row], table.cases, table.seconds[row])
        low[row] = np.minimum(low[row], table.seconds[row] * np.exp(-down))
        high[row] = np.maximum(high[row], table.seconds[row] * np.exp(up))
    return replace(table, low=low, high=high)


def variance(measurement: Measurement) -> float:
    """The variance of the log of the median that its doubt amounts to, beside that of its samples."""
    if measurement.doubt is None:
        return 0.0
    return ((measurement.doubt.low + measurement.doubt.high) / (2 * NORMAL_95)) ** 2


def level_variance(known: Mapping[Case, Measurement]) -> float:
    """The variance of the level of an op's log times that a model must reckon with: it may have learned the op before
    it changed."""
    return max((m.doubt.shift**2 for m in known.values() if m.doubt is not None), default=0.0)


def _reaches(known: Mapping[Case, Measurement], cases: Sequence[Case], seconds: Floats) -> tuple[Floats, Floats]:
    """How far below and above the forecast `seconds` (n_cases,) the intervals must reach, in log seconds, (n_cases,)
    each: between measured cases of the affinity, or else of any, interpolated over log threads."""
    forecast = dict(zip(cases, seconds.tolist(), strict=True))
    found = np.zeros((2, len(cases)))
    for affinity in Affinity:
        columns = [i for i, case in enumerate(cases) if case.affinity is affinity]
        alike = {case: m for case, m in known.items() if case.affinity is affinity} or known
        line = sorted(alike.items(), key=lambda one: one[0].threads)
        reaches = [_reach(m, forecast.get(case)) for case, m in line]
        at = [math.log(case.threads) for case, _ in line]
        asked = [math.log(cases[i].threads) for i in columns]
        for side in (0, 1):
            found[side, columns] = np.interp(asked, at, [reach[side] for reach in reaches])
    return found[0], found[1]


def _reach(measured: Measurement, forecast_s: float | None) -> tuple[float, float]:
    """How far what a measured case may be now is below and above its forecast; where that is not known, it may be off
    as far as the op has changed."""
    doubt = measured.doubt
    low, high, shift = (doubt.low, doubt.high, doubt.shift) if doubt else (0.0, 0.0, 0.0)
    off = shift if forecast_s is None else math.log(measured.seconds / forecast_s)
    lowest, highest = off - low, off + high
    if forecast_s is None:
        lowest, highest = min(lowest, -low), max(highest, high)
    return max(0.0, -lowest), max(0.0, highest)
