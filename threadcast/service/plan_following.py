"""The next launches of a plan, from the plan and the ops that are ready and running."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from threadcast.core import Placement, Plan


def next_launches(
    plan: Plan, *, ready: Collection[str], running: Iterable[Placement], idle: Collection[int]
) -> list[Placement]:
    """The placements of `plan` to start now, in planned order; their times are the plan's.

    A ready op starts when all of its cores are idle and no ready op with an earlier planned start still waits for one
    of them. An op on a further hardware thread of cores needs that hardware thread to be idle. Ops that are not ready
    hold nothing back, so a late op delays only ops that wait for it, and when nothing runs some ready op always
    starts.
    """
    occupied = {(core, op.hardware_thread) for op in running for core in op.cores}
    free = set(idle)
    starting = []
    for op in plan.ops:  # by planned start
        if op.id not in ready:
            continue
        wanted = {(core, op.hardware_thread) for core in op.cores}
        if not wanted & occupied and (op.hardware_thread or free.issuperset(op.cores)):
            starting.append(op)
        occupied |= wanted
    return starting
