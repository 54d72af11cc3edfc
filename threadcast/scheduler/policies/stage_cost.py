"""Computes how long groups of ops take side by side if the cores are divided best; a group's ops run in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.useful_widths import useful_widths


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that run in sequence, in this order, on `cores` cores of their own, in `seconds` predicted seconds."""

    ops: tuple[int, ...]
    cores: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run side by side, and the seconds until the last of them ends."""

    groups: tuple[Group, ...]
    seconds: float


class StageCosts:
    """Divides the machine's cores among groups; an op takes its fastest offered count that fits its group's cores."""

    def __init__(self, problem: Problem) -> None:
        self._best = np.minimum.accumulate(problem.times.seconds, axis=1)  # (n_ops, n_counts) seconds within a count
        self._counts = problem.times.counts
        self._cores = len(problem.machine)
        self._curves: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def alone_s(self, op: int) -> float:
        """Return the seconds of an op that may use all cores."""
        return float(self._best[op, -1])

    def fewest(self, op: int) -> int:
        """Return the fewest cores on which an op can run."""
        return self._curve((op,))[0][0]

    def stage(self, groups: Sequence[tuple[int, ...]]) -> Stage | None:
        """Return the stage of these groups with the least time; None where the cores do not suffice.

        Each group begins with its fewest cores; the slowest group gets more while cores are left, because nothing else
        makes a stage shorter.
        """
        curves = [self._curve(ops) for ops in groups]
        left = self._cores - sum(curve[0][0] for curve in curves)
        if left < 0:
            return None
        at = [0] * len(curves)
        slowest = [(-curve[0][1], i) for i, curve in enumerate(curves)]
        heapify(slowest)
        while True:
            i = slowest[0][1]
            curve, here = curves[i], at[i]
            if here + 1 == len(curve) or curve[here + 1][0] - curve[here][0] > left:
                break
            left -= curve[here + 1][0] - curve[here][0]
            at[i] = here + 1
            heapreplace(slowest, (-curve[here + 1][1], i))
        shared = tuple(Group(ops, *curve[here]) for ops, curve, here in zip(groups, curves, at))
        return Stage(shared, -slowest[0][0])

    def greedy(self, ops: Sequence[int]) -> list[Stage]:
        """Return stages of these ops, which must not depend on each other: longest ops first, equally many in each.

        The number of ops in a stage is the best of the powers of two and all ops. A stage has fewer ops where they
        would need more cores than there are.
        """
        ordered = sorted(ops, key=lambda op: (-self.alone_s(op), op))
        sizes = {1 << i for i in range(len(ops).bit_length())} | {len(ops)}
        tried = [self._chunks(ordered, size) for size in sorted(sizes)]
        return min(tried, key=lambda stages: sum(stage.seconds for stage in stages))

    def _chunks(self, ops: Sequence[int], size: int) -> list[Stage]:
        chunks: list[list[tuple[int, ...]]] = []
        left = 0
        for op in ops:
            fewest = self.fewest(op)
            if not chunks or len(chunks[-1]) == size or fewest > left:
                chunks.append([])
                left = self._cores
            chunks[-1].append((op,))
            left -= fewest
        return [stage for chunk in chunks if (stage := self.stage(chunk)) is not None]

    def _curve(self, ops: tuple[int, ...]) -> list[tuple[int, float]]:
        """(cores, seconds) of a group wherever more cores make it faster; the first is the fewest that it needs."""
        found = self._curves.get(ops)
        if found is None:
            seconds = self._best[list(ops)].sum(axis=0)
            useful = np.flatnonzero(useful_widths(seconds[None])[0])
            found = self._curves[ops] = [(self._counts[i], float(seconds[i])) for i in useful.tolist()]
        return found
