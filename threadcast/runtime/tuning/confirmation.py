"""Whether what was kept is as fast alone as its comparison has shown: that may have been noise, or what two contenders
that run by turns do to each other, such as threads that spin."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import NamedTuple

from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.guard import CLEAR

ALONE_STEPS, LEAST_ALONE_STEPS, ALONE_S = 15, 5, 1.0
"""Number of steps in a row whose median is judged: fewer where they take this many seconds together. A convention."""
BROKEN = 1.2
"""Ratio between what was found before and what steps alone show, above which it is doubted: medians of so few steps
differ by 5 to 10 % between two times of the same process."""
MOST_COMPARISONS = 3
"""Most comparisons of one contender because of doubts: a machine that is busy time and again would cause ever more."""


class Doubt(NamedTuple):
    """Why what was kept may be slower than something else."""

    reason: str
    other: ContenderId
    """What may be faster."""


class Confirmation:
    """Watches the steps of what was kept, and doubts it where they are not clearly faster than the default's were.

    It also doubts what is slower alone than the second best was, and what does not agree with the comparisons: in steps
    of its own, or in its gain over the default, whose steps may be from a time when the machine was busier. It looks at
    the first steps, and again after twice as many each time. `costs` says whether learning may take time to compare.
    """

    def __init__(self, costs: ExpectedCosts) -> None:
        self._costs = costs
        self._kept, self._before = DEFAULT, DEFAULT
        self._promised_s: dict[ContenderId, float] = {}
        self._gains: dict[ContenderId, float] = {DEFAULT: 1.0}
        """Gains over the default, by the comparisons that led there."""
        self._alone_s: dict[ContenderId, float] = {}
        self._comparisons: Counter[ContenderId] = Counter()
        self._recent_s: list[float] = []
        self._distance = self._wait = 0
        self._looked = False

    @property
    def over(self) -> bool:
        """Whether what runs was looked at, or cannot be: nothing of it has to be waited for."""
        return self._looked or self._kept is DEFAULT

    def won(self, contender: ContenderId, over: ContenderId, *, gain: float, step_s: float) -> None:
        """Record that `contender` won a comparison, by `gain`; its steps took `step_s` seconds."""
        self._promised_s[contender] = step_s
        self._gains.pop(contender, None)
        if over in self._gains:  # of a stored plan no gain is known
            self._gains[contender] = gain * self._gains[over]

    def settled(self, kept: ContenderId, before: ContenderId) -> None:
        """Begin to watch `kept`, which was found to be faster than `before` and other contenders."""
        self._recent_s.clear()
        if kept != self._kept:
            self._distance = self._wait = 0
            self._looked = False
        self._kept, self._before = kept, before

    def observe(self, seconds: float, *, all_cores: bool, eager_s: float | None) -> Doubt | None:
        """Record a step of what was kept; return a doubt if it has to be compared now. `eager_s`: the default's."""
        if self._kept is DEFAULT:
            return None
        if not all_cores or eager_s is None:
            self._recent_s.clear()
            self._looked = True
            return None
        if self._wait > 0:
            self._wait -= 1
            return None
        self._recent_s.append(seconds)
        steps = len(self._recent_s)
        if steps < ALONE_STEPS and (steps < LEAST_ALONE_STEPS or sum(self._recent_s) < ALONE_S):
            return None
        alone_s = self._alone_s[self._kept] = median(self._recent_s)
        self._recent_s.clear()
        self._looked = True
        doubt = self._doubt(alone_s, eager_s)
        if doubt is not None:
            other_s = eager_s if doubt.other is DEFAULT else self._alone_s.get(doubt.other, alone_s)
            if not self._costs.allows_confirming(alone_s, other_s):
                return None  # and looks again at the next steps
        self._distance = self._wait = max(steps, 2 * self._distance)
        if doubt is None or self._comparisons[self._kept] >= MOST_COMPARISONS:
            return None
        self._comparisons[self._kept] += 1
        return doubt

    def _doubt(self, alone_s: float, eager_s: float) -> Doubt | None:
        took = f"a step by {self._kept} takes {alone_s:.3g} s alone"
        if alone_s * CLEAR > eager_s:
            return Doubt(f"{took}, one by the default {eager_s:.3g} s", DEFAULT)
        before_s = self._alone_s.get(self._before)
        if before_s is not None and alone_s > before_s:
            return Doubt(f"{took}, one by {self._before} {before_s:.3g} s", self._before)
        promised_s, gain = self._promised_s.get(self._kept), self._gains.get(self._kept)
        if promised_s is not None and _differ(alone_s, promised_s):
            other = self._before if alone_s > promised_s else DEFAULT
            return Doubt(f"{took}, in a comparison {promised_s:.3g} s", other)
        if gain is not None and _differ(eager_s / alone_s, gain):
            return Doubt(f"{took}, one by the default {eager_s:.3g} s, its gain in comparisons was {gain:.3g}", DEFAULT)
        return None


def _differ(one: float, other: float) -> bool:
    return max(one, other) > BROKEN * min(one, other)
