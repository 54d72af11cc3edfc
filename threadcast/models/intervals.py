"""90 % intervals of medians and of residuals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.gains import median_interval
from threadcast.core.json_reading import finite

TAIL = 0.05
"""Probability outside of an interval on either side: every interval is meant to hold with 90 %."""

LONE_SAMPLE_SPREAD = 0.1
"""Relative half-width assumed around a single sample. Single timed batches of MKL sgemm and sdot at 1 to 96 threads of
a quiet machine lie within 9 % of the median of nine in 95 % of cases."""

PRIOR_OPS = 4.0
"""Weight, in ops of a kind, of the assumption that the kind's errors are as large as those of all kinds."""

NORMAL_95 = 1.645
"""95th percentile of the standard normal distribution."""

_T_95 = {2: 6.314, 3: 2.920, 4: 2.353}
"""95th percentile of Student's t with n - 1 degrees of freedom, by number of samples n."""


def bounds_of_median(seconds: Sequence[float]) -> tuple[float, float]:
    """Bounds of the true median with 90 % confidence, from any number of positive samples, in their unit.

    Order statistics from five samples on (no assumption on the distribution), Student's t on logarithms for two to four
    (exact if they are normal), `LONE_SAMPLE_SPREAD` for one. Samples count as independent; drift within a run is not
    noticed.
    """
    n = len(seconds)
    if n == 1:
        return seconds[0] * (1 - LONE_SAMPLE_SPREAD), seconds[0] * (1 + LONE_SAMPLE_SPREAD)
    if (found := median_interval(seconds, 1 - 2 * TAIL)) is not None:
        return found
    logs = [math.log(value) for value in seconds]
    middle, half = statistics.fmean(logs), _T_95[n] * statistics.stdev(logs) / math.sqrt(n)
    return math.exp(middle - half), math.exp(middle + half)


def residual_bounds(residuals: Floats) -> tuple[float, float]:
    """Lower (at most 0) and upper (at least 0) bounds that enclose a further residual with a probability of 90 %.

    The ranks are those of split conformal prediction: of n residuals the ceil(0.95 (n + 1))th smallest, and its mirror
    image. With fewer than 19 residuals these ranks do not exist and the extremes are used, which hold for less than 90
    %.
    """
    ordered = np.sort(residuals)
    rank = min(math.ceil((1 - TAIL) * (len(ordered) + 1)), len(ordered))
    return min(float(ordered[len(ordered) - rank]), 0.0), max(float(ordered[rank - 1]), 0.0)


def read_log_bounds(pair: Iterable[Any]) -> tuple[float, float]:
    """The bounds of log residuals in a JSON array of two numbers; ArtefactError unless they enclose 0."""
    low, high = (finite(bound, pointer="/log_bounds") for bound in pair)
    if low > 0 or high < 0:
        raise ArtefactError(f"model.json has an interval that does not enclose its forecast: {low}, {high}")
    return low, high
