"""The allotment LP: a lower bound on the makespan from paths and total work, where widths may be mixtures of widths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import numpy as np

from threadcast.core import OpGraph
from threadcast.scheduler.bounds.envelopes import Envelopes
from threadcast.scheduler.bounds.flow_dual import Flow, answer_s, best_flow
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.compressed_rows import CompressedRows
from threadcast.scheduler.problem.levels import earliest_starts, levels
from threadcast.scheduler.problem.times import Floats

EXACT_OPS = 2_000
"""Most ops for which the LP itself is solved. HiGHS took 0.02 s for 218 ops, 0.6 s for 4,000 and 5,400, 2 s for 14,000
and 11 s for 16,000 of a layered graph; flows (`flow_dual`) need about 0.7 s for any of the large graphs."""

MOST_CORNERS = 128
"""Most corners of an op with which the LP is solved; bounds are computed with all of them. Smooth curves of machines
with hundreds of cores have one at every count: for 100 ops on 1,024 cores HiGHS took 4 s with all, 0.1 s with these,
and the bound was 1e-6 lower."""

SHAVED = 1e-9
"""Share by which a bound is lowered, so that sums in another order (1e-16 a term) never put it above a schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A lower bound from the LP in seconds, and (n_ops,) seconds of the ops that belong to it.

    `exact`: whether the bound is the LP's optimum and `seconds` its solution. If not, the bound is below the optimum,
    and with these `seconds` a path or the work per core may exceed it.
    """

    bound_s: float
    seconds: Floats
    exact: bool


@lru_cache(maxsize=1)  # a plan's bound and the searches that start from its widths ask for the same
def relax(problem: Problem, *, exact_ops: int = EXACT_OPS) -> Relaxed:
    """Return the bound of the allotment LP on the makespan of `problem`.

    The LP minimises C such that every path takes at most C, and all core-seconds over the number of cores are at most
    C; each op is at a point of its `Envelopes`. Where SciPy is installed, the LP is solved for up to `exact_ops` ops;
    otherwise its optimum is bounded from below by flows. The bound is always computed from a flow, so that it holds
    whatever a solver's tolerances are, and for all corners where it was solved with `MOST_CORNERS` of them. Source:
    Lepere, Trystram and Woeginger 2002; Jansen and Zhang 2006, section 3. They assume monotonous work; here curves are
    jagged, so convex envelopes are used instead.
    """
    envelopes = Envelopes.of(problem.times)
    at_once = _without_conflict(problem, envelopes)
    if at_once is not None:
        return at_once
    thin = envelopes.thinned(MOST_CORNERS)
    if len(envelopes) <= exact_ops and find_spec("scipy"):
        solved = _solved(problem, thin)
        if solved is not None:
            flow, seconds = solved
            bound_s = flow.bound_s(envelopes, len(problem.machine))
            return Relaxed(bound_s * (1 - SHAVED), seconds, thin is envelopes)
    bound_s, flow = best_flow(problem, thin)
    if thin is not envelopes:
        bound_s = flow.bound_s(envelopes, len(problem.machine))
    return Relaxed(bound_s * (1 - SHAVED), answer_s(thin, flow.through), False)


def _without_conflict(problem: Problem, envelopes: Envelopes) -> Relaxed | None:
    """The solution if the larger of critical path and area can be reached, and so is the optimum; else None.

    Each op's fastest seconds are multiplied by the bound over the longest path through the op. Then no path is longer
    than the bound.
    """
    graph, row = problem.graph, np.arange(len(envelopes))
    fastest_s = envelopes.seconds[row, envelopes.last]
    behind_s = levels(graph, fastest_s)
    area_s = float(envelopes.work[:, 0].sum()) / len(problem.machine)
    bound_s = max(float(behind_s.max()), area_s)
    through_s = behind_s + earliest_starts(graph, fastest_s)
    felt = through_s > np.finfo(float).eps * bound_s  # what takes less is as fast as can be: the quotient may overflow
    stretch = np.divide(bound_s, through_s, out=np.ones(len(row)), where=felt)
    seconds = np.minimum(envelopes.seconds[:, 0], fastest_s * np.maximum(stretch, 1.0))
    if float(envelopes.work_at(seconds).sum()) > bound_s * len(problem.machine) * (1 + SHAVED):
        return None
    return Relaxed(bound_s * (1 - SHAVED), seconds, True)


def _solved(problem: Problem, envelopes: Envelopes) -> tuple[Flow, Floats] | None:
    """An optimal flow and optimal (n_ops,) seconds, up to the solver's tolerances; None where it gives up.

    Variables: start and finish of each op, the seconds that it saves between each two corners, and C; in units of the
    larger of the ops' longest frugal time and the area.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    graph, cores, n = problem.graph, len(problem.machine), len(envelopes)
    op, corner = np.nonzero(np.isfinite(envelopes.prices))
    unit_s = max(float(envelopes.seconds[:, 0].max()), float(envelopes.work[:, 0].sum()) / cores)
    saved = (envelopes.seconds[op, corner] - envelopes.seconds[op, corner + 1]) / unit_s
    price = envelopes.prices[op, corner]
    successors = CompressedRows.of(graph.successors)
    source, target = successors.rows, successors.indices
    ends = np.flatnonzero([not after for after in graph.successors])
    all_ops, all_edges, cuts = np.arange(n), np.arange(len(source)), np.arange(len(op))
    finish, cut, makespan = n, 2 * n, 2 * n + len(op)  # first columns; starts come first
    follow, end = n, n + len(source)  # first rows; durations come first
    area = end + len(ends)
    entries = (
        (all_ops, all_ops, 1.0), (all_ops, finish + all_ops, -1.0), (op, cut + cuts, -1.0),
        (follow + all_edges, finish + source, 1.0), (follow + all_edges, target, -1.0),
        (end + np.arange(len(ends)), finish + ends, 1.0), (end + np.arange(len(ends)), [makespan] * len(ends), -1.0),
        ([area] * len(op), cut + cuts, price / cores), ([area], [makespan], -1.0),
    )  # fmt: skip
    rows = np.concatenate([rows for rows, _, _ in entries])
    columns = np.concatenate([columns for _, columns, _ in entries])
    values = np.concatenate([np.broadcast_to(values, len(rows)) for rows, _, values in entries])
    at_most = np.zeros(area + 1)
    at_most[:n] = -envelopes.seconds[:, 0] / unit_s
    at_most[area] = -float(envelopes.work[:, 0].sum()) / (cores * unit_s)
    limits = np.full((makespan + 1, 2), (0.0, np.inf))
    limits[cut:makespan, 1] = saved
    objective = np.zeros(makespan + 1)
    objective[makespan] = 1.0
    matrix = coo_array((values, (rows, columns)), shape=(area + 1, makespan + 1)).tocsr()
    result = linprog(objective, A_ub=matrix, b_ub=at_most, bounds=limits, method="highs-ds")
    if result.status != 0:
        return None
    weights = np.maximum(-result.ineqlin.marginals, 0.0)
    seconds = envelopes.seconds[:, 0] - unit_s * np.bincount(op, result.x[cut:makespan], minlength=n)
    core_weight = max(weights[area] / cores, 1e-9)  # 0 where only paths count
    through, along = weights[:n] / core_weight, weights[follow:end] / core_weight
    return _conserved(graph, through, along, successors), seconds


def _conserved(graph: OpGraph, through: Floats, along: Floats, successors: CompressedRows) -> Flow:
    """An exact flow of about these weights: what arrives at an op goes to its successors in the shares of `along`."""
    source, target = successors.rows, successors.indices
    n = len(graph)
    leaving = np.bincount(source, along, minlength=n)
    share = np.divide(along, leaving[source], out=np.zeros(len(along)), where=leaving[source] > 0).tolist()
    starting = np.maximum(through - np.bincount(target, along, minlength=n), 0.0)
    flow: list[float] = starting.tolist()
    for op in graph.topological_order:
        for number, after in enumerate(graph.successors[op], int(successors.indptr[op])):
            flow[after] += flow[op] * share[number]
    return Flow(np.array(flow), float(starting.sum()))
