"""The climb of Liu et al. 2018, III-C, and the model on top of it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.synthetic_ops import MACHINE, make_ops, measure
from threadcast.core import Affinity, Case, Machine, Measurement, Sample, Source
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models.hill_climb import HillClimb, hill_climb, ladder

OP = make_ops(1)[0]
KNL = Machine.uniform("Xeon Phi 7250", 68, group_size=2)


def timed(case, *seconds, machine=MACHINE):
    return Measurement(OP, machine, case, tuple(map(Sample, seconds)))


def climb_model(model, machine, time_s):
    """Let the model climb on exact times; what it ran, in order."""
    observed = []
    while (case := model.propose(OP, observed, machine)) is not None:
        observed.append(timed(case, time_s(case), machine=machine))
    return observed


def test_it_stops_at_the_first_rise_and_takes_the_step_before():
    times = {1: 9.0, 5: 4.0, 9: 5.0, 13: 1.0}
    climb = hill_climb(times.__getitem__, limit=13, interval=4)
    assert climb.points == ((1, 9.0), (5, 4.0), (9, 5.0))
    assert (climb.best, climb.stopped_by) == (5, "rise")


def test_it_goes_on_while_time_stays_and_ends_at_the_limit():
    climb = hill_climb(lambda threads: 1.0, limit=10, interval=4)
    assert [threads for threads, _ in climb.points] == [1, 5, 9, 10]
    assert (climb.best, climb.stopped_by) == (1, "limit")


def test_one_core_is_one_step():
    climb = hill_climb(lambda threads: 1.0, limit=1)
    assert (climb.points, climb.stopped_by) == (((1, 1.0),), "limit")


@given(limit=st.integers(1, 200), interval=st.integers(1, 40), data=st.data())
def test_it_runs_no_count_twice_and_only_the_last_step_may_be_a_rise(limit, interval, data):
    times = data.draw(st.lists(st.floats(0.1, 10), min_size=limit, max_size=limit))
    climb = hill_climb(lambda threads: times[threads - 1], limit=limit, interval=interval)
    counts, seconds = zip(*climb.points)
    assert counts[0] == 1
    assert all(b - a == interval for a, b in pairwise(counts[:-1]))
    assert all(0 < b - a <= interval for a, b in pairwise(counts))
    assert all(b <= a for a, b in pairwise(seconds[:-1]))
    assert (climb.stopped_by == "limit") == (counts[-1] == limit and (limit == 1 or seconds[-1] <= seconds[-2]))
    assert times[climb.best - 1] == min(seconds)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "4"])
def test_an_interval_that_is_no_count_is_refused(interval):
    with pytest.raises(InvalidInput, match="interval="):
        HillClimb(interval=interval)
    with pytest.raises(InvalidInput, match="interval="):
        hill_climb(lambda threads: 1.0, limit=4, interval=interval)


def test_a_limit_below_one_is_refused():
    with pytest.raises(InvalidInput, match="limit=0"):
        hill_climb(lambda threads: 1.0, limit=0)


def test_steps_are_legal_counts_of_an_affinity_with_even_counts_only():
    assert ladder(range(2, 69, 2), 3)[:4] == (2, 6, 10, 14)
    assert ladder(range(2, 69, 2), 4)[-3:] == (62, 66, 68)
    assert ladder((), 4) == ()


def test_on_the_paper_s_machine_both_affinities_climb_over_their_own_counts():
    ran = [m.case for m in climb_model(HillClimb(interval=4), KNL, lambda case: 1.0 / case.threads)]
    compact = [case.threads for case in ran if case.affinity is Affinity.COMPACT]
    spread = [case.threads for case in ran if case.affinity is Affinity.SPREAD]
    assert compact == [*range(2, 67, 4), 68]
    assert spread == [*range(1, 34, 4), 34]


@pytest.mark.parametrize("interval", [2, 4, 8, 16])
def test_it_runs_at_most_two_cases_more_than_the_paper_s_bound(interval):
    ran = climb_model(HillClimb(interval=interval), KNL, lambda case: 1.0 / case.threads)
    assert len(ran) <= 68 / interval * 2 + 2


def test_a_rise_ends_one_affinity_and_not_the_other():
    ran = climb_model(
        HillClimb(interval=2), KNL,
        lambda case: case.threads if case.affinity is Affinity.SPREAD else 1.0 / case.threads,
    )  # fmt: skip
    assert [m.case.threads for m in ran if m.case.affinity is Affinity.SPREAD] == [1, 3]
    assert len([m for m in ran if m.case.affinity is Affinity.COMPACT]) == 34


def test_between_two_steps_time_is_linear_in_threads():
    observed = [timed(Case(2), 4.0, machine=KNL), timed(Case(10), 2.0, machine=KNL)]
    curve = HillClimb().predict(OP, observed, (Case(4), Case(8)), machine=KNL)
    assert curve.seconds.tolist() == pytest.approx([3.5, 2.5])
    assert curve.source == (Source.INTERPOLATED, Source.INTERPOLATED)


def test_prediction_is_constant_and_flagged_beyond_measured_threads():
    observed = [timed(Case(2), 4.0, machine=KNL), timed(Case(10), 2.0, machine=KNL)]
    curve = HillClimb().predict(OP, observed, (Case(12), Case(68)), machine=KNL)
    assert curve.seconds.tolist() == [2.0, 2.0]
    assert set(curve.source) == {Source.EXTRAPOLATED}
    assert curve.low[1] < curve.low[0] < 2.0 < curve.high[0] < curve.high[1]


def test_an_affinity_that_was_not_measured_is_flagged_and_less_sure():
    observed = [timed(Case(2), 4.0), timed(Case(8), 1.0)]
    curve = HillClimb().predict(OP, observed, (Case(2), Case(2, Affinity.SPREAD)), machine=MACHINE)
    assert curve.source == (Source.MEASURED, Source.EXTRAPOLATED)
    assert curve.high[1] > curve.high[0]
    assert curve.low[1] < curve.low[0]


def test_the_interval_of_an_interpolated_point_spans_those_of_its_neighbours():
    observed = [timed(Case(2), 3.9, 4.0, 4.1, 4.0, 4.0), timed(Case(8), 0.9, 1.0, 1.2, 1.0, 1.0)]
    curve = HillClimb().predict(OP, observed, (Case(2), Case(4), Case(8)), machine=MACHINE)
    assert (curve.low[1], curve.high[1]) == (curve.low[2], curve.high[0]) == (0.9, 4.1)


def test_without_a_measurement_there_is_no_curve():
    with pytest.raises(ModelError, match="measure"):
        HillClimb().predict(OP, [], MACHINE.cases(), machine=MACHINE)


def test_a_time_of_zero_is_refused_with_its_op_and_case():
    with pytest.raises(ModelError, match=rf"{OP.key}.*2 compact"):
        HillClimb().predict(OP, [timed(Case(2), 0.0)], MACHINE.cases(), machine=MACHINE)


def test_cases_measured_off_the_ladder_are_used():
    observed = [measure(OP, case) for case in (Case(2), Case(4))]
    curve = HillClimb(interval=4).predict(OP, observed, (Case(4),), machine=MACHINE)
    assert curve.seconds[0] == observed[1].seconds
