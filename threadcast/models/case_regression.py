"""The regressors for the cases of one machine: their inputs, their forecasts and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.arguments import check, check_whole
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.models import feature_selection
from threadcast.models.artefacts import npz_bytes, read_npz, reading
from threadcast.models.feature_selection import Normaliser
from threadcast.models.regressors.contract import Forecaster, Numbers, Regressor
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

    regressor: Regressor
    samples: int = 4
    scale: Scale = "log"
    seed: int = 0

    def __post_init__(self) -> None:
        check(isinstance(self.regressor, Regressor), "regressor", self.regressor, "a Regressor")
        evenly_spread((), self.samples)
        check(self.scale in get_args(Scale), "scale", self.scale, f"one of {', '.join(get_args(Scale))}")
        check_whole("seed", self.seed, 0)

    def to_json(self) -> dict[str, Any]:
        """The options, and the regressor's name."""
        return {
            "regressor": self.regressor.name,
            **{name: getattr(self, name) for name in ("samples", "scale", "seed")},
        }

    @classmethod
    def from_json(cls, document: Any, regressor: Regressor) -> Self:
        """Read what `to_json` wrote of this regressor; ArtefactError for another one's."""
        if document["regressor"] != regressor.name:
            raise ArtefactError(f"the artefact holds {document['regressor']}, not {regressor.name}")
        return cls(**{**document, "regressor": regressor})


class Scaler(NamedTuple):
    """Replaces missing inputs by their `median`, and standardises all; (n_features,) each."""

    median: Floats
    mean: Floats
    scale: Floats

    @classmethod
    def of(cls, table: Floats) -> Self:
        """From inputs (n_rows, n_features), NaN where missing."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        filled = SimpleImputer(strategy="median", keep_empty_features=True).fit(table)
        standard = StandardScaler().fit(filled.transform(table))
        return cls(filled.statistics_, standard.mean_, standard.scale_)

    def scaled(self, rows: Floats) -> Floats:
        """Inputs as regressors get them, (n_rows, n_features)."""
        found: Floats = (np.where(np.isnan(rows), self.median, rows) - self.mean) / self.scale
        return found


@dataclass(frozen=True, slots=True, eq=False)
class CaseRegression:
    """What regressors learned on one machine, one for each case. Arrays are (n_cases,) float64, as `cases`.

    `centre` and `spread` standardise the targets; `low` and `high` bound the residuals in log time; `least` and `most`
    are the extreme log ratios to the geometric mean of the sampled times.
    """

    recipe: Recipe
    cases: tuple[Case, ...]
    samples: tuple[Case, ...]
    counters: tuple[str, ...]
    normaliser: Normaliser
    scaler: Scaler
    learned: tuple[Numbers, ...]
    centre: Floats
    spread: Floats
    low: Floats
    high: Floats
    least: Floats
    most: Floats
    forecasters: tuple[Forecaster, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "forecasters", tuple(map(self.recipe.regressor.forecaster, self.learned)))

    def forecast(self, sampled: Sampled) -> tuple[Floats, Floats, Floats]:
        """Forecast seconds and the lower and upper bounds of their intervals at `cases`, each (n_ops, n_cases)."""
        inputs = self.scaler.scaled(features_of(sampled, self.counters, self.normaliser, self.recipe.scale))
        scores = np.stack([forecast(inputs) for forecast in self.forecasters], axis=1)
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
            "recipe": self.recipe.to_json(), "counters": self.counters, "normaliser": self.normaliser,
            **{name: [[case.threads, case.affinity] for case in getattr(self, name)] for name in ("cases", "samples")},
        }  # fmt: skip
        arrays = {name: getattr(self, name) for name in _ARRAYS} | self.scaler._asdict()
        for i, numbers in enumerate(self.learned):
            arrays |= {f"{i}.{name}": array for name, array in numbers.items()}
        return document, {f"{prefix}.npz": npz_bytes(arrays)}

    @classmethod
    def from_files(cls, document: Any, prefix: str, files: Mapping[str, bytes], regressor: Regressor) -> CaseRegression:
        """Load what `to_files` returned; ArtefactError on anything else."""
        stored = read_npz(files, f"{prefix}.npz")
        with reading(prefix):
            recipe = Recipe.from_json(document["recipe"], regressor)
            cases, samples = (tuple(Case(n, a) for n, a in document[name]) for name in ("cases", "samples"))
            counters = tuple(map(str, document["counters"]))
            arrays, scaler = [stored[name] for name in _ARRAYS], Scaler(*(stored[name] for name in Scaler._fields))
            features = len(samples) * (1 + len(counters))
            fitting = all(a.shape == (len(cases),) for a in arrays) and all(a.shape == (features,) for a in scaler)
            if not fitting or not all(np.all(np.isfinite(array)) for array in (*arrays, *scaler)):
                raise ArtefactError(f"{prefix}: the parts do not fit each other")
            if document["normaliser"] not in get_args(Normaliser):
                raise ArtefactError(f"{prefix}: normaliser {document['normaliser']!r} is unknown")
            of_case: list[dict[str, Any]] = [{} for _ in cases]
            for name in stored.keys() - {*_ARRAYS, *Scaler._fields}:
                number, _, own = name.partition(".")
                of_case[int(number)][own] = stored[name]
            learned = tuple(regressor.checked(numbers, features=features) for numbers in of_case)
        return cls(recipe, cases, samples, counters, document["normaliser"], scaler, learned, *arrays)


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


def reference_of(sampled: Sampled) -> Floats:
    """Log of the geometric mean of the sampled times, (n_ops,)."""
    logs: Floats = np.log([[m.seconds for m in listed] for listed in sampled])
    return np.asarray(logs.mean(axis=1))
