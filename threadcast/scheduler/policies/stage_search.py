"""Finds the stages of IOS: by dynamic programming where that takes few candidates, else level by level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from threadcast.core import OpGraph
from threadcast.scheduler.policies.stage_cost import Stage, StageCosts
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import precedence_levels

GROUP_OPS = 3
"""Most ops in a group ("r" in Ding et al. 2021, 4.3 and section 5)."""

GROUPS = 8
"""Most groups in a stage ("s" in the same place)."""

CANDIDATES = 20_000
"""Most candidate stages that the search looks at in one part of a graph before it gives up; that takes 0.2 s.

On training graphs of 600 to 1,900 ops (ResNet-50, Inception, GoogLeNet, LSTM; random curves, 68 cores) 20,000 took 6 to
8 s in all, and 5,000 took 1 to 2 s for stages of 1 % less to 3 % more time.
"""

ALL_CANDIDATES = 50
"""Limit for a whole graph, as a multiple of the limit for a part: a graph of 16,000 ops takes seconds, not minutes."""

PART_OPS = 100
"""Most ops in a part; the code of Ding et al. has the same limit for its blocks."""

Ending = tuple[int, tuple[int, ...]]
"""A set of ops and the groups that it falls into, as bits."""


def stages_of(problem: Problem, *, group_ops: int, groups: int, candidates: int) -> list[Stage]:
    """Return stages that run every op once, dependencies first, with a small sum of predicted times.

    An op that comes before or after every other op is a stage by itself; that loses nothing. Between two such ops,
    parts of whole precedence levels with up to `PART_OPS` ops are searched; their stages have at most `groups` groups
    of at most `group_ops` ops. A part that needs more than `candidates` candidate stages is halved, and the next parts
    begin at that size. A level that is too wide by itself is divided by `StageCosts.greedy`, and so are all further
    levels once `ALL_CANDIDATES` x `candidates` candidates have been looked at.
    """
    graph, costs = problem.graph, StageCosts(problem)
    found: list[Stage] = []
    size, left = PART_OPS, ALL_CANDIDATES * candidates
    for run in _runs(graph, groups, candidates):
        at = 0
        while at < len(run):
            levels = run[at : at + size]
            search = _Search(graph, costs, [op for level in levels for op in level], group_ops, groups)
            by_search = None
            if left > 0 and not _too_wide(levels, groups, candidates):
                by_search = search.run(candidates)
                left -= search.candidates
            if by_search is None and left > 0 and len(levels) > 1:
                size = len(levels) // 2
                continue
            found += by_search or [stage for level in levels for stage in costs.greedy(level)]
            at += len(levels)
            if by_search is not None and len(levels) == size:
                size *= 2
    return found


def _runs(graph: OpGraph, groups: int, candidates: int) -> Iterator[list[list[int]]]:
    """Runs of precedence levels: a cut alone, a level that is too wide alone, the others in runs of `PART_OPS`."""
    depth = precedence_levels(graph).tolist()
    levels: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for op, level in enumerate(depth):
        levels[level].append(op)
    alone = cuts(graph, [op for level in levels for op in level])
    run: list[list[int]] = []
    for level in levels:
        by_itself = level[0] in alone or _too_wide([level], groups, candidates)
        if run and (by_itself or sum(map(len, run)) + len(level) > PART_OPS):
            yield run
            run = []
        if by_itself:
            yield [level]
        else:
            run.append(level)
    if run:
        yield run


def cuts(graph: OpGraph, order: Sequence[int]) -> set[int]:
    """Return the ops that come before or after every other op. `order`: all ops, dependencies first.

    Such an op has a place in `order` such that each op before it has a successor at that place or before, and each op
    after it has a predecessor at that place or after.
    """
    n = len(order)
    place = {op: i for i, op in enumerate(order)}
    nearest_after = [min((place[s] for s in graph.successors[op]), default=n) for op in order]
    nearest_before = [max((place[p] for p in graph.predecessors[op]), default=-1) for op in order]
    found: set[int] = set()
    leads_by = 0  # the first place that all ops ahead lead to or pass
    ahead = [0] * n
    for i in range(n):
        ahead[i] = leads_by
        leads_by = max(leads_by, nearest_after[i])
    comes_from = n
    for i in range(n - 1, -1, -1):
        if ahead[i] <= i <= comes_from:
            found.add(order[i])
        comes_from = min(comes_from, nearest_before[i])
    return found


def _too_wide(part: Sequence[Sequence[int]], groups: int, candidates: int) -> bool:
    """Whether one level alone has too many: any of its subsets may be left, any part of that may be the stage."""
    width = max(map(len, part))
    return sum(math.comb(width, k) << (width - k) for k in range(1, min(groups, width) + 1)) > candidates


class _TooManyError(Exception):
    """The search has looked at as many candidates as it may."""


class _Search:
    """The dynamic programme over one part; sets of its ops are ints, bit i for `ops[i]`.

    What is left of the part, at first all of it, ends with a stage that nothing left depends on; before it goes
    what is then left, in its least time (Ding et al. 2021, 4.1).
    """

    def __init__(self, graph: OpGraph, costs: StageCosts, ops: Sequence[int], group_ops: int, groups: int) -> None:
        """`ops`: of the part, dependencies first."""
        self._costs = costs
        self._ops = ops
        self._group_ops, self._groups = group_ops, groups
        self.candidates = 0
        """Candidate stages looked at."""
        self._limit = 0
        bit = {op: 1 << i for i, op in enumerate(ops)}
        self._after = [sum(bit.get(successor, 0) for successor in graph.successors[op]) for op in ops]
        self._stages: dict[int, Stage | None] = {}
        self._least: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # of what is left: seconds, and its last stage

    def run(self, limit: int) -> list[Stage] | None:
        """Return the stages in their order; None where there are more than `limit` candidates."""
        self._limit = limit
        left = (1 << len(self._ops)) - 1
        try:
            self._search(left)
        except _TooManyError:
            return None
        found: list[Stage] = []
        while left:
            last = self._least[left][1]
            stage = self._stages[last]
            if stage is not None:  # the best never is one that cannot run
                found.append(stage)
            left &= ~last
        return found[::-1]

    def _search(self, left: int) -> float:
        if left in self._least:
            return self._least[left][0]
        best_s, best = math.inf, 0
        for ending, groups in self._endings(left):
            if ending not in self._stages:
                self._stages[ending] = self._costs.stage([self._of(group) for group in groups])
            stage = self._stages[ending]
            if stage is None or stage.seconds >= best_s:
                continue
            total_s = self._search(left & ~ending) + stage.seconds
            if total_s < best_s:
                best_s, best = total_s, ending
        self._least[left] = (best_s, best)
        return best_s

    def _endings(self, left: int) -> Iterator[Ending]:
        """All sets of ops that nothing else left depends on, of at most so many groups of at most so many ops."""
        last_first = [i for i in range(left.bit_length() - 1, -1, -1) if left >> i & 1]
        most = self._groups * max(1, self._group_ops - 1)  # an earlier op joins at most so many groups into one
        open_ends: list[tuple[int, Ending]] = [(0, (0, ()))]
        while open_ends:
            start, (chosen, groups) = open_ends.pop()
            for at in range(start, len(last_first)):
                i = last_first[at]
                behind = self._after[i] & left
                if behind & ~chosen:
                    continue
                joined, apart = 1 << i, []
                for group in groups:
                    if group & behind:
                        joined |= group
                    else:
                        apart.append(group)
                if joined.bit_count() > self._group_ops or len(apart) >= most:
                    continue
                self.candidates += 1
                if self.candidates > self._limit:
                    raise _TooManyError
                ending = (chosen | 1 << i, (*apart, joined))
                open_ends.append((at + 1, ending))
                if len(apart) < self._groups:
                    yield ending

    def _of(self, group: int) -> tuple[int, ...]:
        return tuple(op for i, op in enumerate(self._ops) if group >> i & 1)
