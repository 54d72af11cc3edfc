"""What holds now of an op's measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from threadcast.core import Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.measurement import OTHERS_SHARE, Doubt
from threadcast.core.measurement_time import REPLACES, dated, not_void
from threadcast.store.holding import STATES_APART, op_courses, what_holds
from threadcast.store.machine_changes import MachineChanges
from threadcast.store.shifts import MARGIN

MACHINE = Machine.uniform("eight", 8)
OP = Op("mm", (TensorSpec((64, 64)), TensorSpec((64, 64))))
CASES = MACHINE.cases()
DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(day, case, *seconds, op=OP, cache="warm", timed=True):
    conditions = {"cache": cache, **({"time": (DAY_0 + timedelta(days=day)).isoformat()} if timed else {})}
    return Measurement(op, MACHINE, case, tuple(map(Sample, seconds)), conditions)


def everywhere(day, factor=1.0, *, cases=CASES, op=OP, timed=True):
    """Five samples in each of the cases, a second apart."""
    return [
        at(day + i / 86400, case, *(factor / case.threads * (1 + 0.001 * k) for k in range(5)), op=op, timed=timed)
        for i, case in enumerate(cases)
    ]


@pytest.mark.parametrize("timed", [True, False], ids=["dated", "undated"])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_change_ends_what_was_before_and_others_are_stale(factor: float, timed: bool) -> None:
    held = what_holds([*everywhere(0, timed=timed), at(9, CASES[0], *[factor] * 3, timed=timed)])
    first, *others = held.values()
    assert first.seconds == factor
    assert (first.stale, len(first.samples)) == (False, 3)
    for other in others:
        assert other.stale
        assert other.seconds == pytest.approx(factor * 1.002 / other.case.threads, rel=0.01)
        assert other.doubt is not None
        least, most = sorted([1.0, factor])  # it may as well not have changed
        now = other.seconds * other.case.threads
        assert now * math.exp(-other.doubt.low) <= least * 1.01
        assert now * math.exp(other.doubt.high) >= most * 0.99


def in_states(cold, rotated):
    """Three times longer with cold caches, in these cases."""
    return [
        *(at(0, CASES[i], *[3.0 / (i + 1) * (1 + 0.001 * k) for k in range(5)], cache="cold") for i in cold),
        *(at(1, CASES[i], *[1.0 / (i + 1) * (1 + 0.001 * k) for k in range(5)], cache="rotated") for i in rotated),
    ]


def test_cases_with_other_caches_are_as_the_states_differ_in_cases_that_have_both() -> None:
    held = what_holds(in_states(cold=range(4), rotated=range(2)))
    for i, m in enumerate(held.values()):
        assert m.seconds == pytest.approx(1.002 / (i + 1))
        assert m.stale == (i > 1)
    doubt = held[CASES[3]].doubt
    assert doubt is not None
    assert (doubt.low, doubt.high, doubt.shift) == pytest.approx((MARGIN, MARGIN, math.log(1 / 3)))
    assert what_holds(list(held.values())) == held


def test_cases_with_other_caches_are_in_doubt_where_no_case_has_both() -> None:
    held = what_holds(in_states(cold=(2, 3), rotated=(0, 1)))
    assert [m.stale for m in held.values()] == [True, True, False, False]
    assert held[CASES[3]].seconds == pytest.approx(3.006 / 4)
    assert held[CASES[3]].doubt == Doubt(STATES_APART, STATES_APART, True)
    assert what_holds(list(held.values())) == held
    warm = what_holds([at(0, CASES[0], 1.0), at(0, CASES[1], 1.0, cache="warm")])
    assert not any(m.doubt for m in warm.values())


def test_times_of_steps_and_of_states_that_are_not_said_stay_as_they_are() -> None:
    rotated, other = at(0, CASES[0], 1.0, cache="rotated"), [at(1, case, 2.0, cache="step") for case in CASES[:3]]
    held = what_holds([rotated, *other])
    assert [(m.seconds, m.doubt) for m in held.values()] == [(1.0, None), (2.0, None), (2.0, None)]
    unsaid = replace(other[2], conditions={})
    assert what_holds([rotated, unsaid])[CASES[2]] is unsaid


def said_nothing(m):
    return replace(m, conditions={name: value for name, value in m.conditions.items() if name != "cache"})


@pytest.mark.parametrize("cache", ["rotated", "warm", "cold", "step"])
@pytest.mark.parametrize("together", [False, True])
def test_what_says_nothing_of_its_caches_is_compared_with_and_counts_for_what_is_forecast(cache, together) -> None:
    before = [at(day, case, 1.0, 1.01, 0.99, cache=cache) for day in (0, 1, 2) for case in CASES[:3]]
    new = [[3.0, 3.03, 2.97]] if together else [[3.0], [3.03], [2.97]]
    slow = [said_nothing(at(3 + i, CASES[0], *seconds)) for i, seconds in enumerate(new)]
    held = what_holds([*before, *slow])
    assert held[CASES[0]].seconds == pytest.approx(3.0)
    assert held[CASES[1]].stale, "its case was not measured since"
    assert what_holds([*before, slow[0]])[CASES[0]].seconds != 1.0 or not together
    later = at(9, CASES[0], 1.0, 1.0, 1.0, cache=cache)
    assert what_holds([*before, *slow, later])[CASES[0]].seconds == pytest.approx(1.0), "it is compared with it, too"


def test_what_says_nothing_of_its_caches_goes_with_the_likest_of_its_case() -> None:
    found = [at(0, CASES[0], 2.0, cache="cold"), at(0, CASES[0], 1.0, cache="rotated"), at(0, CASES[1], 0.8)]
    silent = [said_nothing(at(1, case, 1.0)) for case in CASES[:3]]
    held = what_holds([*found, *silent])
    assert [s.seconds for s in held[CASES[0]].samples] == [1.0, 1.0]
    assert [s.seconds for s in held[CASES[1]].samples] == pytest.approx([0.8, 1.0])
    assert held[CASES[2]] is silent[2]
    assert what_holds(silent) == {m.case: m for m in silent}


def test_the_doubts_of_other_caches_and_of_a_changed_machine_are_added() -> None:
    only_cold = in_states(cold=(3,), rotated=())
    changes = machine_changes(9, 3.0)
    (shifted,) = what_holds(only_cold, changes).values()
    held = what_holds([*only_cold, at(20, CASES[0], 1.0, cache="rotated")], changes)[CASES[3]]
    assert shifted.doubt is not None
    assert held.doubt is not None
    assert held.doubt.low == pytest.approx(shifted.doubt.low + STATES_APART)
    assert held.seconds == pytest.approx(shifted.seconds)


def test_a_new_level_is_in_doubt_until_it_was_measured_some_times() -> None:
    found = everywhere(0)
    doubts = []
    for day in range(1, 7):
        found.append(at(day, CASES[0], 3.0, 3.0, 3.0))
        doubt = what_holds(found)[CASES[0]].doubt
        doubts.append(doubt.high if doubt else 0.0)
    assert doubts[0] > doubts[1] > doubts[3] > 0 == doubts[4] == doubts[5]


def test_one_slow_sample_changes_nothing_but_how_far_it_may_be() -> None:
    held = what_holds([*everywhere(0), at(9, CASES[0], 3.0)])
    assert held[CASES[0]].seconds == pytest.approx(1.0, rel=0.01)
    doubt = held[CASES[0]].doubt
    assert doubt is not None
    assert (doubt.low, doubt.stale) == (0.0, False)
    assert doubt.high == pytest.approx(math.log(3), rel=0.01)
    assert all(held[case].doubt is None for case in CASES[1:])


def test_where_some_thread_counts_changed_those_between_are_interpolated() -> None:
    new = [at(9, CASES[0], 1.0, 1.0, 1.0), at(9, CASES[-1], *[3.0 / 8] * 3)]
    held = what_holds([*everywhere(0), *new])
    assert (held[CASES[0]].doubt, held[CASES[-1]].stale) == (None, False)
    between = held[CASES[3]]
    shift = math.log(between.seconds * 4)
    assert 0 < shift < math.log(3)
    assert between.doubt is not None
    assert shift - between.doubt.low == pytest.approx(-MARGIN, abs=0.01)
    assert shift + between.doubt.high == pytest.approx(math.log(3) + MARGIN, abs=0.01)


def test_caches_in_another_state_are_another_series_but_a_change_ends_both() -> None:
    warm = [at(day, CASES[0], 1.0, 1.0, 1.0) for day in (0, 1)]
    in_steps = at(2, CASES[0], 2.0, 2.0, 2.0, cache="step")
    assert what_holds([*warm, in_steps])[CASES[0]].samples == tuple(map(Sample, [1.0] * 6 + [2.0] * 3))
    slower = at(3, CASES[0], 6.0, 6.0, 6.0, cache="step")
    assert what_holds([*warm, in_steps, slower])[CASES[0]].seconds == 6.0
    rotated = at(0, CASES[0], 0.9, cache="rotated")
    assert what_holds([rotated, *warm])[CASES[0]] is rotated


def test_of_older_samples_fewer_count() -> None:
    old, new = at(0, CASES[0], *[1.0] * 8), at(60, CASES[0], *[1.1] * 3)
    held = what_holds([old, new])[CASES[0]]
    assert [s.seconds for s in held.samples] == [1.0, 1.0, 1.1, 1.1, 1.1]
    assert held.seconds == 1.1
    assert held.conditions["time"] == new.conditions["time"]


def test_clocks_may_go_back_and_measurements_come_late() -> None:
    found = [*everywhere(0), *everywhere(9, 3.0), *everywhere(4)]  # the last ones were sent late
    assert what_holds(found)[CASES[0]].seconds == pytest.approx(3.0, rel=0.01)


def test_what_holds_stays_as_it_is_when_given_again() -> None:
    changes = machine_changes(9, 3.0)
    held = what_holds([*everywhere(0), at(9, CASES[0], 3.0, 3.0, 3.0)], changes)
    assert what_holds(list(held.values()), changes) == held
    assert what_holds(list(held.values())) == held
    assert what_holds([]) == what_holds([], changes) == {}


def test_undated_measurements_are_placed_by_the_order_in_which_they_were_stored() -> None:
    day_s = at(1, CASES[0], 1.0), at(3, CASES[0], 1.0)
    undated = at(0, CASES[0], 1.0, timed=False)
    first_s, between_s, second_s, last_s = dated([day_s[0], undated, day_s[1], undated])
    assert first_s < between_s < second_s < last_s
    assert dated([undated, undated]) == [0.0, 1.0]


def test_a_store_tells_when_undated_measurements_and_those_of_a_wrong_clock_were_made() -> None:
    stored_s = (DAY_0 + timedelta(days=9)).timestamp()
    for day, timed in ((0, False), (400, True)):
        old, odd = at(3, CASES[0], 1.0), replace(at(day, CASES[0], 2.0, timed=timed), stored_s=stored_s)
        assert dated([odd, old]) == [stored_s, (DAY_0 + timedelta(days=3)).timestamp()]
    assert dated([replace(at(9.5, CASES[0], 1.0), stored_s=stored_s)]) == [stored_s + 43200]


def test_nothing_replaces_what_is_made_after_it() -> None:
    first, later = at(0, CASES[0], 1.0), at(2, CASES[0], 1.0)
    for replaces, kept in ((1, [later]), (30_000, [first, later])):
        before = (DAY_0 + timedelta(days=replaces)).isoformat()
        declaring = replace(later, conditions={**later.conditions, REPLACES: before})
        assert [m.conditions["time"] for m in not_void([first, declaring])] == [m.conditions["time"] for m in kept]


OTHERS = [replace(OP, inputs=(TensorSpec((side, side)),)) for side in range(2, 30)]


def machine_changes(day, factor, *, changed=OTHERS, unchanged=()):
    """What these ops tell, all of which were measured on day 0, and now the changed ones slower."""
    return MachineChanges({
        op.key: (op.kind, op_courses([*everywhere(0, op=op), *everywhere(day, f, cases=CASES[:1], op=op)]))
        for ops, f in ((changed, factor), (unchanged, 1.0))
        for op in ops
    })  # fmt: skip


def test_where_other_ops_changed_what_was_not_measured_since_is_shifted_and_in_doubt() -> None:
    changes = machine_changes(9, 3.0)
    held = what_holds(everywhere(0), changes)
    for measured in held.values():
        assert measured.stale
        assert measured.seconds == pytest.approx(3.0 / measured.case.threads, rel=0.01)
        assert measured.doubt is not None
        assert measured.doubt.low < 0.3  # 28 ops agree
    assert what_holds(everywhere(10), changes) == what_holds(everywhere(10))


def test_where_half_of_the_ops_changed_the_others_may_have_or_not() -> None:
    changes = machine_changes(9, 3.0, changed=OTHERS[:14], unchanged=OTHERS[14:])
    for measured in what_holds(everywhere(0), changes).values():
        assert measured.doubt is not None
        assert measured.seconds == pytest.approx(1.0 / measured.case.threads, rel=0.01)
        assert measured.doubt.high >= math.log(3)
        assert measured.doubt.low <= MARGIN + 0.01


def test_what_was_measured_after_the_first_op_was_seen_to_have_changed_is_not_doubted_for_later_ones() -> None:
    late = [replace(OP, inputs=(TensorSpec((side, side)),)) for side in range(40, 45)]
    found = {}
    for i, op in enumerate([*OTHERS[:5], *late]):
        again = everywhere(9 + i / 1440, 3.0, cases=CASES[:1], op=op)  # a minute apart
        found[op.key] = (op.kind, op_courses([*everywhere(0 if op in late else 8.99, op=op), *again]))
    changes = MachineChanges(found)
    between = 9 + 6 / 1440
    assert not any(m.stale for m in what_holds(everywhere(between), changes).values())
    assert all(m.stale for m in what_holds(everywhere(7), changes).values())


def test_two_changed_ops_say_nothing_of_others() -> None:
    changes = machine_changes(9, 3.0, changed=OTHERS[:2], unchanged=OTHERS[2:])
    assert (what_holds(everywhere(0), changes), changes.stamp) == (what_holds(everywhere(0)), 0)
    assert MachineChanges({}).since("mm", 0.0) is None


def test_ops_of_the_same_kind_count_where_there_are_some() -> None:
    of_other_kind = [replace(op, kind="conv") for op in OTHERS]
    changes = machine_changes(9, 3.0, changed=of_other_kind, unchanged=OTHERS)
    assert not any(m.stale for m in what_holds(everywhere(0), changes).values())
    conv = replace(OP, kind="conv")
    assert all(m.stale for m in what_holds(everywhere(0, op=conv), changes).values())


def disturbed(measurement: Measurement, share: float = 0.5) -> Measurement:
    return replace(measurement, conditions={**measurement.conditions, OTHERS_SHARE: share})


def test_disturbed_measurements_count_only_where_a_case_has_no_others() -> None:
    quiet, later = at(0, CASES[0], 1.0, 1.0), disturbed(at(1, CASES[0], 9.0, 9.0))
    alone = disturbed(at(1, CASES[1], 2.0, 8.0, 8.0))
    held = what_holds([quiet, later, alone])
    assert (held[CASES[0]].seconds, held[CASES[0]].doubt) == (1.0, None)
    assert held[CASES[1]].seconds == 8.0
    assert held[CASES[1]].doubt == Doubt(math.log(4), 0.0, False)
    assert what_holds(list(held.values())) == held
