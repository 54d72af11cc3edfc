"""Plans that were made for pages, so that a page is shown again without planning again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from threadcast.core import Plan
from threadcast.scheduler import planner
from threadcast.scheduler.bounds.speedup_bound import Ceiling, ceiling
from threadcast.scheduler.bounds.verdict import verdict
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.merged_backward import without_split

KEPT = 16
"""Plans, of some MB for a network of thousands of ops."""
BUDGET_S = 1.0
"""Seconds for the search: half of what `threadcast plan` takes, since somebody waits for the page."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, what any plan could reach at most, and that in a sentence."""

    plan: Plan
    ceiling: Ceiling
    verdict: str


class PlanCache:
    """The last plans by what they were made from; safe to use from threads, of which one plans at a time."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._lock, self._planning = threading.Lock(), threading.Lock()

    def get(self, key: Hashable) -> Made | None:
        """The plan that was made for `key`, if it is still there."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
            return self._made.get(key)

    def make(self, key: Hashable, problem: Problem) -> Made:
        """Plan, unless another thread just has; some seconds for a large network."""
        with self._planning:
            if (made := self.get(key)) is not None:
                return made
            report = ceiling(problem, unsplit=without_split(problem))
            made = Made(planner.plan(problem, policy=planner.SEARCH, budget_s=BUDGET_S), report, verdict(report))
            with self._lock:
                self._made[key] = made
                while len(self._made) > KEPT:
                    self._made.popitem(last=False)
            return made
