"""How good forecasts are: accuracy and R2 as in the paper, regret of the choice that they lead to."""

from __future__ import annotations

import numpy as np

from threadcast.core.curve import Floats


def accuracy(actual: Floats, predicted: Floats) -> float | None:
    """1 - mean(|predicted - actual| / actual); below 0 where forecasts are off by more than the truth; None of nothing.

    Source: Liu et al. 2018, III-B.
    """
    if len(actual) == 0:
        return None
    return float(1 - np.mean(np.abs(predicted - actual) / actual))


def r2(actual: Floats, predicted: Floats) -> float | None:
    """Coefficient of determination on seconds, ruled by the longest ops; None where all times are the same."""
    if len(actual) < 2 or np.ptp(actual) == 0:
        return None
    return float(1 - np.sum((predicted - actual) ** 2) / np.sum((actual - actual.mean()) ** 2))


def coverage(actual: Floats, low: Floats, high: Floats) -> float | None:
    """Share of actual times within the interval; None of nothing."""
    return float(np.mean((low <= actual) & (actual <= high))) if len(actual) else None


def regret(actual: Floats, chosen: int) -> float:
    """How much longer than the best case the chosen one takes, of one op's actual times: 0 is the best."""
    return float(actual[chosen] / actual.min() - 1)
