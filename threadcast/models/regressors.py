"""The regressors of the per-case models, and how each is stored.

Source of the list: Liu et al. 2018, III-B, which names ten kinds without their hyper-parameters; XGBoost is added.
Comments give the reasons for values that are not the library's defaults. All regressors get standardised features and
targets, and use one thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.models import artefacts, boosted_trees
from threadcast.models.decision_trees import Trees
from threadcast.models.xgboost_library import xgboost_library

TREES = 30
"""Number of trees of a random forest. On the synthetic ops of the tests the scores of 30 to 200 trees are within 0.2 %
of each other; time to fit, size and time to load grow with the number."""

EPOCHS = 300
"""Most passes of the neural networks over the data; those that have not converged by then are reported."""


class Neighbors:
    """scikit-learn's K-neighbours that keeps its rows, so that it is stored as those numbers and not as a search tree,
    which would be used unchecked after loading."""

    def fit(self, rows: Floats, targets: Floats) -> Self:
        """Remember rows (n_rows, n_features) and targets (n_rows,)."""
        from sklearn.neighbors import KNeighborsRegressor

        # kd_tree: the brute-force search would start OpenMP threads of its own
        search = KNeighborsRegressor(min(5, len(rows)), weights="distance", algorithm="kd_tree", n_jobs=1)
        self.rows, self.targets, self._search = rows, targets, search.fit(rows, targets)
        return self

    def predict(self, rows: Floats) -> Floats:
        """Mean target of the nearest rows, with more weight for nearer ones."""
        found: Floats = self._search.predict(rows)
        return found


def check_name(name: str) -> None:
    """Raise InvalidInput for an unknown regressor."""
    if name not in _MAKERS:
        raise InvalidInput(f"regressor={name!r} is unknown; known: {', '.join(_MAKERS)}")


def make(name: str, *, seed: int = 0) -> Any:
    """An unfitted regressor; its `fit`, as scikit-learn's, takes rows and targets and returns the fitted one."""
    check_name(name)
    return _MAKERS[name](seed)


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(TREES, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1)


def _k_neighbors(seed: int) -> Any:
    return Neighbors()


