"""The time that an engine adds to an op's own time, so that plans fit the engine that runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from threadcast.core import CurveTable
from threadcast.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Seconds that an engine adds to every op (`op_s`), and in addition to an op of several threads (`team_s`)."""

    op_s: float
    team_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.op_s < np.inf and 0 <= self.team_s < np.inf):
            raise InvalidInput(f"op_s={self.op_s}, team_s={self.team_s}: give seconds of at least 0")

    def added(self, curves: CurveTable) -> CurveTable:
        """Return the curves with these costs added to every point."""
        cost_s = np.array([self.op_s + (self.team_s if case.threads > 1 else 0.0) for case in curves.cases])
        return replace(curves, seconds=curves.seconds + cost_s, low=curves.low + cost_s, high=curves.high + cost_s)


NATIVE_ENGINE = EngineCosts(op_s=4e-7, team_s=1e-6)
"""Costs of the engine: `op_s` is its work between two ops, `team_s` the synchronisation of a team."""
