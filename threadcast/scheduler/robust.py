"""Plans for curves that are not known exactly: what a plan takes in most of the worlds that the forecasts allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import CurveTable, Placement
from threadcast.scheduler.policies.base import Problem
from threadcast.scheduler.times import Floats

SAMPLES = 64
"""Resampled curves: the 90th percentile of 64 lies between the sixth and the seventh largest."""
PERCENTILE = 90.0

_Z = 1.6449
"""Standard normal quantile of 95 %: `low` and `high` of a curve bound 90 %."""


def spread_of(curves: CurveTable) -> Floats:
    """(n_ops, n_cases) standard deviation of the logarithm of each point, from its 90 % interval."""
    sound = np.isfinite(curves.seconds) & (curves.low > 0) & (curves.seconds > 0)
    ratio = np.divide(curves.high, curves.low, out=np.ones_like(curves.seconds), where=sound)
    return np.asarray(np.log(ratio) / (2 * _Z))


def resampled(problem: Problem, *, seed: int = 0, samples: int = SAMPLES) -> list[Problem]:
    """Return the problem with `samples` other curves, drawn from its own by their intervals.

    Errors are lognormal. Half the variance of a point is its whole curve's, half its own; ops of one key err alike,
    as they are forecast alike.
    """
    random = np.random.default_rng(seed)
    deviation = spread_of(problem.curves)
    keys = [op.key for op in problem.graph.ops]
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    row = np.array([numbers[key] for key in keys])
    shape = (len(numbers), deviation.shape[1])
    found = []
    for _ in range(samples):
        whole, own = random.standard_normal((shape[0], 1)), random.standard_normal(shape)
        error = ((whole + own) / 2**0.5)[row]
        seconds = problem.curves.seconds * np.exp(deviation * error)
        found.append(Problem(problem.graph, replace(problem.curves, seconds=seconds), problem.machine))
    return found


def pessimistic(problem: Problem) -> Problem:
    """The problem with every point at the upper end of its interval: uncertain counts look as bad as they may be."""
    return Problem(problem.graph, replace(problem.curves, seconds=problem.curves.high), problem.machine)


def percentile_s(
    placements: Sequence[Placement], worlds: Sequence[Problem], *, percentile: float = PERCENTILE
) -> float:
    """Return the percentile, over the problems `worlds`, of the makespan that these placements have when replayed."""
    if not worlds:
        raise ValueError("a percentile needs at least one world")
    from threadcast.scheduler.search.replay import Replay  # brings numba along, which most users of plans do not need

    graph = worlds[0].graph
    replay = Replay(graph, placements)
    by_id = {at.id: at for at in placements}
    placed = [by_id[op_id] for op_id in graph.ids]
    makespans = [
        replay.makespan_s(np.array([world.times.on(op, at.cores, at.threads) for op, at in enumerate(placed)]))
        for world in worlds
    ]
    return float(np.percentile(makespans, percentile))
