"""By how much forecasts are less certain than they say, as measurements at other cases show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from threadcast.collector.proposers import CheckedOp
from threadcast.models.base import PerformanceModel
from threadcast.models.choosing import NOISE

PRIOR_POINTS = 20.0
"""How many checked measurements weigh as much as the assumption that the model's variances are right."""

MOST_SURPRISE = 4.0
"""Most that one op's squared errors count, as multiples of their variances: an op that was four standard deviations
off is as surprising as any."""


class Surprise(NamedTuple):
    """The squared errors of an op's forecast at so many checked `points`, in variances; `points` are expected."""

    squared: float
    points: int


def surprise(model: PerformanceModel, checked: CheckedOp) -> Surprise:
    """How far the op was from its forecast at the cases of the check, which the model must not have learned.

    Errors are weighed with the inverse of their covariance, so that errors that the model expects together count once.
    ModelError where the model cannot forecast the op.
    """
    machine = checked.found[0].machine
    cases = machine.cases()
    ((logs, covariance),) = model.distributions([checked.op], [checked.before], machine)
    at = [cases.index(m.case) for m in checked.found]
    errors = np.log([m.seconds for m in checked.found]) - logs[at]
    expected = covariance[np.ix_(at, at)] + NOISE * np.eye(len(at))
    squared = float(errors @ np.linalg.solve(expected, errors))
    return Surprise(min(squared, MOST_SURPRISE * len(at)), len(at))


def widening(found: Iterable[Surprise]) -> float:
    """By what factor, at least 1, the standard deviations were too small of which these ops were checked.

    The squared errors of all together are compared with their number, as for a scale with an inverse gamma prior.
    """
    every = list(found)
    squared, points = sum(one.squared for one in every), sum(one.points for one in every)
    return math.sqrt(max((PRIOR_POINTS + squared) / (PRIOR_POINTS + points), 1.0))
