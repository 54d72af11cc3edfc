"""From start times and widths, as solvers without core ids give them, to placements on cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from threadcast.core import Affinity, Case, Placement, Plan
from threadcast.scheduler.interference.class_slowdown import Apart
from threadcast.scheduler.kernels.compiled import COMPILED, UNCOMPILED
from threadcast.scheduler.kernels.instance import Floats, Ints, chosen, edge_rows, falling
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.search.annealing import COLD, WARM
from threadcast.scheduler.search.real_cores import lay, polish, take

MOST_MOVES, MOVES_S, PER_CORE_S = 100_000, 1.0, 25e-9
"""Moves of `CoreLayout.polished` at most, about what all of them take, and what `lay` takes for an op and a core
(AMD EPYC, 30 to 750 ops on 64 cores)."""
TEPID = 0.004
"""Temperature at the beginning, relative to the makespan, where ops do not slow each other down: a fifth of that of
`annealing`, as the schedule is good already. The end is the same."""
CHUNKS = 16
"""Parts between which the clock is read."""

Laid = tuple[float, Ints, Ints]
"""A makespan in seconds, the order of the ops, and each op's position in `Times.counts`."""


class CoreLayout:
    """Lays schedules out on the cores of one problem.

    Ops are taken by start and begin as soon as those they wait for have finished and enough cores are free, for as
    long as they take on the cores they get: of one cache group where they can be, or of many where an op is faster
    so; an op waits for such cores where it ends earlier then. So placements are legal whatever the starts are, and
    no later than them where they are a schedule of these times. Ops without time run beside their predecessors, so
    that they keep no core from others. With `apart`, makespans are those of ops that slow each other down so, while
    placements have lone times.
    """

    def __init__(self, problem: Problem, *, apart: Apart | None = None) -> None:
        graph, times = problem.graph, problem.times
        self._problem = problem
        self._apart = apart or Apart(np.empty(0, np.int32), np.empty((0, 0)), np.empty((0, 0)), 1, 1.0)
        self._edges = (*edge_rows(graph.predecessors), *edge_rows(graph.successors))
        numbers: dict[int, int] = {}
        self._group = np.array([numbers.setdefault(c.group, len(numbers)) for c in problem.machine.cores], np.int32)
        self._ids = tuple(core.id for core in problem.machine.cores)
        self._counts = np.asarray(times.counts, dtype=np.int32)
        self._fast, self._slow = times.seconds, _slower(problem)
        self._spread = times.spread & (self._counts > 1)  # one core is picked from where it breaks up no group

    @property
    def slow(self) -> Floats:
        """(n_ops, n_counts) seconds at the worse affinity."""
        return self._slow

    @property
    def spread_matters(self) -> bool:
        """Whether some op takes longer at one affinity than at the other."""
        return bool(np.any(self._slow > self._fast))

    def laid(self, start: Sequence[float], position: Ints) -> Laid:
        """The schedule of these starts, of which only the order counts, and positions in `Times.counts`."""
        order = _order(self._problem, start, (self._slow[np.arange(len(position)), position] == 0).tolist())
        return self._taken(order, position), order, position

    def placements(self, laid: Laid) -> tuple[Placement, ...]:
        """Where and when the ops run, in their order."""
        _, order, position = laid
        width = self._counts[position]
        core_at = np.zeros(len(order) + 1, dtype=np.int32)
        np.cumsum(width, out=core_at[1:])
        columns = np.empty(core_at[-1], dtype=np.int32)
        self._lay(order, position, core_at, columns)
        graph, on = self._problem.graph, self._problem.times.on
        busy_to, finish = [0.0] * len(self._ids), [0.0] * len(order)
        found = []
        for op in order.tolist():
            own = columns[core_at[op] : core_at[op + 1]].tolist()
            cores = tuple([self._ids[i] for i in own])
            begin = max([busy_to[i] for i in own])
            for before in graph.predecessors[op]:
                begin = max(begin, finish[before])
            finish[op] = begin + on(op, cores, len(cores))
            for i in own:
                busy_to[i] = finish[op]
            found.append(Placement(graph.ids[op], cores, len(cores), begin, finish[op]))
        return tuple(found)

    def polished(
        self, laid: Laid, *, seed: int, enough_s: float, deadline_s: float, clock: Callable[[], float]
    ) -> Laid:
        """A schedule that is no longer, found by changing this one on its real cores, until `deadline_s` or `enough_s`.

        Its thread counts are `falling` at one of the affinities.
        """
        best_s, order, position = laid
        choices, count = chosen(falling(self._fast) | falling(self._slow))
        choice = (choices == position[:, None]).argmax(axis=1).astype(np.int32)
        rows = np.arange(len(order))
        every, order = rows[:, None], order.copy()
        state = np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64)
        moves_s = MOVES_S / (1 if COMPILED else UNCOMPILED)
        moves = min(int(moves_s / (len(order) * len(self._ids) * PER_CORE_S)), MOST_MOVES)
        before_at, before, after_at, after = self._edges
        apart = self._apart
        warm = WARM if len(apart.label) else TEPID
        slowing = apart.label, apart.per_core, apart.whole, apart.most, apart.largest
        width, fast, slow = self._counts[choices], self._fast[every, choices], self._slow[every, choices]
        spread = self._spread[every, choices]
        for chunk in range(CHUNKS):
            if best_s <= enough_s or clock() >= deadline_s:
                break
            warm_s, cold_s = (best_s * warm * (COLD / warm) ** (k / CHUNKS) for k in (chunk, chunk + 1))
            with np.errstate(over="ignore"):  # the random numbers' product, where it is not compiled
                best_s = polish(
                    before_at, before, after_at, after, width, fast, slow, spread, count, self._group, *slowing, order,
                    choice, state, moves // CHUNKS, warm_s, cold_s, enough_s,
                )  # fmt: skip
        return float(best_s), order, choices[rows, choice]

    def beside_others(self, laid: Laid, *, times: float) -> Floats:
        """(n_ops, n_counts) seconds at the better affinity with the slow-down that an op can expect on so many cores.

        Its company has the other cores as far as they are busy on average in `laid`, each label by its share in that.
        So an op on all cores takes as long as alone, and what suffers most beside others is worth more cores. With
        `times` 2 the slow-down counts twice: for what an op suffers, and for what it does to its company.
        """
        makespan_s, order, position = laid
        apart, cores = self._apart, len(self._ids)
        width = self._counts[position]
        work = width * self._fast[np.arange(len(order)), position]
        company = np.bincount(apart.label, work, minlength=len(apart.per_core)) / (makespan_s * cores)
        of_pairs = np.bincount(apart.label, work / width, minlength=len(company)) / (makespan_s * cores)
        excess = (apart.per_core @ company + apart.whole @ of_pairs)[apart.label]
        factor = 1 + times * excess[:, None] * (cores - self._counts)
        return np.asarray(self._fast * np.minimum(factor, apart.largest))

    def _taken(self, order: Ints, position: Ints) -> float:
        rows, n, apart = np.arange(len(order)), len(order), self._apart
        fast, slow, spread = self._fast[rows, position], self._slow[rows, position], self._spread[rows, position]
        return float(
            take(
                order, *self._edges, self._counts[position], fast, slow, spread, self._group, apart.label,
                apart.per_core, apart.whole, apart.most, apart.largest, np.inf, np.empty(n), np.empty(n),
            )
        )  # fmt: skip

    def _lay(self, order: Ints, position: Ints, core_at: Ints, columns: Ints) -> float:
        rows, n = np.arange(len(order)), len(order)
        fast, slow, spread = self._fast[rows, position], self._slow[rows, position], self._spread[rows, position]
        return float(
            lay(
                order, *self._edges[:2], self._counts[position], fast, slow, spread, self._group, np.inf, np.empty(n),
                np.empty(n), core_at, columns,
            )
        )  # fmt: skip


