"""Plans made for pages, kept so that a page is shown again without planning again."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from threadcast.core import Plan
from threadcast.prediction.lru_cache import LruCache
from threadcast.scheduler import planner
from threadcast.scheduler.bounds.ceiling import Ceiling
from threadcast.scheduler.bounds.speedup_bound import ceiling
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.merged_backward import without_split
from threadcast.service import planners
from threadcast.service.deadlines import Deadline, too_late

MOST_PLANS = 16
"""Plans kept, of some MB for a network of thousands of ops."""

BUDGET_S = 1.0
"""Seconds for the search: half of what `threadcast plan` takes, since somebody waits for the page."""


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """A plan, the least time that any plan could reach, and that in a sentence."""

    plan: Plan
    ceiling: Ceiling
    verdict: str


class PlanCache:
    """The plans used last, by a key that stands for all that they follow from. Safe to use from threads."""

    def __init__(self) -> None:
        self._plans: LruCache[Hashable, PlannedNetwork] = LruCache(MOST_PLANS)
        self._planning = threading.Lock()

    def get(self, key: Hashable) -> PlannedNetwork | None:
        """The plan of `key`, if there is one."""
        return self._plans.get(key)

    def plan(self, key: Hashable, problem: Problem, until: Deadline, *, most_planners: int) -> PlannedNetwork:
        """Return the plan of `key`, made from `problem` by a planner process unless another thread just has.

        One thread at a time plans for pages, which leaves the other threads to other requests. Problem as soon as time
        is up, while waiting or while planning.
        """
        if not self._planning.acquire(timeout=until.remaining_s()):
            raise too_late(until.limit_s)
        try:
            if (planned := self.get(key)) is not None:
                return planned
            options = {"budget_s": BUDGET_S}
            plan = planners.plan(problem, planner.SEARCH, options, until, most=most_planners)
            report = ceiling(problem, unsplit=without_split(problem))
            planned = PlannedNetwork(plan, report, report.verdict())
            self._plans.put(key, planned)
            return planned
        finally:
            self._planning.release()
