"""The search for one graph's plan as a pure state machine: probe operators, plan, try the plan, plan again.

Operators that run side by side share memory bandwidth and caches, and are slower than alone; by how much shows only
when a plan runs them so. Therefore each plan is tried, and made again from curves corrected by the trial, until a plan
takes as long as it predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from threadcast.core import Case
from threadcast.runtime.plans.curves_in_step import STEPS, WARM_UP
from threadcast.runtime.tuning.states import Moves, State

CLOSE = 0.05
"""Share by which steps may differ from a plan's prediction before another plan is made. A later plan is also preferred
while it is slower by no more than this: medians of a few steps are no more precise."""
MOST_PLANS = 4
"""Most plans that are made for one graph."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A traced step that runs all operators one after the other, each at `case`."""

    case: Case


@dataclass(frozen=True, slots=True)
class Try:
    """A traced step by plan number `plan`, counted from 0."""

    plan: int


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """A step while a plan is being made; the fastest probe or the latest plan runs it."""

    by: Probe | Try


class PlanSearch:
    """Decides what runs each step of the search, and when a plan has to be made.

    `best` is the number of the best plan, None until it is known. Plans are numbered from 0 in the order in which they
    were made.
    """

    def __init__(self, cases: Sequence[Case], moves: Moves | None = None) -> None:
        self.moves = moves or Moves()
        self.best: int | None = None
        self.predicted_s: list[float] = []
        """Seconds of a step as each plan predicts them, by plan number."""
        self.step_s: list[float] = []
        """Median seconds of a step by each plan that was tried, by plan number."""
        self._probes = [Probe(case) for case in cases]
        self._probe_s: dict[Probe, float] = {}
        self._seconds: list[float] = []
        """Seconds of each step of the current probe or trial so far."""
        self._meanwhile: Probe | Try | None = None
        self.moves.to(State.PROBING, f"{len(self._probes)} cases to probe")

    def next_runner(self) -> Probe | Try | Meanwhile:
        """Return what runs the next step."""
        if self.moves.state is State.PROBING:
            return self._probes[len(self._probe_s)]
        if self.moves.state is State.TRYING:
            return Try(len(self.step_s))
        self.moves.expect("a step of the search", State.PLANNING)
        if self._meanwhile is None:
            raise self.moves.illegal("a step while planning without a probe")
        return Meanwhile(self._meanwhile)

    def observe(self, seconds: float) -> bool:
        """Record the seconds of a step; return whether a plan has to be made now, from all steps so far."""
        if self.moves.state is State.PLANNING:
            return False
        self.moves.expect("a step of the search", State.PROBING, State.TRYING)
        self._seconds.append(seconds)
        if len(self._seconds) < WARM_UP + STEPS:
            return False
        step_s = median(self._seconds[WARM_UP:])
        self._seconds.clear()
        if self.moves.state is State.PROBING:
            return self._probed(step_s)
        return self._tried(step_s)

    def planned(self, predicted_s: float) -> None:
        """Record that a plan was made, which predicts `predicted_s` seconds for a step."""
        self.moves.to(State.TRYING, f"a plan predicts {predicted_s:.3g} s")
        self.predicted_s.append(predicted_s)

    def nothing_to_correct(self) -> None:
        """Record that trying the last plan showed nothing that would change the next plan; this ends the search."""
        self.moves.expect("nothing to correct", State.PLANNING)
        self._choose()

    def _probed(self, step_s: float) -> bool:
        self._probe_s[self._probes[len(self._probe_s)]] = step_s
        if len(self._probe_s) < len(self._probes):
            return False
        self._meanwhile = min(self._probe_s, key=self._probe_s.__getitem__)
        self.moves.to(State.PLANNING, f"probed, {self._probe_s[self._meanwhile]:.3g} s at best")
        return True

    def _tried(self, step_s: float) -> bool:
        self._meanwhile = Try(len(self.step_s))
        self.step_s.append(step_s)
        predicted_s = self.predicted_s[-1]
        if abs(step_s - predicted_s) <= CLOSE * step_s or len(self.step_s) >= MOST_PLANS:
            self._choose()
            return False
        self.moves.to(State.PLANNING, f"a plan takes {step_s:.3g} s, not {predicted_s:.3g} s")
        return True

    def _choose(self) -> None:
        """Choose the latest of the plans about as fast as the fastest: later plans come from better-known curves."""
        limit_s = (1 + CLOSE) * min(self.step_s)
        self.best = max(number for number, step_s in enumerate(self.step_s) if step_s <= limit_s)
