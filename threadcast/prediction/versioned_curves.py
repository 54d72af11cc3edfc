"""A cache of a service's curves by op and model version, with their age."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadcast.core import Case, CurveTable
from threadcast.prediction.fork_lock import ForkLock
from threadcast.prediction.held_curves import MOST_POINTS, HeldCurves


@dataclass(frozen=True, slots=True)
class AgedCurves:
    """Cached curves of one model version. `age_s` is the age of the oldest curve in seconds.

    `stale` are the positions of curves to ask for anew: those that are too old; all where a newer version has answered
    since.
    """

    table: CurveTable
    age_s: float
    stale: tuple[int, ...]
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Version:
    held: HeldCurves
    since_s: Mapping[Hashable, float]

    def get(self, keys: Sequence[Hashable], now_s: float, fresh_s: float) -> AgedCurves | None:
        table = self.held.get(keys)
        if table is None:
            return None
        ages = [now_s - self.since_s[key] for key in keys]
        return AgedCurves(table, max(ages, default=0.0), tuple(i for i, age_s in enumerate(ages) if age_s > fresh_s))


class VersionedCurves:
    """A cache of the curves of the two latest model versions, by `Op.forecast_key`; a table never mixes two versions.

    Curves of the older version are returned, as stale, until those of the newer version have arrived. Curves count as
    fresh for `fresh_s` seconds of `clock`. Older ones are not dropped, because an old curve is better than a guess,
    until there are more than `most_points` (ops times cases) and `trim` is called. Safe to use from threads and after a
    fork.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        fresh_s: float,
        clock: Callable[[], float] = time.monotonic,
        most_points: int = MOST_POINTS,
    ) -> None:
        self._fresh_s, self._clock, self._most_points = fresh_s, clock, most_points
        self._lock = ForkLock()
        self._none = _Version(HeldCurves(CurveTable.empty(cases), {}), {})
        self._versions = (self._none, self._none)

    @property
    def model(self) -> str:
        """The model version that answered last; empty before the first."""
        return self._versions[0].held.table.model

    def get(self, keys: Sequence[Hashable]) -> AgedCurves | None:
        """Return the curves of these keys, one row each, in order; None if neither version has all of them."""
        now_s = self._clock()
        newer, older = self._versions
        kept = newer.get(keys, now_s, self._fresh_s)
        if kept is None and (kept := older.get(keys, now_s, self._fresh_s)) is not None:
            return AgedCurves(kept.table, kept.age_s, tuple(range(len(keys))))
        return kept

    def known(self, keys: Sequence[Hashable]) -> AgedCurves | None:
        """Return the curves of those of these keys that the version with most of them has, in order; None if there are
        none. `table` has a row for each position in `rows`."""
        now_s = self._clock()
        best = max(self._versions, key=lambda version: sum(key in version.held.rows for key in keys))
        rows = tuple(i for i, key in enumerate(keys) if key in best.held.rows)
        kept = best.get([keys[i] for i in rows], now_s, self._fresh_s) if rows else None
        return None if kept is None else replace(kept, rows=rows)

    def trim(self, used: Iterable[Hashable]) -> None:
        """Drop curves that arrived longest ago, until there are at most `most_points`.

        None of the keys just `used` is dropped. Of curves in use, those that are too old are asked for anew, so that
        these are not among the oldest. A fifth more than needed is dropped, so that this is seldom done.
        """
        cases = len(self._none.held.table.cases)
        if sum(len(version.held.rows) for version in self._versions) * cases <= self._most_points:
            return
        with self._lock:
            wanted, left = set(used), int(0.8 * self._most_points) // cases
            trimmed = []
            for version in self._versions:
                newest_first = sorted(version.held.rows, key=lambda key: version.since_s[key], reverse=True)
                kept = [key for key in newest_first if key in wanted]
                kept += [key for key in newest_first if key not in wanted][: max(left - len(kept), 0)]
                left -= len(kept)
                held = version.held.only(kept)
                trimmed.append(_Version(held, {key: version.since_s[key] for key in held.rows}))
            self._versions = (trimmed[0], trimmed[1])

    def missing(self, keys: Sequence[Hashable]) -> list[int]:
        """Return the position in `keys` of the first appearance of each key without a curve of the newer version."""
        return self._versions[0].held.missing(keys)

    def add(self, keys: Sequence[Hashable], table: CurveTable) -> None:
        """Store row i of `table`, an answer of the service that has just arrived, as the curve of the i-th key."""
        with self._lock:
            newer, older = self._versions
            if table.model != newer.held.table.model:
                before = older if table.model == older.held.table.model else self._none
                newer, older = before, newer
            since_s = {**newer.since_s, **dict.fromkeys(keys, self._clock())}
            self._versions = (_Version(newer.held.updated(keys, table), since_s), older)
