"""Intervals of forecasts for ops that have changed: wider where nothing was measured since."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Affinity, Case, CurveTable, Measurement
from threadcast.core.curve import Floats
from threadcast.models.intervals import NORMAL_95


def widened(table: CurveTable, known: Sequence[Mapping[Case, Measurement]], *, follows: bool = True) -> CurveTable:
    """The table with intervals of forecast cases as wide as the doubt about the measured ones next to them.

    `known` has what holds now of each op (`core.holding`), in the table's order. `follows`: whether forecasts follow
    what was measured of an op. If not, they may be off by as much as the op has changed since the model learned it.
    """
    changed = [row for row, of_op in enumerate(known) if any(m.doubt is not None for m in of_op.values())]
    if not changed:
        return table
    low, high = table.low.copy(), table.high.copy()
    for row in changed:
        down, up = _doubts(known[row], table.cases)
        if not follows:
            shifts = [m.doubt.shift for m in known[row].values() if m.doubt is not None]
            down, up = down + max(0.0, -min(shifts)), up + max(0.0, *shifts)
        low[row] *= np.exp(-down)
        high[row] *= np.exp(up)
    return replace(table, low=low, high=high)


def variance(measurement: Measurement) -> float:
    """The variance of the log of the median that its doubt amounts to, beside that of its samples."""
    if measurement.doubt is None:
        return 0.0
    return ((measurement.doubt.low + measurement.doubt.high) / (2 * NORMAL_95)) ** 2


def _doubts(known: Mapping[Case, Measurement], cases: Sequence[Case]) -> tuple[Floats, Floats]:
    """By how much in log seconds the time of each case may be lower and higher, (n_cases,) each: between measured ones
    of the affinity, or else of any, interpolated over log threads."""
    found = np.zeros((2, len(cases)))
    for affinity in Affinity:
        columns = [i for i, case in enumerate(cases) if case.affinity is affinity]
        if not columns:
            continue
        alike = {case: m for case, m in known.items() if case.affinity is affinity} or known
        line = sorted(((case.threads, m) for case, m in alike.items()), key=lambda one: one[0])
        at = [math.log(threads) for threads, _ in line]
        asked = [math.log(cases[i].threads) for i in columns]
        for side, doubts in enumerate(zip(*((m.doubt.low, m.doubt.high) if m.doubt else (0.0, 0.0) for _, m in line))):
            found[side, columns] = np.interp(asked, at, doubts)
    return found[0], found[1]
