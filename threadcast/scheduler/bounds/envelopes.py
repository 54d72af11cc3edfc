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
    """The corners of all rows at once: from the most frugal point on, always to the faster point of least price."""
    row = np.arange(len(seconds))
    frugal = work == work.min(axis=1, keepdims=True)
    at = np.where(frugal, seconds, np.inf).argmin(axis=1)
    found: list[Integers] = [at]
    last = np.zeros(len(seconds), dtype=np.int64)
    while True:
        here_s, here_work = seconds[row, at][:, None], work[row, at][:, None]
        faster = seconds < here_s
        going = faster.any(axis=1)
        if not going.any():
            return np.stack(found, axis=1), last
        price = np.full(seconds.shape, np.inf)
        with np.errstate(over="ignore"):
            np.divide(work - here_work, here_s - seconds, out=price, where=faster)
        at = np.where(going, np.where(faster, np.minimum(price, np.finfo(float).max), np.inf).argmin(axis=1), at)
        last += going
        found.append(at)


def _prices(seconds: Floats, work: Floats, last: Integers) -> Floats:
    saved, paid = -np.diff(seconds, axis=1), np.diff(work, axis=1)
    prices = np.full(saved.shape, np.inf)
    with np.errstate(over="ignore"):
        np.divide(paid, saved, out=prices, where=np.arange(saved.shape[1]) < last[:, None])
    return prices
