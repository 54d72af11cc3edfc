"""Decision trees, one or a sum of many, as arrays of numbers: quick to store, and checked before they are used."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.models.boosted_trees import stays_inside
from threadcast.models.regressors.contract import Estimator, Forecaster, Numbers

TREES = 30
"""Number of trees of a random forest. On the synthetic ops of the tests the scores of 30 to 200 trees are within 0.2 %
of each other; time to fit, size and time to load grow with the number."""

_ARRAYS = ("roots", "left", "right", "feature", "threshold", "value", "base")
"""`left`, `right` (-1 in leaves) and `feature` are (n_nodes,) int32, `threshold` and `value` (n_nodes,) float64, and
`roots` (n_trees,) int32. A forecast is `base` plus the value of the leaf that a row reaches in each tree; a row goes
left where its feature, as float32, is at most the threshold."""

_TYPES = (np.int32,) * 4 + (np.float64,) * 3


class Trees(Estimator):
    """The sum of many trees, as `read` takes their arrays from the library's fitted regressor."""

    def __init__(self, name: str, library: str, read: Callable[[Any], Numbers], **options: Any) -> None:
        super().__init__(name, library, **options)
        self.read = read

    def learned(self, fitted: Any) -> Numbers:
        return self.read(fitted)

    def forecaster(self, numbers: Numbers) -> Forecaster:
        roots, left, right, feature, threshold, value, base = (numbers[name] for name in _ARRAYS)
        leaves = np.where(left < 0, np.arange(len(left)), -1)  # which lead to themselves
        children = np.maximum(np.column_stack([right, left]), leaves[:, None]).reshape(-1)

        def forecast(rows: Floats) -> Floats:
            single = rows.astype(np.float32)
            starts = np.arange(len(rows))[:, None] * rows.shape[1]
            at, before = np.tile(roots, (len(rows), 1)), None
            while before is None or not np.array_equal(at, before):
                left_of = single.take(starts + feature.take(at)) <= threshold.take(at)
                at, before = children.take(2 * at + left_of), at
            found: Floats = base + value.take(at).sum(axis=1)
            return found

        return forecast

    def ends(self, numbers: Numbers, features: int) -> bool:
        """Whether the arrays have one type and size each, and no node leads out of them."""
        roots, left, right, feature, threshold, value, base = (numbers[name] for name in _ARRAYS)
        types = all(numbers[name].dtype == kind for name, kind in zip(_ARRAYS, _TYPES, strict=True))
        shapes = {a.shape for a in (left, right, feature, threshold, value)} == {(left.size,)} and base.shape == (1,)
        begins = roots.ndim == 1 and roots.size > 0 and bool(np.all((roots >= 0) & (roots < left.size)))
        known = bool(np.all((feature >= 0) & (feature < features)))
        return types and shapes and begins and known and stays_inside(left, right, feature, features)


def _joined(nodes: Sequence[Sequence[Any]], threshold: NDArray[Any], value: NDArray[Any], base: float = 0.0) -> Numbers:
    """The arrays of all trees, from each one's children (-1: none) and features; `threshold` and `value` are joined."""
    starts = np.cumsum([0, *map(len, nodes[0])])
    left, right = (
        np.concatenate([np.where(own < 0, -1, own + at) for at, own in zip(starts, children)]) for children in nodes[:2]
    )
    arrays = (starts[:-1], left, right, np.maximum(np.concatenate(nodes[2]), 0), threshold, value, [base])
    return {name: np.asarray(array, dtype) for name, array, dtype in zip(_ARRAYS, arrays, _TYPES, strict=True)}


def _grown(estimators: Sequence[Any], scale: float = 1.0, base: float = 0.0) -> Numbers:
    """scikit-learn's trees, each times `scale`, and `base`."""
    trees = [estimator.tree_ for estimator in estimators]
    nodes = [[getattr(tree, name) for tree in trees] for name in ("children_left", "children_right", "feature")]
    value = np.concatenate([tree.value.ravel() for tree in trees])
    return _joined(nodes, np.concatenate([tree.threshold for tree in trees]), value * scale, base)


def _single(fitted: Any) -> Numbers:
    return _grown([fitted])


def _forest(fitted: Any) -> Numbers:
    return _grown(fitted.estimators_, 1 / len(fitted.estimators_))


def _boosting(fitted: Any) -> Numbers:
    return _grown(fitted.estimators_.ravel(), fitted.learning_rate, fitted.init_.constant_.item())


def _xgboost(fitted: Any) -> Numbers:
    """XGBoost's trees, whose own files can end the process that loads them."""
    document = json.loads(bytes(fitted.get_booster().save_raw("json")))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    nodes = [[np.array(tree[name]) for tree in trees] for name in ("left_children", "right_children", "split_indices")]
    value = np.concatenate([tree["split_conditions"] for tree in trees]).astype(np.float32)
    return _joined(nodes, np.nextafter(value, np.float32(-np.inf)), value)  # it goes right where a feature is equal


REGRESSORS = (
    Trees("decision_tree", "sklearn.tree:DecisionTreeRegressor", _single, min_samples_leaf=2),
    Trees(
        "random_forest", "sklearn.ensemble:RandomForestRegressor", _forest, n_estimators=TREES, min_samples_leaf=2,
        max_features=0.5, n_jobs=1,
    ),
    # 60 steps of 0.15, not 100 of 0.1: 0.2 % less accurate on the tests' ops, half the time to fit, store and load
    Trees(
        "gradient_boosting", "sklearn.ensemble:GradientBoostingRegressor", _boosting, n_estimators=60,
        learning_rate=0.15, max_features=0.5,
    ),
    # half of the columns and 64 bins: a quarter of the time, 0.1 % less accurate on the tests' ops
    Trees(
        "xgboost", "xgboost:XGBRegressor", _xgboost, n_estimators=100, max_depth=4, learning_rate=0.1, subsample=0.8,
        colsample_bytree=0.5, max_bin=64, base_score=0.0, n_jobs=1,
    ),
)  # fmt: skip
