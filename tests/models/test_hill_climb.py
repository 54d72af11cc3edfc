"""The climb of Liu et al. 2018, III-C, and the model on top of it."""

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.synthetic_ops import MACHINE, make_ops
from threadcast.core import Affinity, Case, Machine, Measurement, Sample, Source
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models.hill_climb import HillClimb, ladder, next_count

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


class Climb(NamedTuple):
    """What a climb ran, (threads, seconds) each, and the count that the paper declares the best: the one before the
    rise or, without a rise, the limit."""

    points: tuple[tuple[int, float], ...]
    stopped_by: str
    best: int


def hill_climb(time_s, *, limit, interval=4):
    steps, measured = ladder(range(1, limit + 1), interval), {}
    while (threads := next_count(steps, measured)) is not None:
        measured[threads] = time_s(threads)
    points = tuple(measured.items())
    rose = len(points) > 1 and points[-1][1] > points[-2][1]
    return Climb(points, "rise" if rose else "limit", points[-2][0] if rose else limit)


@pytest.mark.parametrize(
    ("time_s", "limit", "interval", "ran", "best", "stopped_by"),
    [
        (lambda threads: 1.0, 10, 4, [1, 5, 9], 10, "limit"),  # equal times are no rise: the maximum is the best
        ({1: 3.0, 3: 2.0, 5: 2.0, 7: 2.5}.__getitem__, 68, 2, [1, 3, 5, 7], 5, "rise"),  # the last of equal ones is
        # III-C: the optimum is 11 threads; a climb by four runs 9 and 13, which is slower than 9
        (lambda threads: 10.0 + abs(threads - 10.9), 68, 4, [1, 5, 9, 13], 9, "rise"),
    ],
)
def test_a_climb_ends_at_a_rise_or_the_limit(time_s, limit, interval, ran, best, stopped_by):
    climb = hill_climb(time_s, limit=limit, interval=interval)
    assert [threads for threads, _ in climb.points] == ran
    assert (climb.best, climb.stopped_by) == (best, stopped_by)


@given(limit=st.integers(1, 200), interval=st.integers(1, 40), data=st.data())
def test_it_keeps_the_paper_s_bound_and_only_the_last_step_may_be_a_rise(limit, interval, data):
    times = data.draw(st.lists(st.floats(0.1, 10), min_size=limit, max_size=limit))
    climb = hill_climb(lambda threads: times[threads - 1], limit=limit, interval=interval)
    counts, seconds = zip(*climb.points)
    assert counts == tuple(range(1, counts[-1] + 1, interval))
    assert len(counts) <= math.ceil(limit / interval)
    assert all(b <= a for a, b in pairwise(seconds[:-1]))
    if climb.stopped_by == "rise":
        assert seconds[-1] > seconds[-2]
        assert climb.best == counts[-2]
    else:
        assert counts[-1] + interval > limit
        assert climb.best == limit


# What Liu et al. 2018, III-C, states, as one test for each statement.


def test_paper_an_interval_of_three_runs_one_and_four_threads_and_two_and_three_lie_on_the_line_between():
    times = {1: 4.0, 4: 1.0}
    observed = [timed(Case(n, Affinity.SPREAD), times[n], machine=KNL) for n in ladder(range(1, 5), 3)]
    cases = tuple(Case(threads, Affinity.SPREAD) for threads in (1, 2, 3, 4))
    assert HillClimb(interval=3).predict(OP, observed, cases, machine=KNL).seconds.tolist() == [4.0, 3.0, 2.0, 1.0]


def test_paper_each_count_is_run_with_and_without_cache_sharing():
    ran = {m.case for m in climb_model(HillClimb(interval=1), KNL, lambda case: 1.0 / case.threads)}
    assert ran == set(KNL.cases())
    assert len(ran) == 68


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "4"])
def test_an_interval_that_is_no_count_is_refused(interval):
    with pytest.raises(InvalidInput, match="interval="):
        HillClimb(interval=interval)


def test_a_count_that_is_not_legal_is_replaced_by_the_next_larger_legal_one():
    assert ladder(range(2, 69, 2), 3)[:4] == (2, 4, 8, 10)
    assert ladder(range(2, 69, 2), 4)[-3:] == (58, 62, 66)
    assert ladder(range(2, 69, 2), 1) == tuple(range(2, 69, 2))
    assert ladder((), 4) == ()


def test_on_the_paper_s_machine_both_affinities_climb_over_their_own_counts():
    ran = [m.case for m in climb_model(HillClimb(interval=4), KNL, lambda case: 1.0 / case.threads)]
    compact = [case.threads for case in ran if case.affinity is Affinity.COMPACT]
    spread = [case.threads for case in ran if case.affinity is Affinity.SPREAD]
    assert compact == [*range(2, 67, 4)]
    assert spread == [*range(1, 34, 4)]


def test_a_rise_ends_one_affinity_and_not_the_other():
    ran = climb_model(
        HillClimb(interval=2), KNL,
        lambda case: case.threads if case.affinity is Affinity.SPREAD else 1.0 / case.threads,
    )  # fmt: skip
    assert [m.case.threads for m in ran if m.case.affinity is Affinity.SPREAD] == [1, 3]
    assert len([m for m in ran if m.case.affinity is Affinity.COMPACT]) == 34


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


@pytest.mark.parametrize(
    ("cores", "ran"), [(2, [1, 2]), (8, [1, 3, 5, 7]), (16, [1, 5, 9, 13]), (32, [*range(1, 30, 4)])]
)
def test_without_an_interval_machines_of_few_cores_are_climbed_in_smaller_steps(cores, ran):
    machine = Machine.uniform("small", cores)
    assert [m.case.threads for m in climb_model(HillClimb(), machine, lambda case: 1.0 / case.threads)] == ran
    assert HillClimb().from_files(HillClimb().to_files()).interval is None
    assert HillClimb().from_files(HillClimb(interval=8).to_files()).interval == 8
