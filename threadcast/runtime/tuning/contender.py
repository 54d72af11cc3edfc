"""A plan that can run a call, and any way to run one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import OpGraph, Plan
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender_id import ContenderId
from threadcast.scheduler.policies import Problem

Run = Callable[..., Any]
"""Runs one whole step of the caller's, and returns its result."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan for one variant of a call's graph."""

    variant: Variant
    captured: Captured
    """The graph that the plan is for."""
    plan: Plan
    unfused: OpGraph
    """The graph before operators were fused."""
    problem: Problem | None = None
    """What the plan was made from, where that is known."""
    fewer: Mapping[int, Plan] = field(default_factory=dict)
    """Plans for smaller numbers of cores that are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One way to run a call. `holds` tells whether it still does what the default does."""

    id: ContenderId
    run: Run
    holds: Callable[[], bool] = lambda: True

    @property
    def name(self) -> str:
        """What reports call it."""
        return str(self.id)
