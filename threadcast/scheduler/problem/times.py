"""Finds in a curve table how long an op takes on given cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Affinity, Case, CurveTable, Machine
from threadcast.core.errors import PlanError
from threadcast.core.found_by_cores import FoundByCores

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LONGEST_S = 1e12
"""Most seconds of an op (30,000 years), so that sums over long paths do not overflow."""


class Times:
    """Seconds of each op by thread count or by cores, for the cases that fit the machine.

    A case fits if the machine has as many cores as the case has threads (for SPREAD: as many cache groups). Seconds are
    infinite where an op's curve does not offer a case. PlanError where an op offers no case that fits, and for seconds
    that are negative or too large.

    `counts`: the thread counts of the cases that fit, ascending. `seconds`: (n_ops, n_counts) float64, seconds at the
    better affinity. `spread`: same shape, bool, whether the better affinity is SPREAD.
    """

    def __init__(self, curves: CurveTable, machine: Machine, *, ids: Sequence[str] | None = None) -> None:
        if not np.all(curves.seconds >= 0):  # not a number compares false too
            raise PlanError("curves must hold seconds of at least 0, or infinity where a case is not offered")
        if np.any((curves.seconds > LONGEST_S) & np.isfinite(curves.seconds)):
            longest_s = float(curves.seconds[np.isfinite(curves.seconds)].max())
            raise PlanError(f"curves must hold seconds of at most {LONGEST_S:g}, got {longest_s:g}; check their unit")
        groups = len(machine.groups)
        limit = {Affinity.COMPACT: len(machine), Affinity.SPREAD: groups}
        columns = {case: i for i, case in enumerate(curves.cases) if case.threads <= limit[case.affinity]}
        if not columns:
            fewest = min(case.threads for case in curves.cases)
            raise PlanError(f"no case of the curves fits {len(machine)} cores; they start at {fewest} threads")
        self.counts: tuple[int, ...] = tuple(sorted({case.threads for case in columns}))
        shape = (len(curves), len(self.counts))
        self.seconds: Floats = np.full(shape, np.inf)
        self.spread: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        for i, threads in enumerate(self.counts):
            for affinity in Affinity:  # COMPACT first: it wins among equals
                column = columns.get(Case(threads, affinity))
                if column is not None:
                    better = curves.seconds[:, column] < self.seconds[:, i]
                    self.seconds[better, i] = curves.seconds[better, column]
                    self.spread[better, i] = affinity is Affinity.SPREAD
        self._check_offered(ids, len(machine))
        self._group_of = {core.id: core.group for core in machine.cores}
        self._single_group = groups == 1
        self._columns = columns
        self._table = curves.seconds
        self._item = curves.seconds.item
        self._found: FoundByCores[tuple[tuple[int, ...], int], tuple[int, int]] = FoundByCores()

    def _check_offered(self, ids: Sequence[str] | None, cores: int) -> None:
        lacking = np.flatnonzero(~np.isfinite(self.seconds).any(axis=1))
        if lacking.size:
            row = int(lacking[0])
            name = repr(ids[row]) if ids else str(row)
            raise PlanError(f"op {name} has no case that fits {cores} cores; give more cores or a point of its curve")

    def on(self, op: int, cores: tuple[int, ...], threads: int) -> float:
        """Return the seconds of `op` alone on `cores`: COMPACT's where two of them share a cache group, else SPREAD's.

        Where the curve offers only the other affinity at this count, that one's. More threads than cores count as one
        thread for each core. PlanError where the curve does not offer the thread count.
        """
        key = (cores, threads)
        found = self._found.get(key)
        if found is None:
            together = self._apart(cores) < len(cores)
            columns = self._look_up(min(threads, len(cores)), together=together)
            found = self._found.keep(key, columns, ids=len(cores))
        for column in found:
            if column >= 0:
                seconds = self._item(op, column)
                if seconds != np.inf:
                    return float(seconds)
        raise PlanError(f"the curve of op {op} does not offer {threads} threads on {len(cores)} cores")

    def _apart(self, cores: tuple[int, ...]) -> int:
        """The number of the first cores of which no two share a cache group; 0 where all cores are one group."""
        groups: set[int] = set()
        for core in () if self._single_group else cores:
            if self._group_of[core] in groups:
                break
            groups.add(self._group_of[core])
        return len(groups)

    def _look_up(self, count: int, *, together: bool) -> tuple[int, int]:
        """The columns of a count, -1 where there is none: that of the affinity at which cores are `together`, or not,
        and that of the other."""
        order = (Affinity.COMPACT, Affinity.SPREAD) if together else (Affinity.SPREAD, Affinity.COMPACT)
        first, second = (self._columns.get(Case(count, affinity), -1) for affinity in order)
        return first, second

    def along(self, cores: tuple[int, ...]) -> Floats:
        """Return (n_ops, n_counts) seconds on the first `counts[i]` of `cores`, as `on` does; infinite beyond them."""
        result, apart = np.full_like(self.seconds, np.inf), self._apart(cores)
        for i, count in enumerate(self.counts):
            if count <= len(cores):
                for column in reversed(self._look_up(count, together=count > apart)):
                    if column >= 0:
                        offered = self._table[:, column] != np.inf
                        result[offered, i] = self._table[offered, column]
        return result

    def fastest(self) -> Integers:
        """Return (n_ops,) positions in `counts` of each op's fastest count; among equals the fewest threads."""
        return np.asarray(np.argmin(self.seconds, axis=1), dtype=np.int64)

    def within(self, limit: int) -> Integers:
        """Return (n_ops,) positions in `counts` of the largest count up to `limit` that each op offers; where there is
        none, of the smallest count that it offers."""
        offered = np.isfinite(self.seconds)
        allowed = offered & (np.asarray(self.counts) <= limit)
        last = len(self.counts) - 1 - np.argmax(allowed[:, ::-1], axis=1)
        smallest = np.argmax(offered, axis=1)
        return np.asarray(np.where(allowed.any(axis=1), last, smallest), dtype=np.int64)

    def at(self, positions: Integers) -> Floats:
        """Return (n_ops,) seconds of each op at the given (n_ops,) positions in `counts`."""
        return np.asarray(self.seconds[np.arange(len(self.seconds)), positions])
