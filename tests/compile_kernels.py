"""Compile the planner's kernels once, before tests with time limits run side by side; the code is kept on disk."""

from __future__ import annotations

from threadcast.core import Machine, OpGraph
from threadcast.scheduler import Problem, curves_of, plan


def main() -> None:
    """Plan a small graph as the service does."""
    mm = {"kind": "mm", "inputs": [[[64, 64]], [[64, 64]]], "curve": {"1": 4e-3, "2": 2.3e-3, "4": 1.6e-3}}
    graph = OpGraph.from_json(
        {"schema": "threadcast.graph/1", "ops": [{"id": name, **mm} for name in "abcdef"],
         "edges": [["a", "c"], ["b", "c"], ["c", "d"]]}
    )  # fmt: skip
    machine = Machine.uniform("four cores", 4)
    plan(Problem(graph, curves_of(graph, machine), machine), budget_s=60)


if __name__ == "__main__":
    main()
