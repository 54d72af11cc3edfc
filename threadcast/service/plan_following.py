"""The next launches of a plan, from the plan and the ops that are ready and running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from threadcast.core import Placement, Plan
from threadcast.scheduler.problem.hardware_threads import hardware_threads


def next_launches(
    plan: Plan, *, ready: Collection[str], running: Iterable[Placement], idle: Collection[int]
) -> list[Placement]:
    """The placements of `plan` to start now, in planned order; their times are the plan's.

    A ready op starts when all of its cores are idle and no ready op with an earlier planned start still waits for one
    of them. An op on further hardware threads of cores needs these hardware threads to be idle. Ops that are not ready
    hold nothing back, so a late op delays only ops that wait for it, and when nothing runs some ready op always
    starts.
    """
    occupied: dict[int, int] = defaultdict(int)  # by core: bit i is set where its hardware thread i is taken
    for op in running:
        _take(op, occupied)
    free = set(idle)
    starting = []
    for op in plan.ops:  # by planned start
        if op.id not in ready:
            continue
        bits = _bits(op)
        taken = any(occupied[core] & bits for core in op.cores)
        if not taken and (op.hardware_thread or free.issuperset(op.cores)):
            starting.append(op)
        _take(op, occupied)
    return starting


def _take(op: Placement, occupied: dict[int, int]) -> None:
    bits = _bits(op)
    for core in op.cores:
        occupied[core] |= bits


def _bits(op: Placement) -> int:
    """The hardware threads that the op uses of each of its cores, a bit each."""
    numbers = hardware_threads(op)
    return (1 << numbers.stop) - (1 << numbers.start)
