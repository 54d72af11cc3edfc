"""The weighted mean of the nearest rows."""

from __future__ import annotations

from threadcast.core.curve import Floats
from threadcast.models.regressors.contract import Forecaster, Numbers, Regressor

NEAREST = 5


class Neighbors(Regressor):
    """K-neighbours, nearer ones with more weight. Its rows are stored, not scikit-learn's search tree, which would be
    used unchecked after loading."""

    def fit(self, rows: Floats, targets: Floats, *, seed: int) -> tuple[Numbers, bool]:
        return {"rows": rows, "targets": targets}, True

    def forecaster(self, numbers: Numbers) -> Forecaster:
        from sklearn.neighbors import KNeighborsRegressor

        count = min(NEAREST, len(numbers["rows"]))
        # kd_tree: the brute-force search would start OpenMP threads of its own
        search = KNeighborsRegressor(count, weights="distance", algorithm="kd_tree", n_jobs=1)
        forecast: Forecaster = search.fit(numbers["rows"], numbers["targets"]).predict
        return forecast


REGRESSORS = (Neighbors("k_neighbors"),)
