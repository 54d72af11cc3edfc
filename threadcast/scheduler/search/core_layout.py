"""Turns start times and thread counts, as solvers without core ids return them, into placements on cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from threadcast.core import Affinity, Case, Placement
from threadcast.scheduler.kernels.annealing_loop import CoreChoices, anneal
from threadcast.scheduler.kernels.compiled import COMPILED, UNCOMPILED
from threadcast.scheduler.kernels.core_assignment import (
    CoreAllotment,
    CoreGraph,
    CoreSchedule,
    assign_cores,
)
from threadcast.scheduler.kernels.instance import Floats, Ints, positions_of
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.compressed_rows import CompressedRows
from threadcast.scheduler.problem.useful_widths import useful_widths
from threadcast.scheduler.search.annealing import CHUNKS, cooling, random_state
from threadcast.scheduler.search.replay import timed

MOST_MOVES, MOVES_S, PER_CORE_S = 100_000, 1.0, 25e-9
"""Most moves of `CoreLayout.annealed`, about the seconds that all of them take, and the seconds that `assign_cores`
takes for each pair of op and core (AMD EPYC, 30 to 750 ops on 64 cores)."""
FIRST = 0.004
"""First temperature, relative to the makespan: a fifth of `annealing.FIRST`, as the schedule is good already."""


class CoreSequence(NamedTuple):
    """A schedule on real cores, which follows from this order of ops by the rules of `CoreLayout`.

    `order`: (n_ops,) ops in the order in which they get cores; `position`: (n_ops,) positions in `Times.counts`.
    """

    makespan_s: float
    order: Ints
    position: Ints


class CoreLayout:
    """Gives the ops of one problem their cores.

    Ops get cores in a given order. An op starts as soon as its predecessors have finished and enough cores are free,
    and takes its time on the cores that it gets. These are of one cache group where possible, or of many groups if the
    op is faster so; an op waits for such cores if it ends earlier then. So placements are legal for any given starts,
    and no later than the starts if these are a schedule of the same times. Ops that take no time run beside their
    predecessors, so that they occupy no core.
    """

    def __init__(self, problem: Problem) -> None:
        graph, times = problem.graph, problem.times
        self._problem = problem
        numbers: dict[int, int] = {}
        group = np.array([numbers.setdefault(c.group, len(numbers)) for c in problem.machine.cores], np.int64)
        predecessors, successors = CompressedRows.of(graph.predecessors), CompressedRows.of(graph.successors)
        self._graph = CoreGraph(predecessors, successors, group)
        self._ids = tuple(core.id for core in problem.machine.cores)
        self._counts = np.asarray(times.counts, dtype=np.int64)
        self._fast, self.slower_s = times.seconds, _slower(problem)
        """`slower_s`: (n_ops, n_counts) seconds at the worse affinity."""
        self._spread = times.spread & (self._counts > 1)  # one core is picked from where it breaks up no group

    @property
    def affinity_matters(self) -> bool:
        """Whether some op takes longer at one affinity than at the other."""
        return bool(np.any(self.slower_s > self._fast))

    def sequence(self, start: Sequence[float], position: Ints) -> CoreSequence:
        """Return the schedule with these (n_ops,) starts, of which only the order counts, and these positions."""
        order = _order(self._problem, start, (self.slower_s[np.arange(len(position)), position] == 0).tolist())
        makespan_s = assign_cores(
            self._graph, order, self._allotment(position), np.inf, _room(len(order)), CompressedRows.of(())
        )
        return CoreSequence(float(makespan_s), order, position)

    def placements(self, sequence: CoreSequence) -> tuple[Placement, ...]:
        """Return where and when the ops run, in their order."""
        _, order, position = sequence
        indptr = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(self._counts[position], out=indptr[1:])
        cores_of = CompressedRows(indptr, np.empty(indptr[-1], dtype=np.int64))
        assign_cores(self._graph, order, self._allotment(position), np.inf, _room(len(order)), cores_of)
        cores = np.asarray(self._ids)[cores_of.indices].tolist()
        return timed(
            self._problem, order.tolist(), [tuple(cores[begin:end]) for begin, end in pairwise(indptr.tolist())]
        )

    def annealed(
        self, sequence: CoreSequence, *, seed: int, enough_s: float, deadline_s: float, clock: Callable[[], float]
    ) -> CoreSequence:
        """Return a schedule no longer than `sequence`, found by random changes of it.

        It ends at `deadline_s` of `clock`, or at a makespan of at most `enough_s`. An op's thread counts are those that
        are useful (`useful_widths`) at one of the affinities, and that of `sequence`.
        """
        best_s, order, position = sequence
        useful = useful_widths(self._fast) | useful_widths(self.slower_s)
        useful[np.arange(len(order)), position] = True
        columns, choices = positions_of(useful)
        choice = (columns == position[:, None]).argmax(axis=1).astype(np.int64)
        row = np.arange(len(order))[:, None]
        options = CoreChoices(
            self._counts[columns], self._fast[row, columns], self.slower_s[row, columns], self._spread[row, columns],
            choices,
        )  # fmt: skip
        order = order.copy()
        random = random_state(np.random.default_rng(seed))
        moves_s = MOVES_S / (1 if COMPILED else UNCOMPILED)
        moves = min(int(moves_s / (len(order) * len(self._ids) * PER_CORE_S)), MOST_MOVES)
        for chunk in range(CHUNKS):
            if best_s <= enough_s or clock() >= deadline_s:
                break
            steps = cooling(best_s, chunk, first=FIRST, moves=moves // CHUNKS, enough_s=enough_s)
            with np.errstate(over="ignore"):  # the random numbers' product, where it is not compiled
                best_s = anneal(self._graph, options, True, order, choice, random, steps)
        return CoreSequence(float(best_s), order, columns[row[:, 0], choice])

    def _allotment(self, position: Ints) -> CoreAllotment:
        row = np.arange(len(position))
        return CoreAllotment(
            self._counts[position], self._fast[row, position], self.slower_s[row, position], self._spread[row, position]
        )


def _room(n_ops: int) -> CoreSchedule:
    return CoreSchedule(np.empty(n_ops), np.empty(n_ops))


def _slower(problem: Problem) -> Floats:
    """(n_ops, n_counts) seconds at the worse affinity; at the better one where only that is offered."""
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
    """Ops by start, dependencies first; ops that take no time come right after their last predecessor."""
    graph = problem.graph
    place = {op: i for i, op in enumerate(graph.topological_order)}
    waiting = [len(before) for before in graph.predecessors]
    order: list[int] = []

    def append(op: int) -> None:
        """Put `op` into the order, and the ops without time that wait for it alone."""
        due = [op]
        while due:
            order.append(due.pop())
            for after in graph.successors[order[-1]]:
                waiting[after] -= 1
                if timeless[after] and not waiting[after]:
                    due.append(after)

    for op in graph.topological_order:
        if timeless[op] and not graph.predecessors[op]:
            append(op)
    for op in sorted(range(len(graph)), key=lambda op: (start[op], place[op])):
        if not timeless[op]:
            append(op)
    return np.array(order, dtype=np.int64)
