"""Longest paths through a graph: up to each op, and from each op to the end."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from threadcast.core import OpGraph

Floats = NDArray[np.float64]


def levels(graph: OpGraph, seconds: Floats) -> Floats:
    """Return each op's level: the seconds of the longest path from its start to the end of the graph.

    `seconds`: (n_ops,), or (n_ops, n_settings) for several settings at once; the result has the same shape. The largest
    level is the length of the critical path. Source: Tang et al. 2018, 4.3.
    """
    if seconds.ndim == 1:
        level = seconds.tolist()
        for op in reversed(graph.topological_order):
            after = graph.successors[op]
            if after:
                level[op] += max([level[successor] for successor in after])
        return np.array(level, dtype=np.float64)
    result = seconds.copy()
    for op in reversed(graph.topological_order):
        after = graph.successors[op]
        if len(after) == 1:
            result[op] += result[after[0]]
        elif after:
            result[op] += result[list(after)].max(axis=0)
    return result


def earliest_starts(graph: OpGraph, seconds: Floats) -> Floats:
    """Return (n_ops,) earliest starts: the seconds of the longest path that ends where the op starts."""
    end: list[float] = seconds.tolist()
    for op in graph.topological_order:
        if graph.predecessors[op]:
            end[op] += max([end[before] for before in graph.predecessors[op]])
    return np.array(end) - seconds


def path_without(graph: OpGraph, seconds: Floats) -> Floats:
    """Return (n_ops,) for each op the seconds of the graph's longest path if this op alone took no time.

    In a topological order, a path that avoids an op either has an edge that crosses the op's place, or begins after or
    ends before that place. One sweep over the order, with the crossing edges in a heap, finds the longest such path.
    """
    order = graph.topological_order
    place = np.argsort(np.array(order)).tolist()
    start, level = earliest_starts(graph, seconds), levels(graph, seconds)
    end = start + seconds
    across = [(-level[op], place[op]) for op in order if not graph.predecessors[op]]
    heapq.heapify(across)
    result = start + level - seconds
    for at, op in enumerate(order):
        while across and across[0][1] <= at:
            heapq.heappop(across)
        if across:
            result[op] = max(result[op], -across[0][0])
        for after in graph.successors[op]:
            heapq.heappush(across, (-(end[op] + level[after]), place[after]))
        if not graph.successors[op]:
            heapq.heappush(across, (-end[op], len(order)))
    return result


def rank_by_level(level: Floats) -> list[int]:
    """Return one rank for each op, 0 for the highest level; of equal levels, the op of lower position comes first."""
    rank = np.empty(len(level), dtype=np.int64)
    rank[np.argsort(-level, kind="stable")] = np.arange(len(level))
    return [int(r) for r in rank]


def precedence_levels(graph: OpGraph) -> NDArray[np.int64]:
    """Return (n_ops,) precedence levels: the largest number of edges on a path from the graph's start to the op."""
    depth = [0] * len(graph)
    for op in graph.topological_order:
        for after in graph.successors[op]:
            depth[after] = max(depth[after], depth[op] + 1)
    return np.array(depth, dtype=np.int64)
