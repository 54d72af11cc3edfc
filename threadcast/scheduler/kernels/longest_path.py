"""The longest path through a graph."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled, helper
from threadcast.scheduler.kernels.insertion import fill_levels
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows


@compiled
def fill_longest_path(order: Ints, successors: CompressedRows, seconds: Floats, path: Ints) -> int:
    """Fill `path` with the ops of the longest path in order and return their number.

    Among equal paths it is the one whose ops come first: the first op by position, the others as `successors` has them.
    """
    level = np.empty(len(order))
    fill_levels(order, successors, seconds, level)
    first = 0
    for other in range(len(order)):
        if level[other] > level[first]:
            first = other
    return follow(successors, level, first, path)


@helper
def follow(successors: CompressedRows, level: Floats, first: int, path: Ints) -> int:
    """Fill `path` with the ops of the longest path from `first` on, whose `level` (n_ops,) is known; return their
    number."""
    indptr, indices = successors
    count, op = 0, first
    while op >= 0:
        path[count] = op
        count += 1
        after = -1
        for e in range(indptr[op], indptr[op + 1]):
            if after < 0 or level[indices[e]] > level[after]:
                after = int(indices[e])
        op = after
    return count
