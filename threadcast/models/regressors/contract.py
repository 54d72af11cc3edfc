"""The contract of a regressor: it learns a column of numbers from rows, and is stored as arrays."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, ModelError

Numbers = Mapping[str, NDArray[Any]]
"""What a regressor has learned: arrays of float64 or int32 by name, which are all that a forecast needs."""

Forecaster = Callable[[Floats], Floats]
"""Forecasts targets (n_rows,) from rows (n_rows, n_features)."""


class Regressor(ABC):
    """A way to learn targets from rows of features; `PerCase` with it is the model `name`.

    Write `fit` and `forecaster`; where scikit-learn's interface does the fitting, derive from `Estimator` instead. Rows
    and targets are standardised. What `fit` returns is stored and loaded as it is. Use one thread. A file in this
    folder lists its regressors in `REGRESSORS`; third parties call `registry_of_kinds.register_regressor`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def fit(self, rows: Floats, targets: Floats, *, seed: int) -> tuple[Numbers, bool]:
        """Learn from rows (n_rows, n_features) and targets (n_rows,): what was learned, and whether it converged.
        ValueError where no finite answer is found."""

    @abstractmethod
    def forecaster(self, numbers: Numbers) -> Forecaster:
        """The forecast by what `fit` returned; asked for once after fitting or loading."""

    def ends(self, numbers: Numbers, features: int) -> bool:
        """Whether a forecast by these stored numbers, for so many features, would end."""
        return True

    def fitted(self, rows: Floats, targets: Floats, *, seed: int = 0) -> tuple[Numbers, bool]:
        """As `fit`; ModelError where it finds no finite answer, or is given none."""
        if not (np.isfinite(rows).all() and np.isfinite(targets).all()):
            raise ModelError(f"{self.name} could not be fitted: its inputs have numbers that are not finite")
        try:
            return self.fit(rows, targets, seed=seed)
        except ValueError as error:  # LinAlgError among them
            raise ModelError(f"{self.name} could not be fitted: {error}") from error

    def checked(self, numbers: Numbers, *, features: int) -> Numbers:
        """Stored numbers; ArtefactError, or what a forecast raises, where they are none for so many features."""
        if not all(np.all(np.isfinite(array)) for array in numbers.values()):
            raise ArtefactError(f"{self.name} was stored with what is no number")
        sound = self.ends(numbers, features)
        if not sound or self.forecaster(numbers)(np.zeros((2, features))).shape != (2,):
            raise ArtefactError(f"the arrays of {self.name} do not fit each other")
        return numbers


class Estimator(Regressor):
    """A regressor of scikit-learn's interface: `library` is its "module:class", made with `options` and a seed.

    Write `learned` and `forecaster`.
    """

    def __init__(self, name: str, library: str, **options: Any) -> None:
        super().__init__(name)
        self.library, self.options = library, options

    @abstractmethod
    def learned(self, fitted: Any) -> Numbers:
        """What the library's fitted regressor has learned."""

    def unfitted(self, seed: int) -> Any:
        """The library's regressor."""
        module, _, name = self.library.partition(":")
        made = getattr(import_module(module), name)(**self.options)
        return made.set_params(random_state=seed) if "random_state" in made.get_params() else made

    def fit(self, rows: Floats, targets: Floats, *, seed: int) -> tuple[Numbers, bool]:
        """See `Regressor.fit`."""
        from sklearn import config_context
        from sklearn.exceptions import ConvergenceWarning

        # checked before, once: the libraries do it for every tree and every pass, and the options are ours
        checked_before = config_context(assume_finite=True, skip_parameter_validation=True)
        with checked_before, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            fitted = self.unfitted(seed).fit(rows, targets)
        others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
        for other in others:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        return self.learned(fitted), len(others) == len(caught)
