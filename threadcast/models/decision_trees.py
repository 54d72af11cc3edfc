"""scikit-learn's decision trees as arrays of numbers: quick to store, and checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.models.boosted_trees import stays_inside


class Trees:
    """Fitted scikit-learn decision trees, one tree or a sum of several, as the numbers of their nodes.

    `left`, `right` (-1 in leaves) and `feature` are (n_nodes,) int32, `threshold` and `value` (n_nodes,) float64,
    `roots` (n_trees,) int32. A forecast is `base` plus the value of the leaf that a row reaches in each tree. skops
    stores every tree with its whole estimator: storing and loading 68 forests took 5 to 16 s, and takes a tenth as
    numbers.
    """

    NAMES = ("roots", "left", "right", "feature", "threshold", "value", "base")

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = {name: arrays[name] for name in self.NAMES}

    @classmethod
    def of(cls, grown: Sequence[Any], *, scale: float = 1.0, base: float = 0.0) -> Self:
        """The sum of fitted scikit-learn trees, each times `scale`, and `base`."""
        trees = [estimator.tree_ for estimator in grown]
        starts = np.cumsum([0, *(tree.node_count for tree in trees)])

        def children(name: str) -> NDArray[np.int32]:
            shifted = [np.where(own < 0, -1, own + at) for at, own in zip(starts, (getattr(t, name) for t in trees))]
            return np.concatenate(shifted).astype(np.int32)

        return cls({
            "roots": starts[:-1].astype(np.int32),
            "left": children("children_left"), "right": children("children_right"),
            "feature": np.maximum(np.concatenate([tree.feature for tree in trees]), 0).astype(np.int32),
            "threshold": np.concatenate([tree.threshold for tree in trees]),
            "value": np.concatenate([tree.value.ravel() * scale for tree in trees]),
            "base": np.array([base]),
        })  # fmt: skip

    def predict(self, rows: Floats) -> Floats:
        """What scikit-learn would forecast for rows (n_rows, n_features), which are compared as float32."""
        roots, left, right, feature, threshold, value, base = (self.arrays[name] for name in self.NAMES)
        numbers = np.arange(len(rows))[:, None]
        single = rows.astype(np.float32)
        at = np.tile(roots, (len(rows), 1))
        while np.any(inner := left[at] >= 0):
            below = np.where(single[numbers, feature[at]] <= threshold[at], left[at], right[at])
            at = np.where(inner, below, at)
        found: Floats = base + value[at].sum(axis=1)
        return found

    def check(self, features: int) -> None:
        """Raise ArtefactError where the arrays' sizes differ or a node leads out of them."""
        roots, left, right, feature, threshold, value, base = (self.arrays[name] for name in self.NAMES)
        types = [array.dtype for array in self.arrays.values()] == [np.int32] * 4 + [np.float64] * 3
        shapes = {a.shape for a in (left, right, feature, threshold, value)} == {(left.size,)} and base.shape == (1,)
        if (
            not types
            or not shapes
            or roots.ndim != 1
            or not roots.size
            or not np.all((roots >= 0) & (roots < left.size))
        ):
            raise ArtefactError("the arrays of decision trees do not fit each other")
        known = np.all((feature >= 0) & (feature < features))
        if not known or not stays_inside(left, right, feature, features):
            raise ArtefactError("a decision tree has nodes that point outside it")
        if not all(np.all(np.isfinite(array)) for array in (threshold, value, base)):
            raise ArtefactError("a decision tree holds what is no number")
