"""What the search compares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.scheduler.kernels.instance import Floats, Instance, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Thread counts (`choice`, positions among the instance's useful ones) and start times, on equal cores."""

    choice: Ints
    start: Floats
    makespan_s: float

    def order(self, instance: Instance) -> Ints:
        """(n_ops,) ops by start; those of no time before others that start then, in the graph's order."""
        place = np.empty(len(instance), dtype=np.int32)
        place[instance.order] = np.arange(len(instance), dtype=np.int32)
        timed = self.start + instance.times(self.choice) > self.start
        return np.lexsort((place, timed, self.start)).astype(np.int32)
