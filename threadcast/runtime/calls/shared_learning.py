"""What all that learns in a process shares: what it may cost, the planner, and what was told."""

from __future__ import annotations

from functools import lru_cache

from threadcast.core import Machine
from threadcast.runtime.calls.fallback import Told
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.planning import Planner


@lru_cache(maxsize=8)
def budget(share: float) -> Budget:
    """What all that learns with this share may spend together; each program and each kind of calls has a part of it."""
    return Budget(share)


def planner_for(machine: Machine) -> Planner:
    """The planner for all that runs on these cores; the same one each time."""
    return planner_on(machine, tuple(core.cpus for core in machine.cores))


@lru_cache(maxsize=8)
def planner_on(machine: Machine, cpus: tuple[tuple[int, ...], ...]) -> Planner:
    """The planner for these CPUs: equal machines are known apart by theirs."""
    return Planner(machine)


@lru_cache(maxsize=1)
def told() -> Told:
    """What warns of graphs that run as PyTorch does: once for each reason in a process."""
    return Told("a graph")
