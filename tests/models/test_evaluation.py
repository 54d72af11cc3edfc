"""Every model in one table: what it may see, what it is scored on, what is reported."""

from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import MACHINE, make_ops, measure_all, true_seconds
from threadcast.core import Affinity, Case, Curve, Sample
from threadcast.core.errors import ModelError
from threadcast.models import registry_of_kinds
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import ALL_FOLDS, evaluate, judge_together, replay
from threadcast.models.hill_climb import HillClimb
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.registry_of_kinds import create
from threadcast.models.roofline import Roofline
from threadcast.models.splits import new_kind, new_shape

OPS = make_ops(18)
MEASUREMENTS = measure_all(OPS, noise=0.0)
CASES = MACHINE.cases()
SAMPLED = (Case(1, Affinity.SPREAD), Case(8))
SPLIT = {"split": new_shape(folds=3), "split_name": "shape"}


class Oracle(PerformanceModel):
    """Knows the truth, off by `factor`; asks for two samples and notes what it was shown."""

    name = "oracle"

    def __init__(self, factor=1.0, samples=SAMPLED):
        self.factor, self.samples = factor, samples
        self.shown, self.learned = [], None

    def propose(self, op, observed, machine):
        return next((case for case in self.samples if case not in {m.case for m in observed}), None)

    def fit(self, measurements):
        self.learned = {m.op.key for m in measurements}
        return self

    def predict(self, op, observed, cases, *, machine):
        assert op.key not in self.learned
        assert [m.case for m in observed] == list(self.samples)
        return Curve.exact(cases, [self.factor * true_seconds(op, case) for case in cases])

    def to_files(self):
        return {}

    def from_files(self, files):
        return self


@pytest.mark.parametrize("name", ["hill_climb", "amdahl", "universal_scalability"])
def test_climbs_and_laws_are_judged_on_the_cases_that_were_recorded(name):
    recorded = {Case(1, Affinity.SPREAD), Case(2), Case(4), Case(MACHINE.cases()[-1].threads)}
    some = [m for m in MEASUREMENTS if m.case in recorded]
    (row,) = evaluate(some, [(name, registry_of_kinds.create(name))], **SPLIT).rows
    assert (row.ops, row.unusable, row.problem) == (18, 0, None)
    assert 0 < row.samples <= len(recorded)
    assert row.regret_mean is not None


def timeless(row):
    """The row without what depends on the speed of this machine."""
    return replace(row, fit_s=0.0, predict_us=0.0, call_us=0.0, speedup_with_model_time=None)


def row_of(model, measurements=MEASUREMENTS, **options):
    result = evaluate(measurements, [("model", model)], **{**SPLIT, **options})
    return result.rows[0]


def test_the_truth_scores_full_marks():
    row = row_of(Oracle())
    assert (row.accuracy, row.r2, row.regret_mean, row.regret_p95, row.coverage_90) == (1.0, 1.0, 0.0, 0.0, 1.0)
    assert (row.samples, row.ops, row.unusable, row.problem) == (2.0, len(OPS), 0, None)


def test_a_model_that_was_given_every_point_has_regret_and_no_accuracy():
    row = row_of(Oracle(samples=CASES))
    assert (row.accuracy, row.r2, row.coverage_90, row.points) == (None, None, None, 0)
    assert row.regret_mean == 0.0


def test_regret_is_that_of_the_case_with_the_least_forecast():
    class Upside(Oracle):
        def predict(self, op, observed, cases, *, machine):
            return Curve.exact(cases, [1 / true_seconds(op, case) for case in cases])

    actual = np.array([[true_seconds(op, case) for case in CASES] for op in OPS])
    row = row_of(Upside())
    assert row.regret_mean == pytest.approx(np.mean(actual.max(axis=1) / actual.min(axis=1) - 1))
    assert row.regret_p95 == pytest.approx(np.quantile(actual.max(axis=1) / actual.min(axis=1) - 1, 0.95))


def test_every_model_is_judged_on_the_same_folds_in_the_order_given():
    models = [("climb", HillClimb(interval=2)), ("roofline", Roofline()), ("oracle", Oracle())]
    result = evaluate(MEASUREMENTS, models, split=new_kind(), split_name="kind")
    assert [row.model for row in result.rows] == ["climb", "roofline", "oracle"]
    assert {row.fold for row in result.rows} == {ALL_FOLDS}
    assert [(row.model, row.fold) for row in result.by_fold] == [
        (model, fold) for fold in ("add", "mm", "softmax") for model in ("climb", "roofline", "oracle")
    ]
    assert {row.ops for row in result.rows} == {len(OPS)}


def test_the_models_given_stay_unfitted():
    model = Oracle()
    evaluate(MEASUREMENTS, [("oracle", model)], **SPLIT)
    assert model.learned is None


def test_ops_without_a_proposed_case_are_counted_and_explained():
    missing = [m for m in MEASUREMENTS if not (m.op in OPS[:4] and m.case == Case(8))]
    row = row_of(Oracle(), missing)
    assert (row.ops, row.unusable) == (len(OPS) - 4, 4)
    assert "not recorded at 8 compact" in row.problem


