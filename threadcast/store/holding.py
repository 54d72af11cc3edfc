"""What holds now of everything that was measured of an op on a machine: one measurement for each case.

The one answer for forecasts, training, campaigns and pages: samples from before a change end there, and old samples
count for less than new ones.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, Protocol

from threadcast.core.case import Case
from threadcast.core.measurement import Doubt, Measurement, Sample
from threadcast.core.measurement_time import dated, not_void
from threadcast.store.changes import SCATTER, Course, Point, courses
from threadcast.store.shifts import Shift, shift_of, spanning

FADE_S = 30 * 86400.0
"""Age in seconds, relative to the newest sample of its case, at which a sample counts for half as much. A convention: a
month."""

SETTLED = 5
"""With fewer measurements than so many after a change, the new level is in doubt by the scatter between sessions
(`changes.SCATTER`): samples of one session tell nothing of that."""

STATES_APART = math.log(3)
"""How far times with caches in two states may be apart, in log seconds, where no case was measured in both. A
convention: the largest factor of decision 6 is 2.9."""

NORMAL_95 = 1.645
"""95th percentile of the standard normal distribution: doubts are to enclose 90 %, as intervals do."""


class Elsewhere(Protocol):
    """What other ops of a machine tell of its changes (`store.machine_changes`). `stamp` is 0 where there are none."""

    stamp: int

    def since(self, kind: str, time_s: float) -> Shift | None:
        """The shift that an op of this kind probably had since this time; None where nothing is known to have
        changed."""
        ...


class Standing(NamedTuple):
    """What holds now in one case: as one measurement, the state of its caches, and the time in seconds since 1970 up to
    which the op itself tells that it does."""

    measurement: Measurement
    state: str
    until_s: float


def what_holds(found: Sequence[Measurement], elsewhere: Elsewhere | None = None) -> dict[Case, Measurement]:
    """What holds now of one op's measurements on one machine, by case in order of first appearance.

    `found` is in the order in which it was stored. Of each case only those measurements are used that were made since
    its last change (`store.changes`), and of these those in which caches were most as they are in a step: rotated, else
    warm, else cold. What says nothing of its caches goes with these. Their samples are joined, fewer of the older ones
    (`FADE_S`). Samples of warm and cold caches in cases of an op whose others are more as in a step are multiplied by
    what the states differ in cases that have both, and such cases count as stale.

    A case that was not measured since the op changed in other cases, or since other ops of the machine did
    (`elsewhere`), is stale: its samples are multiplied by how much the nearest cases have changed, and its `doubt`
    spans what it may be now. A case whose newest samples are far off, but too few to be a change, is in doubt as far as
    they are off. Where others used the CPUs in all measurements of a case, it may be as fast as the fastest sample;
    measurements that they disturbed do not count beside others. What this function has returned without
    `elsewhere` stays as it is when it is given again.
    """
    elsewhere = elsewhere if elsewhere is not None and elsewhere.stamp else None
    kept = _undisturbed(not_void(found))
    standing, levels = _standing(kept, dates=elsewhere is not None)
    held = {case: _doubted(one.measurement) for case, one in standing.items()}
    if elsewhere is not None and kept:
        since, kind = elsewhere.since, kept[0].op.kind
        held = {c: _shifted(m, None if m.stale else since(kind, standing[c].until_s)) for c, m in held.items()}
    if len({one.state for one in standing.values()}) < 2:  # as nearly always
        return held
    before = {m.case for m in kept if m.stale}
    return _as_in_one_state(held, {c: one.state for c, one in standing.items() if c not in before}, levels)


def _undisturbed(found: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements without the disturbed ones of cases that have others too, with caches in the same state."""
    if not any(m.disturbed for m in found):
        return found
    quiet = {(m.case, m.conditions.get("cache")) for m in found if not m.disturbed}
    return [m for m in found if not m.disturbed or (m.case, m.conditions.get("cache")) not in quiet]


def _doubted(measurement: Measurement) -> Measurement:
    """The measurement; a disturbed one with the doubt whether the op takes no longer than its fastest sample."""
    if not measurement.disturbed or measurement.doubt is not None or measurement.seconds <= 0:
        return measurement
    fastest_s = min(sample.seconds for sample in measurement.samples if sample.seconds > 0)
    return replace(measurement, doubt=Doubt(math.log(measurement.seconds / fastest_s), 0.0, stale=False))