def lay_out(problem: Problem, *, start: Sequence[float], position: Sequence[int], policy: str) -> Plan:
    """Return the plan of these starts and positions in `problem.times.counts`, one of each an op (`CoreLayout`).

    The plan's `lower_bound_s` is left at 0.
    """
    layout = CoreLayout(problem)
    placements = layout.placements(layout.laid(start, np.asarray(position, dtype=np.int32)))
    return Plan(len(problem.machine), policy, placements, curves_from=problem.curves.model)


def _slower(problem: Problem) -> Floats:
    """(n_ops, n_counts) seconds at the affinity that is not the better one; at the better where it alone is offered."""
    curves, times = problem.curves, problem.times
    column = {case: i for i, case in enumerate(curves.cases)}
    groups = len(problem.machine.groups)
    found = times.seconds.copy()
    for i, threads in enumerate(times.counts):
        compact, spread = (column.get(Case(threads, affinity)) for affinity in Affinity)
        if 1 < threads <= groups and compact is not None and spread is not None:
            slower = np.maximum(curves.seconds[:, compact], curves.seconds[:, spread])
            found[:, i] = np.where(np.isfinite(slower), slower, found[:, i])
    return found


def _order(problem: Problem, start: Sequence[float], timeless: Sequence[bool]) -> Ints:
    """Ops by start, dependencies first; those without time right after their last predecessor, whatever their start."""
    graph = problem.graph
    place = {op: i for i, op in enumerate(graph.topological_order)}
    waiting = [len(before) for before in graph.predecessors]
    order: list[int] = []

    def take(op: int) -> None:
        due = [op]
        while due:
            order.append(due.pop())
            for after in graph.successors[order[-1]]:
                waiting[after] -= 1
                if timeless[after] and not waiting[after]:
                    due.append(after)

    for op in graph.topological_order:
        if timeless[op] and not graph.predecessors[op]:
            take(op)
    for op in sorted(range(len(graph)), key=lambda op: (start[op], place[op])):
        if not timeless[op]:
            take(op)
    return np.array(order, dtype=np.int32)
