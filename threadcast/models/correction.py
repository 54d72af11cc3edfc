"""Boosted trees that forecast the residuals of the Gaussian over curves, in its own standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, Op
from threadcast.core.curve import Floats
from threadcast.models import artefacts
from threadcast.models.boosted_trees import BoostedTrees
from threadcast.models.machine_limits import work_per_thread
from threadcast.models.static_features import Features
from threadcast.models.thread_features import feature_names, thread_features

TREES, DEPTH, RATE, LEAST_IN_LEAF = 60, 8, 0.15, 40
"""On four splits of MKL's sgemm, 45 trees at a rate of 0.2 chose cases that cost 0.2 % more; on two of them 100 trees
of depth 9 gained at most 0.001 of accuracy. They are the largest part of a forecast's time."""

MOST_POINTS = 500_000
"""Points of all designs together that the trees learn from at most; beyond that ops are drawn at random, for each
design anew. With 860 ops at 96 cases all six designs are below it."""

MOST = 3.0
"""Residuals are clipped to so many standard deviations: what lies beyond is one odd op, not a pattern."""

_OF_GAUSSIAN = (
    "log seconds by work", "log seconds of trees by work", "log seconds by those of trees", "log variance",
    "log threads from nearest sample", "nearest sample by forecast", "nearest sample by trees", "samples",
)  # fmt: skip
"""What a Gaussian's forecast says of a case, as features."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """A Gaussian's forecast of `ops` that were sampled at the cases `where`, (n_ops, n_cases) each: log seconds without
    samples (`base`), with samples (`mean`), and variances; `logs` (n_ops, n_where) are those of the samples."""

    ops: Sequence[Op]
    base: Floats
    mean: Floats
    variance: Floats
    where: tuple[int, ...]
    logs: Floats

    def rows(self, some: slice | NDArray[np.bool_]) -> Forecast:
        """The forecast of some of the ops."""
        ops = [self.ops[i] for i in np.arange(len(self.ops))[some]]
        return Forecast(ops, self.base[some], self.mean[some], self.variance[some], self.where, self.logs[some])


class Correction:
    """Corrects a Gaussian's forecast by trees that learned its residuals, in standard deviations of the forecast.

    Scaled so, one set of trees serves any number of samples: with few samples the standard deviations are large.
    """

    def __init__(self, trees: BoostedTrees, names: tuple[str, ...] = ()) -> None:
        self._trees, self.names = trees, names

    @classmethod
    def fitted(
        cls,
        forecasts: Sequence[Forecast],
        truths: Sequence[Floats],
        cases: Sequence[Case],
        *,
        seed: int,
        names: tuple[str, ...] = (),
    ) -> Correction:
        """Learn from forecasts of ops that the Gaussian had not learned from, and their log seconds `truths` (n_ops,
        n_cases), NaN where a case was not measured."""
        rows, targets, weights = [], [], []
        share = MOST_POINTS / max(sum(np.count_nonzero(~np.isnan(truth)) for truth in truths), 1)
        random = np.random.default_rng(seed)
        for forecast, truth in zip(forecasts, truths, strict=True):
            if share < 1:
                some = np.sort(random.permutation(len(truth))[: max(round(share * len(truth)), 1)])
                drawn = np.isin(np.arange(len(truth)), some)
                forecast, truth = forecast.rows(drawn), truth[drawn]
            spread = np.sqrt(forecast.variance)
            known = ~np.isnan(truth)
            rows.append(_features(forecast, cases, names)[known])
            targets.append(np.clip((truth - forecast.mean)[known] / spread[known], -MOST, MOST))
            weights.append(spread[known] / spread[known].mean())
        trees = BoostedTrees.grown(
            np.concatenate(rows), np.concatenate(targets), weights=np.concatenate(weights), n_estimators=TREES,
            max_depth=DEPTH, learning_rate=RATE, colsample_bytree=0.5, min_child_weight=LEAST_IN_LEAF,
            random_state=seed,
        )  # fmt: skip
        return cls(trees, names)

    def corrected(self, forecast: Forecast, cases: Sequence[Case]) -> Floats:
        """The corrected log seconds, (n_ops, n_cases)."""
        off = self._trees.forecast(_features(forecast, cases, self.names))
        found: Floats = forecast.mean + np.sqrt(forecast.variance) * off
        return found

    def to_files(self, name: str) -> dict[str, bytes]:
        """The trees as a file, whose name is `name` and a suffix."""
        return {f"{name}.trees.json": self._trees.stored(_names(self.names))}

    @classmethod
    def from_files(cls, name: str, files: Mapping[str, bytes], names: tuple[str, ...] = ()) -> Correction:
        """Load what `to_files` returned; the attributes `names` are features too. ArtefactError on anything else."""
        content = artefacts.content(files, f"{name}.trees.json")
        return cls(BoostedTrees.load(content, features=_names(names)), names)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the features of `_features`, in their order."""
    return (*feature_names(names), *_OF_GAUSSIAN)


def _features(forecast: Forecast, cases: Sequence[Case], names: Sequence[str]) -> Features:
    """(n_ops, n_cases, n_features): how threads divide the op, the forecast, and the residual at the nearest sample."""
    own = thread_features(forecast.ops, cases, names).transpose(0, 2, 1)
    level = work_per_thread(forecast.ops, cases)
    n = own.shape[1]
    found = np.empty((len(own), n + len(_OF_GAUSSIAN), len(cases)), dtype=np.float32)  # a feature's cases side by side
    found[:, :n] = own
    found[:, n] = forecast.mean - level
    found[:, n + 1] = forecast.base - level
    found[:, n + 2] = forecast.mean - forecast.base
    found[:, n + 3] = np.log(forecast.variance)
    found[:, n + 4 : n + 7] = np.nan
    found[:, n + 7] = len(forecast.where)
    if forecast.where:
        at = np.array(forecast.where)
        threads = np.log([case.threads for case in cases])
        apart = threads[:, None] - threads[at]
        nearest = np.abs(apart).argmin(axis=1)
        found[:, n + 4] = apart[np.arange(len(cases)), nearest]
        found[:, n + 5] = (forecast.logs - forecast.mean[:, at])[:, nearest]
        found[:, n + 6] = (forecast.logs - forecast.base[:, at])[:, nearest]
    return found.transpose(0, 2, 1)