def _gradient_boosting(seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    # 60 steps of 0.15, not 100 of 0.1: 0.2 % less accurate on the tests' ops, half the time to fit, store and load
    return GradientBoostingRegressor(n_estimators=60, learning_rate=0.15, max_features=0.5, random_state=seed)


def _svr(kernel: str) -> Callable[[int], Any]:
    def maker(seed: int) -> Any:
        from sklearn.svm import SVR

        # epsilon is in standard deviations of the target: the default 0.1 ignores errors of 20 % over five decades.
        # coef0: without it a cubic kernel has no linear part
        return SVR(kernel=kernel, epsilon=0.05, coef0=1.0, max_iter=100_000)

    return maker


def _decision_tree(seed: int) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(min_samples_leaf=2, random_state=seed)


def _ard(seed: int) -> Any:
    from sklearn.linear_model import ARDRegression

    return ARDRegression()


def _ols(seed: int) -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _passive_aggressive(seed: int) -> Any:
    from sklearn.linear_model import SGDRegressor

    # scikit-learn's own successor of its PassiveAggressiveRegressor: the PA-I step with aggressiveness eta0
    return SGDRegressor(
        loss="epsilon_insensitive", penalty=None, learning_rate="pa1", eta0=1.0, epsilon=0.02, random_state=seed
    )


def _mlp(solver: str) -> Callable[[int], Any]:
    def maker(seed: int) -> Any:
        from sklearn.neural_network import MLPRegressor

        # 32 units: a few dozen features; the default 100 overfits hundreds of rows and is slower
        return MLPRegressor(
            hidden_layer_sizes=(32,), solver=solver, alpha=1e-3, learning_rate_init=1e-2, max_iter=EPOCHS,
            random_state=seed,
        )  # fmt: skip

    return maker


def _theil_sen(seed: int) -> Any:
    from sklearn.linear_model import TheilSenRegressor

    # 150 of the possible subsets of rows, not 10,000: a case's fit takes 0.2 s at 80 features instead of 10
    return TheilSenRegressor(max_subpopulation=150, random_state=seed, n_jobs=1)


def _xgboost(seed: int) -> Any:
    # half of the columns and 64 bins: a quarter of the time, 0.1 % less accurate on the tests' ops
    return xgboost_library().XGBRegressor(
        n_estimators=100, max_depth=4, learning_rate=0.1, subsample=0.8, colsample_bytree=0.5, max_bin=64,
        base_score=0.0, random_state=seed, n_jobs=1,
    )  # fmt: skip


_MAKERS: Mapping[str, Callable[[int], Any]] = {
    "random_forest": _random_forest,
    "k_neighbors": _k_neighbors,
    "gradient_boosting": _gradient_boosting,
    "svr_linear": _svr("linear"),
    "svr_poly": _svr("poly"),
    "svr_rbf": _svr("rbf"),
    "decision_tree": _decision_tree,
    "ard": _ard,
    "ols": _ols,
    "passive_aggressive": _passive_aggressive,
    "mlp_sgd": _mlp("sgd"),
    "mlp_lbfgs": _mlp("lbfgs"),
    "mlp_adam": _mlp("adam"),
    "theil_sen": _theil_sen,
    "xgboost": _xgboost,
}


def fit(name: str, rows: Floats, targets: Floats, *, seed: int = 0) -> tuple[Any, bool]:
    """A regressor fitted to rows (n_rows, n_features) and targets (n_rows,), and whether it reports that it converged.

    ModelError where the library finds no finite answer.
    """
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning

    if not (np.isfinite(rows).all() and np.isfinite(targets).all()):
        raise ModelError(f"{name} could not be fitted: its inputs have numbers that are not finite")
    regressor = make(name, seed=seed)
    # checked here once: the libraries do it for every tree and every pass, and the options are ours
    checked_before = config_context(assume_finite=True, skip_parameter_validation=True)
    with checked_before, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            fitted = regressor.fit(rows, targets)
        except ValueError as error:  # what the libraries raise where the numbers run away, LinAlgError among them
            raise ModelError(f"{name} could not be fitted: {error}") from error
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
    for other in others:
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return _as_trees(name, fitted), len(others) == len(caught)


def _as_trees(name: str, fitted: Any) -> Any:
    """The trees of a fitted regressor as numbers (`Trees`); other regressors as they are."""
    if name == "decision_tree":
        return Trees.of([fitted])
    if name == "random_forest":
        return Trees.of(fitted.estimators_, scale=1 / TREES)
    if name == "gradient_boosting":
        return Trees.of(fitted.estimators_.ravel(), scale=fitted.learning_rate, base=fitted.init_.constant_.item())
    return fitted


_TREES = ("decision_tree", "random_forest", "gradient_boosting")
"""Regressors that become `Trees`."""


def to_files(name: str, prefix: str, fitted: Sequence[Any]) -> dict[str, bytes]:
    """Fitted regressors of one kind as files whose names start with `prefix`."""
    if name == "xgboost":
        return {f"{prefix}.{i}.trees.json": boosted_trees.stored(r) for i, r in enumerate(fitted)}
    if name == "k_neighbors":
        arrays = {f"rows.{i}": r.rows for i, r in enumerate(fitted)}
        return {
            f"{prefix}.npz": artefacts.npz_bytes(arrays | {f"targets.{i}": r.targets for i, r in enumerate(fitted)})
        }
    if name in _TREES:
        arrays = {f"{key}.{i}": array for i, trees in enumerate(fitted) for key, array in trees.arrays.items()}
        return {f"{prefix}.npz": artefacts.npz_bytes(arrays)}
    return {f"{prefix}.skops": artefacts.skops_bytes(list(fitted))}


def from_files(name: str, prefix: str, files: Mapping[str, bytes], *, count: int, features: int) -> list[Any]:
    """The `count` regressors that `to_files` stored, for rows of `features` columns; ArtefactError on anything else."""
    if name == "xgboost":
        return [
            boosted_trees.load(make(name), artefacts.content(files, f"{prefix}.{i}.trees.json"), features=features)
            for i in range(count)
        ]
    if name == "k_neighbors":
        arrays = artefacts.read_npz(files, f"{prefix}.npz")
        with artefacts.reading(f"{prefix}.npz"):
            return [Neighbors().fit(arrays[f"rows.{i}"], arrays[f"targets.{i}"]) for i in range(count)]
    if name in _TREES:
        arrays = artefacts.read_npz(files, f"{prefix}.npz")
        with artefacts.reading(f"{prefix}.npz"):
            found = [Trees({key: arrays[f"{key}.{i}"] for key in Trees.NAMES}) for i in range(count)]
            for trees in found:
                trees.check(features)
            return found
    loaded = artefacts.read_skops(files, f"{prefix}.skops")
    expected = type(make(name))
    if not isinstance(loaded, list) or len(loaded) != count or any(type(r) is not expected for r in loaded):
        raise ArtefactError(f"{prefix}.skops does not hold {count} {expected.__name__}s")
    if any(regressor.n_features_in_ != features for regressor in loaded):
        raise ArtefactError(f"{prefix}.skops holds a regressor of other than {features} features")
    return loaded
