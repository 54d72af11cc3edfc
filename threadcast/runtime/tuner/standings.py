"""What is known of candidates, and decides nothing: seconds of their calls, what they gain, cost and promise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median, median_low

from threadcast.core.gains import PAIRS_AT_LEAST
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.guard import CLEAR, Guard, Side

LOOK, LEAST_LOOK, LOOK_S, MOST_WAIT = 15, 5, 1.0, 1_000
"""Number of calls in a row whose median is judged: fewer where they take this many seconds together. At most so many
calls are not looked at in between: comparisons that busy machines cause cost no more than a hundredth of the time."""
MOST_EAGER, ENOUGH_S, STEADY = 10, 1.0, 0.95
"""Calls and seconds of the baseline after which it is known how long one takes. Before that it is known when the last
two are no faster than this share of the fastest before them: the first calls of a process take up to 2.5 times as long
as later ones, as memory is new and libraries make their kernels."""
WORTH = 1.02
"""Ratio of the best candidate's seconds to another's under which it is not worth comparing."""
AGAIN = 1.25
"""Ratio of the baseline's seconds to those of one that has lost, from which on that is compared once more; and of what
is expected to what may be: medians of few calls differ by 5 to 10 % between two times of the same process."""
UNKNOWN = 0.5
"""Share by which a candidate is taken to be slower than the best where nothing is known of it."""
_RECENT, _MANY = 15, 50
"""Calls whose median tells how long one takes now, and those of which the quiet ones tell what is gained."""


class Status(Enum):
    """What is known of a candidate."""

    OFFERED = "offered"
    STAGED = "is prepared"
    READY = "is ready"
    LOST = "was slower"
    OUT = "never runs again"


@dataclass(slots=True)
class Standing:
    """A candidate in the tournament."""

    offered: to.Offered
    status: Status = Status.OFFERED
    stage: to.Staged | None = None
    step_s: float | None = None
    """Seconds of its calls, as the last comparison or preparation found; None where they are not known."""
    gain: float | None = None
    """Ratio of the baseline's seconds to its own, by comparisons."""
    first_s: float = 0.0
    """What its first call is expected to take more than others; 0 once it was compared."""
    lost_s: float = 0.0
    """What the present attempt at a part of its preparation has lost so far."""
    open: bool = False
    """Whether it can run the next call; what has lost or does not run has to be prepared once more."""
    beside: bool = False
    """Whether something computed beside calls of its last comparison."""
    losses: int = 0
    """Comparisons that it has lost."""
    reason: str = ""
    """Why it never runs again; empty where it may."""

    @property
    def key(self) -> to.Key:
        """What identifies it."""
        return self.offered.key


class Turns:
    """Two candidates that are compared: `new` must be shown to be faster than `base` to be kept."""

    def __init__(self, best: to.Key, other: to.Key, *, baseline: to.Key) -> None:
        self.best, self.other = best, other
        self.base, self.new = (other, best) if other == baseline else (best, other)
        self.guard = Guard()

    def next(self) -> to.Run:
        """Return what runs the next call, in turns."""
        return to.Run(self.base if self.guard.next_runner() == "default" else self.new)

    @property
    def cost_s(self) -> float | None:
        """Seconds by which the next pair is expected to take longer than the best alone; None: nothing is known."""
        best: Side = "default" if self.base == self.best else "plan"
        other: Side = "plan" if best == "default" else "default"
        best_s, other_s = self.guard.step_s(best), self.guard.step_s(other)
        if best_s is None or other_s is None:
            return None
        if best_s >= other_s:
            return 0.0
        return self.guard.pair_s(other) * (1 - best_s / other_s)


def are_steady(seconds: Sequence[float]) -> bool:
    """Return whether seconds of calls of the baseline, the first one left out, tell how long later ones take."""
    if len(seconds) >= MOST_EAGER or (len(seconds) > 1 and sum(seconds) >= ENOUGH_S):
        return True
    return len(seconds) > 2 and min(seconds[-2:]) >= STEADY * min(seconds[:-2])


