"""Which thread counts of an op a best schedule can need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.problem.times import Floats


def useful_widths(seconds: Floats) -> NDArray[np.bool_]:
    """Return where an op is faster than with every smaller thread count; the other counts only waste cores.

    `seconds`: (n_ops, n_counts), at ascending thread counts, infinite where a count is not offered. Same shape, bool.
    """
    fastest_so_far = np.minimum.accumulate(seconds, axis=1)
    useful = np.isfinite(seconds)
    useful[:, 1:] &= seconds[:, 1:] < fastest_so_far[:, :-1]
    return useful
