"""Curves that were answered before, so that a scheduler asks once for an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from threadcast.core import Case, CurveTable
from threadcast.core.errors import InvalidInput
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

    def joined(self, keys: Sequence[str], table: CurveTable) -> HeldCurves:
        """With row i of `table` as the curve of the i-th key, in place of the one that it had."""
        new = dict.fromkeys(keys)
        kept = {key: row for key, row in self.rows.items() if key not in new}
        whole = len(kept) == len(self.rows)
        held = self.table if whole else self.table.take(list(kept.values()))
        rows = kept if whole else {key: i for i, key in enumerate(kept)}
        return HeldCurves(joined(held, table), rows | {key: len(held) + i for i, key in enumerate(keys)})


class CurveCache:
    """Whole curves by op key, all of one model version; those of another are dropped when it answers.

    Safe to use from threads and after a fork: a reader gets a table that no later `add` changes. It grows with the
    distinct ops seen (about 25 bytes a case each) and is never trimmed.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._lock = ForkLock()
        self._held = self._empty = HeldCurves(empty_table(cases), {})

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
            self._held = held.joined(keys, table)

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held = self._empty


def empty_table(cases: Sequence[Case], *, model: str = "") -> CurveTable:
    """A table of no op over these cases."""
    none = np.empty((0, len(cases)))
    return CurveTable(tuple(cases), none, none, none, none.astype(np.int8), model)


def joined(first: CurveTable, second: CurveTable) -> CurveTable:
    """The rows of both tables, which have the same cases; the second one's model."""
    return CurveTable(
        second.cases,
        np.concatenate([first.seconds, second.seconds]),
        np.concatenate([first.low, second.low]),
        np.concatenate([first.high, second.high]),
        np.concatenate([first.source, second.source]),
        second.model,
    )


def at_cases(table: CurveTable, cases: Sequence[Case] | None) -> CurveTable:
    """The table's columns at `cases` (None: as it is); InvalidInput for a case that it does not have."""
    if cases is None or tuple(cases) == table.cases:
        return table
    column = {case: i for i, case in enumerate(table.cases)}
    strange = [str(case) for case in cases if case not in column]
    if strange or not cases:
        allowed = ", ".join(map(str, table.cases[:8])) + (", ..." if len(table.cases) > 8 else "")
        raise InvalidInput(
            f"cases {', '.join(strange[:5]) or '(none)'} are not among the {len(column)} of the machine: {allowed}"
        )
    at = np.s_[:, [column[case] for case in cases]]
    return CurveTable(tuple(cases), table.seconds[at], table.low[at], table.high[at], table.source[at], table.model)
