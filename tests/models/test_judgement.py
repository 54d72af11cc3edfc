"""What the rows of a comparison say beyond accuracy: noise, significance, single samples."""

from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import MACHINE, make_ops, measure_all, true_seconds
from tests.models.test_cost_of_models import Samples
from threadcast.core import Affinity, Case, Curve, Sample
from threadcast.models import metrics
from threadcast.models.evaluation import evaluate, one_sample
from threadcast.models.measured import group
from threadcast.models.splits import new_shape

OPS = make_ops(18)
EXACT = measure_all(OPS, noise=0.0)
SPLIT = {"split": new_shape(folds=3), "split_name": "shape"}


def right(op, case):
    return 1.0


def rows(*models, measurements=EXACT, **options):
    return evaluate(measurements, [(f"m{i}", model) for i, model in enumerate(models)], **SPLIT, **options).rows


def test_regret_has_a_standard_error_over_ops_or_over_folds():
    late = {op.key: Case(1, Affinity.SPREAD) for op in OPS[:2]}

    class Late(Samples):
        """Takes two of the ops to be fastest on one thread."""

        def predict(self, op, observed, cases, *, machine):
            curve = super().predict(op, observed, cases, machine=machine)
            slow = [1e-9 if case == late.get(op.key) else s for case, s in zip(cases, curve.seconds, strict=True)]
            return Curve.exact(cases, slow)

    found = evaluate(EXACT, [("late", Late((), right))], **SPLIT)
    regrets = [true_seconds(op, Case(1, Affinity.SPREAD)) / min(true_seconds(op, c) for c in MACHINE.cases()) - 1
               for op in OPS[:2]] + [0.0] * 16  # fmt: skip
    means = [row.regret_mean for row in found.by_fold]
    errors = [np.std(some, ddof=1) / len(some) ** 0.5 for some in (regrets, means)]
    assert found.rows[0].regret_spread == pytest.approx(max(errors))
    assert "regret_spread" in found.rows[0].to_json()
    assert evaluate(EXACT, [("right", Samples((), right))], **SPLIT).rows[0].regret_spread == 0.0


def test_the_share_of_forecasts_within_ten_percent():
    close = {op.key: 1.05 if i % 3 else 1.5 for i, op in enumerate(OPS)}
    (row,) = rows(Samples((), lambda op, case: close[op.key]))
    assert row.within_10 == pytest.approx(12 / 18)
    assert metrics.within(np.array([]), np.array([]), 0.1) is None


def test_the_regret_of_all_threads_is_that_of_the_case_with_most():
    (row,) = rows(Samples((), right))
    cases = MACHINE.cases()
    most = max(range(len(cases)), key=lambda i: cases[i].threads)
    times = np.array([[true_seconds(op, case) for case in cases] for op in OPS])
    assert row.regret_all_threads == pytest.approx(np.mean(times[:, most] / times.min(axis=1) - 1))


def test_the_noise_floor_is_how_well_half_the_samples_tell_the_other():
    assert metrics.noise_floor([[1.0, 1.1, 1.0, 1.1], [2.0, 2.0]]) == pytest.approx(1 - 0.1 / 2)
    assert metrics.noise_floor([[1.0], [2.0, 2.0]]) is None
    assert metrics.noise_floor([]) is None


def test_with_a_draw_models_see_one_sample_of_a_case_and_are_judged_by_all():
    measured = [replace(m, samples=tuple(Sample(m.seconds * f) for f in (0.5, 1.0, 1.0, 1.0, 2.0))) for m in EXACT]
    model = Samples((Case(1, Affinity.SPREAD), Case(8)), right)
    (row,) = rows(model, measurements=measured, draw=0)
    assert row.accuracy == 1.0
    first, second = (
        [one_sample(entry, np.random.default_rng([seed, i])) for i, entry in enumerate(group(measured))]
        for seed in (0, 0)
    )
    assert all(len(m.samples) == 1 for entry in first for m in entry.by_case.values())
    assert [entry.by_case for entry in first] == [entry.by_case for entry in second]
    seen = {m.samples[0].seconds / true_seconds(m.op, m.case) for e in first for m in e.by_case.values()}
    assert {round(share, 6) for share in seen} == {0.5, 1.0, 2.0}


ACTUAL = np.array([1.0, 2.0, 4.0])
NONE = np.empty(0)


def test_scores_are_those_of_their_definitions_and_none_of_nothing():
    assert metrics.accuracy(ACTUAL, np.array([1.1, 2.0, 3.0])) == pytest.approx(1 - (0.1 + 0.0 + 0.25) / 3)
    assert metrics.accuracy(ACTUAL, 3 * ACTUAL) == pytest.approx(-1.0)
    assert metrics.r2(ACTUAL, ACTUAL) == 1.0
    assert metrics.r2(ACTUAL, np.full(3, ACTUAL.mean())) == pytest.approx(0.0)
    assert metrics.r2(np.ones(3), ACTUAL) is None
    assert metrics.coverage(ACTUAL, ACTUAL - 0.1, np.array([1.0, 1.5, 9.0])) == pytest.approx(2 / 3)
    assert metrics.accuracy(NONE, NONE) is metrics.r2(NONE, NONE) is metrics.coverage(NONE, NONE, NONE) is None
