"""Slow-downs of all pairs of op classes on one machine, forecast from few measured pairs of ops.

The logarithm of how many times longer op i, of class a, takes beside op j, of class b, than alone is

    machine * busy[b] + bandwidth[a and b memory] + sensitivity[a] + pressure[b] + rest[a, b]
            + sensitivity[i] + pressure[j] + error

a sum of independent Gaussians. So each measured pair says something of every other: most of those with the same ops,
less of those with the same classes, least of the rest. `machine` is what any busy neighbour costs: lower clock rates,
hyper-threads of the same core, a shared cache. `bandwidth` is what two ops lose that share the memory equally.
Forecasts are the Gaussian's conditional means and variances. Where measured pairs differ from their own forecasts by
more, or by less, than the prior expects, all intervals become wider or narrower (as for a scale with an inverse gamma
prior).

The decomposition by sensitivity and pressure is that of Bubble-Up (Mars et al. 2011, MICRO), which measures a program's
two numbers against one synthetic neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core.corun import Classes, Keys, SlowdownForecast
from threadcast.core.op_class import OpClass

MACHINE, MACHINE_SD = 0.1, 0.08
"""Mean and standard deviation of `machine`. Public tables have 0.10 (median of five pairs of ops on a GPU) and 0.19
(Xeon Phi, 34 busy cores; Liu et al. 2018, Tables VII and III)."""
SHARE, SHARE_SD = 0.2, 0.2
"""Mean and standard deviation of `bandwidth`, as a part of its bound: the slow-down of ops that need all the bandwidth
that their cores can get. Most find a part of their data in caches: 0.1 to 0.2 in networks on 2 cores."""
CLASS_SD, REST_SD, OP_SD, ERROR_SD = 0.05, 0.04, 0.04, 0.08
"""Standard deviations of a class's sensitivity and pressure, of `rest`, of an op's sensitivity and pressure, and of a
measured pair's error. Rounded from the likeliest ones of networks on 2 cores (0.03, 0.02, 0.04, 0.09), somewhat wider
since those are one machine; docs/figures/forecasts.md says how many measurements such intervals then hold."""
SCALE_WEIGHT = 8.0
"""How many measured pairs weigh as much as the prior for how far pairs differ from their forecasts."""

NORMAL_90 = 1.645
"""Half-width of a Gaussian's 90 % interval in standard deviations."""

FEWEST = 2
"""Ops of each class; where there are fewer, unknown ones stand for the others, so that a single measured pair does not
make a class certain."""


def bandwidth_bound(core_bytes_per_s: float, all_bytes_per_s: float, *, cores: int) -> float:
    """The slow-down of an op that only moves bytes on `cores` cores, beside another like it on as many: from 1 to 2.

    `core_bytes_per_s` is the memory bandwidth of one core alone, `all_bytes_per_s` that of both ops' cores together.
    """
    return max(1.0, min(cores * core_bytes_per_s, all_bytes_per_s) / (all_bytes_per_s / 2))


