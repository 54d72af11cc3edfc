"""A plan that needs no planner: one op after the other."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import Case, Machine, OpGraph, Placement, Plan


def sequential(
    graph: OpGraph, machine: Machine, cases: Case | Sequence[Case], *, seconds: Sequence[float] | None = None
) -> Plan:
    """Return the plan that runs op after op, all at the same case or each at its own of `cases`, in the graph's order.

    `seconds` are the ops' predicted times; without them the plan's times only give the order.
    """
    each = [cases] * len(graph) if isinstance(cases, Case) else cases
    cores = {case: machine.place(case) for case in set(each)}
    ops, now_s = [], 0.0
    for op in graph.topological_order:
        finish_s = now_s + (1.0 if seconds is None else seconds[op])
        ops.append(Placement(graph.ids[op], cores[each[op]], each[op].threads, now_s, finish_s))
        now_s = finish_s
    return Plan(len(machine), "sequential", tuple(ops), lower_bound_s=0.0 if seconds is None else now_s)
