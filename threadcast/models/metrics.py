"""Scores of forecast times: accuracy and R2 as in the paper, coverage of intervals, and the noise of samples."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from threadcast.core.curve import Floats


def accuracy(actual: Floats, predicted: Floats) -> float | None:
    """1 - mean(|predicted - actual| / actual); below 0 where forecasts are off by more than the actual time; None for
    no points.

    Source: Liu et al. 2018, III-B.
    """
    if len(actual) == 0:
        return None
    return float(1 - np.mean(np.abs(predicted - actual) / actual))


def r2(actual: Floats, predicted: Floats) -> float | None:
    """Coefficient of determination on seconds, dominated by the longest ops; None where all times are the same."""
    if len(actual) < 2 or np.ptp(actual) == 0:
        return None
    return float(1 - np.sum((predicted - actual) ** 2) / np.sum((actual - actual.mean()) ** 2))


def within(actual: Floats, predicted: Floats, share: float) -> float | None:
    """Share of forecasts that are off by at most `share` of the actual time; None for no points."""
    return float(np.mean(np.abs(predicted - actual) <= share * actual)) if len(actual) else None


def noise_floor(samples: Sequence[Sequence[float]]) -> float | None:
    """Accuracy with which the median of every other sample of a case predicts that of the rest: no model can do better.

    `samples`: seconds of an op by case; None where a case has only one.
    """
    if not samples or min(map(len, samples)) < 2:
        return None
    halves = np.array([[median(of_case[::2]), median(of_case[1::2])] for of_case in samples])
    return accuracy(halves[:, 0], halves[:, 1])


def coverage(actual: Floats, low: Floats, high: Floats) -> float | None:
    """Share of actual times that are within the interval; None for no points."""
    return float(np.mean((low <= actual) & (actual <= high))) if len(actual) else None
