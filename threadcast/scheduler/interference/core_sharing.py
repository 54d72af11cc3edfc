"""How much ops that run at the same time slow each other down: the interface, and a model of shared cores.

A curve is an op's time alone on its cores. `Interference` gives the factor to its time beside others. The simulator
asks for new factors whenever an op starts or finishes, and rescales the remaining time of each op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput

if TYPE_CHECKING:
    from threadcast.scheduler.problem import Running

SMT_THROUGHPUT = 1.03
"""Throughput of a core with two busy hardware threads over that with one: two convolution gradients take 41.1 s one
after the other and 39.9 s side by side on the same 68 cores (Liu et al. 2018, Table III)."""

KNOWN = 10_000
"""Most sets of running ops whose factors are cached (some MB); policies with fixed teams have few such sets."""


class Interference(Protocol):
    """Computes the slow-down of each running op from all running ops.

    An implementation is made for one problem and may use its graph, curves and machine. It must be a pure function of
    `running` without the times in it: the same ops on the same cores always have the same factors, in any order.
    """

    core_throughput: float
    """Highest throughput of a core with several busy hardware threads, over that with one; at least 1. Lower bounds on
    schedules that use hyper-threads are divided by it."""

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return one factor for each running op, in order: its time now, divided by its time alone.

        Its time alone is its curve's time at one thread for each of its cores; if it has more threads than cores, the
        factor includes what these add. Every factor is finite and at least 1 / core_throughput. It is 1 for an op that
        runs alone with one thread for each of its cores.
        """
        ...


class KnownFactors:
    """Caches the factors of sets of running ops."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Sequence[float]] = {}

    def get(self, key: Hashable, compute: Callable[[], Sequence[float]]) -> Sequence[float]:
        """Return the factors cached under `key`; if there are none, those of `compute`, which are then cached."""
        factors = self._by_key.get(key)
        if factors is None:
            if len(self._by_key) >= KNOWN:
                self._by_key.clear()
            factors = self._by_key[key] = compute()
        return factors


class CoreSharing:
    """Ops on the same cores share them equally by threads; ops on different cores do not disturb each other.

    An op of t threads on c cores counts as t / c threads on each. A core with n threads has the throughput
    `core_throughput` if n is above 1 and at most its hardware threads, else 1 (time slices). Each op gets its threads'
    share of that, at most a whole core. An op is as fast as on its slowest core, as a parallel loop with equal parts
    is. Not modelled: memory bandwidth, shared caches, and the costs of context switches and of preempted barriers.
    So oversubscribed settings look better than they are.
    """

    def __init__(self, machine: Machine, *, core_throughput: float = SMT_THROUGHPUT) -> None:
        if not 1.0 <= core_throughput < float("inf"):
            raise InvalidInput(f"core_throughput={core_throughput}: at least 1 (1: hyper-threading gains nothing)")
        self._hardware_threads = {core.id: len(core.cpus) for core in machine.cores}
        self.core_throughput = core_throughput if machine.threads_per_core > 1 else 1.0
        self._known = KnownFactors()

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return max(1, threads on the slowest core / (own threads there x throughput)) for each op."""
        return self._known.get(tuple([(at.cores, at.threads) for at in running]), lambda: self._compute(running))

    def _compute(self, running: Sequence[Running]) -> list[float]:
        shares = [max(1.0, at.threads / len(at.cores)) for at in running]
        load: dict[int, float] = {}
        for at, share in zip(running, shares):
            for core in at.cores:
                load[core] = load.get(core, 0.0) + share
        return [max(self._slowdown(share, load[core], core) for core in at.cores) for at, share in zip(running, shares)]

    def _slowdown(self, share: float, load: float, core: int) -> float:
        throughput = self.core_throughput if 1.0 < load <= self._hardware_threads[core] else 1.0
        return max(1.0, load / (share * throughput))
