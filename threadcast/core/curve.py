"""The curve of one op: predicted seconds at each case, with an interval and the source of each point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from threadcast.core.case import Case
from threadcast.core.errors import InvalidInput

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

    `seconds`, `low`, `high`: (n_cases,) float64, seconds; low and high bound a 90 % interval. `source` has one entry
    for each case.
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
        """A curve of values that are certain: `low` and `high` equal `seconds`."""
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
