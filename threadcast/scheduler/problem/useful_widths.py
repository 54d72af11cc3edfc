"""Finds the thread counts of an op that an optimal schedule can need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.problem.times import Floats


def useful_widths(seconds: Floats) -> NDArray[np.bool_]:
    """Return (n_ops, n_counts) bool: whether an op is faster than with every smaller count. Others waste cores.

    `seconds`: (n_ops, n_counts) at ascending thread counts, infinite where a count is not offered.
    """
    fastest_so_far = np.minimum.accumulate(seconds, axis=1)
    useful = np.isfinite(seconds)
    useful[:, 1:] &= seconds[:, 1:] < fastest_so_far[:, :-1]
    return useful
