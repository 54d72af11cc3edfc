"""A schedule on equal cores, as the search compares them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.scheduler.kernels.instance import Floats, Instance, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The choice of each op among its useful thread counts, its start in seconds, (n_ops,) each, and the makespan."""

    choice: Ints
    start: Floats
    makespan_s: float

    def order(self, instance: Instance) -> Ints:
        """Return (n_ops,) ops by start; of those with the same start, ops that take no time come first."""
        place = np.empty(instance.n_ops, dtype=np.int64)
        place[instance.order] = np.arange(instance.n_ops, dtype=np.int64)
        takes_time = self.start + instance.times(self.choice) > self.start
        return np.lexsort((place, takes_time, self.start)).astype(np.int64)
