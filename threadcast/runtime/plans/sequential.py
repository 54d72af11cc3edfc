"""A plan that needs no planner: one op after the other."""

from __future__ import annotations

from threadcast.core import Case, Machine, OpGraph, Placement, Plan


def sequential(graph: OpGraph, machine: Machine, case: Case) -> Plan:
    """Return the plan that runs op after op, all at `case` and on the same cores. Its times only give the order."""
    cores = machine.place(case)
    order = enumerate(graph.topological_order)
    ops = (Placement(graph.ids[op], cores, case.threads, float(i), i + 1.0) for i, op in order)
    return Plan(len(machine), "sequential", tuple(ops))
