"""Thread counts from which the search starts; they balance the critical path against the work."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.allotment_loops import use_slack
from threadcast.scheduler.kernels.instance import Instance, Ints


def balanced(instance: Instance, limit_s: float, widest: Ints) -> Ints:
    """Return frugal choices of thread counts, (n_ops,), with which no path takes longer than `limit_s`.

    `widest`: (n_ops,) most cores of each op. See `allotment_loops.use_slack`.
    """
    choice = np.empty(instance.n_ops, dtype=np.int64)
    use_slack(instance, widest, limit_s, choice)
    return choice


def widest_within(instance: Instance, widest: Ints) -> Ints:
    """Return each op's widest useful choice of at most `widest` (n_ops,) cores; its narrowest where there is none."""
    fits = (instance.width <= widest[:, None]).sum(axis=1)
    return np.asarray(np.clip(np.minimum(fits, instance.choices) - 1, 0, None), dtype=np.int64)
