"""Neural networks with one hidden layer, trained by stochastic gradient descent, L-BFGS or Adam."""

from __future__ import annotations

from typing import Any

import numpy as np

from threadcast.models.regressors.contract import Estimator, Forecaster, Numbers

EPOCHS = 300
"""Most passes over the data; networks that have not converged by then are reported."""


class Network(Estimator):
    """A network of rectified linear units."""

    def __init__(self, solver: str) -> None:
        # 32 units: a few dozen features; the default 100 overfits hundreds of rows and is slower
        options = {"hidden_layer_sizes": (32,), "alpha": 1e-3, "learning_rate_init": 1e-2, "max_iter": EPOCHS}
        super().__init__(f"mlp_{solver}", "sklearn.neural_network:MLPRegressor", solver=solver, **options)

    def learned(self, fitted: Any) -> Numbers:
        (hidden, last), (hidden_bias, last_bias) = fitted.coefs_, fitted.intercepts_
        return {"hidden": hidden, "hidden_bias": hidden_bias, "last": last[:, 0], "last_bias": last_bias}

    def forecaster(self, numbers: Numbers) -> Forecaster:
        hidden, hidden_bias, last, last_bias = (numbers[key] for key in ("hidden", "hidden_bias", "last", "last_bias"))
        return lambda rows: np.maximum(rows @ hidden + hidden_bias, 0.0) @ last + last_bias


REGRESSORS = tuple(map(Network, ("sgd", "lbfgs", "adam")))
