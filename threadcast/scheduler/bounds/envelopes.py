"""Time and work of an op whose width may be a mixture of the widths that it offers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from threadcast.scheduler.problem.times import Floats, Integers, Times


@dataclass(frozen=True, slots=True, eq=False)
class Envelopes:
    """The lower convex envelope of (seconds, core-seconds) of each op, from its most frugal to its fastest width.

    Only widths at corners of the envelope are kept; no mixture of widths lies below the envelope.

    `seconds`, `work`: (n_ops, n_corners) float64, seconds falling and core-seconds rising along a row; rows with fewer
    corners repeat their last one. `position`: same shape, positions in `Times.counts`. `last`: (n_ops,) column of each
    op's last corner. `prices`: (n_ops, n_corners - 1), the core-seconds that it costs to save one second, from a corner
    to the next; rising along a row, infinite after `last`. If a second is worth a price between two of them, the corner
    between them is the cheapest.
    """

    seconds: Floats
    work: Floats
    prices: Floats
    position: Integers
    last: Integers

    @classmethod
    @lru_cache(maxsize=2)  # a bound and every rounding of it ask for the same
    def of(cls, times: Times) -> Envelopes:
        """Return the envelopes of these times. Equal rows, of which networks have many, are computed once."""
        rows: dict[bytes, int] = {}
        inverse = np.array([rows.setdefault(row.tobytes(), len(rows)) for row in times.seconds], dtype=np.int64)
        first = np.full(len(rows), -1, dtype=np.int64)
        first[inverse[::-1]] = np.arange(len(inverse))[::-1]
        seconds = times.seconds[first]
        work = seconds * np.asarray(times.counts, dtype=np.float64)
        position, last = _corners(seconds, work)
        row = np.arange(len(seconds))[:, None]
        seconds, work = seconds[row, position], work[row, position]
        return cls(
            seconds[inverse], work[inverse], _prices(seconds, work, last)[inverse], position[inverse], last[inverse]
        )

    def __len__(self) -> int:
        return len(self.seconds)

    def least_cost(self, second_price: Floats) -> Floats:
        """Return (n_ops,) least costs of the ops if a second costs `second_price` (n_ops,) and a core-second 1."""
        return np.asarray((second_price[:, None] * self.seconds + self.work).min(axis=1))

    def work_at(self, seconds: Floats) -> Floats:
        """Return (n_ops,) core-seconds on the envelope at these seconds, between each op's fastest and slowest."""
        row = np.arange(len(self))
        right = self.column(seconds)
        left = np.maximum(right - 1, 0)
        span = self.seconds[row, left] - self.seconds[row, right]
        share = np.divide(self.seconds[row, left] - seconds, span, out=np.zeros(len(self)), where=span > 0)
        low, high = self.work[row, left], self.work[row, right]
        return np.asarray(low + share * (high - low))

    def column(self, seconds: Floats) -> Integers:
        """Return (n_ops,) columns of the slowest corner that takes at most `seconds`; of the fastest if none does."""
        slower = self.seconds > seconds[:, None]
        return np.asarray(np.minimum(slower.sum(axis=1), self.last), dtype=np.int64)


def _corners(seconds: Floats, work: Floats) -> tuple[Integers, Integers]:
    """The corners of all rows at once, from the most frugal point to the fastest one: points are added by falling
    seconds, and take away those before them that lie above the line to the next. Time is linear in the widths.

    Source: Andrew 1979, "Another efficient algorithm for convex hulls in two dimensions".
    """
    row = np.arange(len(seconds))
    frugal = work == work.min(axis=1, keepdims=True)
    by_work = np.argsort(work, axis=1, kind="stable")
    falling = np.argsort(-np.take_along_axis(seconds, by_work, axis=1), axis=1, kind="stable")
    order = np.take_along_axis(by_work, falling, axis=1)
    found = np.zeros(seconds.shape, dtype=np.int64)  # of each row, up to `last`
    found[:, 0] = np.where(frugal, seconds, np.inf).argmin(axis=1)
    last = np.zeros(len(seconds), dtype=np.int64)

    def price(rows: Integers, slower: Integers, faster: Integers) -> Floats:
        with np.errstate(over="ignore"):
            paid, saved = work[rows, faster] - work[rows, slower], seconds[rows, slower] - seconds[rows, faster]
            return np.asarray(paid / saved)

    for point in order.T:
        rows = np.flatnonzero(seconds[row, point] < seconds[row, found[row, last]])
        several = rows[last[rows] > 0]
        while len(several):
            top, below = found[several, last[several]], found[several, last[several] - 1]
            above = price(several, top, point[several]) <= price(several, below, top)
            several = several[above]
            last[several] -= 1
            several = several[last[several] > 0]
        last[rows] += 1
        found[rows, last[rows]] = point[rows]
    columns = np.minimum(np.arange(int(last.max()) + 1), last[:, None])
    return np.take_along_axis(found, columns, axis=1), last


def _prices(seconds: Floats, work: Floats, last: Integers) -> Floats:
    saved, paid = -np.diff(seconds, axis=1), np.diff(work, axis=1)
    prices = np.full(saved.shape, np.inf)
    with np.errstate(over="ignore"):
        np.divide(paid, saved, out=prices, where=np.arange(saved.shape[1]) < last[:, None])
    return prices
