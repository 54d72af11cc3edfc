"""XGBoost's trees as tables of numbers: they forecast all cases of an op at once, in a third of XGBoost's time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.models.static_features import Features

WORTH_COMPILING = 1_000_000
"""Points that XGBoost forecasts before the loop over tables is compiled. That takes 1.5 s of a core (0.4 s where numba
finds the machine code on disk), and saves 0.4 s for each million points: one call of a command line would lose time."""

LEAF, FORK, BRANCH = 0, 1, 2
"""Kinds of nodes: without children, with two leaves as children, others."""

CHECKED_OPS = 4
"""Ops whose forecasts by a new table are compared with XGBoost's own."""


class CaseForecasts:
    """Forecasts of a fitted XGBRegressor at cases of ops: by XGBoost, and after `WORTH_COMPILING` points by a table.

    The table's forecasts are XGBoost's to the last bit; where they are not, or numba is not installed (extra `plan`),
    XGBoost goes on. Several threads may call it at once.
    """

    def __init__(self, regressor: Any) -> None:
        self._booster = regressor.get_booster()
        self._points = 0
        self._table: TreeTable | None = None
        self._compiles = True

    def __call__(self, features: Features) -> NDArray[np.float32]:
        """(n_ops, n_cases) forecasts from features (n_ops, n_cases, n_features); NaN are missing values."""
        if self._table is not None:
            return self._table.forecast(features)
        self._points += features.shape[0] * features.shape[1]
        if self._compiles and self._points >= WORTH_COMPILING:
            self._compiles = False
            self._table = self._checked_table(features)
        return self._by_xgboost(features)

    def _by_xgboost(self, features: Features) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._booster.inplace_predict(features.reshape(-1, features.shape[2]))
        return found.reshape(features.shape[:2])

    def _checked_table(self, features: Features) -> TreeTable | None:
        if _compiled() is None:
            return None
        table = TreeTable.of(bytes(self._booster.save_raw("json")))
        some = features[:CHECKED_OPS]
        return table if np.array_equal(table.forecast(some), self._by_xgboost(some)) else None


