"""What following a model costs, its measuring included, and what the rows say of speed-ups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure_all, true_seconds
from threadcast.core import Case, Curve, Machine, Measurement, Op, Sample
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import evaluate, judge_together
from threadcast.models.judgement import Row, cost_of, ranking
from threadcast.models.measured import group
from threadcast.models.op_score import UNRECORDED_S, OpScore, measuring_s
from threadcast.models.splits import new_shape

MANY = Machine.uniform("ninety-six", 96)
OPS = make_ops(12)
CURVES = measure_all(OPS, machine=MANY, noise=0.0)
SPLIT = {"split": new_shape(folds=3), "split_name": "shape"}


class Samples(PerformanceModel):
    """Asks for `asked` and forecasts the truth times `factor_of`: a choice as good as that lets it be."""

    name = "samples"

    def __init__(self, asked: Sequence[Case], factor_of: Callable[[Op, Case], float]) -> None:
        self.asked, self.factor_of = asked, factor_of

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        return self.asked[len(observed)] if len(observed) < len(self.asked) else None

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        return Curve.exact(cases, [self.factor_of(op, case) * true_seconds(op, case) for case in cases])

    def to_files(self) -> dict[str, bytes]:
        return {}

    def from_files(self, files: Mapping[str, bytes]) -> Samples:
        return self


EVERYTHING = Samples(MANY.cases(), lambda op, case: 1.0)
FEW = Samples(MANY.cases()[::40], lambda op, case: 1.04 if case.threads % 2 else 1.0)
"""Three samples, and choices that cost little."""


def rows(*models: PerformanceModel, measured: Sequence[Measurement] = CURVES, **options: int) -> Sequence[Row]:
    return evaluate(measured, [(f"m{i}", model) for i, model in enumerate(models)], **SPLIT, **options).rows


def test_a_model_that_measures_everything_does_not_win_at_ordinary_steps_on_many_cases() -> None:
    everything, few = rows(EVERYTHING, FEW)
    assert everything.regret_mean == 0.0
    assert everything.cost is not None
    assert everything.cost > 1.0
    assert ranking([everything, few]) == [1, 0]


def test_ops_that_could_not_judge_a_model_count_before_its_cost_and_a_model_that_none_could_judge_is_left_out() -> None:
    everything, few = rows(EVERYTHING, FEW)
    unjudged = replace(few, ops=0, cost=None)
    assert ranking([unjudged, replace(few, unusable=1), everything]) == [2, 1]
    assert ranking([replace(few, samples=2.0), few, replace(few, samples=1.0)]) == [2, 0, 1]


def test_the_cost_is_the_time_of_the_steps_and_of_measuring_over_that_of_the_best_cases() -> None:
    (few,) = rows(FEW, steps=1000)
    cases = MANY.cases()
    best_s = chosen_s = 0.0
    for op in OPS:
        times = [true_seconds(op, case) for case in cases]
        forecast = [FEW.factor_of(op, case) * seconds for case, seconds in zip(cases, times, strict=True)]
        best_s += min(times)
        chosen_s += times[int(np.argmin(forecast))]
    measuring = sum(measuring_s([m]) for m in CURVES if m.case in FEW.asked)
    assert few.measuring_s == pytest.approx(measuring)
    assert few.cost == pytest.approx((1000 * chosen_s + measuring) / (1000 * best_s) - 1)


def test_the_best_choices_without_measuring_cost_nothing() -> None:
    """A share of sums would be -1e-16."""
    points = np.empty((4, 0))
    scores = [OpScore(points, best_s, best_s, best_s, 0, 0.0) for best_s in (0.91, 0.04, 0.04)]
    assert cost_of(scores, 1000) == 0.0


def test_measuring_takes_the_runs_of_all_batches_where_they_are_recorded() -> None:
    recorded = replace(CURVES[0], samples=(Sample(1e-3), Sample(2e-3)), conditions={"runs_a_batch": 50})
    assert measuring_s([recorded]) == pytest.approx(0.15)
    assert measuring_s([replace(recorded, conditions={})]) == UNRECORDED_S
    long = replace(recorded, samples=(Sample(1.0), Sample(2.0)), conditions={})
    assert measuring_s([long, recorded]) == pytest.approx(3.15)


def test_each_of_the_models_judged_together_pays_for_its_own_samples_only() -> None:
    everything, few = judge_together([EVERYTHING, FEW], group(CURVES), split_name="s")
    assert everything.samples == few.samples
    each = {model: sum(measuring_s([m]) for m in CURVES if m.case in model.asked) for model in (EVERYTHING, FEW)}
    assert everything.measuring_s == pytest.approx(each[EVERYTHING])
    assert few.measuring_s == pytest.approx(each[FEW])


def test_the_speed_up_over_all_threads_has_its_interval_over_ops_and_is_less_with_the_time_of_the_model() -> None:
    (row,) = rows(FEW)
    cases = MANY.cases()
    expected = []
    for op in OPS:
        forecast = [FEW.factor_of(op, case) * true_seconds(op, case) for case in cases]
        expected.append(true_seconds(op, Case(96)) / true_seconds(op, cases[int(np.argmin(forecast))]))
    assert row.speedup_over_all is not None
    assert row.speedup_over_all.gain == pytest.approx(np.median(expected))
    low, high = np.sort(expected)[[2, 9]]  # of 12 samples these enclose the median with 96 %
    assert (row.speedup_over_all.low, row.speedup_over_all.high) == pytest.approx((low, high))
    assert row.call_us is not None
    assert row.call_us > 0
    assert row.speedup_with_model_time is not None
    assert 0 < row.speedup_with_model_time.gain < np.median(expected)
