"""What was measured limits forecasts: more threads make no op faster than linear scaling from one thread does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Case, CurveTable, Source
from threadcast.core.curve import Floats
from threadcast.models.interpolation import Knot

BEYOND = 1.1
"""How much faster than by linear scaling from one thread an op may be, as several cores have more cache. Of real curves
one in a thousand is beyond 1.05: sgemm at 1 to 96 threads (1.11 at most), sdot, networks of ncnn."""


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
