"""The search for one graph's plan as a pure state machine: look at operators, plan, try the plan, plan again.

A look is a few steps that run all operators one after the other and time each. The first look gives every operator all
cores, which is seldom much slower than PyTorch. Operators that run side by side share memory bandwidth and caches, and
are slower than alone; by how much shows only when a plan runs them so. Therefore each plan is tried, and made again
from curves corrected by the trial, until a plan takes as long as it predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import TRIAL_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.plans.variant import Variant

CLOSE = 0.05
"""Share by which steps may differ from a plan's prediction before another plan is made. A later plan is also preferred
while it is slower by no more than this: medians of a few steps are no more precise."""
MOST_PLANS = 3
"""Most plans that are tried for one graph."""
HOPELESS = 1.5
"""Ratio of the first look's seconds to those of the best way known, above which no plan is made: what differs between a
look and a plan has not been worth so much in any network (docs/figures/steps.md)."""
SLOWER = 1.05
"""Ratio of the seconds that a first plan predicts to those of the best way known, above which it is not tried. It does
not know yet what ops cost each other side by side: no plan took less than it predicted by more than `CLOSE`."""
PROMISE = 1.1
"""How many times as fast as the fastest step by a plan that was tried a corrected one has to be by its prediction, to
be tried. Ones that promised less were no faster than the first (decision 9)."""
FAR = 1.1
"""Ratio of the first look's seconds to the best plan's above which eager PyTorch in the same memory format is slower
than that: it runs the same operators one after the other on all cores, with more between them."""


@dataclass(frozen=True, slots=True)
class Look:
    """A traced step that runs all operators one after the other, with the thread counts of look number `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Try:
    """A traced step by plan number `plan`, counted from 0."""

    plan: int


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of the search for a plan of `variant`."""

    variant: Variant
    step: Look | Try


class Phase(Enum):
    """What the search does next."""

    LOOKING = "looking"
    """Steps run all operators one after the other, and time each."""
    PLANNING = "planning"
    """A plan has to be made, from all steps so far."""
    TRYING = "trying"
    """Steps run the plan that was made last."""
    OVER = "over"
    """`best` is the number of the best plan."""


class PlanSearch:
    """Decides what runs each step of the search, and when a plan has to be made.

    With `known` the search begins with a plan from what is known, and takes looks only where that does not hold. The
    first looks of the schedule follow each other without a question, unless the first shows that the graph is hopeless.
    With `aside` one step of the caller's takes all that a look runs. `best` is the number of the best plan, None until
    it is known. Looks and plans are numbered from 0 in the order in which they were taken and made.
    """

    def __init__(self, looks: LookSchedule, *, aside: bool = False, known: bool = False) -> None:
        self.phase = Phase.PLANNING if known else Phase.LOOKING
        self.best: int | None = None
        self.predicted_s: list[float] = []
        """Seconds of a step as each plan predicts them, by plan number."""
        self.step_s: list[float] = []
        """Median seconds of a step by each plan that was tried, by plan number."""
        self.look_s: list[float] = []
        """Median seconds of a step of each look, by its number."""
        self._schedule, self._looks, self._aside = looks, looks.uniform, aside
        self.broken_off_s: float | None = None
        """Fewest seconds of a step of the current look or trial before it was broken off; None where it was not."""
        self._seconds: list[float] = []
        """Seconds of each step of the current look or trial so far."""
        self._fastest_s: list[float] = []
        """Seconds of the fastest step by each plan that was tried, by plan number."""

    @property
    def begun(self) -> bool:
        """Whether the next step would be one of a look or trial that has begun."""
        return bool(self._seconds)

    def steps(self, step_s: float) -> int:
        """Number of the caller's steps of the current look or trial, if each takes about `step_s` seconds."""
        if self.phase is Phase.TRYING:
            return WARM_UP + TRIAL_STEPS
        return 1 if self._aside else self._schedule.runs(step_s)

    @property
    def next(self) -> Look | Try:
        """What runs the next step of the search."""
        self._expect(Phase.LOOKING, Phase.TRYING)
        return Look(len(self.look_s)) if self.phase is Phase.LOOKING else Try(len(self.step_s))

    def observe(self, seconds: float) -> None:
        """Record the seconds of a step."""
        self._expect(Phase.LOOKING, Phase.TRYING)
        self._seconds.append(seconds)
        looking = self.phase is Phase.LOOKING
        timed = self._seconds[0 if self._aside and looking else WARM_UP :]
        if not timed or len(self._seconds) < self.steps(sum(timed) / len(timed)):
            return
        self._seconds.clear()
        self.broken_off_s = None
        if not looking:
            self._tried(timed)
            return
        self.look_s.append(median(timed))
        if len(self.look_s) >= self._looks:
            self.phase = Phase.PLANNING

    def break_off(self) -> None:
        """Have the look or trial that has begun, if any, begin once more."""
        if self._seconds:
            self.broken_off_s = min(self._seconds)
            self._seconds.clear()

    def hopeless(self, best_s: float) -> bool:
        """Return whether the first look was so slow that no plan can beat the best way known, of `best_s` seconds."""
        return len(self.look_s) == 1 and self.look_s[0] > HOPELESS * best_s

    @property
    def far_faster(self) -> bool:
        """Whether the best plan is so much faster than the first look that eager PyTorch cannot be."""
        return self.best is not None and bool(self.look_s) and self.look_s[0] > FAR * self.step_s[self.best]

    def look_again(self) -> None:
        """Record that looks have to be taken before a plan can be made: the first ones, or one more."""
        self._expect(Phase.PLANNING, Phase.TRYING)
        self.phase, self._looks = Phase.LOOKING, max(self._looks, len(self.look_s) + 1)

    def too_slow(self, predicted_s: float, best_s: float) -> bool:
        """Return whether the first plan predicts to take longer than the best way known, of `best_s` seconds."""
        return not self.step_s and predicted_s > SLOWER * best_s

    def planned(self, predicted_s: float) -> None:
        """Record that a plan was made, which predicts `predicted_s` seconds for a step.

        A corrected plan that does not promise enough ends the search.
        """
        self._expect(Phase.PLANNING)
        if self.step_s and PROMISE * predicted_s > min(self._fastest_s):
            self._choose()
            return
        self.phase = Phase.TRYING
        self.predicted_s.append(predicted_s)

    def nothing_to_correct(self) -> None:
        """Record that trying the last plan showed nothing that would change the next plan; this ends the search."""
        self._expect(Phase.PLANNING)
        self._choose()

    def _tried(self, timed: Sequence[float]) -> None:
        step_s, fastest_s, predicted_s = median(timed), min(timed), self.predicted_s[-1]
        self.step_s.append(step_s)
        self._fastest_s.append(fastest_s)
        close = any(abs(one - predicted_s) <= CLOSE * one for one in (step_s, fastest_s))
        if close or (self.look_s and len(self.step_s) >= MOST_PLANS):
            self._choose()
        elif not self.look_s:
            self.look_again()
        else:
            self.phase = Phase.PLANNING

    def _choose(self) -> None:
        """Choose the latest of the plans about as fast as the fastest: later plans come from better-known curves."""
        limit_s = (1 + CLOSE) * min(self.step_s)
        self.phase, self.best = Phase.OVER, max(i for i, step_s in enumerate(self.step_s) if step_s <= limit_s)

    def _expect(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ExecutionError(f"illegal: a step of the search for a plan while {self.phase.value}")
