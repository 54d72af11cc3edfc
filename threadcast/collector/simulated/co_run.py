"""How much ops that run at the same time slow each other down on the simulated Xeon Phi.

It has the interface that `threadcast.scheduler.interference.core_sharing` defines. It declares the attributes of a
running op itself, since the collector does not import the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from threadcast.collector.simulated.constants import CORES, HARDWARE_THREADS
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import OpGraph


class RunningOp(Protocol):
    """An op's position in the graph, its cores and its threads."""

    @property
    def op(self) -> int: ...
    @property
    def cores(self) -> tuple[int, ...]: ...
    @property
    def threads(self) -> int: ...


class XeonPhiCoRun:
    """Slow-down factors for the ops of one graph, from the two co-run rows of Liu et al. 2018, Table III.

    Ops on the same cores share them by threads. A core with two to four busy threads does `smt_throughput` times the
    work of one thread; with more, which then get time slices, it does the work of one thread. An op counts with the
    threads that it keeps busy, spread over its cores, and is as fast as its fullest core allows, as an OpenMP loop of
    equal parts is. Every other busy core slows an op in proportion: 34 of them by `contention`. Left out are context
    switches, preempted barriers and the choice of neighbour, so oversubscribed settings look better than they are.
    """

    def __init__(self, model: XeonPhi, graph: OpGraph) -> None:
        self._model, self._graph = model, graph
        self.core_throughput = model.constants.smt_throughput
        self._per_core = model.constants.contention / (CORES / 2)
        self._known: dict[tuple[str, int, int], tuple[float, float]] = {}
        self._masks: dict[tuple[int, ...], int] = {}  # one bit a core

    def slowdowns(self, running: Sequence[RunningOp]) -> list[float]:
        """One factor for each op, in their order: its time beside the others over its time alone."""
        own = [self._alone(at) for at in running]
        busy_alone = [len(at.cores) * min(1.0, share) for at, (_, share) in zip(running, own)]
        if self._disjoint(running):
            busy = sum(busy_alone)
            return [extra * self._contention(busy - alone) for (extra, _), alone in zip(own, busy_alone)]
        load: dict[int, float] = {}
        for at, (_, share) in zip(running, own):
            for core in at.cores:
                load[core] = load.get(core, 0.0) + share
        busy = sum(min(1.0, threads) for threads in load.values())
        factors = []
        for at, (extra, share) in zip(running, own):
            elsewhere = busy - sum(min(1.0, load[core]) for core in at.cores)
            factors.append(extra * self._sharing(at, share, load) * self._contention(elsewhere))
        return factors

    def _disjoint(self, running: Sequence[RunningOp]) -> bool:
        counted = 0
        for at in running:
            mask = self._masks.get(at.cores)
            if mask is None:
                mask = self._masks[at.cores] = sum(1 << core for core in at.cores)
            if counted & mask:
                return False
            counted |= mask
        return True

    def _alone(self, at: RunningOp) -> tuple[float, float]:
        """The factor by which several threads on a core slow the op alone, and its busy threads on each core."""
        op, threads, cores = self._graph.ops[at.op], at.threads, len(at.cores)
        key = (op.key, threads, cores)
        if key not in self._known:
            extra = 1.0
            if threads > cores:
                seconds = self._model.crowded_seconds
                extra = max(seconds(op, threads, cores) / seconds(op, cores, cores), 1.0 / self.core_throughput)
            self._known[key] = extra, self._model.active_threads(op, threads) / cores
        return self._known[key]

    def _contention(self, busy_elsewhere: float) -> float:
        return 1.0 + self._per_core * max(0.0, busy_elsewhere)

    def _sharing(self, at: RunningOp, share: float, load: dict[int, float]) -> float:
        fullest = max(load[core] for core in at.cores)
        others = fullest - share
        if others <= 0:
            return 1.0
        threads = max(1.0, share) + others
        throughput = self.core_throughput if threads <= HARDWARE_THREADS else 1.0
        return max(1.0, threads / (max(1.0, share) * throughput))
