"""A plan that needs no planner: one op after the other."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import Case, Machine, OpGraph, Placement, Plan


def sequential(graph: OpGraph, machine: Machine, case: Case, *, seconds: Sequence[float] | None = None) -> Plan:
    """Return the plan that runs op after op, all at `case` and on the same cores.

    `seconds` are the ops' predicted times; without them the plan's times only give the order.
    """
    cores, ops, now_s = machine.place(case), [], 0.0
    for op in graph.topological_order:
        finish_s = now_s + (1.0 if seconds is None else seconds[op])
        ops.append(Placement(graph.ids[op], cores, case.threads, now_s, finish_s))
        now_s = finish_s
    return Plan(len(machine), "sequential", tuple(ops), lower_bound_s=0.0 if seconds is None else now_s)
