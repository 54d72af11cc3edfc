"""Curves that were answered before, so that a scheduler asks once for an op."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from threadcast.core import Case, CurveTable
from threadcast.core.errors import InvalidInput


class CurveCache:
    """Whole curves by op key, all of one model version; those of another are dropped when it answers.

    Safe to use from threads: a reader gets a table that no later `add` changes. It grows with the distinct ops
    seen (about 25 bytes a case each) and is never trimmed.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._empty = empty_table(cases)
        self._lock = threading.Lock()
        self._table, self._rows = self._empty, dict[str, int]()

    @property
    def model(self) -> str:
        """The model version of the curves held; empty before the first."""
        return self._table.model

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Position of the first appearance of each key that is not held."""
        with self._lock:
            first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self._rows}
        return sorted(first.values())

    def get(self, keys: Sequence[str]) -> CurveTable | None:
        """One row a key, in order; None if any is not held."""
        with self._lock:
            table, rows = self._table, self._rows
            try:
                wanted = [rows[key] for key in keys]
            except KeyError:
                return None
        return table.take(wanted)

    def add(self, keys: Sequence[str], table: CurveTable) -> None:
        """Hold row i of `table` as the curve of the i-th key."""
        with self._lock:
            held = self._table if table.model == self._table.model else self._empty
            rows = self._rows if held is self._table else {}
            self._table = joined(held, table)
            self._rows = {**rows, **{key: len(held) + i for i, key in enumerate(keys)}}

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._table, self._rows = self._empty, {}


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
