"""Copies and order statistics of arrays, for compiled loops.

NumPy's own functions would be compiled from longer code than these need.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.kernels.compiled import helper, inlined
from threadcast.scheduler.kernels.instance import Floats

T = TypeVar("T", np.float64, np.int64)


@inlined
def copy_to(target: NDArray[T], source: NDArray[T]) -> None:
    """Copy `source` to `target`, which is as long.

    `target[:] = source` makes numba compile the text of its error message too: strings take 2 s wherever it stands.
    """
    for i in range(len(source)):
        target[i] = source[i]


@helper
def smallest(values: Floats, k: int) -> float:
    """Return the element that would be at position `k` if `values` were sorted; reorders `values`.

    Source: Hoare 1961, "Algorithm 65: find".
    """
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[k]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if j < k:
            low = i
        if k < i:
            high = j
    return float(values[k])
