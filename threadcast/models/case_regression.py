"""The regressors for the cases of one machine: their inputs, their forecasts and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.arguments import check, check_whole
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.models import feature_selection, regressors
from threadcast.models.artefacts import read_skops, reading, skops_bytes
from threadcast.models.feature_selection import Normaliser
from threadcast.models.sampling import evenly_spread

Scale = Literal["log", "linear"]
Sampled = Sequence[Sequence[Measurement]]
"""For each op, its measurements at the sampled cases, in the order of these cases."""

RATIO_MARGIN = np.log(2.0)
"""Forecasts stay within a factor of two of the ratios to the sampled times that occurred in training; only forecasts of
a regressor that diverges or goes below zero are affected."""

LEAST_S = 1e-12
"""Seconds that replace a linear forecast that is not positive, before it is clipped."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to learn: the regressor, the number of sampled cases, the scale of time."""

    regressor: str
    samples: int = 4
    scale: Scale = "log"
    seed: int = 0

    def __post_init__(self) -> None:
        regressors.check_name(self.regressor)
        evenly_spread((), self.samples)
        check(self.scale in get_args(Scale), "scale", self.scale, f"one of {', '.join(get_args(Scale))}")
        check_whole("seed", self.seed, 0)


@dataclass(frozen=True, slots=True, eq=False)
class CaseRegression:
    """The regressors that were learned on one machine. The arrays are (n_cases,) float64, in the order of `cases`.

    `centre` and `spread` standardise the targets; `low` and `high` bound the residuals in log time; `least` and `most`
    are the extreme log ratios to the geometric mean of the sampled times.
    """

    recipe: Recipe
    cases: tuple[Case, ...]
    samples: tuple[Case, ...]
    counters: tuple[str, ...]
    normaliser: Normaliser
    scaler: Any
    regressors: tuple[Any, ...]
    centre: Floats
    spread: Floats
    low: Floats
    high: Floats
    least: Floats
    most: Floats

    def forecast(self, sampled: Sampled) -> tuple[Floats, Floats, Floats]:
        """Forecast seconds and the lower and upper bounds of their intervals at `cases`, each (n_ops, n_cases)."""
        inputs = self.scaler.transform(features_of(sampled, self.counters, self.normaliser, self.recipe.scale))
        scores = np.stack([regressor.predict(inputs) for regressor in self.regressors], axis=1)
        logs = self.to_log(scores * self.spread + self.centre, reference_of(sampled), slice(None))
        return np.exp(logs), np.exp(logs + self.low), np.exp(logs + self.high)

    def to_log(self, times: Floats, reference: Floats, columns: slice | list[int]) -> Floats:
        """Log seconds of scaled targets (n_ops, n_columns), clipped to the ratios of training."""
        logs = times if self.recipe.scale == "log" else np.log(np.maximum(times, LEAST_S))
        ratio = logs - reference[:, None]
        return (
            np.clip(ratio, self.least[columns] - RATIO_MARGIN, self.most[columns] + RATIO_MARGIN) + reference[:, None]
        )

    def to_files(self, prefix: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A JSON document, and files whose names start with `prefix`."""
        document = {
            "recipe": asdict(self.recipe),
            "counters": self.counters,
            "normaliser": self.normaliser,
            **{name: [[case.threads, case.affinity] for case in getattr(self, name)] for name in ("cases", "samples")},
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
        }
        files = regressors.to_files(self.recipe.regressor, f"{prefix}.regressors", self.regressors)
        return document, {f"{prefix}.scaler.skops": skops_bytes(self.scaler), **files}

    @classmethod
    def from_files(cls, document: Any, prefix: str, files: Mapping[str, bytes]) -> CaseRegression:
        """Load what `to_files` returned; ArtefactError on anything else."""
        with reading(prefix):
            recipe = Recipe(**document["recipe"])
            cases, samples = (tuple(Case(n, a) for n, a in document[name]) for name in ("cases", "samples"))
            counters = tuple(map(str, document["counters"]))
            arrays = [np.array(document[name], dtype=np.float64) for name in _ARRAYS]
            scaler = read_skops(files, f"{prefix}.scaler.skops")
            features = len(samples) * (1 + len(counters))
            fitting = type(scaler) is type(new_scaler()) and scaler.n_features_in_ == features
            if not fitting or any(a.shape != (len(cases),) or not np.all(np.isfinite(a)) for a in arrays):
                raise ArtefactError(f"{prefix}: the parts do not fit each other")
            if document["normaliser"] not in get_args(Normaliser):
                raise ArtefactError(f"{prefix}: normaliser {document['normaliser']!r} is unknown")
            fitted = regressors.from_files(
                recipe.regressor, f"{prefix}.regressors", files, count=len(cases), features=features
            )
        return cls(recipe, cases, samples, counters, document["normaliser"], scaler, tuple(fitted), *arrays)


_ARRAYS = ("centre", "spread", "low", "high", "least", "most")


def features_of(sampled: Sampled, counters: Sequence[str], normaliser: Normaliser, scale: Scale) -> Floats:
    """(n_ops, n_samples * (1 + n_counters)): at each sampled case the time, then its counters."""
    rows = [
        [v for m in listed for v in (m.seconds, *(feature_selection.normalised(m, c, normaliser) for c in counters))]
        for listed in sampled
    ]
    table = np.array(rows, dtype=np.float64)
    if scale == "log":
        table[:, :: 1 + len(counters)] = np.log(table[:, :: 1 + len(counters)])
    return table


def new_scaler() -> Any:
    """An unfitted scikit-learn pipeline: it replaces missing inputs by their median, and standardises all."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())


def reference_of(sampled: Sampled) -> Floats:
    """Log of the geometric mean of the sampled times, (n_ops,)."""
    logs: Floats = np.log([[m.seconds for m in listed] for listed in sampled])
    return np.asarray(logs.mean(axis=1))
