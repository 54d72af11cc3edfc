"""Checks whether a schedule is legal; it shares no code with the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from threadcast.core import Machine, OpGraph, Placement, Plan, Trace
from threadcast.core.errors import PlanError


def check_schedule(
    graph: OpGraph, schedule: Plan | Trace, *, machine: Machine | None = None, oversubscribed: bool = False
) -> None:
    """Raise PlanError, which names the ops, unless `schedule` is a legal schedule of `graph`.

    It is legal if every op runs once, no op starts before its predecessors have finished, no hardware thread of a core
    is used by two ops at a time, and each op has at least one thread for each of its cores. With `machine`, its cores
    and hardware threads must also exist; `oversubscribed` allows more threads than these (as frameworks' settings do).
    """
    by_id = schedule.by_id()
    unknown, missing = set(by_id) - set(graph.ids), set(graph.ids) - set(by_id)
    if unknown or missing:
        which, what = (unknown, "not in the graph") if unknown else (missing, "never run")
        raise PlanError(f"{len(which)} ops are {what}, such as {min(which)!r}")
    for edge in graph.edges:
        before, after = by_id[graph.ids[edge.source]], by_id[graph.ids[edge.target]]
        if after.start_s < before.finish_s:
            raise PlanError(
                f"op {after.id!r} starts at {after.start_s} s, before {before.id!r}, "
                f"which it waits for, finishes at {before.finish_s} s"
            )
    cores = {core.id: len(core.cpus) for core in machine.cores} if machine else None
    for op in schedule.ops:
        if op.threads < len(op.cores):
            raise PlanError(f"op {op.id!r} has {op.threads} threads on {len(op.cores)} cores: at least one a core")
        for core in op.cores:
            if cores is not None and core not in cores:
                raise PlanError(f"op {op.id!r} runs on core {core}, which the machine has not")
            if cores is not None and not oversubscribed and _hardware_threads(op)[-1] >= cores[core]:
                raise PlanError(
                    f"op {op.id!r} uses hardware thread {_hardware_threads(op)[-1]} of core {core}: it has not"
                )
    _check_exclusive(schedule.ops)


def _check_exclusive(ops: Iterable[Placement]) -> None:
    users: dict[tuple[int, int], list[Placement]] = {}
    for op in ops:
        for core in op.cores:
            for number in _hardware_threads(op):
                users.setdefault((core, number), []).append(op)
    for (core, number), sharing in users.items():
        sharing.sort(key=lambda op: (op.start_s, op.finish_s))
        for before, after in pairwise(sharing):
            if after.start_s < before.finish_s:
                raise PlanError(
                    f"ops {before.id!r} and {after.id!r} both use hardware thread {number} of core {core} "
                    f"at {after.start_s} s"
                )


def _hardware_threads(op: Placement) -> range:
    each = (op.threads + len(op.cores) - 1) // len(op.cores)
    return range(op.hardware_thread, op.hardware_thread + each)
