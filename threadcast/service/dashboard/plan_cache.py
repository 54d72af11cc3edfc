"""A cache of the plans for pages, so that a page is shown again without planning again."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from threadcast.core import Plan
from threadcast.prediction.lru_cache import LruCache
from threadcast.scheduler import planner
from threadcast.scheduler.bounds.ceiling import Ceiling
from threadcast.scheduler.policies import Problem
from threadcast.service import planners
from threadcast.service.deadlines import Deadline, too_late

MOST_PLANS = 16
"""Number of plans in the cache; one of a network of thousands of ops takes some MB."""

BUDGET_S = 1.0
"""Seconds for the search: half of those of `threadcast plan`, since somebody waits for the page."""


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """A plan, the limits of any plan (`ceiling`), and these in a sentence (`verdict`)."""

    plan: Plan
    ceiling: Ceiling
    verdict: str


class PlanCache:
    """The plans used last, by a key with everything that determines them. Safe to use from threads."""

    def __init__(self) -> None:
        self._plans: LruCache[Hashable, PlannedNetwork] = LruCache(MOST_PLANS)
        self._planning = threading.Lock()

    def get(self, key: Hashable) -> PlannedNetwork | None:
        """The plan of `key`; None where it is not cached."""
        return self._plans.get(key)

    def plan(self, key: Hashable, problem: Problem, until: Deadline, *, most_planners: int) -> PlannedNetwork:
        """Return the plan of `key`; unless another thread has just made it, a planner process makes it from `problem`.

        Only one thread at a time plans for pages, so that the other threads are free for other requests. It raises a
        Problem as soon as the time is up, while waiting or while planning.
        """
        if not self._planning.acquire(timeout=until.remaining_s()):
            raise too_late(until.limit_s)
        try:
            if (planned := self.get(key)) is not None:
                return planned
            options = {"budget_s": BUDGET_S}
            made = planners.made(problem, planner.SEARCH, options, until, most=most_planners, limits=True)
            assert made.limits is not None
            planned = PlannedNetwork(made.plan, made.limits, made.limits.verdict())
            self._plans.put(key, planned)
            return planned
        finally:
            self._planning.release()