class Watch:
    """The calls of what was kept, while it runs alone: their median after `LOOK` calls, and then ever more seldom."""

    def __init__(self) -> None:
        self.looked = self.waived = False
        """Whether it is known how long calls take alone, and whether it could not be found out."""
        self._seconds: list[float] = []
        self._distance = 0
        self.wait = 0
        """How many of the next calls are not looked at."""

    def passed(self, calls: int) -> None:
        """Take note of calls that were not timed."""
        self.wait = max(0, self.wait - calls)

    def observe(self, seconds: float) -> float | None:
        """Record the seconds of a call; return the median of those looked at, once they are enough."""
        if self.wait > 0:
            self.wait -= 1
            return None
        self._seconds.append(seconds)
        count = len(self._seconds)
        if count < LOOK and (count < LEAST_LOOK or sum(self._seconds) < LOOK_S):
            return None
        alone_s = median(self._seconds)
        self._seconds.clear()
        self.wait = self._distance = min(MOST_WAIT, max(count, 2 * self._distance))
        return alone_s

    def later(self) -> None:
        """Watch what runs now instead, not before as many calls as since the last look."""
        self._seconds.clear()
        self.wait = self._distance

    def clear(self) -> None:
        """Begin the present look anew: something else than calls alone has run."""
        self._seconds.clear()


