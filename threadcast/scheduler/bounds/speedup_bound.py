"""Computes how much scheduling can gain at most, before anything is planned.

All figures hold for schedules with one op at a time on a core; hyper-threads can gain a factor of up to
`Interference.core_throughput` more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.bounds.ceiling import HELPFUL_GAIN, SCALES, Ceiling, Holder, Limit, Reach
from threadcast.scheduler.bounds.lower_bounds import Bounds, lower_bounds
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE, EngineCosts
from threadcast.scheduler.problem.levels import Floats, earliest_starts, levels, path_without
from threadcast.scheduler.problem.uniform_width import best_width

LISTED = 10
"""Most ops in `Ceiling.holders`."""


def ceiling(problem: Problem, *, costs: EngineCosts = NATIVE_ENGINE) -> Ceiling:
    """Return the report of how much scheduling `problem` can gain at most.

    `costs` are those of the engine that would run the step. Takes about as long as `lower_bounds`.
    """
    bounds, scales = lower_bounds(problem), _scales(problem)
    reach = _reach(problem, bounds, scales)
    fastest_s = problem.times.seconds.min(axis=1)
    on_path = _on_path(problem, fastest_s)
    path_share = _share(fastest_s[on_path], ~scales[on_path])
    timed = int(np.count_nonzero(fastest_s))
    too_short = reach.uniform_s - reach.bound_s <= timed * costs.op_s
    if too_short and reach.at_most >= HELPFUL_GAIN:
        limit = Limit.TOO_SMALL
    elif bounds.area_s > bounds.critical_path_s:
        limit = Limit.CORES
    else:
        limit = Limit.UNSCALED if path_share > 0.5 else Limit.CRITICAL_PATH
    helps = reach.at_most >= HELPFUL_GAIN and not too_short
    return Ceiling(reach, path_share, _holders(problem, bounds, on_path), limit, helps)


def _reach(problem: Problem, bounds: Bounds, scales: NDArray[np.bool_]) -> Reach:
    times = problem.times
    narrow_s, fastest_s = times.at(times.within(1)), times.seconds.min(axis=1)
    width, _, uniform_s = best_width(problem)
    return Reach(
        ops=len(problem.graph),
        work_s=float(narrow_s.sum()),
        path_s=float(levels(problem.graph, narrow_s).max()),
        fastest_work_s=float(fastest_s.sum()),
        fastest_path_s=bounds.critical_path_s,
        uniform_width=width,
        uniform_s=float(uniform_s.sum()),
        bound_s=bounds.best_s,
        unscaled_share=_share(fastest_s, ~scales),
    )


def _scales(problem: Problem) -> NDArray[np.bool_]:
    """(n_ops,) whether an op is at least `SCALES` times as fast at the most threads that it offers as at the fewest."""
    times = problem.times
    return np.asarray(times.at(times.within(1)) >= SCALES * times.at(times.within(len(problem.machine))))


def _on_path(problem: Problem, seconds: Floats) -> NDArray[np.bool_]:
    """(n_ops,) whether an op of some time lies on a longest path."""
    level = levels(problem.graph, seconds)
    through_s = earliest_starts(problem.graph, seconds) + level
    return np.asarray((seconds > 0) & (through_s >= level.max() * (1 - 1e-9)))


def _holders(problem: Problem, bounds: Bounds, on_path: NDArray[np.bool_]) -> tuple[Holder, ...]:
    """Ops by how much the bound falls without their time, then by time on the critical path, then by core-seconds."""
    times, graph = problem.times, problem.graph
    counts = np.asarray(times.counts)
    fastest = times.fastest()
    fastest_s, narrow_s = times.at(fastest), times.at(times.within(1))
    area_s = (times.seconds * counts).min(axis=1) / len(problem.machine)
    left_s = np.maximum(path_without(graph, fastest_s), bounds.area_s - area_s)
    falls_s = np.maximum(max(bounds.critical_path_s, bounds.area_s) - left_s, 0.0)
    falls_s[falls_s < 1e-9 * bounds.best_s] = 0.0  # rounding
    order = np.lexsort((-area_s, -np.where(on_path, fastest_s, 0.0), -falls_s))[:LISTED]
    return tuple(
        Holder(
            graph.ids[op], graph.ops[op].kind, float(falls_s[op]), float(narrow_s[op]), float(fastest_s[op]),
            int(counts[fastest[op]]), bool(on_path[op]),
        )
        for op in order.tolist()
        if fastest_s[op] > 0
    )  # fmt: skip


def _share(seconds: Floats, chosen: NDArray[np.bool_]) -> float:
    total_s = float(seconds.sum())
    return float(seconds[chosen].sum()) / total_s if total_s else 0.0
