"""Plan or the framework's default: decided by steps of both that were timed by turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from threadcast.core.errors import InvalidInput

Kept = Literal["plan", "default"]

ROUNDS_AT_LEAST = 3
"""Steps of each below which no comparison is made: a median of two is a mean."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was kept, and how much longer the default's step is than the plan's, pair by pair.

    `gain` is the median ratio of default to plan, above 1 where the plan is faster; `low` and `high` are the
    quartiles of that ratio, which tell how noisy the machine was.
    """

    kept: Kept
    gain: float
    low: float
    high: float


def judge(default_s: Sequence[float], planned_s: Sequence[float]) -> Verdict:
    """Keep what is faster by the median of ratios of neighbouring steps; the default among equals.

    Both are seconds a step, taken by turns, entry i of one next to entry i of the other, so that a machine that
    changes its pace changes both. InvalidInput for fewer than `ROUNDS_AT_LEAST` pairs or times that are not above 0.
    """
    if len(default_s) != len(planned_s) or len(default_s) < ROUNDS_AT_LEAST:
        raise InvalidInput(
            f"{len(default_s)} default and {len(planned_s)} planned steps: give as many, {ROUNDS_AT_LEAST} or more"
        )
    pairs = np.array([default_s, planned_s], dtype=np.float64)
    if not np.all(np.isfinite(pairs)) or np.any(pairs <= 0):
        raise InvalidInput("step times must be finite and above 0")
    low, gain, high = np.quantile(pairs[0] / pairs[1], [0.25, 0.5, 0.75])
    return Verdict("plan" if gain > 1.0 else "default", float(gain), float(low), float(high))
