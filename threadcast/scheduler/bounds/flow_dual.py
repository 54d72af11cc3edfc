"""Bounds from the dual of the allotment LP: flows through the graph, with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threadcast.core import OpGraph
from threadcast.scheduler.bounds.envelopes import Envelopes
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.problem.times import Floats

PASSES_TIMES_OPS = 640_000
"""Number of passes over the graph, times its ops: takes 0.6 to 0.9 s of one core. On networks of 1,000 to 14,000 ops
and on layered graphs of 2,000 to 16,000 ops the bound was then within 0.2 % of the LP's optimum, on one network (14,000
ops, 68 cores) within 0.8 %; five times as many passes gained 0.1 %."""

PASSES = (20, 300)
"""Fewest and most passes: 20 take 2 s for 100,000 ops; on small graphs the bound does not rise after 300."""

TRIED = (0.7, 1.4)
"""Weights to try for a new path, relative to an average path of the flow. Six were hardly better, one was worse."""

SCALED = (0.5, 0.85, 1.2, 2.0)
"""Factors on the whole flow that are tried at every `SCALE_EVERY`th pass."""

SCALE_EVERY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A sum of paths through the graph, each with a weight in cores.

    `through`: (n_ops,) float64, weight of the paths through each op; `value`: that of all paths.
    """

    through: Floats
    value: float

    def bound_s(self, envelopes: Envelopes, cores: int) -> float:
        """Return a lower bound in seconds on the LP, and so on any schedule. It holds for every flow.

        In a schedule of makespan C, every path takes at most C, and all work is at most cores x C. The weighted sum of
        paths and work is therefore at most (cores + value) x C. It is at least the sum of the ops' least costs, if a
        second costs `through` and a core-second 1.
        """
        return float(envelopes.least_cost(self.through).sum()) / (cores + self.value)

    def scaled(self, factor: float) -> Flow:
        """Return the same paths with their weights multiplied by `factor`."""
        return Flow(self.through * factor, self.value * factor)

    def with_path(self, path: Sequence[int], weight: float, *, keep: float) -> Flow:
        """Return this flow multiplied by `keep`, with `weight` added on `path`."""
        through = self.through * keep
        through[path] += weight
        return Flow(through, self.value * keep + weight)


def best_flow(problem: Problem, envelopes: Envelopes) -> tuple[float, Flow]:
    """Return a bound in seconds and its flow, by conditional-gradient ascent; always the same for a problem.

    Each pass computes the ops' cheapest seconds for the flow (`answer_s`), and adds the longest path in these to the
    flow. The bound is concave in the flow, and valid after every pass. Source of the method: Frank and Wolfe 1956, here
    applied to the dual of the LP of `allotment_lp`.
    """
    cores = len(problem.machine)
    flow = Flow(np.zeros(len(envelopes)), 0.0)
    best_s, best = flow.bound_s(envelopes, cores), flow
    passes = min(max(PASSES_TIMES_OPS // len(envelopes), PASSES[0]), PASSES[1])
    for i in range(passes):
        path = _longest_path(problem.graph, answer_s(envelopes, flow.through))
        step = 1 / (i + 3)  # 2 / (i + 2) is for smooth functions; half of it went further here
        usual = (flow.value or cores / 2) * step
        tried = [flow.with_path(path, usual * more, keep=1 - step) for more in TRIED]
        bounds = [each.bound_s(envelopes, cores) for each in tried]
        if i % SCALE_EVERY == SCALE_EVERY - 1:
            tried += [tried[int(np.argmax(bounds))].scaled(factor) for factor in SCALED]
            bounds += [each.bound_s(envelopes, cores) for each in tried[len(bounds) :]]
        flow = tried[int(np.argmax(bounds))]
        if max(bounds) > best_s:
            best_s, best = max(bounds), flow
    return best_s, best


def answer_s(envelopes: Envelopes, second_price: Floats) -> Floats:
    """Return (n_ops,) seconds that are about the cheapest if a second costs `second_price` and a core-second 1.

    The exactly cheapest seconds jump from corner to corner of the envelope as the price rises. These move in straight
    lines through the middle of each jump instead, so that the ascent converges.
    """
    row, last = np.arange(len(envelopes)), envelopes.last
    nothing = np.zeros((len(row), 1))
    knot_price = np.concatenate([nothing, envelopes.prices], axis=1)
    middle_s = (envelopes.seconds[:, :-1] + envelopes.seconds[:, 1:]) / 2
    knot_s = np.concatenate([envelopes.seconds[:, :1], middle_s], axis=1)
    here = (envelopes.prices < second_price[:, None]).sum(axis=1)
    there = np.minimum(here + 1, last)
    here_price, here_s = knot_price[row, here], knot_s[row, here]
    rise, fall = knot_price[row, there] - here_price, here_s - knot_s[row, there]
    between = (here < last) & (rise > 0)
    share = np.divide(second_price - here_price, rise, out=np.zeros(len(row)), where=between)
    beyond = np.divide(here_price, second_price, out=np.ones(len(row)), where=second_price > 0)
    fastest_s = envelopes.seconds[row, last]
    past_s = fastest_s + beyond * (here_s - fastest_s)
    return np.asarray(np.where(here < last, here_s - share * fall, past_s))


def _longest_path(graph: OpGraph, seconds: Floats) -> list[int]:
    """The longest path's ops in order; among equals the first op is of the lowest position, as are those after it."""
    level: list[float] = levels(graph, seconds).tolist()
    path = [level.index(max(level))]
    while after := graph.successors[path[-1]]:
        path.append(max(after, key=level.__getitem__))
    return path
