"""What a machine's ops tell together of its changes, for those that nobody has measured since."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from threadcast.store.changes import Course, Level
from threadcast.store.shifts import MARGIN, Shift, spanning

FEWEST = 3
"""Fewest changed ops by which others are doubted: one or two may have changes of their own."""

MANY = 20
"""From so many witnesses on, the extreme 5 % on either side do not count, and a change that all of them saw is believed
of ops that were not measured since."""

TAIL = 0.05
"""Share of witnesses on either side that does not count: intervals hold for 90 %."""


class OpChange(NamedTuple):
    """The last change of an op: the time of the first measurement after it, in seconds since 1970 (a number that grows
    where measurements do not say it); seconds now over seconds before; and in how many of the op's series it was seen.
    """

    key: str
    kind: str
    time_s: float
    ratio: float
    series: int


class MachineChanges:
    """The changes that ops of one machine went through (`store.holding.Elsewhere`).

    `ops` are by key an op's kind and the courses of its series. What an op that was not measured since a time has gone
    through is taken to be like what others have: half of them say how much is probable, nearly all of them what is
    possible. Where `FEWEST` ops of its kind were measured since, only those count.
    """

    def __init__(self, ops: Mapping[str, tuple[str, Sequence[Course]]]) -> None:
        every = _together([course for _, courses in ops.values() for course in courses])
        rest = iter(every)
        self._keys = list(ops)
        self._ops = [(kind, [next(rest) for _ in courses]) for kind, courses in ops.values()]
        # between two of these times, nothing that is asked for differs
        self._times = sorted({time for c in every for time in (c.first_s, c.last_s, *(end.until_s for end in c.ended))})
        self._found: dict[tuple[str, int], Shift | None] = {}
        changed = sum(any(course.ended for course in courses) for _, courses in self._ops)
        self._nothing = changed < FEWEST
        self.stamp = 0 if self._nothing else hash((*sorted(ops), *self._times))
        """A number that differs where the answers may; 0 where nothing has changed."""

    @property
    def newest(self) -> list[OpChange]:
        """The last change of each op that changed, the newest first."""
        found = []
        for key, (kind, courses) in zip(self._keys, self._ops, strict=True):
            changed = [course for course in courses if course.ended]
            if changed:
                time_s = max(course.ended[-1].after_s for course in changed)
                shift = median([course.log_s - course.ended[-1].log_s for course in changed])
                found.append(OpChange(key, kind, time_s, math.exp(shift), len(changed)))
        return sorted(found, key=lambda change: -change.time_s)

    def since(self, kind: str, time_s: float) -> Shift | None:
        """The shift that an op of this kind probably had since this time; None where nothing is known to have
        changed."""
        at = bisect_right(self._times, time_s)
        if self._nothing or at == len(self._times):
            return None
        if (kind, at) not in self._found:
            self._found[kind, at] = self._shift(kind, time_s)
        return self._found[kind, at]

    def _shift(self, kind: str, time_s: float) -> Shift | None:
        seen = [(of, shift) for of, courses in self._ops if (shift := _shift_of(courses, time_s)) is not None]
        if sum(abs(shift) > MARGIN for _, shift in seen) < FEWEST:
            return None
        alike = [shift for of, shift in seen if of == kind]
        shifts = sorted(alike if len(alike) >= FEWEST else [shift for _, shift in seen])
        left_out = math.floor(TAIL * len(shifts)) if len(shifts) >= MANY else 0
        seen_by_most = shifts[left_out : len(shifts) - left_out]
        if max(map(abs, seen_by_most)) <= MARGIN:
            return None
        probable = sorted(shifts, key=abs)[(len(shifts) - 1) // 2]  # of two halves, the one that changed less
        return spanning(probable, seen_by_most, believed=len(shifts) >= MANY)


def _together(courses: Sequence[Course]) -> list[Course]:
    """The courses, where levels that may have ended together did: when the first of them was seen to have ended."""
    ended = [level for course in courses for level in course.ended]
    before, after = (np.array([level[i] for level in ended]) for i in (1, 2))  # (n_levels,) seconds each
    moved = []
    for level in ended:
        together = (before < level.after_s) & (after > level.before_s)
        first_s = min(float(after[together].min(initial=level.after_s)), level.after_s)
        last_s = float(before[together & (before < first_s)].max(initial=-math.inf))
        moved.append(Level(level.log_s, max(last_s, min(level.before_s, first_s)), first_s))
    rest = iter(moved)
    return [replace(course, ended=[next(rest) for _ in course.ended]) for course in courses]


def _shift_of(courses: Sequence[Course], time_s: float) -> float | None:
    """The shift of one op since this time, by those of its series that tell one."""
    shifts = [shift for course in courses if (shift := course.shift_since(time_s)) is not None]
    return median(shifts) if shifts else None
