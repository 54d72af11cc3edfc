"""A cache of curves by op key, so that a scheduler asks for each op only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadcast.core import Case, CurveTable
from threadcast.prediction.fork_lock import ForkLock


@dataclass(frozen=True, slots=True)
class HeldCurves:
    """Curves of one model version: a table, and the number of each op key's row in it. Immutable."""

    table: CurveTable
    rows: Mapping[str, int]

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return the position in `keys` of the first appearance of each key that has no curve here."""
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.rows}
        return sorted(first.values())

    def get(self, keys: Sequence[str]) -> CurveTable | None:
        """Return a table with one row for each key, in order; None if a key has no curve here."""
        try:
            return self.table.take([self.rows[key] for key in keys])
        except KeyError:
            return None

    def updated(self, keys: Sequence[str], table: CurveTable) -> HeldCurves:
        """Return these curves with row i of `table` added, or exchanged, as the curve of the i-th key."""
        new = dict.fromkeys(keys)
        old = {key: row for key, row in self.rows.items() if key not in new}
        all_stay = len(old) == len(self.rows)
        held = self.table if all_stay else self.table.take(list(old.values()))
        rows = old if all_stay else {key: i for i, key in enumerate(old)}
        return HeldCurves(CurveTable.concat([held, table]), rows | {key: len(held) + i for i, key in enumerate(keys)})


class CurveCache:
    """Caches whole curves by op key, all of one model version: adding a curve of another version drops all others.

    Safe to use from threads and after a fork: no later `add` changes a table that was returned. The cache grows with
    the number of distinct ops (about 25 bytes for each op and case) and is never trimmed.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._lock = ForkLock()
        self._held = self._empty = HeldCurves(CurveTable.empty(cases), {})

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return the position in `keys` of the first appearance of each key that has no curve here."""
        return self._held.missing(keys)

    def get(self, keys: Sequence[str]) -> CurveTable | None:
        """Return a table with one row for each key, in order; None if a key has no curve here."""
        return self._held.get(keys)

    def add(self, keys: Sequence[str], table: CurveTable) -> None:
        """Store row i of `table` as the curve of the i-th key."""
        with self._lock:
            held = self._held if table.model == self._held.table.model else self._empty
            self._held = held.updated(keys, table)

    def clear(self) -> None:
        """Drop all curves."""
        with self._lock:
            self._held = self._empty
