"""A search for problems on which the planner looks worst beside a baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planner_instances import SHAPES, Pool, problem, random_graph

from threadcast.core import Edge, OpGraph
from threadcast.scheduler.planner import SEARCH, plan
from threadcast.scheduler.policies import create
from threadcast.scheduler.simulation.simulator import makespan_s

STARTS, STEPS = 3, 25
BUDGET_S = 0.3
"""The planner's, so that many problems can be tried; with its own it would do no worse."""


def worst_ratio(pool: Pool, policy: str, *, seed: int) -> tuple[float, float]:
    """The worst ratio of the planner's makespan to the baseline's at the start, and after the search."""
    random = np.random.default_rng(seed)
    first = worst = 0.0
    for i in range(STARTS):
        cores = int(random.choice([4, 16, 48]))
        graph = random_graph(SHAPES[i % len(SHAPES)], int(random.integers(10, 31)), pool, random)
        now = _ratio(graph, cores, policy)
        first = max(first, now)
        for _ in range(STEPS):
            changed = _changed(graph, pool, random)
            found = _ratio(changed, cores, policy)
            if found >= now:
                graph, now = changed, found
        worst = max(worst, now)
    return first, worst


def _ratio(graph: OpGraph, cores: int, policy: str) -> float:
    given = problem(graph, cores)
    ours_s = plan(given, policy=SEARCH, budget_s=BUDGET_S).makespan_s
    return ours_s / makespan_s(create(policy, given))


def _changed(graph: OpGraph, pool: Pool, random: np.random.Generator) -> OpGraph:
    """The graph with another curve for one op, an op's times scaled, an edge more or an edge less."""
    op = graph.ids[int(random.integers(len(graph)))]
    kind = int(random.integers(4))
    if kind == 0:
        curve = pool.draw(random, float(np.clip(random.lognormal(np.log(3e-3), 1.2), 1e-4, 0.1)))
        return replace(graph, curves={**graph.curves, op: curve})
    if kind == 1:
        factor = float(random.uniform(0.3, 3.0))
        return replace(graph, curves={**graph.curves, op: {n: s * factor for n, s in graph.curves[op].items()}})
    if kind == 2 and graph.edges:
        drop = int(random.integers(len(graph.edges)))
        return replace(graph, edges=tuple(edge for i, edge in enumerate(graph.edges) if i != drop))
    order = graph.topological_order
    source, target = sorted(random.choice(len(order), size=2, replace=False))
    edge = Edge(order[int(source)], order[int(target)])
    return graph if edge in graph.edges else replace(graph, edges=(*graph.edges, edge))
