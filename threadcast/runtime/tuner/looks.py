"""The looks at one graph's operators as a pure state machine: how many steps each takes, and when it is complete.

A look is a few steps that run all operators one after the other and time each. The first look gives every operator all
cores, which is seldom much slower than PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from threadcast.runtime.plans.curves_in_step import WARM_UP, LookSchedule
from threadcast.runtime.plans.variant import Variant

HOPELESS = 1.5
"""Ratio of the first look's seconds to those of the best way known, above which no plan is made: what differs between a
look and a plan has not been worth so much in any network (docs/figures/steps.md)."""


@dataclass(frozen=True, slots=True)
class Look:
    """A traced step that runs all operators of `variant` one after the other, with the thread counts of look number
    `number`, counted from 0."""

    variant: Variant
    number: int


class Looks:
    """Decides how many steps each look takes.

    The first looks of the schedule follow each other without a question; then one is taken where it is asked for. With
    `aside` one step of the caller's takes all that a look runs.
    """

    def __init__(self, schedule: LookSchedule, *, aside: bool = False) -> None:
        self.wanted = schedule.uniform
        """How many looks are to be taken before a plan is made."""
        self.look_s: list[float] = []
        """Median seconds of a step of each look, by its number."""
        self.broken_off_s: float | None = None
        """Fewest seconds of a step of the current look before it was broken off; None where it was not."""
        self._schedule, self._aside = schedule, aside
        self._seconds: list[float] = []
        """Seconds of each step of the current look so far."""

    @property
    def complete(self) -> bool:
        """Whether all looks that are wanted were taken."""
        return len(self.look_s) >= self.wanted

    @property
    def begun(self) -> bool:
        """Whether the next step would be one of a look that has begun."""
        return bool(self._seconds)

    def steps(self, step_s: float) -> int:
        """Number of the caller's steps of a look, if each takes about `step_s` seconds."""
        return 1 if self._aside else self._schedule.runs(step_s)

    def observe(self, seconds: float) -> bool:
        """Record the seconds of a step; return whether the look is over."""
        self._seconds.append(seconds)
        timed = self._seconds[0 if self._aside else WARM_UP :]
        if not timed or len(self._seconds) < self.steps(sum(timed) / len(timed)):
            return False
        self._seconds.clear()
        self.broken_off_s = None
        self.look_s.append(median(timed))
        return True

    def break_off(self) -> None:
        """Have the look that has begun, if any, begin once more."""
        if self._seconds:
            self.broken_off_s = min(self._seconds)
            self._seconds.clear()

    def hopeless(self, best_s: float) -> bool:
        """Return whether the first look was so slow that no plan can beat the best way known, of `best_s` seconds."""
        return len(self.look_s) == 1 and self.look_s[0] > HOPELESS * best_s
