"""A cache of a service's curves, all of the model version that answered last, with their age."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from threadcast.core import Case, CurveTable
from threadcast.core.fork_lock import ForkLock
from threadcast.prediction.held_curves import MOST_POINTS, HeldCurves


@dataclass(frozen=True, slots=True)
class AgedCurves:
    """Cached curves of the keys at these positions (`rows`); `age_s` is the age of the oldest in seconds."""

    table: CurveTable
    age_s: float
    rows: tuple[int, ...]


class VersionedCurves:
    """A cache of curves by `Op.forecast_key`; a table never mixes two model versions: an answer of another one takes
    the place of all curves.

    Curves count as fresh for `fresh_s` seconds of `clock`. Older ones are not dropped, because an old curve is better
    than a guess, until there are more than `most_points` (ops times cases) and `trim` is called. Safe to use from
    threads.
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
        self._held: tuple[HeldCurves, Mapping[Hashable, float]] = HeldCurves(CurveTable.empty(cases), {}), {}
        """The curves, and when each arrived by the clock."""

    @property
    def model(self) -> str:
        """The model version that answered last; empty before the first."""
        return self._held[0].table.model

    def known(self, keys: Sequence[Hashable]) -> AgedCurves | None:
        """Return the curves of those of these keys that have one, in order; None if there are none."""
        (held, since_s), now_s = self._held, self._clock()
        rows = tuple(i for i, key in enumerate(keys) if key in held.rows)
        if not rows:
            return None
        age_s = now_s - min(since_s[keys[i]] for i in rows)
        return AgedCurves(held.table.take([held.rows[keys[i]] for i in rows]), age_s, rows)

    def trim(self, used: Iterable[Hashable]) -> None:
        """Where there are more than `most_points`, keep the curves just `used` only."""
        with self._lock:
            held, since_s = self._held
            if held.table.seconds.size > self._most_points:
                held = held.only(dict.fromkeys(used))
                self._held = held, {key: since_s[key] for key in held.rows}

    def wanted(self, keys: Sequence[Hashable]) -> list[int]:
        """Return the position in `keys` of the first appearance of each key without a curve that is fresh."""
        (_, since_s), now_s = self._held, self._clock()
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        return sorted(i for key, i in first.items() if not now_s - since_s.get(key, -math.inf) <= self._fresh_s)

    def add(self, keys: Sequence[Hashable], table: CurveTable) -> None:
        """Store row i of `table`, an answer of the service that has just arrived, as the curve of the i-th key."""
        with self._lock:
            held, since_s = self._held
            if table.model != held.table.model:
                held, since_s = HeldCurves(CurveTable.empty(table.cases), {}), {}
            self._held = held.updated(keys, table), {**since_s, **dict.fromkeys(keys, self._clock())}
