"""What is known of candidates, none of which decides anything: seconds of calls, what they gain, cost and promise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median, median_low

from threadcast.core.gains import PAIRS_AT_LEAST
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.entrant import LEAST_LOOK, Entrant, Status, are_steady
from threadcast.runtime.tuner.guard import CLEAR

WORTH = 1.02
"""Ratio of the best candidate's seconds to another's under which it is not worth comparing."""
AGAIN = 1.25
"""Ratio of the baseline's seconds to those of one that has lost, from which on that is compared once more; and of what
is expected to what may be: medians of few calls differ by 5 to 10 % between two times of the same process."""
UNKNOWN = 0.5
"""Share by which a candidate is taken to be slower than the best where nothing is known of it."""
_RECENT, _MANY = 15, 50
"""Calls whose median tells how long one takes now, and those of which the quiet ones tell what is gained."""


class Standings:
    """The candidates of a tournament by key, and how long calls of its baseline and of its best take.

    `baseline_s` are seconds of calls before, which the baseline ran.
    """

    def __init__(self, baseline: to.Key, baseline_s: Sequence[float]) -> None:
        self.baseline = self.best = baseline
        self.entrants: dict[to.Key, Entrant] = {
            baseline: Entrant(to.Offered(baseline, 1.0, 1.0, ready=True), Status.READY, gain=1.0, open=True)
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
        known_s = self.entrants[self.best].step_s
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
        entrant, by_turns = self.entrants[self.best], self.entrants[self.best].gain
        step_s = _quiet(self._of_best) if len(self._of_best) >= LEAST_LOOK else entrant.step_s
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

    def second(self, *, under_s: float | None = None) -> Entrant | None:
        """Return the next best, but the baseline, of those that were compared; None where there is none.

        With `under_s`, which the best takes, the fastest of all that may be faster than that: the best has to be
        clearly faster than the baseline, and the baseline is not left for little.
        """
        found = (one for one in self.entrants.values() if one.status is Status.LOST and one.key != self.best)
        if under_s is None:
            found = (one for one in found if one.key != self.baseline)
        else:
            margin = 1 / AGAIN if self.best == self.baseline else 1.0
            limit_s = {self.baseline: under_s * CLEAR}
            found = (one for one in found if (one.step_s or 0.0) < limit_s.get(one.key, under_s * margin))
        return min(found, key=lambda one: one.step_s or math.inf, default=None)

    def waiting(self) -> tuple[list[Entrant], list[Entrant]]:
        """Return what may be worth preparing or comparing now, and what may be but is at work beside calls."""
        found: tuple[list[Entrant], list[Entrant]] = [], []
        for one in filter(self.is_open, self.entrants.values()):
            found[one.stage is not None and one.stage.place is to.Place.BESIDE].append(one)
        return found

    def is_open(self, entrant: Entrant) -> bool:
        """Return whether a candidate is still to be prepared or compared, and may be worth it."""
        if entrant.key == self.best or entrant.status in (Status.OUT, Status.LOST):
            return False
        known = entrant.key == self.baseline or entrant.offered.earlier
        return known or self.promised(entrant, most=True) >= WORTH

    def promised(self, entrant: Entrant, *, most: bool = False) -> float:
        """Return the ratio of the best's seconds to those that a candidate should take; `most`: if all goes well."""
        best_s, baseline_s = self.best_s, self.baseline_s
        if entrant.step_s is not None and best_s is not None:
            return best_s / entrant.step_s * (AGAIN if most else 1.0)
        ahead = 1.0 if best_s is None or baseline_s is None else baseline_s / best_s
        return (entrant.offered.most if most else entrant.offered.gain) / ahead

    def cost_s(self, entrant: Entrant) -> float:
        """Return the seconds that the next part of preparing or comparing a candidate is expected to cost calls."""
        if entrant.stage is not None and entrant.stage.place is not to.Place.BESIDE:
            return entrant.stage.cost_s
        is_new = entrant.status in (Status.OFFERED, Status.STAGED)
        return entrant.offered.cost_s if is_new else self.comparing_s(entrant)

    def comparing_s(self, entrant: Entrant) -> float:
        """Return the seconds that comparing a candidate is expected to cost calls, by the fewest pairs."""
        best_s = self.best_s or 0.0
        step_s = best_s * (1 + UNKNOWN) if entrant.step_s is None else entrant.step_s
        return entrant.first_s + 2 * PAIRS_AT_LEAST * max(0.0, step_s - best_s)

    def value(self, entrant: Entrant) -> float:
        """Return what a candidate is expected to gain for each second that it costs calls."""
        gain = max(self.promised(entrant) - 1.0, 0.01 * (self.promised(entrant, most=True) - 1.0))
        return gain / max(1e-3, self.cost_s(entrant))


def _quiet(seconds: Iterable[float]) -> float:
    """The seconds of calls that something else seldom disturbed: a quarter of these are shorter."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]
