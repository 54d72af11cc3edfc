"""By how much forecasts are less certain than they say, as measurements at other cases show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from threadcast.collector.proposers import CheckedOp
from threadcast.models.base import PerformanceModel
from threadcast.models.choosing import NOISE

PRIOR_POINTS = 20.0
"""How many checked measurements weigh as much as the assumption that the model's variances are right."""

MOST_SURPRISE = 4.0
"""Most that one op's squared errors count, as multiples of their variances: an op that was four standard deviations
off is as surprising as any."""


def widening(model: PerformanceModel, checked: Sequence[CheckedOp]) -> float:
    """By what factor, at least 1, the model's standard deviations are too small, from ops that were measured at more
    cases than the model is told for this.

    The squared errors of each op are weighed with the inverse of their covariance, so that errors that the model
    expects together count once. All together are compared with their number, as for a scale with an inverse gamma
    prior. ModelError where the model cannot forecast an op.
    """
    surprise = points = 0.0
    for one in checked:
        machine = one.found[0].machine
        cases = machine.cases()
        ((logs, covariance),) = model.distributions([one.op], [one.before], machine)
        at = [cases.index(m.case) for m in one.found]
        errors = np.log([m.seconds for m in one.found]) - logs[at]
        expected = covariance[np.ix_(at, at)] + NOISE * np.eye(len(at))
        squared = float(errors @ np.linalg.solve(expected, errors))
        surprise += min(squared, MOST_SURPRISE * len(at))
        points += len(at)
    return math.sqrt(max((PRIOR_POINTS + surprise) / (PRIOR_POINTS + points), 1.0))
