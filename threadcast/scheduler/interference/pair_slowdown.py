"""Slow-downs of pairs of ops that run at the same time, as steps have shown them (`bad_pairs`)."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core.corun import CoRunTable
from threadcast.scheduler.interference.core_sharing import CoreSharing, KnownFactors
from threadcast.scheduler.problem import Problem, Running

LARGEST = 20.0
"""Largest slow-down on disjoint cores that is assumed; contention does not explain more."""


class PairInterference:
    """Slow-downs by core sharing (`CoreSharing`) and, on disjoint cores, by the bad pairs of a `CoRunTable`.

    An op beside others takes

        sharing x min(LARGEST, 1 + sum over the others of (s - 1))

    times as long as alone, where `s` is the table's slow-down of the two ops, for any number of cores, and 1 where they
    are no bad pair. Ops that share cores with the op count only in `sharing`.
    """

    def __init__(self, problem: Problem, table: CoRunTable) -> None:
        self._sharing = CoreSharing(problem.machine)
        self.core_throughput = self._sharing.core_throughput
        keys = [op.key for op in problem.graph.ops]
        pairs = {pair: by for pair, by in table.bad_pairs.items() if {*pair} <= {*keys}}
        label = {key: number for number, key in enumerate(sorted({key for pair in pairs for key in pair}), 1)}
        self._labels = [label.get(key, 0) for key in keys]
        """A number for each op, the same for ops with the same slow-downs; 0 where it is in no bad pair."""
        self._excess = {(label[key], label[beside]): by - 1.0 for (key, beside), by in pairs.items()}
        self._known = KnownFactors()

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return the slow-down of each running op, in their order."""
        labels = self._labels
        key = tuple([(labels[at.op], at.cores, at.threads) for at in running])
        return self._known.get(key, lambda: self._compute(running))

    def _compute(self, running: Sequence[Running]) -> list[float]:
        sharing = self._sharing.slowdowns(running)
        paired = [(self._labels[at.op], frozenset(at.cores)) for at in running if self._labels[at.op]]
        factors = []
        for at, shared in zip(running, sharing, strict=True):
            own, cores = self._labels[at.op], frozenset(at.cores)
            beside = (other for other, theirs in paired if cores.isdisjoint(theirs)) if own else ()
            # sorted: so that no result depends on the order of the ops, not even in its last bit
            excess = sum(sorted(self._excess.get((own, other), 0.0) for other in beside))
            factors.append(shared * min(LARGEST, 1.0 + excess))
        return factors
