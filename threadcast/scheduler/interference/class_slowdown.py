"""Slow-downs of ops that run at the same time: measured or forecast for classes of ops, observed for pairs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core.corun import CoRunTable
from threadcast.core.op_class import OpClass
from threadcast.scheduler.interference.core_sharing import CoreSharing, KnownFactors
from threadcast.scheduler.problem import Problem, Running

LARGEST = 20.0
"""Largest slow-down on disjoint cores that is assumed; contention does not explain more."""

LEAST = 1.02
"""A class's slow-down up to this counts as none: medians are timed to within 2 % (`profile.tolerance`)."""


class SlowdownMatrix(NamedTuple):
    """The slow-downs of ops that run on cores of their own, as arrays for compiled loops.

    An op of label a takes min(`largest`, 1 + sum) times as long beside others as alone. The sum is over the other
    running ops: for an op of label b on n cores, `per_core[a, b]` x min(n, `most_cores`) + `whole[a, b]`. `label`:
    (n_ops,) int64; `per_core` and `whole`: (n_labels, n_labels) float64. Without labels no op slows down.
    """

    label: NDArray[np.int64]
    per_core: NDArray[np.float64]
    whole: NDArray[np.float64]
    most_cores: int
    largest: float

    @classmethod
    def none(cls) -> SlowdownMatrix:
        """Return the matrix of ops that do not slow each other down."""
        return cls(np.empty(0, np.int64), np.empty((0, 0)), np.empty((0, 0)), 1, 1.0)


class ClassInterference:
    """Slow-downs by core sharing (`CoreSharing`) and, on disjoint cores, by a `CoRunTable`.

    An op beside others takes

        sharing x min(LARGEST, 1 + sum over the others of (s - 1) x min(1, their cores / table.cores))

    times as long as alone. `s` is the table's slow-down of the two ops if they are a bad pair; else the median of the
    forecast of their classes if even its low end is above LEAST; else, without a forecast, the measured one of their
    classes if it is above LEAST; else 1. A forecast follows from all measured pairs: a slow-down that may well be none
    keeps no ops apart, and one pair that ran without loss does not speak for its classes. A bad pair's slow-down counts
    in full for any number of cores. Ops that share cores with the op count only in `sharing`. So the effects of two ops
    that load the memory add up, and an op on few cores has less effect than on the half machine on which classes were
    measured. Not modelled: an op on fewer cores than these may itself lose more, or less.
    """

    def __init__(self, problem: Problem, table: CoRunTable) -> None:
        self._sharing = CoreSharing(problem.machine)
        self.core_throughput = self._sharing.core_throughput
        self._half = table.cores
        self._labels, self._class_of, self._bad = _labels(problem, table)
        self._by_class: dict[OpClass | None, list[tuple[OpClass, float]]] = {}
        sure = {classes: by.median for classes, by in table.forecasts.items() if by.low > LEAST}
        alone = {classes: by for classes, by in table.slowdowns.items() if classes not in table.forecasts}
        measured = {classes: by.median for classes, by in alone.items() if by.median > LEAST}
        for (mine, beside), slowdown in sorted({**sure, **measured}.items()):
            self._by_class.setdefault(mine, []).append((beside, slowdown - 1.0))
        self._known = KnownFactors()

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        """Return the slow-down of each running op, in their order."""
        labels = self._labels
        key = tuple([(labels[at.op], at.cores, at.threads) for at in running])
        return self._known.get(key, lambda: self._compute(running))

    def matrix(self) -> SlowdownMatrix:
        """Return the slow-downs on disjoint cores as arrays."""
        of = self._class_of
        per_core, whole = np.zeros((len(of), len(of))), np.zeros((len(of), len(of)))
        for own in range(len(of)):
            by = dict(self._by_class.get(of[own], ()))
            per_core[own] = [by.get(beside, 0.0) / self._half if beside is not None else 0.0 for beside in of]
            for other, slowdown in self._bad.get(own, ()):
                per_core[own, other], whole[own, other] = 0.0, slowdown - 1.0
        return SlowdownMatrix(np.array(self._labels, dtype=np.int64), per_core, whole, self._half, LARGEST)

    def _compute(self, running: Sequence[Running]) -> list[float]:
        """Compute the slow-downs in time linear in the running ops: ops and cores are summed by class and by label.

        These are sums of integers, so no result depends on the order of the ops, not even in its last bit.
        """
        label = [self._labels[at.op] for at in running]
        of = [self._class_of[one] for one in label]
        load = [min(len(at.cores), self._half) for at in running]
        by_class: dict[OpClass | None, int] = {}
        by_label: dict[int, list[int]] = {}
        for i in range(len(running)):
            by_class[of[i]] = by_class.get(of[i], 0) + load[i]
            by_label.setdefault(label[i], []).append(i)
        sharing, together = self._shared(running)
        factors = []
        for i, here in enumerate(together):
            apart = by_class.copy()
            for j in here:
                apart[of[j]] -= load[j]
            excess = 0.0
            for other, by in self._bad.get(label[i], ()):
                for j in by_label.get(other, ()):
                    if j not in here:
                        apart[of[j]] -= load[j]
                        excess += by - 1.0
            for beside, by in self._by_class.get(of[i], ()):
                excess += by * apart.get(beside, 0) / self._half
            factors.append(sharing[i] * min(LARGEST, 1.0 + excess))
        return factors

    def _shared(self, running: Sequence[Running]) -> tuple[Sequence[float], Sequence[Collection[int]]]:
        """Each op's slow-down by sharing cores, and the indices of the ops on its cores, its own included."""
        threads = sum([at.threads for at in running])
        if threads == len(set().union(*[at.cores for at in running])):  # one to a core, as nearly always
            return [1.0] * len(running), [(i,) for i in range(len(running))]
        on: dict[int, list[int]] = {}
        for i, at in enumerate(running):
            for core in at.cores:
                on.setdefault(core, []).append(i)
        return self._sharing.slowdowns(running), [{j for core in at.cores for j in on[core]} for at in running]


def _labels(
    problem: Problem, table: CoRunTable
) -> tuple[list[int], list[OpClass | None], dict[int, list[tuple[int, float]]]]:
    """A label for each op, the same for ops with the same slow-downs; the class of each label, None where its ops do no
    work or classes are unknown; and for each label those that form a bad pair with it, with the slow-down."""
    ops = {op.forecast_key: op for op in problem.graph.ops}  # ops of one key may have other counts, so other classes
    keys = {op.key for op in ops.values()}
    pairs = {pair: by for pair, by in table.bad_pairs.items() if keys >= set(pair)}
    paired = {key for pair in pairs for key in pair}
    limits = table.limits
    numbers: dict[tuple[OpClass | None, str | None], int] = {}
    label_of: dict[Hashable, int] = {}
    of_key: dict[str, list[int]] = {key: [] for key in paired}
    for one, op in ops.items():
        kind = None if limits is None or op.is_view else limits.class_of(op)
        label_of[one] = label = numbers.setdefault((kind, op.key if op.key in paired else None), len(numbers))
        if op.key in paired and label not in of_key[op.key]:
            of_key[op.key].append(label)
    bad: dict[int, list[tuple[int, float]]] = {}
    for (key, beside), by in sorted(pairs.items()):
        for label in of_key[key]:
            bad.setdefault(label, []).extend((other, by) for other in of_key[beside])
    return [label_of[op.forecast_key] for op in problem.graph.ops], [of for of, _ in numbers], bad
