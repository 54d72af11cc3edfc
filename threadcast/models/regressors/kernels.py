"""Support vector regression with a linear, a cubic and a Gaussian kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from threadcast.core.curve import Floats
from threadcast.models.regressors.contract import Estimator, Forecaster, Numbers

COEF0, DEGREE = 1.0, 3
"""Of the cubic kernel. Without the first it has no linear part."""


class SupportVectors(Estimator):
    """A weighted sum of how similar a row is to rows of training."""

    def __init__(self, name: str, kernel: str) -> None:
        # epsilon is in standard deviations of the target: the default 0.1 ignores errors of 20 % over five decades
        options = {"epsilon": 0.05, "coef0": COEF0, "degree": DEGREE, "max_iter": 100_000}
        super().__init__(name, "sklearn.svm:SVR", kernel=kernel, **options)

    def learned(self, fitted: Any) -> Numbers:
        return {
            "vectors": fitted.support_vectors_, "weights": fitted.dual_coef_[0], "intercept": fitted.intercept_,
            "gamma": np.array([fitted._gamma]),
        }  # fmt: skip

    def forecaster(self, numbers: Numbers) -> Forecaster:
        return lambda rows: self._similar(rows, numbers) @ numbers["weights"] + numbers["intercept"]

    def _similar(self, rows: Floats, numbers: Numbers) -> Floats:
        """The kernel's value of each row and each support vector, (n_rows, n_vectors)."""
        from scipy.spatial.distance import cdist

        vectors, gamma, kernel = numbers["vectors"], numbers["gamma"], self.options["kernel"]
        found: Floats = np.exp(-gamma * cdist(rows, vectors, "sqeuclidean")) if kernel == "rbf" else rows @ vectors.T
        return (gamma * found + COEF0) ** DEGREE if kernel == "poly" else found


REGRESSORS = tuple(SupportVectors(f"svr_{kernel}", kernel) for kernel in ("linear", "poly", "rbf"))
