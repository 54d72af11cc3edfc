"""Replays a plan: every op on its cores, in a fixed order."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows


@compiled
def replay(
    order: Ints, predecessors: CompressedRows, cores_of: CompressedRows, n_cores: int, seconds: Floats, start: Floats
) -> float:
    """Start each op, in `order`, when its predecessors and the ops before it on its cores have finished.

    `seconds`: (n_ops,); `cores_of`: the cores of each op, numbered from 0. Fills `start` and returns the makespan.
    """
    indptr, indices = predecessors
    core_at, cores = cores_of
    free = np.zeros(n_cores)
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        begin = 0.0
        for e in range(core_at[op], core_at[op + 1]):
            begin = max(begin, free[cores[e]])
        for e in range(indptr[op], indptr[op + 1]):
            begin = max(begin, start[indices[e]] + seconds[indices[e]])
        start[op] = begin
        finish = begin + seconds[op]
        for e in range(core_at[op], core_at[op + 1]):
            free[cores[e]] = finish
        makespan = max(makespan, finish)
    return makespan
