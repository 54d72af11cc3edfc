"""Linear regressors."""

from __future__ import annotations

from typing import Any

import numpy as np

from threadcast.models.regressors.contract import Estimator, Forecaster, Numbers


class Linear(Estimator):
    """A straight line for each feature."""

    def learned(self, fitted: Any) -> Numbers:
        return {"slopes": fitted.coef_, "intercept": np.array(fitted.intercept_, dtype=np.float64).reshape(1)}

    def forecaster(self, numbers: Numbers) -> Forecaster:
        return lambda rows: rows @ numbers["slopes"] + numbers["intercept"]


REGRESSORS = (
    Linear("ols", "sklearn.linear_model:LinearRegression"),
    Linear("ard", "sklearn.linear_model:ARDRegression"),
    # scikit-learn's own successor of its PassiveAggressiveRegressor: the PA-I step with aggressiveness eta0
    Linear(
        "passive_aggressive", "sklearn.linear_model:SGDRegressor", loss="epsilon_insensitive", penalty=None,
        learning_rate="pa1", eta0=1.0, epsilon=0.02,
    ),
    # 150 of the possible subsets of rows, not 10,000: a case's fit takes 0.2 s at 80 features instead of 10
    Linear("theil_sen", "sklearn.linear_model:TheilSenRegressor", max_subpopulation=150, n_jobs=1),
)  # fmt: skip
