"""Scores of a model's forecast of one op, and how long measuring the model's samples takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from threadcast.core import CurveTable, Measurement
from threadcast.core.curve import Floats
from threadcast.models import metrics
from threadcast.models.measured import MeasuredOp

UNRECORDED_S = 0.1
"""Least seconds that measuring one op in one case takes, where the measurement does not say how many runs a sample is
the mean of. A convention: `threadcast profile` spends 0.15 s on average by default, less where times scatter little."""


@dataclass(frozen=True, slots=True)
class OpScore:
    """Scores of a model on one op. `points` (4, n): actual, predicted, low and high seconds at the n cases of which the
    model was not given measurements.

    `chosen_s`, `best_s` and `all_threads_s` are actual seconds of one run: at the case that the model chooses, at the
    best case, and at the case with most threads. `samples` counts the measured cases that the model was given,
    `measuring_s` is how long measuring them took.
    """

    points: Floats
    chosen_s: float
    best_s: float
    all_threads_s: float
    samples: int
    measuring_s: float

    @classmethod
    def of(cls, entry: MeasuredOp, observed: Sequence[Measurement], table: CurveTable, row: int) -> OpScore:
        """Compare row `row` of `table` with the measurements of `entry`; the model was given those in `observed`."""
        given = {measurement.case for measurement in observed}
        actual = np.array([measurement.seconds for measurement in entry.by_case.values()])
        curve = table[row]
        judged = [i for i, case in enumerate(curve.cases) if case not in given]
        most = max(range(len(curve.cases)), key=lambda i: curve.cases[i].threads)
        return cls(
            np.stack([actual, curve.seconds, curve.low, curve.high])[:, judged],
            float(actual[curve.cases.index(curve.best())]),
            float(actual.min()),
            float(actual[most]),
            len(given),
            measuring_s(observed),
        )

    @property
    def regret(self) -> float:
        """Extra time of the chosen case as a share of the best case's time."""
        return self.chosen_s / self.best_s - 1

    @property
    def regret_all_threads(self) -> float:
        """The regret of the case with most threads."""
        return self.all_threads_s / self.best_s - 1

    @property
    def error(self) -> float | None:
        """Mean relative error; None without points."""
        accuracy = metrics.accuracy(self.points[0], self.points[1])
        return None if accuracy is None else 1 - accuracy


def measuring_s(measurements: Iterable[Measurement]) -> float:
    """Seconds that timing these took, without warm-up: the runs of all samples.

    Where a measurement does not say how many runs a sample is the mean of ("runs_a_batch" of its conditions), one is
    assumed, and at least `UNRECORDED_S` in all.
    """
    total_s = 0.0
    for measured in measurements:
        sampled_s = sum(sample.seconds for sample in measured.samples)
        runs = measured.conditions.get("runs_a_batch")
        if isinstance(runs, int | float) and not isinstance(runs, bool) and runs >= 1:
            total_s += sampled_s * runs
        else:
            total_s += max(sampled_s, UNRECORDED_S)
    return total_s
