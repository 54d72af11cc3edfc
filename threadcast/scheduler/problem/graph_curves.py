"""Makes a curve table from the curves in a graph file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from threadcast.core import CurveTable, Machine, OpGraph, Source
from threadcast.core.curve_table import ARRAYS
from threadcast.core.errors import PlanError

_MEASURED, _INTERPOLATED = list(Source).index(Source.MEASURED), list(Source).index(Source.INTERPOLATED)


Forecast = Callable[[list[int]], CurveTable]
"""Returns the curves of the ops at these positions of a graph, at all cases of a machine."""


def curves_of(graph: OpGraph, machine: Machine, forecast: Forecast | None = None) -> CurveTable:
    """Return the curves that `graph` holds, one row for each op, over all cases of `machine` up to their largest count,
    and over all counts that are given. Ops without a curve get that of `forecast`, over all cases.

    Points of the graph are "measured", at both affinities; where a count is no case of the machine's, as 3 on groups of
    4 cores, it is one COMPACT here. Between two given thread counts, times are interpolated in
    log-log scale (linearly where a time is 0) and marked as interpolated. Below an op's first and above its last given
    count nothing is guessed: these cases are not offered, `seconds` is infinite there, and policies run the op on fewer
    cores. PlanError where there is no op, an op has no curve, or one offers no case of the machine.
    """
    if not graph.ids:
        raise PlanError("the graph has no ops, so there are no curves")
    missing = [row for row, op_id in enumerate(graph.ids) if op_id not in graph.curves]
    predicted = forecast(missing) if missing and forecast is not None else None
    if missing and predicted is None:
        raise PlanError(
            f"{len(missing)} of {len(graph)} ops have no curve in the graph, the first is {graph.ids[missing[0]]!r}; "
            "give each op a curve or let a model predict the others"
        )
    if predicted is not None and not graph.curves:
        return predicted
    counts_given = set().union(*graph.curves.values())
    every = machine.cases_with(counts_given)
    cases = tuple(case for case in every if missing or case.threads <= max(counts_given)) or every
    seconds = np.full((len(graph), len(cases)), np.inf)
    source = np.full(seconds.shape, _INTERPOLATED, dtype=np.int8)
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    rows: dict[tuple[tuple[int, float], ...], tuple[NDArray[np.float64], NDArray[np.bool_]]] = {}
    for i, op_id in enumerate(graph.ids):
        if (curve := graph.curves.get(op_id)) is None:
            continue
        points = tuple(curve.items())
        if points not in rows:
            rows[points] = _row(curve, threads)
        seconds[i], given = rows[points]
        if not np.isfinite(seconds[i]).any():
            raise PlanError(
                f"the curve of op {op_id!r} is given for {min(curve)} to {max(curve)} threads, "
                f"where {len(machine)} cores have no case; give more cores or another point"
            )
        source[i, given] = _MEASURED
    if predicted is None:
        return CurveTable(cases, seconds, seconds, seconds, source, "file")
    table = CurveTable(cases, seconds, seconds.copy(), seconds.copy(), source, f"{predicted.model} and file")
    places = np.ix_(missing, [cases.index(case) for case in predicted.cases])
    for name in ARRAYS:
        getattr(table, name)[places] = getattr(predicted, name)
    return table


def farthest_count(table: CurveTable) -> int:
    """Return the highest thread count that any op of the table offers."""
    offered = np.isfinite(table.seconds).any(axis=0)
    return max(table.cases[column].threads for column in np.flatnonzero(offered))


def _row(curve: Mapping[int, float], threads: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    counts = np.array(sorted(curve), dtype=np.float64)
    times = np.array([curve[int(count)] for count in counts])
    if np.all(times > 0):
        seconds = np.exp(np.interp(np.log(threads), np.log(counts), np.log(times)))
    else:
        seconds = np.interp(threads, counts, times)
    given = np.isin(threads, counts)
    seconds[given] = times[np.searchsorted(counts, threads[given])]  # exactly, not through a logarithm
    seconds[(threads < counts[0]) | (threads > counts[-1])] = np.inf
    return seconds, given
