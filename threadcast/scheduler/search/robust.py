"""Evaluates plans for uncertain curves: how long a plan takes if the true curves differ from the predicted ones.

A *world* is a problem with curves drawn from the forecasts' intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import CurveTable, Placement
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.times import Floats
from threadcast.scheduler.search.replay import replayed

SAMPLES = 64
"""Number of worlds; the 90th percentile of 64 makespans lies near the sixth and seventh largest."""
PERCENTILE = 90.0

_Z = 1.6449
"""Standard normal quantile of 95 %: `low` and `high` of a curve bound 90 %."""


def log_deviation(curves: CurveTable) -> Floats:
    """Return (n_ops, n_cases) standard deviations of the logarithm of each point, from its 90 % interval."""
    sound = np.isfinite(curves.seconds) & (curves.low > 0) & (curves.seconds > 0)
    ratio = np.divide(curves.high, curves.low, out=np.ones_like(curves.seconds), where=sound)
    return np.asarray(np.log(ratio) / (2 * _Z))


def resampled(problem: Problem, *, seed: int = 0, samples: int = SAMPLES) -> Iterator[Problem]:
    """Yield `samples` worlds: the problem with curves drawn from the intervals of its own.

    Errors are lognormal. Half of a point's variance is common to its whole curve, half is its own. Ops with the same
    forecast have the same errors (`Op.forecast_key`).
    """
    random = np.random.default_rng(seed)
    deviation = log_deviation(problem.curves)
    keys = [op.forecast_key for op in problem.graph.ops]
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    row = np.array([numbers[key] for key in keys])
    shape = (len(numbers), deviation.shape[1])
    for _ in range(samples):
        whole, own = random.standard_normal((shape[0], 1)), random.standard_normal(shape)
        error = ((whole + own) / 2**0.5)[row]
        seconds = problem.curves.seconds * np.exp(deviation * error)
        yield Problem(problem.graph, replace(problem.curves, seconds=seconds), problem.machine)


def percentiles_s(plans: Sequence[Sequence[Placement]], worlds: Iterable[Problem]) -> list[float]:
    """Return, for each of `plans` of one graph, the `PERCENTILE` over `worlds` of the makespan when replayed there.

    Worlds are taken one after the other, so that not all need to be in memory. ValueError where there is none.
    """
    makespans = [[max(at.finish_s for at in replayed(world, placements)) for placements in plans] for world in worlds]
    if not makespans:
        raise ValueError("a percentile needs at least one world")
    return [float(of_plan) for of_plan in np.percentile(makespans, PERCENTILE, axis=0)]
