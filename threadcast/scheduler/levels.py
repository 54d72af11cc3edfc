"""How much of a graph lies behind each op."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from threadcast.core import OpGraph

Floats = NDArray[np.float64]


def levels(graph: OpGraph, seconds: Floats) -> Floats:
    """Return each op's level: the longest path of `seconds` from its start to the end of the graph.

    `seconds`: (n_ops,) or, for several settings at once, (n_ops, n_settings); the answer has the same shape. The
    largest level is the critical path. Source: Tang et al. 2018, 4.3.
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


def rank_by_level(level: Floats) -> list[int]:
    """Return one rank an op, the highest level first, among equals the lower position."""
    rank = np.empty(len(level), dtype=np.int64)
    rank[np.argsort(-level, kind="stable")] = np.arange(len(level))
    return [int(r) for r in rank]