class Standings:
    """The candidates of a tournament by key, and how long calls of its baseline and of its best take.

    `baseline_s` are seconds of calls before, which the baseline ran.
    """

    def __init__(self, baseline: to.Key, baseline_s: Sequence[float]) -> None:
        self.baseline = self.best = baseline
        self.standings: dict[to.Key, Standing] = {
            baseline: Standing(to.Offered(baseline, 1.0, 1.0, ready=True), Status.READY, gain=1.0, open=True)
        }
        self._of_baseline: deque[float] = deque(baseline_s[1:], maxlen=_MANY)
        self._baseline_calls, self._steady = len(baseline_s), False
        self._of_best: deque[float] = deque(maxlen=_MANY)

    def note(self, key: to.Key, event: to.Ran, *, counts: bool) -> None:
        """Record a call of the baseline or of the best, which `counts` where nothing else computed beside it."""
        known = self._steady and len(self._of_baseline) > 0
        if key == self.baseline:
            self._baseline_calls += 1
            if (counts or not known) and self._baseline_calls > 1:  # the first call of all is a slow one
                self._of_baseline.append(event.seconds)
        elif key == self.best and counts and event.all_cores:
            self._of_best.append(event.seconds)

    def become(self, key: to.Key) -> None:
        """Take a candidate for the best."""
        self.best = key
        self._of_best.clear()

    @property
    def is_steady(self) -> bool:
        """Whether it is known how long a call of the baseline takes; true once it was true."""
        self._steady = self._steady or are_steady(list(self._of_baseline))
        return self._steady

    @property
    def baseline_s(self) -> float | None:
        """Seconds of a call of the baseline, the median of recent ones; None until they are steady."""
        return median_low(list(self._of_baseline)[-_MANY // 2 :]) if self._of_baseline and self.is_steady else None

    @property
    def best_s(self) -> float | None:
        """Seconds of a call of the best candidate, of some recent ones; None where they are not known."""
        if self.best == self.baseline:
            return self.baseline_s
        known_s = self.standings[self.best].step_s
        if len(self._of_best) < LEAST_LOOK and known_s is not None:
            return known_s
        return median(list(self._of_best)[-_RECENT:]) if self._of_best else None

    @property
    def gain_now(self) -> float:
        """Ratio of the baseline's seconds to the best's: of the quiet ones of many calls, at most as by turns.

        What wins by turns was often favoured by chance, and other processes may slow down many calls of either alone;
        the smaller of both ratios counts 0.8 to 1 of what is gained, also where calls scatter by 10 %. It is 1 where
        the best seems slower: what it takes longer is no cost of learning.
        """
        standing, by_turns = self.standings[self.best], self.standings[self.best].gain
        step_s = _quiet(self._of_best) if len(self._of_best) >= LEAST_LOOK else standing.step_s
        alone = None if step_s is None or self.baseline_s is None else _quiet(self._of_baseline) / step_s
        known = [one for one in (alone, by_turns) if one is not None]
        return 1.0 if self.best == self.baseline else max(1.0, min(known, default=1.0))

    @property
    def eager_s(self) -> float | None:
        """Seconds of a call of the baseline now, by those of the best and what it gains; None: not known."""
        best_s = self.best_s
        return best_s if best_s is None or self.best == self.baseline else best_s * self.gain_now

    def eager_of(self, call: to.Ran, chosen: to.Run | to.RunStage) -> float | None:
        """Return the seconds that a call which has run would have taken by the baseline; None: not known.

        A call of the best takes longer where the machine is slower, and so would the baseline's; but one slow call
        gains nothing. Where nothing is known of the baseline, it is as fast as the best. Other calls gain no more than
        those of the best: a baseline that was timed while the machine was slow says nothing of later calls.
        """
        best_s, eager_s = self.best_s, self.eager_s
        if not (isinstance(chosen, to.Run) and chosen.key in (self.baseline, self.best) and call.alone):
            by_baseline = eager_s is not None and self.best == self.baseline
            return min(eager_s or 0.0, call.seconds) if by_baseline else eager_s
        if chosen.key == self.baseline or best_s is None:
            return call.seconds
        return call.seconds + (self.gain_now - 1) * min(call.seconds, best_s)

    def second(self, *, under_s: float | None = None) -> Standing | None:
        """Return the next best, but the baseline, of those that were compared; None where there is none.

        With `under_s`, which the best takes, the fastest of all that may be faster than that: the best has to be
        clearly faster than the baseline, and the baseline is not left for little.
        """
        found = (one for one in self.standings.values() if one.status is Status.LOST and one.key != self.best)
        if under_s is None:
            found = (one for one in found if one.key != self.baseline)
        else:
            margin = 1 / AGAIN if self.best == self.baseline else 1.0
            limit_s = {self.baseline: under_s * CLEAR}
            found = (one for one in found if (one.step_s or 0.0) < limit_s.get(one.key, under_s * margin))
        return min(found, key=lambda one: one.step_s or math.inf, default=None)

    def waiting(self) -> tuple[list[Standing], list[Standing]]:
        """Return what may be worth preparing or comparing now, and what may be but is at work beside calls."""
        found: tuple[list[Standing], list[Standing]] = [], []
        for one in filter(self.is_open, self.standings.values()):
            found[one.stage is not None and one.stage.place is to.Place.BESIDE].append(one)
        return found

    def is_open(self, standing: Standing) -> bool:
        """Return whether a candidate is still to be prepared or compared, and may be worth it."""
        if standing.key == self.best or standing.status in (Status.OUT, Status.LOST):
            return False
        known = standing.key == self.baseline or standing.offered.earlier
        return known or self.promised(standing, most=True) >= WORTH

    def promised(self, standing: Standing, *, most: bool = False) -> float:
        """Return the ratio of the best's seconds to those that a candidate should take; `most`: if all goes well."""
        best_s, baseline_s = self.best_s, self.baseline_s
        if standing.step_s is not None and best_s is not None:
            return best_s / standing.step_s * (AGAIN if most else 1.0)
        ahead = 1.0 if best_s is None or baseline_s is None else baseline_s / best_s
        return (standing.offered.most if most else standing.offered.gain) / ahead

    def cost_s(self, standing: Standing) -> float:
        """Return the seconds that the next part of preparing or comparing a candidate is expected to cost calls."""
        if standing.stage is not None and standing.stage.place is not to.Place.BESIDE:
            return standing.stage.cost_s
        is_new = standing.status in (Status.OFFERED, Status.STAGED)
        return standing.offered.cost_s if is_new else self.comparing_s(standing)

    def comparing_s(self, standing: Standing) -> float:
        """Return the seconds that comparing a candidate is expected to cost calls, by the fewest pairs."""
        best_s = self.best_s or 0.0
        step_s = best_s * (1 + UNKNOWN) if standing.step_s is None else standing.step_s
        return standing.first_s + 2 * PAIRS_AT_LEAST * max(0.0, step_s - best_s)

    def value(self, standing: Standing) -> float:
        """Return what a candidate is expected to gain for each second that it costs calls."""
        gain = max(self.promised(standing) - 1.0, 0.01 * (self.promised(standing, most=True) - 1.0))
        return gain / max(1e-3, self.cost_s(standing))


def _quiet(seconds: Iterable[float]) -> float:
    """The seconds of calls that something else seldom disturbed: a quarter of these are shorter."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]