@dataclass(frozen=True, slots=True)
class CoRunForecast:
    """What is known of the slow-downs of all ordered pairs of ops: create it by `of`, add pairs by `with_measured`.

    `pairs` are n_pairs ordered pairs of op keys (the slowed op, the op beside it), `classes` their classes. `mean`
    (n_pairs,) and `covariance` (n_pairs, n_pairs) are the prior of the logarithms of what measuring them would give;
    `measured` are positions of measured pairs and the logarithms of their slow-downs.
    """

    pairs: tuple[Keys, ...]
    classes: tuple[Classes, ...]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    measured: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Mapping[OpClass, Sequence[str]], *, cores: int = 1, bandwidth_bound: float = math.sqrt(2)) -> Self:
        """The prior for ops, given by their keys, of each class, and unknown ones where a class has less than `FEWEST`.

        Each op has `cores` cores, of which a tiny one is expected to keep one busy. `bandwidth_bound` is that of the
        machine; the default is the middle between its least and its largest value.
        """
        all_ops = [
            (of, key)
            for of in OpClass
            for key in (*ops.get(of, ()), *(f"unknown {of} {i}" for i in range(FEWEST - len(ops.get(of, ())))))
        ]
        both = list(product(all_ops, all_ops))
        classes = tuple((own[0], other[0]) for own, other in both)
        memory = np.array([pair == (OpClass.MEMORY, OpClass.MEMORY) for pair in classes]) * math.log(bandwidth_bound)
        busy = np.array([1.0 / cores if pair[1] is OpClass.TINY else 1.0 for pair in classes])
        covariance = MACHINE_SD**2 * np.outer(busy, busy) + SHARE_SD**2 * np.outer(memory, memory)
        covariance += ERROR_SD**2 * np.eye(len(both)) + REST_SD**2 * _equal(classes)
        for side in (0, 1):
            covariance += CLASS_SD**2 * _equal([pair[side] for pair in classes])
            covariance += OP_SD**2 * _equal([pair[side] for pair in both])
        keys = tuple((own[1], other[1]) for own, other in both)
        return cls(keys, classes, MACHINE * busy + SHARE * memory, covariance)

    def with_measured(self, pair: Keys, slowdown: float) -> Self:
        """What is known once `pair` was measured with this slow-down."""
        return replace(self, measured={**self.measured, self.pairs.index(pair): math.log(slowdown)})

    def by_class(self) -> dict[Classes, SlowdownForecast]:
        """For every ordered pair of classes the median over its pairs of ops that measuring all of them would give."""
        mean, covariance = self._conditioned()
        found = {}
        for classes, share in self._shares().items():
            middle, half = float(share @ mean), NORMAL_90 * math.sqrt(max(float(share @ covariance @ share), 0.0))
            found[classes] = SlowdownForecast(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
        return found

    def next_pair(self, candidates: Collection[Keys], importance: Mapping[OpClass, float]) -> Keys:
        """The candidate that, once measured, narrows the forecasts of pairs of classes most.

        That is by the sum of their variances, each times the root of the product of the `importance` of both classes:
        without the root, a class with a tenth of the work would never be measured.
        """
        _, covariance = self._conditioned()
        narrowed = np.zeros(len(self.pairs))
        for (of, beside), share in self._shares().items():
            weight = math.sqrt(importance.get(of, 0.0) * importance.get(beside, 0.0))
            narrowed += weight * (share @ covariance) ** 2
        narrowed /= np.maximum(np.diag(covariance), 1e-12)
        return max(candidates, key=lambda pair: (narrowed[self.pairs.index(pair)], pair))

    def width(self, classes: Collection[OpClass]) -> float:
        """The largest half-width of the 90 % intervals of pairs of these classes, relative to the medians."""
        pairs = product(classes, classes)
        found = self.by_class()
        return max((found[pair].high / found[pair].median - 1 for pair in pairs), default=0.0)

    def _shares(self) -> dict[Classes, NDArray[np.float64]]:
        """By pair of classes, the weights (n_pairs,) of the mean over its pairs of ops."""
        rows = {
            of: np.array([classes == of for classes in self.classes], dtype=float) for of in sorted(set(self.classes))
        }
        return {of: row / row.sum() for of, row in rows.items()}

    def _conditioned(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and covariance of all pairs, once those that were measured are known."""
        if not self.measured:
            return self.mean, self.covariance
        known = np.array(list(self.measured))
        off = np.array(list(self.measured.values())) - self.mean[known]
        onto = np.linalg.solve(self.covariance[np.ix_(known, known)], self.covariance[known]).T
        distance = float(off @ np.linalg.solve(self.covariance[np.ix_(known, known)], off))
        scale = (SCALE_WEIGHT + distance) / (SCALE_WEIGHT + len(known))
        return self.mean + onto @ off, scale * (self.covariance - onto @ self.covariance[known])


def _equal(values: Sequence[object]) -> NDArray[np.float64]:
    """(n, n): 1 where two values are equal, else 0."""
    return np.array([[one == other for other in values] for one in values], dtype=float)
