"""Finds when the times of an op on a machine changed, from the dates and medians of its measurements alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

SCATTER = 0.16
"""Least standard deviation of the log of medians that is assumed, beside what a series shows itself: sessions differ,
and the first few measurements tell little of it. With it, three samples show a change by a factor of 1.7 or more, more
samples one of 1.3. With less, more changes are found where there are none (docs/figures/forecasts.md)."""

CAP, SLACK = 3.0, 1.0
"""A sample counts for at most `CAP` standard deviations, less `SLACK`, however far off it is: one that was disturbed
weighs no more than one that is just improbable."""

ALARM = 5.5
"""Sum from which on times count as changed: three samples that are far off reach 6, two 4."""

FULL = 3
"""A measurement counts as at most so many samples: what was timed in the same tenth of a second was disturbed
together."""

MEDIAN_ERROR, NORMAL_MAD = 1.2533, 1.4826
"""Of normal samples: the standard error of their median over that of their mean; their standard deviation over their
median absolute deviation."""

BEFORE, SESSION_S = 0.1, 600.0
"""When a change happened is known only to lie between two points. If these are more than `SESSION_S` seconds apart, the
change is dated `BEFORE` of that time ahead of the later one, so that whatever else was measured in the same session as
the later one counts as measured after the change."""

RECENT = 16
"""Number of measurements from which a level and its scatter are estimated, the newest ones."""


class Point(NamedTuple):
    """The median of one measurement: when it was made, which series it belongs to, its log seconds, its samples.

    Points of a series (one case, with caches in one state) are comparable; those of an op make up several series.
    """

    time_s: float
    series: int
    log_s: float
    samples: int


class Level(NamedTuple):
    """A level that ended: the log seconds, the time of its last point, and that of the first one after the change."""

    log_s: float
    before_s: float
    after_s: float

    @property
    def until_s(self) -> float:
        """When the change is taken to have happened."""
        between_s = self.after_s - self.before_s
        return self.after_s - (BEFORE * between_s if between_s > SESSION_S else 0.0)

    def may_end_with(self, other: Level) -> bool:
        """Whether both may have ended by the same change."""
        return self.before_s < other.after_s and other.before_s < self.after_s


@dataclass(slots=True)
class Course:
    """What a series went through, and what holds now.

    `ended` are the levels before, the oldest first. `holding` are the positions of the points since the last change,
    and `log_s` is their level. `first_s` and `last_s` are the times of the series' first and last point. `suspected` is
    the level of the newest points where they are far off but too few to be a change, else None.
    """

    ended: list[Level]
    holding: list[int]
    log_s: float
    first_s: float
    last_s: float
    suspected: float | None = None

    def shift_since(self, time_s: float, known: Sequence[Level] = ()) -> float | None:
        """By how much the log of the level has changed since this time, but for changes that also ended the `known`
        levels; None where there is no newer point, or nothing to compare it with."""
        if self.last_s <= time_s or (not self.ended and self.first_s > time_s):
            return None
        later = (level for level in self.ended if level.until_s > time_s and not any(map(level.may_end_with, known)))
        return self.log_s - next((level.log_s for level in later), self.log_s)


def courses(points: Sequence[Point]) -> dict[int, Course]:
    """The course of each series of an op; `points` are in the order of time.

    A cumulative sum (Page 1954, Continuous inspection schemes) of the deviations from the level so far, upwards and
    downwards, with bounded deviations so that outliers do not count for more than they tell (Lucas, Crosier 1982,
    Robust CUSUM). One sum for each series, and one over all series of the op, so that three new samples show a change
    wherever they were taken. Points that may turn out to be the first ones after a change do not contribute to the
    level that further points are compared with. Once one series has changed, a single point that is far off in the
    same direction is a change of another.
    """
    watches: dict[int, _Watch] = {}
    of_op = _Sums()
    for i, point in enumerate(points):
        watch = watches.get(point.series)
        if watch is None:
            watches[point.series] = _Watch(points, i)
            continue
        steps, off = min(point.samples, FULL), watch.off(point.log_s)
        watch.sums.add(off, steps)
        of_op.add(off if abs(off) >= CAP else 0.0, steps)  # small deviations of many cases are a session's own
        watch.take(i)
        direction = watch.sums.alarm or of_op.alarm or watch.expected_change(off)
        if direction:
            of_op = _Sums()
            for other in watches.values():
                other.follow(direction, alarmed=other is watch)
    return {series: watch.course() for series, watch in watches.items()}


@dataclass(slots=True)
class _Sums:
    """Cumulative sums of deviations, upwards and downwards."""

    up: float = 0.0
    down: float = 0.0

    def add(self, off: float, steps: int) -> None:
        off = min(max(off, -CAP), CAP)
        self.up = max(0.0, self.up + steps * (off - SLACK))
        self.down = max(0.0, self.down - steps * (off + SLACK))

    @property
    def alarm(self) -> int:
        """1 where times have become longer, -1 where shorter, 0 where neither."""
        return (self.up >= ALARM) - (self.down >= ALARM)

    def of(self, direction: int) -> float:
        """The sum upwards (1) or downwards (-1)."""
        return self.up if direction > 0 else self.down


class _Watch:
    """One series: the points since its last change, and where among them a further change may have begun."""

    def __init__(self, points: Sequence[Point], first: int) -> None:
        self._points, self._first_s = points, points[first].time_s
        self.ended: list[Level] = []
        self.sums = _Sums()
        self._expected = 0
        self._every, self._held = [first], 1
        self._begun = dict[int, int]()
        self._level, self._scatter = self._estimated()

    def off(self, log_s: float) -> float:
        """How far this is from the level, beyond the level's own standard error, in standard deviations."""
        apart, error = log_s - self._level, MEDIAN_ERROR * self._scatter / math.sqrt(min(self._held, RECENT))
        return (apart - min(max(apart, -error), error)) / self._scatter

    def take(self, i: int) -> None:
        """Add a point, whose deviation the sums contain already. A change may have begun where a sum last was 0."""
        self._every.append(i)
        for direction in (1, -1):
            if self.sums.of(direction) == 0:
                self._begun.pop(direction, None)
            else:
                self._begun.setdefault(direction, len(self._every) - 1)
        held = min(self._begun.values(), default=len(self._every))
        if held != self._held:
            self._held = held
            self._level, self._scatter = self._estimated()

    def expected_change(self, off: float) -> int:
        """The direction in which another series has changed since this one's last point, where a point with this
        deviation agrees; else 0."""
        direction, self._expected = self._expected, 0
        return direction if direction * off >= CAP else 0

    def follow(self, direction: int, *, alarmed: bool) -> None:
        """End the level if this series has points that are far off in the direction in which the op has changed, and
        expect some if not."""
        if alarmed or self.sums.of(direction) >= CAP - SLACK:
            self._cut(direction)
        else:
            self._expected = direction

    def _cut(self, direction: int) -> None:
        """What came since the sum began to grow holds from now on, but for points that are nearer to the old level."""
        points, rest = self._points, self._every[self._begun[direction] :]
        new = _median([points[i] for i in rest[-FULL:]])
        while len(rest) > 1 and abs(points[rest[0]].log_s - self._level) < abs(points[rest[0]].log_s - new):
            rest = rest[1:]
        self.ended.append(Level(self._level, points[self._every[self._held - 1]].time_s, points[rest[0]].time_s))
        self._begin(rest)

    def course(self) -> Course:
        points = [self._points[i] for i in self._every]
        far = [self._begun[direction] for direction in (1, -1) if self.sums.of(direction) >= CAP - SLACK]
        return Course(
            self.ended, self._every, _median(points[-RECENT:]), self._first_s, points[-1].time_s,
            _median(points[max(far) :]) if far else None,
        )  # fmt: skip

    def _begin(self, every: list[int]) -> None:
        self._every, self._held = every, len(every)
        self.sums, self._begun = _Sums(), {}
        self._level, self._scatter = self._estimated()

    def _estimated(self) -> tuple[float, float]:
        """The level of the points before any change that may have begun, and the standard deviation of points around
        it."""
        recent = [self._points[i] for i in self._every[max(self._held - RECENT, 0) : self._held]]
        level = _median(recent)
        return level, max(SCATTER, NORMAL_MAD * median([abs(point.log_s - level) for point in recent]))


def _median(points: Sequence[Point]) -> float:
    """The median log seconds, each point weighted by its samples, at most `FULL`."""
    return median([point.log_s for point in points for _ in range(min(point.samples, FULL))])
