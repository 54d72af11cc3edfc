"""Annealing goes on from better schedules, and from longer ones as far as its temperature allows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.scheduler.kernels.annealing_loop import CoreChoices, anneal
from threadcast.scheduler.kernels.core_assignment import CoreGraph
from threadcast.scheduler.kernels.instance import Instance
from threadcast.scheduler.kernels.random_moves import Cooling

OPS, CORES = 30, 8
BEST_S = OPS / CORES
"""One thread an op: more of them take more core-seconds."""


def annealed_s(temperature_s: float, *, real: bool) -> float:
    """The makespan of `OPS` ops that had four threads each at first, on `CORES` cores."""
    instance = Instance.of(problem_of([{n: n**-0.2 for n in range(1, CORES + 1)}] * OPS, cores=CORES))
    alike = np.zeros(instance.width.shape, dtype=np.bool_)
    options = CoreChoices(instance.width, instance.seconds, instance.seconds, alike, instance.choices)
    graph = CoreGraph(instance.predecessors, instance.successors, np.zeros(CORES, dtype=np.int64))
    order, choice = instance.order.copy(), np.full(OPS, 3, dtype=np.int64)
    cooling = Cooling(3_000, temperature_s, temperature_s, 0.0)
    with np.errstate(over="ignore"):
        return float(anneal(graph, options, real, order, choice, np.array([1], dtype=np.uint64), cooling))


@pytest.mark.parametrize("real", [False, True], ids=["equal", "real"])
def test_longer_schedules_are_accepted_as_far_as_the_temperature_allows(real: bool) -> None:
    """Four threads an op are a plateau: what only goes down stays there, what goes everywhere finds nothing."""
    cold, right, hot = (annealed_s(temperature_s, real=real) / BEST_S for temperature_s in (1e-3, 0.01, 1e3))
    assert right < 1.5
    assert cold > 2
    assert hot > 2
