"""Slow-downs of ops that run at the same time, from what was measured of their classes and seen of pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from threadcast.core.corun import CoRunTable
from threadcast.core.op_class import OpClass
from threadcast.scheduler.interference import KNOWN, CoreSharing
from threadcast.scheduler.policies.base import Problem, Running

LARGEST = 20.0
"""A slow-down by disjoint cores is taken for at most this: beyond it is not contention but something broken."""

LEAST = 1.02
"""A class's slow-down up to this counts as none: medians are timed to within 2 % (`profile.tolerance`)."""


class ClassInterference:
    """Core sharing, and on disjoint cores the slow-downs of a `CoRunTable`.

    An op beside others takes

        sharing x min(LARGEST, 1 + sum over the others of (s - 1) x min(1, their cores / table.cores))

    times as long as alone. `s` is what the table has of the two ops as a bad pair, else of their classes where that is
    above LEAST, else 1; a bad pair's counts in full, whatever its cores. Others on some of the op's own cores
    count in `sharing` (`CoreSharing`) only. So two ops that load the memory add up, as do their demands on it, and
    a narrow one loads it less than the half machine on which classes were measured. Left out: that an op on fewer
    cores than those may lose more, or less, than it did on them.
    """

    def __init__(self, problem: Problem, table: CoRunTable) -> None:
        self._sharing = CoreSharing(problem.machine)
        self.core_throughput = self._sharing.core_throughput
        self._table = table
        self._numbers, self._labels = _labels(problem, table)
        self._found: dict[tuple[int, int], tuple[float, bool]] = {}
        self._known: dict[tuple[tuple[int, tuple[int, ...], int], ...], list[float]] = {}

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return the slow-down of each running op, in their order."""
        numbers = self._numbers
        key = tuple([(numbers[at.op], at.cores, at.threads) for at in running])
        factors = self._known.get(key)
        if factors is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            factors = self._known[key] = self._compute(running)
        return factors

    def _compute(self, running: Sequence[Running]) -> list[float]:
        """In time linear in the running ops: per label their number and their cores, whole numbers, are summed up.

        So no sum depends on the order in which the ops come, not even in its last bit.
        """
        half = self._table.cores
        label = [self._numbers[at.op] for at in running]
        load = [min(len(at.cores), half) for at in running]
        count = Counter(label)
        total: Counter[int] = Counter()
        on: dict[int, list[int]] = {}
        for i, at in enumerate(running):
            total[label[i]] += load[i]
            for core in at.cores:
                on.setdefault(core, []).append(i)
        present = sorted(count)
        factors = []
        for i, (at, sharing) in enumerate(zip(running, self._sharing.slowdowns(running))):
            here = {j for core in at.cores for j in on[core]}  # itself, and what `sharing` is about
            excess = 0.0
            for other in present:
                by, in_full = self._pair(label[i], other)
                if by > 1.0:
                    mine = [j for j in here if label[j] == other]
                    apart = count[other] - len(mine) if in_full else total[other] - sum(load[j] for j in mine)
                    excess += (by - 1.0) * apart / (1 if in_full else half)
            factors.append(sharing * min(LARGEST, 1.0 + excess))
        return factors

    def _pair(self, label: int, beside: int) -> tuple[float, bool]:
        key = (label, beside)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _slowdown(self._table, self._labels[label], self._labels[beside])
        return found


Label = tuple[OpClass | None, str | None]
"""An op's class, None where it does no work or classes are unknown, and its key where it is in a bad pair."""


def _labels(problem: Problem, table: CoRunTable) -> tuple[list[int], list[Label]]:
    """A number for each op, the same for ops that no slow-down tells apart, and what the numbers stand for."""
    ops = problem.graph.distinct_ops()
    paired = {key for pair in table.bad_pairs if ops.keys() >= set(pair) for key in pair}
    limits = table.limits
    numbers: dict[Label, int] = {}
    of_key: dict[str, int] = {}
    for key, op in ops.items():
        label = (None if limits is None or op.is_view else limits.class_of(op), key if key in paired else None)
        of_key[key] = numbers.setdefault(label, len(numbers))
    return [of_key[op.key] for op in problem.graph.ops], list(numbers)


def _slowdown(table: CoRunTable, of: Label, beside: Label) -> tuple[float, bool]:
    """The slow-down of one label beside another, and whether it holds whatever their cores."""
    (of_class, of_key), (beside_class, beside_key) = of, beside
    if of_key is not None and beside_key is not None and (of_key, beside_key) in table.bad_pairs:
        return table.bad_pairs[of_key, beside_key], True
    found = table.slowdowns.get((of_class, beside_class)) if of_class and beside_class else None
    return (found.median if found is not None and found.median > LEAST else 1.0), False
