"""Lists of numbers, one list for each op, as two arrays for compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class CompressedRows(NamedTuple):
    """The list of op i is `indices[indptr[i]:indptr[i + 1]]`, as in SciPy's compressed sparse rows.

    `indptr`: (n_ops + 1,) int64; `indices`: int64.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> CompressedRows:
        """Return `lists`, such as `graph.predecessors` or `graph.successors`, in compressed form."""
        indptr = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in lists], out=indptr[1:])
        return cls(indptr, np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(indptr[-1])))
