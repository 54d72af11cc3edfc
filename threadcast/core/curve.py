"""What a model answers: seconds at each case, with an interval and where each point comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core.errors import InvalidInput
from threadcast.core.machine import Case

Floats = NDArray[np.float64]


class Source(StrEnum):
    """Where a predicted point comes from."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    LEARNED = "learned"
    EXTRAPOLATED = "extrapolated"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Predicted seconds of one op at each of `cases`.

    `seconds`, `low`, `high`: (n_cases,) float64, seconds; low and high bound a 90 % interval. `source` has one
    entry a case.
    """

    cases: tuple[Case, ...]
    seconds: Floats
    low: Floats
    high: Floats
    source: tuple[Source, ...]

    def __post_init__(self) -> None:
        n = len(self.cases)
        if n == 0:
            raise InvalidInput("a curve needs at least one case")
        for name in ("seconds", "low", "high"):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.shape != (n,):
                raise InvalidInput(f"{name} has shape {array.shape}, expected ({n},): one a case")
            if not np.all(np.isfinite(array)) or np.any(array < 0):
                raise InvalidInput(f"{name} must be finite and at least 0, got {array}")
            object.__setattr__(self, name, array)
        if len(self.source) != n:
            raise InvalidInput(f"{len(self.source)} sources for {n} cases")
        if np.any(self.low > self.seconds * (1 + 1e-9)) or np.any(self.high < self.seconds * (1 - 1e-9)):
            raise InvalidInput("low and high must enclose seconds")

    @classmethod
    def exact(cls, cases: Iterable[Case], seconds: Iterable[float], source: Source = Source.MEASURED) -> Curve:
        """A curve whose interval is the point itself."""
        cases, array = tuple(cases), np.fromiter(seconds, dtype=np.float64)
        return cls(cases, array, array, array, (source,) * len(cases))

    def best(self) -> Case:
        """The fastest case; among equals the one with fewest threads."""
        index = min(range(len(self.cases)), key=lambda i: (self.seconds[i], self.cases[i].threads))
        return self.cases[index]

    def at(self, case: Case) -> float:
        """Seconds at `case`; InvalidInput if the curve does not have it."""
        try:
            return float(self.seconds[self.cases.index(case)])
        except ValueError:
            raise InvalidInput(f"the curve has no case {case}; it has {', '.join(map(str, self.cases))}") from None

    def by_threads(self) -> dict[int, float]:
        """Seconds at each thread count, the better affinity where there are two."""
        found: dict[int, float] = {}
        for case, seconds in zip(self.cases, self.seconds):
            found[case.threads] = min(found.get(case.threads, np.inf), float(seconds))
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, eq=False)
class CurveTable:
    """Curves of many ops over the same cases, dense.

    `seconds`, `low`, `high`: (n_ops, n_cases) float64, seconds. `source`: (n_ops, n_cases) int8, positions in
    `list(Source)`. `model` is "name@version" of what answered. A model offers every case; where a graph file's own
    curve does not reach a case, seconds are infinite and `table[i]` leaves the case out.
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
        for name in ("low", "high", "source"):
            if getattr(self, name).shape != shape:
                raise InvalidInput(f"{name} has shape {getattr(self, name).shape}, expected {shape}")

    @classmethod
    def of(cls, curves: Sequence[Curve], *, model: str = "") -> CurveTable:
        """Stack curves that all have the same cases."""
        if not curves:
            raise InvalidInput("a curve table needs at least one curve")
        cases = curves[0].cases
        if any(curve.cases != cases for curve in curves):
            raise InvalidInput("the curves of a table must have the same cases")
        codes = {source: i for i, source in enumerate(Source)}
        source = np.array([[codes[s] for s in curve.source] for curve in curves], dtype=np.int8)
        return cls(
            cases,
            np.stack([curve.seconds for curve in curves]),
            np.stack([curve.low for curve in curves]),
            np.stack([curve.high for curve in curves]),
            source,
            model,
        )

    def __len__(self) -> int:
        return int(self.seconds.shape[0])

    def __getitem__(self, index: int) -> Curve:
        names = list(Source)
        offered = np.isfinite(self.seconds[index])
        cases = tuple(case for case, there in zip(self.cases, offered) if there)
        source = tuple(names[code] for code in self.source[index][offered])
        return Curve(cases, self.seconds[index][offered], self.low[index][offered], self.high[index][offered], source)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> CurveTable:
        """The table of these rows, which may repeat."""
        index = np.asarray(rows, dtype=np.int64)
        return CurveTable(
            self.cases, self.seconds[index], self.low[index], self.high[index], self.source[index], self.model
        )

    def to_json(self) -> dict[str, Any]:
        """Dense arrays as the prediction service sends them; null where a case is not offered."""
        names = [s.value for s in Source]

        def dense(seconds: Floats) -> list[list[float | None]]:
            rows: list[list[float | None]] = seconds.tolist()
            if not np.isfinite(seconds).all():
                rows = [[s if s is not None and math.isfinite(s) else None for s in row] for row in rows]
            return rows

        return {
            "cases": [{"threads": c.threads, "affinity": c.affinity.value} for c in self.cases],
            "seconds": dense(self.seconds),
            "low": dense(self.low),
            "high": dense(self.high),
            "source": [[names[code] for code in row] for row in self.source],
            "model": self.model,
        }
