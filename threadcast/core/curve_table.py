"""The curves of many ops over the same cases, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from threadcast.core.case import Case
from threadcast.core.curve import Curve, Floats, Source
from threadcast.core.errors import InvalidInput

ARRAYS = ("seconds", "low", "high", "source")
"""Names of the (n_ops, n_cases) arrays of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class CurveTable:
    """Curves of many ops over the same cases.

    `seconds`, `low`, `high`: (n_ops, n_cases) float64, seconds. `source`: (n_ops, n_cases) int8, positions in
    `list(Source)`. `model`: "name@version" of the model that predicted the curves. `table[i]` is the `Curve` of op `i`.
    Models predict every case. Curves in a graph file may lack cases: there `seconds` are infinite, and `table[i]`
    leaves the case out.
    """

    cases: tuple[Case, ...]
    seconds: Floats
    low: Floats
    high: Floats
    source: NDArray[np.int8]
    model: str = ""

    def __post_init__(self) -> None:
        shape = self.seconds.shape
        if len(shape) != 2 or shape[1] != len(self.cases) or not self.cases:
            raise InvalidInput(f"seconds has shape {shape}, expected (n_ops, {len(self.cases)})")
        for name in ARRAYS:
            if getattr(self, name).shape != shape:
                raise InvalidInput(f"{name} has shape {getattr(self, name).shape}, expected {shape}")

    @classmethod
    def of(cls, curves: Sequence[Curve], *, model: str = "") -> CurveTable:
        """Stack curves, one row each; InvalidInput unless all have the same cases."""
        if not curves:
            raise InvalidInput("a curve table needs at least one curve")
        cases = curves[0].cases
        if any(curve.cases != cases for curve in curves):
            raise InvalidInput("the curves of a table must have the same cases")
        codes = {source: i for i, source in enumerate(Source)}
        source = np.array([[codes[s] for s in curve.source] for curve in curves], dtype=np.int8)
        seconds, low, high = (np.stack([getattr(curve, name) for curve in curves]) for name in ARRAYS[:3])
        return cls(cases, seconds, low, high, source, model)

    @classmethod
    def empty(cls, cases: Sequence[Case], *, model: str = "") -> CurveTable:
        """A table with these cases and no rows."""
        none = np.empty((0, len(cases)))
        return cls(tuple(cases), none, none, none, none.astype(np.int8), model)

    @classmethod
    def concat(cls, tables: Sequence[CurveTable]) -> CurveTable:
        """The rows of all `tables` in order, with the last one's `model`; InvalidInput unless their cases are equal."""
        if not tables:
            raise InvalidInput("there is no table to concatenate")
        *before, last = tables
        if not before:
            return last
        if any(table.cases != last.cases for table in before):
            raise InvalidInput("tables that are concatenated must have the same cases")
        arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in ARRAYS}
        return cls(last.cases, **arrays, model=last.model)

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[Sequence[int], CurveTable]]) -> CurveTable:
        """One table from several, each given with the places of its rows in it; the last one's `model`."""
        every = list(parts)
        return cls.concat([table for _, table in every]).take(np.argsort([row for rows, _ in every for row in rows]))

    def __len__(self) -> int:
        return int(self.seconds.shape[0])

    def __getitem__(self, index: int) -> Curve:
        names = list(Source)
        offered = np.isfinite(self.seconds[index])
        cases = tuple(case for case, there in zip(self.cases, offered) if there)
        source = tuple(names[code] for code in self.source[index][offered])
        return Curve(cases, self.seconds[index][offered], self.low[index][offered], self.high[index][offered], source)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> CurveTable:
        """The table of these rows, in this order; a row may repeat."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(self, **{name: getattr(self, name)[index] for name in ARRAYS})

    def at_cases(self, cases: Sequence[Case] | None) -> CurveTable:
        """The table of these cases only (None: of all); InvalidInput for a case that the table does not have."""
        if cases is None or tuple(cases) == self.cases:
            return self
        column = {case: i for i, case in enumerate(self.cases)}
        unknown = [str(case) for case in cases if case not in column]
        if unknown or not cases:
            allowed = ", ".join(map(str, self.cases[:8])) + (", ..." if len(self.cases) > 8 else "")
            raise InvalidInput(
                f"cases {', '.join(unknown[:5]) or '(none)'} are not among the {len(column)} of the machine: {allowed}"
            )
        index = [column[case] for case in cases]
        return replace(self, cases=tuple(cases), **{name: getattr(self, name)[:, index] for name in ARRAYS})