def _standing(kept: Sequence[Measurement], *, dates: bool = False) -> tuple[dict[Case, Standing], _Levels]:
    """What holds in each case by the op's own measurements; with `dates`, up to when also where there is nothing to
    compare."""
    by_case: dict[Case, list[Measurement]] = {}
    for measurement in kept:
        by_case.setdefault(measurement.case, []).append(measurement)
    if len(by_case) < len(kept):
        return _compared(kept, by_case)
    times = dated(kept) if dates else [0.0] * len(kept)
    alone = zip(kept, _states(kept), times, strict=True)
    return {m.case: Standing(m, state, time_s) for m, state, time_s in alone}, {}


def all_that_holds(
    found: Iterable[Measurement], changes: Callable[[str], Elsewhere] | None = None
) -> list[Measurement]:
    """What holds now of each op in each case on each machine, in order of first appearance; `changes` returns what is
    known of the changes of the machine with a fingerprint."""
    by_op: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in found:
        by_op.setdefault((measurement.machine.fingerprint, measurement.op.key), []).append(measurement)
    machines = {machine for machine, _ in by_op}
    elsewhere = {} if changes is None else {machine: changes(machine) for machine in machines}
    return [m for (machine, _), of_op in by_op.items() for m in what_holds(of_op, elsewhere.get(machine)).values()]


def op_courses(found: Sequence[Measurement]) -> list[Course]:
    """The course of each series of an op on one machine, from its measurements in the order in which they were
    stored."""
    return [course for course, _ in _series(not_void(found)).values()]


def _states(found: Sequence[Measurement]) -> list[str]:
    """The state of caches in each measurement of an op; where one does not say it, that which is forecast: the one of
    its case, or else of the op, that is most as in a step; empty where none is said."""
    said = [str(m.conditions.get("cache") or "") for m in found]
    if "" not in said:
        return said
    by_case: dict[Case, set[str]] = {}
    for m, state in zip(found, said, strict=True):
        by_case.setdefault(m.case, set()).add(state)
    every = set(said)
    return [state or _likest(by_case[m.case]) or _likest(every) for m, state in zip(found, said, strict=True)]


def _likest(states: Iterable[str]) -> str:
    """The state that is most as in a step, of those that are said."""
    return min(filter(None, states), key=lambda state: (_UNLIKENESS.get(state, 1), state != "step", state), default="")


_UNLIKENESS = {"rotated": 0, "cold": 2}
"""Rank of how different caches in a state are from those in a step; of all other states it is 1."""

_LIKER = {"warm": ("rotated", "step"), "cold": ("rotated", "step", "warm")}
"""For each state of caches that is not as in a step, those that are more so, the first one the most; "step" are times
taken in steps."""

_Held = list[tuple[float, Measurement]]
"""Measurements with their times, the oldest first."""

_Levels = dict[str, dict[Case, float]]
"""By state of caches and case, what holds in log seconds."""


def _series(found: Sequence[Measurement]) -> dict[tuple[Case, str], tuple[Course, _Held]]:
    """The course of each case with caches in one state, and what holds of it. Times of 0 have no logarithm and are left
    out."""
    numbers: dict[tuple[Case, str], int] = {}
    told = zip(dated(found), _states(found), found, strict=True)
    timed = sorted((one for one in told if one[2].seconds > 0), key=lambda one: one[0])
    points = [
        Point(time_s, numbers.setdefault((m.case, state), len(numbers)), math.log(m.seconds), len(m.samples))
        for time_s, state, m in timed
    ]
    by_number = courses(points)
    return {
        series: (by_number[number], [(timed[i][0], timed[i][2]) for i in by_number[number].holding])
        for series, number in numbers.items()
    }


def _as_in_one_state(
    held: dict[Case, Measurement], states: Mapping[Case, str], levels: _Levels
) -> dict[Case, Measurement]:
    """What holds in each case, as if warm and cold caches had been in the state of other cases that is as in a step.

    `states` are those of the caches in each case, but of cases that have been through this before.
    """
    present = set(states.values())
    for case, state in states.items():
        likest = next((other for other in _LIKER.get(state, ()) if other in present), None)
        if likest is not None:
            wanted = levels.get(likest, {})
            seen = [wanted[at] - log_s for at, log_s in levels.get(state, {}).items() if at in wanted]
            shift = Shift(0.0, -STATES_APART, STATES_APART)
            if seen:
                shift = spanning(statistics.median(seen), seen, believed=True)
            held[case] = _shifted(held[case], shift, added=True)
    return held


