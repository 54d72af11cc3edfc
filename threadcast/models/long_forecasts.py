"""Why a model's accuracy is below zero: where its forecasts are far too long.

Forecasting 0 seconds everywhere is off by 100 % of each time, which is an accuracy of 0. Forecasts that are too short
are never off by more, so below 0 the errors are of forecasts that are too long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.figures import percent, significant
from threadcast.models.op_score import OpScore

FEW = 0.1
"""At most this share of the ops, or else one op, counts as a few ops. A convention."""

MOST = 0.5
"""Share of the summed error from which on it is put down to one sort of points. A convention."""


def why_too_long(scores: Sequence[OpScore]) -> str:
    """Text that says which forecasts make the accuracy of these scores negative.

    Either a few ops without which it would not be negative; or points beyond the measured cases, where these have most
    of the error; else the typical ratio of forecast and actual time.
    """
    judged = [score for score in scores if score.points.size]
    sums = np.array([_errors(score).sum() for score in judged])
    counts = np.array([score.points.shape[1] for score in judged])
    worst = np.argsort(-sums)
    for few in range(1, max(1, int(FEW * len(judged))) + 1):
        rest = worst[few:]
        left = 1 - sums[rest].sum() / counts[rest].sum() if len(rest) else -1.0
        if left >= 0:
            longest = max(float(np.median(_ratios(judged[i]))) for i in worst[:few])
            return (
                f"worse than forecasting zero: {few} of {len(judged)} ops {'is' if few == 1 else 'are'} forecast "
                f"up to {significant(longest, 2)} times too long; accuracy of the others: {percent(left, 2)} %"
            )
    errors = np.concatenate([_errors(score) for score in judged])
    ratios = np.concatenate([_ratios(score) for score in judged])
    # without a measured case there is none to be beyond of: what is extrapolated comes from other ops or machines
    beyond = np.concatenate([score.extrapolated & (score.samples > 0) for score in judged])
    if errors[beyond].sum() >= MOST * errors.sum():
        return (
            "worse than forecasting zero: times at thread counts beyond the measured ones are forecast "
            f"{significant(float(np.median(ratios[beyond])), 2)} times as long as measured (median)"
        )
    return (
        f"worse than forecasting zero: times are forecast {significant(float(np.median(ratios)), 2)} times as long as "
        f"measured (median; worst tenth {significant(float(np.quantile(ratios, 0.9)), 2)} times)"
    )


def _errors(score: OpScore) -> Floats:
    actual, predicted = score.points[:2]
    return np.asarray(np.abs(predicted - actual) / actual)


def _ratios(score: OpScore) -> Floats:
    return np.asarray(score.points[1] / score.points[0])
