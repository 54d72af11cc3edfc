"""Curves that a predictor holds, so that a scheduler asks for each op only once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from threadcast.core import CurveTable

MOST_POINTS = 4_000_000
"""Most points (ops times cases) that a predictor holds: about 100 MB, 58,000 ops on a machine of 68 cases."""


@dataclass(frozen=True, slots=True)
class HeldCurves:
    """Curves of one model version: a table, and the number of each row in it by `Op.forecast_key`. Immutable.

    They take about 25 bytes for each op and case.
    """

    table: CurveTable
    rows: Mapping[Hashable, int]

    def missing(self, keys: Sequence[Hashable]) -> list[int]:
        """Return the position in `keys` of the first appearance of each key that has no curve here."""
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.rows}
        return sorted(first.values())

    def only(self, keys: Iterable[Hashable]) -> HeldCurves:
        """Return these curves without those of other keys than `keys`."""
        kept = {key: self.rows[key] for key in keys if key in self.rows}
        return HeldCurves(self.table.take(list(kept.values())), {key: i for i, key in enumerate(kept)})

    def updated(self, keys: Sequence[Hashable], table: CurveTable) -> HeldCurves:
        """Return these curves with row i of `table` added, or exchanged, as the curve of the i-th key."""
        new = dict.fromkeys(keys)
        old = {key: row for key, row in self.rows.items() if key not in new}
        all_stay = len(old) == len(self.rows)
        held = self.table if all_stay else self.table.take(list(old.values()))
        rows = old if all_stay else {key: i for i, key in enumerate(old)}
        return HeldCurves(CurveTable.concat([held, table]), rows | {key: len(held) + i for i, key in enumerate(keys)})