@dataclass(frozen=True, slots=True, eq=False)
class TreeTable:
    """The nodes of all trees, tree after tree.

    `shape` (`LEAF`, `FORK` where both children are leaves, else `BRANCH`), `left`, `right` (0 in leaves), `column`,
    `threshold` (in leaves their value) and `missing_left` (where a missing value goes) are (n_nodes,), `roots`
    (n_trees,). `used` are the features that any node asks for; `column` is a position among them. `base` is what a sum
    begins with; `depth` the number of nodes on the longest path.
    """

    roots: NDArray[np.uint32]
    shape: NDArray[np.uint8]
    left: NDArray[np.uint32]
    right: NDArray[np.uint32]
    column: NDArray[np.uint32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    used: NDArray[np.uint64]
    base: np.float32
    depth: int

    @classmethod
    def of(cls, model: bytes) -> TreeTable:
        """The table of a sound model of squared error in XGBoost's JSON format (`boosted_trees`)."""
        learner = json.loads(model)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        starts = np.cumsum([0, *(len(tree["left_children"]) for tree in trees)])
        shift = np.repeat(starts[:-1], np.diff(starts))

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([tree[name] for tree in trees])

        left, right = (
            np.where(own < 0, -1, own + shift).astype(np.int32)
            for own in (joined("left_children"), joined("right_children"))
        )
        feature = joined("split_indices")
        used = np.unique(feature[left >= 0])
        column = np.where(left >= 0, np.searchsorted(used, feature), 0)
        level = np.ones(len(left), dtype=np.int64)
        for start, stop in pairwise(starts.tolist()):
            for node in range(start, stop):  # children come after their parent
                if left[node] >= 0:
                    level[[left[node], right[node]]] = level[node] + 1
        leaf = left < 0
        shape = np.where(leaf, LEAF, np.where(leaf[left] & leaf[right], FORK, BRANCH))
        base = np.float32(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        return cls(
            starts[:-1].astype(np.uint32), shape.astype(np.uint8), np.maximum(left, 0).astype(np.uint32),
            np.maximum(right, 0).astype(np.uint32), column.astype(np.uint32),
            joined("split_conditions").astype(np.float32), joined("default_left").astype(np.bool_),
            used.astype(np.uint64), base, int(level.max()),
        )  # fmt: skip

    def forecast(self, features: Features) -> NDArray[np.float32]:
        """(n_ops, n_cases) forecasts from float32 features (n_ops, n_cases, n_features).

        Features in the memory layout of `joint_features`, all cases of a feature side by side, are not copied.
        """
        n_ops, n_cases, n_features = features.shape
        found = np.empty(n_ops * n_cases, dtype=np.float32)
        values = np.ascontiguousarray(features.transpose(0, 2, 1)).reshape(-1)
        loop = _compiled() or _sum_of_trees
        loop(
            values, np.uint64(n_cases), np.uint64(n_features), self.roots, self.shape, self.left, self.right,
            self.column, self.threshold, self.missing_left, self.used, self.base, self.depth, found,
        )  # fmt: skip
        return found.reshape(n_ops, n_cases)


@cache
def _compiled() -> Callable[..., None] | None:
    """The loop below as machine code, which several threads run at once; None without numba, or with it disabled."""
    try:
        import numba
    except ImportError:
        return None
    if numba.config.DISABLE_JIT:
        return None
    found: Callable[..., None]
    try:
        found = numba.njit(_sum_of_trees, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # no folder can be written, as in a container whose files are read-only
        found = numba.njit(_sum_of_trees, nogil=True, error_model="numpy")
    return found


def _sum_of_trees(
    values: Any, n_cases: Any, n_features: Any, roots: Any, shape: Any, left: Any, right: Any, column: Any,
    threshold: Any, missing_left: Any, used: Any, base: Any, depth: int, found: Any,
) -> None:  # fmt: skip
    """Fill `found` with the sum of the leaves that each case reaches, tree by tree as XGBoost adds them, in float32.

    A tree is followed by all cases of an op together. Most nodes send all of them one way, which the least and the
    largest value of the feature tell; else masks of 0 and 1 say which cases are in a branch, so that the processor
    compares eight or more of them at once. Arrays are flat and indices unsigned: numba looks for negative indices and
    counts references to rows, which takes half of the time.
    """
    one, none = np.uint64(1), np.float32(0.0)
    n_used = np.uint64(len(used))
    everything = np.int32(n_cases)
    least = np.empty(len(used), dtype=np.float32)
    most = np.empty(len(used), dtype=np.float32)
    missing = np.empty(len(used), dtype=np.bool_)
    masks = np.empty((depth + 1) * int(n_cases), dtype=np.int32)
    waiting = np.empty(depth + 1, dtype=np.uint32)  # right branches, whose cases are those of the mask so deep
    sizes = np.empty(depth + 1, dtype=np.int32)
    for op in range(np.uint64(len(found)) // n_cases):
        out, features = op * n_cases, op * n_features * n_cases
        for i in range(n_used):
            row, low, high, gaps = features + used[i] * n_cases, np.float32(np.inf), np.float32(-np.inf), np.int32(0)
            for case in range(n_cases):
                value = values[row + case]
                low = value if value < low else low
                high = value if value > high else high
                gaps |= np.int32(value != value)
            missing[i] = gaps != 0
            least[i], most[i] = (low, high) if gaps == 0 else (-np.inf, np.inf)
        for case in range(n_cases):
            found[out + case] = base
        for root in roots:
            node, level, size = np.uint64(root), np.uint64(0), everything
            for case in range(n_cases):
                masks[case] = 1
            while True:
                limit, here = threshold[node], level * n_cases
                if shape[node] == LEAF:
                    if size == everything:
                        for case in range(n_cases):
                            found[out + case] += limit
                    else:
                        for case in range(n_cases):
                            found[out + case] += limit if masks[here + case] else none
                else:
                    asked = np.uint64(column[node])
                    if most[asked] < limit:
                        node = np.uint64(left[node])
                        continue
                    if least[asked] >= limit:
                        node = np.uint64(right[node])
                        continue
                    row = features + used[asked] * n_cases
                    if shape[node] == BRANCH or missing[asked]:
                        below, count = here + n_cases, np.int32(0)
                        if missing_left[node] and missing[asked]:
                            for case in range(n_cases):
                                goes = masks[here + case] & np.int32(not values[row + case] >= limit)
                                masks[below + case] = goes
                                count += goes
                        else:
                            for case in range(n_cases):
                                goes = masks[here + case] & np.int32(values[row + case] < limit)
                                masks[below + case] = goes
                                count += goes
                        if count == size:
                            node = np.uint64(left[node])
                        elif count == 0:
                            node = np.uint64(right[node])
                        else:
                            for case in range(n_cases):
                                masks[here + case] ^= masks[below + case]
                            waiting[level], sizes[level] = right[node], size - count
                            node, level, size = np.uint64(left[node]), level + one, count
                        continue
                    lower, upper = threshold[left[node]], threshold[right[node]]
                    if size == everything:
                        for case in range(n_cases):
                            found[out + case] += lower if values[row + case] < limit else upper
                    else:
                        for case in range(n_cases):
                            leaf = lower if values[row + case] < limit else upper
                            found[out + case] += leaf if masks[here + case] else none
                if level == 0:
                    break
                level -= one
                node, size = np.uint64(waiting[level]), sizes[level]