def _compared(
    kept: Sequence[Measurement], by_case: Mapping[Case, Sequence[Measurement]]
) -> tuple[dict[Case, Standing], _Levels]:
    """What holds in each case, by comparison of measurements with earlier ones of the op; and in which state of
    caches."""
    series = _series(kept)
    series_of: dict[Case, list[tuple[str, Course, _Held]]] = {}
    for (case, state), one in series.items():
        series_of.setdefault(case, []).append((state, *one))
    others = [(case, course) for (case, _), (course, _) in series.items()]
    changed = any(course.ended for _, course in others)
    kept_until = _kept_until([course for _, course in others])
    found: dict[Case, Standing] = {}
    levels: _Levels = {}
    for case, every in by_case.items():
        own = series_of.get(case, [])
        if not own or any(m.seconds <= 0 for m in every):  # a defect, which models name
            found[case] = _joined(list(zip(dated(every), every, strict=True)), _likest(s for s, *_ in own), 0.0)
            continue
        shifts = [shift_of(case, course, others) if changed else (kept_until(course), None) for _, course, _ in own]
        fresh = [one for one, (_, shift) in zip(own, shifts, strict=True) if shift is None]
        for state, course, _ in fresh:
            levels.setdefault(state, {})[case] = course.log_s
        if fresh:
            found[case] = _fresh(fresh, max(time_s for time_s, shift in shifts if shift is None))
        else:
            newest = max(range(len(own)), key=lambda i: own[i][1].last_s)
            state, _, held = own[newest]
            joined = _joined(held, state, shifts[newest][0])
            found[case] = joined._replace(measurement=_shifted(joined.measurement, shifts[newest][1]))
    return found, levels


def _kept_until(courses: Sequence[Course]) -> Callable[[Course], float]:
    """Up to when each series is known to have kept its level where none of the op has changed: up to the last point of
    any series that began before its own last one."""
    ordered = sorted((course.first_s, course.last_s) for course in courses)
    begun_s = [first_s for first_s, _ in ordered]
    latest_s = list(accumulate((last_s for _, last_s in ordered), max))
    return lambda course: latest_s[bisect_right(begun_s, course.last_s) - 1]


def _fresh(series: Sequence[tuple[str, Course, _Held]], until_s: float) -> Standing:
    """What holds in a case by those of its series that nothing contradicts."""
    likest = _likest(state for state, *_ in series)
    least = _UNLIKENESS.get(likest, 1)
    chosen = [(course, held) for state, course, held in series if _UNLIKENESS.get(state, 1) == least]
    joined = _joined(
        sorted((timed for _, held in chosen for timed in held), key=lambda timed: timed[0]), likest, until_s
    )
    one = joined.measurement
    off = [course.suspected - math.log(one.seconds) for course, _ in chosen if course.suspected is not None]
    new = [course for course, held in chosen if course.ended and len(held) < SETTLED]
    shift = max((course.log_s - course.ended[-1].log_s for course in new), key=abs, default=0.0)
    unsettled = max((NORMAL_95 * SCATTER / math.sqrt(len(course.holding)) for course in new), default=0.0)
    if off or new:
        one = replace(one, doubt=Doubt(max(unsettled, -min(off, default=0.0)), max([unsettled, *off]), False, shift))
    return joined._replace(measurement=one)


def _joined(held: _Held, state: str, until_s: float) -> Standing:
    """One measurement with the samples of all, made when the newest one was; of older ones fewer samples are kept, so
    that each counts by its age."""
    if len(held) == 1:
        return Standing(held[0][1], state, until_s)
    newest_s, newest = held[-1]
    kept: list[Sample] = []
    due = 0.5
    for time_s, measurement in reversed(held):
        weight = 2.0 ** -((newest_s - time_s) / FADE_S)
        for sample in reversed(measurement.samples):
            due += weight
            if due >= 1:
                due -= 1
                kept.append(sample)
    return Standing(replace(newest, samples=tuple(reversed(kept))), state, until_s)


def _shifted(measurement: Measurement, shift: Shift | None, *, added: bool = False) -> Measurement:
    """The measurement with samples as they may be after this shift, and the doubt about it; `added` to the one that
    there is."""
    if shift is None:
        return measurement
    factor = math.exp(shift.log_s)
    doubt = Doubt(shift.log_s - shift.low, shift.high - shift.log_s, stale=True, shift=shift.log_s)
    if added and (old := measurement.doubt) is not None:
        doubt = Doubt(old.low + doubt.low, old.high + doubt.high, stale=True, shift=old.shift + doubt.shift)
    samples = tuple(Sample(sample.seconds * factor, sample.counters) for sample in measurement.samples)
    return replace(measurement, samples=samples, doubt=doubt)
