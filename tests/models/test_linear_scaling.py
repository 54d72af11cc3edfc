"""Forecasts are no better than linear scaling from one thread, whatever a model learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Sample, Source, TensorSpec
from threadcast.core.measurement import Doubt
from threadcast.models.interpolation import knots_of
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.linear_scaling import BEYOND, measured_or_forecast, within_linear_scaling

MACHINE = Machine.uniform("four", 4, group_size=4)
CASES = MACHINE.cases()
ONE, TWO, THREE, FOUR = CASES
STRANGE = Op("of no known kind", inputs=(TensorSpec((1000, 1000), "float32"),))


def measured(case: Case, seconds: float, **facts: object) -> Measurement:
    samples = tuple(Sample(seconds * factor) for factor in (0.99, 1.0, 1.01))
    return Measurement(STRANGE, MACHINE, case, samples, **facts)  # type: ignore[arg-type]


def table(*seconds: float) -> CurveTable:
    middle = np.array([seconds])
    return CurveTable(CASES, middle, middle / 10, middle * 10, np.full(middle.shape, 0, dtype=np.int8), "some")


def limited(forecast: CurveTable, *known: Measurement) -> CurveTable:
    return within_linear_scaling(forecast, [knots_of({one.case: one for one in known})])


@pytest.mark.parametrize("seconds", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("model", [JointProcess(prior=True), JointProcess(prior=False)])
def test_an_op_of_an_unknown_kind_gains_no_more_than_its_threads(model: JointProcess, seconds: float) -> None:
    found = model.predict_many([STRANGE], [[measured(ONE, seconds)]], CASES, machine=MACHINE)
    threads = np.array([case.threads for case in CASES])
    assert (found.seconds[0] * threads >= seconds * (1 - 1e-12)).all()
    (least,) = [knot.low for knot in knots_of({ONE: measured(ONE, seconds)}).values()]
    assert (found.low[0] * threads * BEYOND >= least * (1 - 1e-12)).all()
    assert (found.high >= found.seconds).all()
    assert (found.low <= found.seconds).all()


def test_before_anything_is_measured_the_prior_gains_no_more_than_its_threads() -> None:
    machine = Machine.uniform("sixteen in two groups", 16, group_size=8)  # one thread is a case of "spread" there
    cases = machine.cases()
    ops = [STRANGE, *make_ops(30)]
    found = JointProcess(prior=True).predict_many(ops, [[] for _ in ops], cases, machine=machine)
    threads = np.array([case.threads for case in cases])
    one = found.seconds[:, threads == 1]
    assert (one / (found.seconds * threads) <= 1 + 1e-9).all()


def test_a_learned_curve_is_limited_where_ops_are_unlike_those_that_it_learned() -> None:
    model = LearnedCurve().fit(measure_all(make_ops(40), machine=MACHINE))
    found = model.predict_many([STRANGE], [[measured(ONE, 50.0)]], CASES, machine=MACHINE)
    assert (found.seconds[0] * [1, 2, 3, 4] >= 50.0 * (1 - 1e-12)).all()


def test_forecasts_within_the_limits_stay_as_they_are() -> None:
    before = table(1.0, 0.5, 0.4, 0.3)
    after = limited(before, measured(TWO, 0.5))
    assert (after.seconds == before.seconds).all()
    assert (after.high[0, 1:] == before.high[0, 1:]).all()


def test_one_thread_takes_no_longer_than_all_threads_together_did() -> None:
    found = limited(table(9.0, 2.0, 1.0, 1.0), measured(TWO, 2.0), measured(FOUR, 0.75))
    assert found.seconds[0].tolist() == pytest.approx([3.0, 2.0, 1.0, 1.0])
    (widest,) = [knot.high for knot in knots_of({FOUR: measured(FOUR, 0.75)}).values()]
    assert found.high[0, 0] == pytest.approx(BEYOND * 4 * widest)


def test_forecasts_may_be_as_far_beyond_linear_scaling_as_what_was_measured() -> None:
    found = limited(table(8.0, 1.0, 0.1, 0.1), measured(ONE, 8.0), measured(TWO, 1.0))
    assert found.seconds[0].tolist() == pytest.approx([8.0, 1.0, 2 / 3, 0.5])


def test_what_is_stale_limits_nothing() -> None:
    stale = measured(ONE, 100.0, doubt=Doubt(low=3.0, high=3.0, shift=3.0, stale=True))
    assert knots_of({ONE: stale})[ONE].source is Source.EXTRAPOLATED
    before = table(1.0, 0.5, 0.4, 0.3)
    assert (limited(before, stale).seconds == before.seconds).all()


def test_ops_measured_in_all_cases_are_not_forecast() -> None:
    all_of_it, some = [measured(case, 1.0) for case in CASES], [measured(TWO, 2.0)]
    rows: list[int] = []

    def forecast(wanting: Sequence[int], known: Sequence[Mapping[Case, Measurement]]) -> CurveTable:
        assert [list(measured_at) for measured_at in known] == [[TWO]]
        rows.extend(wanting)
        return table(3.0, 2.0, 1.5, 1.25)

    found = measured_or_forecast([all_of_it, some], CASES, "some", forecast)
    assert rows == [1]
    assert found.seconds.tolist() == [[1.0] * 4, [3.0, 2.0, 1.5, 1.25]]
