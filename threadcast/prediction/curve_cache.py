"""A cache of curves by op key, so that a scheduler asks once for an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadcast.core import Case, CurveTable
from threadcast.prediction.fork_lock import ForkLock


@dataclass(frozen=True, slots=True)
class HeldCurves:
    """Curves of one model version: the table, and the row of each op key in it. It never changes."""

    table: CurveTable
    rows: Mapping[str, int]

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Position of the first appearance of each key that is not held."""
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.rows}
        return sorted(first.values())

    def get(self, keys: Sequence[str]) -> CurveTable | None:
        """One row a key, in order; None if any is not held."""
        try:
            return self.table.take([self.rows[key] for key in keys])
        except KeyError:
            return None

    def updated(self, keys: Sequence[str], table: CurveTable) -> HeldCurves:
        """The same curves, but row i of `table` as the curve of the i-th key."""
        new = dict.fromkeys(keys)
        old = {key: row for key, row in self.rows.items() if key not in new}
        all_stay = len(old) == len(self.rows)
        held = self.table if all_stay else self.table.take(list(old.values()))
        rows = old if all_stay else {key: i for i, key in enumerate(old)}
        return HeldCurves(CurveTable.concat([held, table]), rows | {key: len(held) + i for i, key in enumerate(keys)})


class CurveCache:
    """Whole curves by op key, all of one model version; those of another are dropped when it answers.

    Safe to use from threads and after a fork: a reader gets a table that no later `add` changes. It grows with the
    distinct ops seen (about 25 bytes a case each) and is never trimmed.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._lock = ForkLock()
        self._held = self._empty = HeldCurves(CurveTable.empty(cases), {})

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Position of the first appearance of each key that is not held."""
        return self._held.missing(keys)

    def get(self, keys: Sequence[str]) -> CurveTable | None:
        """One row a key, in order; None if any is not held."""
        return self._held.get(keys)

    def add(self, keys: Sequence[str], table: CurveTable) -> None:
        """Hold row i of `table` as the curve of the i-th key."""
        with self._lock:
            held = self._held if table.model == self._held.table.model else self._empty
            self._held = held.updated(keys, table)

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held = self._empty
