"""How operators in steps have changed: their newest times over those that were stored before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from threadcast.core import Case, Measurement, Op
from threadcast.core.measurement_time import made_at
from threadcast.runtime.plans.step_rows import IN_STEP


@dataclass(frozen=True, slots=True)
class StepDrift:
    """The ratios of the newest times to those before, over `count` ops in a case: median and extremes."""

    kind: str
    """Kind of op; empty for all together."""
    count: int
    median: float
    low: float
    high: float


def step_drift(measured: Sequence[Measurement]) -> list[StepDrift]:
    """Return how ops in steps have changed, of all kinds together and then of each kind, those that changed most first.

    An op counts once for each case in which it was measured in steps at two times. Its newest median is held against
    the median of those before. Measurements without a time are left out, and those of operators by themselves.
    """
    by_case: dict[tuple[Op, Case], list[tuple[datetime, float]]] = {}
    for m in measured:
        if m.conditions.get("cache") == IN_STEP and (time := made_at(m)) is not None:
            by_case.setdefault((m.op, m.case), []).append((time, m.seconds))
    ratios: dict[str, list[float]] = {}
    for (op, _), found in by_case.items():
        newest, newest_s = max(found)
        before = [seconds for time, seconds in found if time < newest]
        if before and (before_s := statistics.median(before)) > 0:
            ratios.setdefault(op.kind, []).append(newest_s / before_s)
    kinds = [_summary(kind, of_kind) for kind, of_kind in ratios.items()]
    kinds.sort(key=lambda line: -max(line.median, 1 / line.median if line.median else 0.0))
    every = [ratio for of_kind in ratios.values() for ratio in of_kind]
    return [_summary("", every), *kinds] if every else []


def _summary(kind: str, ratios: Sequence[float]) -> StepDrift:
    return StepDrift(kind, len(ratios), statistics.median(ratios), min(ratios), max(ratios))