def test_an_op_that_a_model_cannot_tell_does_not_spoil_the_others():
    class Choosy(Oracle):
        def predict(self, op, observed, cases, *, machine):
            if op == OPS[0]:
                raise ModelError("not this one")
            return super().predict(op, observed, cases, machine=machine)

    row = row_of(Choosy())
    assert (row.ops, row.unusable, row.problem, row.accuracy) == (len(OPS) - 1, 1, "not this one", 1.0)


def test_a_model_that_cannot_be_fitted_gets_a_row_that_says_so():
    result = evaluate(MEASUREMENTS[: 7 * len(CASES)], [("ols", create("ols")), ("oracle", Oracle())], **SPLIT)
    ols, oracle = result.rows
    assert (ols.ops, ols.unusable, ols.accuracy) == (0, 7, None)
    assert "at least 6 ops" in ols.problem
    assert oracle.accuracy == 1.0


def test_ops_with_impossible_times_are_left_out_by_name():
    broken = [replace(m, samples=(Sample(0.0),)) if m.op == OPS[3] else m for m in MEASUREMENTS]
    result = evaluate(broken, [("oracle", Oracle())], **SPLIT)
    assert list(result.left_out) == [OPS[3].key]
    assert result.rows[0].ops == len(OPS) - 1


def test_a_model_that_proposes_what_it_has_is_stopped():
    class Stuck(Oracle):
        def propose(self, op, observed, machine):
            return Case(8)

    with pytest.raises(ModelError, match="again"):
        replay(Stuck(), group(MEASUREMENTS)[0])


def test_progress_reaches_the_total():
    seen = []
    evaluate(MEASUREMENTS, [("oracle", Oracle())], **SPLIT, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda samples: LearnedCurve(samples=samples, trees=10), LearnedCurve(trees=11)),
        (lambda samples: JointProcess(samples=samples or 2, enough=0.0), JointProcess(prior=True)),
    ],
)
def test_models_of_several_numbers_of_samples_share_a_fit_and_score_as_if_each_had_its_own(make, other):
    measured = measure_all(make_ops(24))
    models = [make(samples) for samples in (0, 1, 3)]
    assert len({model.fit_key() for model in models}) == 1
    assert other.fit_key() != models[0].fit_key()
    named = [(f"{model.samples}", model) for model in models]
    together = evaluate(measured, named, **SPLIT).rows
    alone = [evaluate(measured, [one], **SPLIT).rows[0] for one in named]
    assert [timeless(row) for row in together] == [timeless(row) for row in alone]
    assert len({row.samples for row in together}) == 3


def test_a_process_that_has_learned_already_starts_from_that_and_shares_nothing():
    assert JointProcess().fit(MEASUREMENTS).fit_key() is None


def test_models_that_share_a_fit_say_so_where_it_fails():
    few = MEASUREMENTS[: 2 * len(CASES)]
    wrong = [replace(m, samples=(Sample(1.0),)) for m in few]
    curves = [(f"{samples}", LearnedCurve(samples=samples)) for samples in (0, 1)]
    rows = evaluate([*wrong, *MEASUREMENTS[-len(CASES) :]], curves, split=new_kind(), split_name="kind").rows
    assert [row.problem for row in rows] == [rows[0].problem] * 2


@pytest.mark.system
def test_side_by_side_scores_are_those_of_one_after_the_other(worker_processes):
    models = [("climb", HillClimb()), ("ols", create("ols", samples=2))]
    alone, together = (evaluate(MEASUREMENTS, models, **SPLIT, jobs=jobs).rows for jobs in (1, 2))
    assert [timeless(row) for row in alone] == [timeless(row) for row in together]


class SilentOnOne(HillClimb):
    """Cannot tell one op."""

    def predict(self, op, observed, cases, *, machine):
        if op == OPS[1]:
            raise ModelError("not this one")
        return super().predict(op, observed, cases, machine=machine)


def test_models_judged_together_are_given_the_same_samples_and_judged_by_the_same_points():
    entries = group(MEASUREMENTS)
    rows = judge_together([HillClimb(), create("ols", samples=2).fit(MEASUREMENTS)], entries, split_name="s")
    assert rows[0].samples == rows[1].samples > 2
    assert rows[0].points == rows[1].points > 0
    assert [row.ops for row in rows] == [len(entries)] * 2


def test_an_op_that_was_not_recorded_where_a_model_asks_counts_against_none_of_those_judged_together():
    few = [m for m in MEASUREMENTS if m.op != OPS[0] or m.case == Case(8)]
    rows = judge_together([HillClimb(), create("ols", samples=2).fit(MEASUREMENTS)], group(few), split_name="s")
    assert [row.unusable for row in rows] == [0, 0]
    assert [row.ops for row in rows] == [len(OPS) - 1] * 2


def test_of_models_judged_together_one_that_cannot_tell_an_op_is_told_so_and_none_is_scored_by_it():
    rows = judge_together([HillClimb(), SilentOnOne()], group(MEASUREMENTS), split_name="s")
    assert [row.unusable for row in rows] == [0, 1]
    assert [row.ops for row in rows] == [len(OPS) - 1] * 2
