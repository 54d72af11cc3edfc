"""Thread counts from which the search starts; they balance the critical path against the work."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.allotment_loops import use_slack
from threadcast.scheduler.kernels.insertion import fill_levels
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints


def balanced(instance: Instance, limit_s: float, widest: Ints) -> Ints:
    """Return frugal choices of thread counts, (n_ops,), with which no path takes longer than `limit_s`.

    `widest`: (n_ops,) most cores of each op. See `allotment_loops.use_slack`.
    """
    choice = np.empty(instance.n_ops, dtype=np.int64)
    use_slack(instance, widest, limit_s, choice)
    return choice


def level_shares(instance: Instance, *, late: bool) -> Floats:
    """Return (n_ops,) cores of each op, at least 1, if the ops of a precedence level share the cores by their work.

    An op's precedence level is the largest number of edges on a path to it from the start of the graph, or, with
    `late`, from it to the end. MCPA (`policies.cpa`) has the rule that a level gets no more cores than there are.
    """
    instance = instance if late else instance.reversed()
    level = np.empty(instance.n_ops)
    fill_levels(instance.order, instance.successors, np.ones(instance.n_ops), level)
    depth = level.astype(np.int64) - 1
    work = instance.width[:, 0] * instance.seconds[:, 0]
    of_level = np.bincount(depth, work)[depth]
    even = 1 / np.bincount(depth)[depth]
    share = np.divide(work, of_level, out=even, where=of_level > 0)
    return np.asarray(np.maximum(share * instance.cores, 1.0))


def widest_within(instance: Instance, widest: Ints) -> Ints:
    """Return each op's widest useful choice of at most `widest` (n_ops,) cores; its narrowest where there is none."""
    fits = (instance.width <= widest[:, None]).sum(axis=1)
    return np.asarray(np.clip(np.minimum(fits, instance.choices) - 1, 0, None), dtype=np.int64)
