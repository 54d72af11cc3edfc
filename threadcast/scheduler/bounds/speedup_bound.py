"""What scheduling can gain at most, said before anything is planned.

All figures hold for schedules that put one op at a time on a core; hyper-threads add up to
`Interference.core_throughput`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.bounds.lower_bounds import Bounds, lower_bounds
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE, EngineCosts
from threadcast.scheduler.problem.levels import Floats, earliest_starts, levels, path_without
from threadcast.scheduler.problem.uniform_width import best_width

SCALES = 1.2
"""Speed-up from the fewest to the most threads that an op's curve offers, from which on it counts as scaling: below
it all further cores together add less than a fifth of the first one's work. Chosen, not tuned."""

WORTH = 1.05
"""Gain from which on scheduling is said to help: less drowns in the errors of forecasts. Chosen, not tuned."""

HOLDERS = 10
"""Ops listed that hold the makespan."""


class Limit(StrEnum):
    """Why a schedule cannot be shorter than it can."""

    CRITICAL_PATH = "critical path"
    """Ops wait for each other, whatever the cores."""
    UNSCALED = "ops do not scale"
    """The critical path too, and most of it is in ops to which threads do not help."""
    CORES = "cores"
    """There is more work than cores can do at once."""
    TOO_SMALL = "too small"
    """Ops are so short that handing them over takes back what a schedule gains."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far any schedule of one graph can reach, in seconds.

    `work_s`, `path_s`: the sum of all ops and the longest path, each op on the fewest threads it offers.
    `fastest_work_s`, `fastest_path_s`: with every op at its own fastest count; the sum is what one op after the
    other takes so. `uniform_s`: one op after the other at `uniform_width`, the best single count. `bound_s`: no
    schedule is shorter. `unscaled_share`: part of `fastest_work_s` in ops of a speed-up below `SCALES`.
    """

    ops: int
    work_s: float
    path_s: float
    fastest_work_s: float
    fastest_path_s: float
    uniform_width: int
    uniform_s: float
    bound_s: float
    unscaled_share: float

    @property
    def parallelism(self) -> float:
        """Work over critical path on the fewest threads: how many ops can run at once on average."""
        return _ratio(self.work_s, self.path_s)

    @property
    def fastest_parallelism(self) -> float:
        """Work over critical path at each op's fastest count."""
        return _ratio(self.fastest_work_s, self.fastest_path_s)

    @property
    def at_most(self) -> float:
        """The most that any schedule can gain over one op after the other at the best single thread count."""
        return _ratio(self.uniform_s, self.bound_s)

    @property
    def side_by_side_at_most(self) -> float:
        """The most that running ops side by side can gain over one after the other, each at its own best count."""
        return _ratio(self.fastest_work_s, self.bound_s)

    def to_json(self) -> dict[str, Any]:
        """All figures, the derived ones too."""
        return {
            **asdict(self), "parallelism": self.parallelism, "fastest_parallelism": self.fastest_parallelism,
            "at_most": self.at_most, "side_by_side_at_most": self.side_by_side_at_most,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Holder:
    """An op that holds the makespan: the bound falls by `falls_s` if it takes no time.

    The bound is the larger of critical path and area here, not the relaxation. `narrow_s`: its seconds on the fewest
    threads; `fastest_s`, `threads`: its fastest. `on_path`: whether it lies on a longest path.
    """

    id: str
    kind: str
    falls_s: float
    narrow_s: float
    fastest_s: float
    threads: int
    on_path: bool


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What scheduling can gain at most and why not more.

    `without_split`: the same for the backward pass as one op an operator; None where that is not known.
    `path_unscaled_share`: part of the critical path in ops that do not scale. `helps`: whether any schedule can gain
    `WORTH` over the best single thread count and more than handing ops over costs.
    """

    reach: Reach
    without_split: Reach | None
    path_unscaled_share: float
    holders: tuple[Holder, ...]
    limit: Limit
    helps: bool

    @property
    def side_by_side_helps(self) -> bool:
        """Whether running ops beside each other can, beyond giving each its own thread count."""
        return self.helps and self.reach.side_by_side_at_most >= WORTH

    def to_json(self) -> dict[str, Any]:
        """The whole report."""
        return {
            "helps": self.helps, "side_by_side_helps": self.side_by_side_helps, "limit": self.limit.value,
            "with_split": self.reach.to_json(),
            "without_split": None if self.without_split is None else self.without_split.to_json(),
            "path_unscaled_share": self.path_unscaled_share,
            "holders": [asdict(holder) for holder in self.holders],
        }  # fmt: skip


def ceiling(problem: Problem, *, unsplit: Problem | None = None, costs: EngineCosts = NATIVE_ENGINE) -> Ceiling:
    """Return what scheduling `problem` can gain at most.

    `unsplit` is the same step without the split backward pass (`unsplit.without_split`). `costs` are those of the
    engine that would run it. Takes about as long as two lower bounds.
    """
    bounds, scales = lower_bounds(problem), _scales(problem)
    reach = _reach(problem, bounds, scales)
    without = None if unsplit is None else _reach(unsplit, lower_bounds(unsplit), _scales(unsplit))
    fastest_s = problem.times.seconds.min(axis=1)
    on_path = _on_path(problem, fastest_s)
    path_share = _share(fastest_s[on_path], ~scales[on_path])
    timed = int(np.count_nonzero(fastest_s))
    eaten = reach.uniform_s - reach.bound_s <= timed * costs.op_s
    if eaten and reach.at_most >= WORTH:
        limit = Limit.TOO_SMALL
    elif bounds.area_s > bounds.critical_path_s:
        limit = Limit.CORES
    else:
        limit = Limit.UNSCALED if path_share > 0.5 else Limit.CRITICAL_PATH
    helps = reach.at_most >= WORTH and not eaten
    return Ceiling(reach, without, path_share, _holders(problem, bounds, on_path), limit, helps)


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
    """(n_ops,) whether the most threads that an op offers make it `SCALES` times as fast as the fewest."""
    times = problem.times
    return np.asarray(times.at(times.within(1)) >= SCALES * times.at(times.within(len(problem.machine))))


def _on_path(problem: Problem, seconds: Floats) -> NDArray[np.bool_]:
    """(n_ops,) whether an op of some time lies on a longest path."""
    level = levels(problem.graph, seconds)
    through_s = earliest_starts(problem.graph, seconds) + level
    return np.asarray((seconds > 0) & (through_s >= level.max() * (1 - 1e-9)))


def _holders(problem: Problem, bounds: Bounds, on_path: NDArray[np.bool_]) -> tuple[Holder, ...]:
    """By how much the bound falls, then by time on the critical path, then by core-seconds."""
    times, graph = problem.times, problem.graph
    counts = np.asarray(times.counts)
    fastest = times.fastest()
    fastest_s, narrow_s = times.at(fastest), times.at(times.within(1))
    area_s = (times.seconds * counts).min(axis=1) / len(problem.machine)
    left_s = np.maximum(path_without(graph, fastest_s), bounds.area_s - area_s)
    falls_s = np.maximum(max(bounds.critical_path_s, bounds.area_s) - left_s, 0.0)
    falls_s[falls_s < 1e-9 * bounds.best_s] = 0.0  # rounding
    order = np.lexsort((-area_s, -np.where(on_path, fastest_s, 0.0), -falls_s))[:HOLDERS]
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


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else 1.0
