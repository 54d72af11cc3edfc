"""How much ops that run at the same time slow each other down.

A curve is an op's time alone on its cores. `Interference` turns it into its time beside others; the simulator asks
again whenever an op starts or finishes and rescales what is left of each op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput

if TYPE_CHECKING:
    from threadcast.scheduler.problem import Running

SMT_THROUGHPUT = 1.03
"""Work of a core with two busy hardware threads over its work with one: two convolution gradients of 41.1 s in
turn take 39.9 s side by side on the same 68 cores (Liu et al. 2018, Table III)."""

KNOWN = 10_000
"""Sets of running ops whose factors are kept: some MB; teams that stay where they are come back to few sets."""


class Interference(Protocol):
    """Slow-down of each running op, given all that runs.

    An implementation is made for one problem (it may look at `problem.graph.ops[r.op]`, the curves and the machine)
    and is a pure function of `running` without its times: the same ops on the same cores always give the same
    factors, in whatever order they come.
    """

    core_throughput: float
    """The most work that a core does with several hardware threads busy, over its work with one; at least 1. Lower
    bounds on schedules that use them divide by it."""

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return one factor per running op, in their order: seconds that a second of its lone work takes now.

        Lone work is the curve's time at `len(cores)` threads, also where `threads` is larger: the factor holds what
        the further hardware threads or time slices do. Every factor is finite, at least 1 / core_throughput, and
        1 for an op alone with one thread a core.
        """
        ...


class KnownFactors:
    """The factors of sets of running ops that came before."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Sequence[float]] = {}

    def get(self, key: Hashable, compute: Callable[[], Sequence[float]]) -> Sequence[float]:
        """The factors kept under `key`, else those that `compute` gives, which are kept."""
        factors = self._by_key.get(key)
        if factors is None:
            if len(self._by_key) >= KNOWN:
                self._by_key.clear()
            factors = self._by_key[key] = compute()
        return factors


class CoreSharing:
    """Ops on the same cores share them equally by threads; ops on different cores do not disturb each other.

    A core with n threads on it (an op of t threads on c cores counts t / c on each) works at `core_throughput`
    where n is above 1 and at most the machine's hardware threads, at 1 beyond that (time slices), and each op gets
    its threads' share of it, never more than a whole core. An op goes as fast as on its slowest core, as a parallel
    loop with equal parts does. Left out: memory bandwidth, shared caches, the price of context switches and of
    preempted barriers, so oversubscribed settings look better than they are.
    """

    def __init__(self, machine: Machine, *, core_throughput: float = SMT_THROUGHPUT) -> None:
        if not 1.0 <= core_throughput < float("inf"):
            raise InvalidInput(f"core_throughput={core_throughput}: at least 1 (1: hyper-threading gains nothing)")
        self._hardware_threads = machine.threads_per_core
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
        return [max(self._slowdown(share, load[core]) for core in at.cores) for at, share in zip(running, shares)]

    def _slowdown(self, share: float, load: float) -> float:
        throughput = self.core_throughput if 1.0 < load <= self._hardware_threads else 1.0
        return max(1.0, load / (share * throughput))
