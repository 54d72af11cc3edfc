"""Boosted trees that forecast log times of single points (an op in a case) from `static_features`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, Machine, Op
from threadcast.core.arguments import check, check_whole
from threadcast.core.curve import Floats
from threadcast.models import artefacts
from threadcast.models.boosted_trees import BoostedTrees
from threadcast.models.machine_limits import MachineLimits
from threadcast.models.measured import MeasuredOp
from threadcast.models.splits import new_shape
from threadcast.models.static_features import Features, feature_names, joint_features

FOLDS = 5
"""Number of parts into which the ops are divided; residuals of a part are from trees that learned from the others."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Options of growing trees: their number, depth, learning rate and random seed."""

    trees: int = 80
    depth: int = 8
    rate: float = 0.12
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trees", 1), ("depth", 1), ("seed", 0)):
            check_whole(name, getattr(self, name), least)
        check(0 < self.rate <= 1, "rate", self.rate, "above 0 and at most 1")


class PointTrees:
    """Forecasts log seconds relative to each machine's roofline (`limits`), by XGBoost's trees."""

    def __init__(self, shape: Shape, names: tuple[str, ...] = (), limits: MachineLimits | None = None) -> None:
        self.shape, self.names, self.limits = shape, names, limits or MachineLimits()
        self._grown: BoostedTrees | None = None

    def fit(self, features: Features, targets: Floats) -> PointTrees:
        """Learn targets (n_points,) from features (n_points, n_features)."""
        shape = self.shape
        self._grown = BoostedTrees.grown(
            features, targets, n_estimators=shape.trees, max_depth=shape.depth, learning_rate=shape.rate,
            colsample_bytree=0.6, min_child_weight=4, random_state=shape.seed,
        )  # fmt: skip
        return self

    @property
    def grown(self) -> BoostedTrees:
        """The trees; they are there after `fit` or `from_files`."""
        assert self._grown is not None
        return self._grown

    def log_seconds(self, ops: Sequence[Op], machine: Machine, cases: Sequence[Case]) -> Floats:
        """Forecast log seconds, (n_ops, n_cases)."""
        features = joint_features(ops, machine, cases, self.names)
        return self.limits.log_seconds(ops, machine, cases) + self.grown.forecast(features)

    def to_files(self, prefix: str) -> dict[str, bytes]:
        """The trees as a file, whose name is `prefix` and a suffix."""
        return {f"{prefix}.trees.json": self.grown.stored(feature_names(self.names))}

    def from_files(self, prefix: str, files: Mapping[str, bytes]) -> PointTrees:
        """Load what `to_files` returned; ArtefactError on anything else."""
        stored = artefacts.content(files, f"{prefix}.trees.json")
        self._grown = BoostedTrees.load(stored, features=feature_names(self.names))
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """All measured points of `entries` as rows, op after op: `of_op[i]` are the rows of entry i.

    `targets` are log seconds relative to the rooflines of `limits`, whose log seconds are `rooflines`.
    """

    features: Features
    targets: Floats
    rooflines: Floats
    of_op: tuple[slice, ...]
    entries: tuple[MeasuredOp, ...]
    names: tuple[str, ...]
    limits: MachineLimits

    @classmethod
    def of(
        cls, entries: Sequence[MeasuredOp], names: tuple[str, ...] = (), limits: MachineLimits | None = None
    ) -> Points:
        """The points of measured ops, as features and targets; the attributes `names` are features too.

        Without `limits`, those of each machine are fitted to its ops.
        """
        limits = limits or MachineLimits.learned(entries)
        features, targets, rooflines, of_op, start = [], [], [], [], 0
        for entry in entries:
            cases = tuple(entry.by_case)
            features.append(np.ascontiguousarray(joint_features([entry.op], entry.machine, cases, names)[0]))
            logs = np.log([measured.seconds for measured in entry.by_case.values()])
            rooflines.append(limits.log_seconds([entry.op], entry.machine, cases)[0])
            targets.append(logs - rooflines[-1])
            of_op.append(slice(start, start + len(cases)))
            start += len(cases)
        joined = [np.concatenate(parts) for parts in (features, targets, rooflines)]
        return cls(joined[0], joined[1], joined[2], tuple(of_op), tuple(entries), names, limits)

    def learned(self, shape: Shape) -> tuple[PointTrees, Floats]:
        """Trees that learned from all points, and residuals (n_points,) of trees that did not learn from the point's
        op, whatever its machine."""
        residuals = np.empty(len(self.targets))
        for fold in new_shape(folds=FOLDS, seed=shape.seed)(self.entries):
            out = np.zeros(len(self.targets), dtype=bool)
            for i in fold.test:
                out[self.of_op[i]] = True
            trees = self.trees(shape, ~out)
            residuals[out] = self.targets[out] - trees.grown.forecast(self.features[out])
        return self.trees(shape, slice(None)), residuals

    def trees(self, shape: Shape, rows: NDArray[np.bool_] | slice) -> PointTrees:
        """Trees that learned from some of the rows."""
        return PointTrees(shape, self.names, self.limits).fit(self.features[rows], self.targets[rows])
