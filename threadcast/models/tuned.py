"""A model whose options are searched for before it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from threadcast.core import Case, Curve, CurveTable, Machine, Measurement, Op
from threadcast.core.arguments import check_whole
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models import registry_of_kinds
from threadcast.models.base import PerformanceModel, Range
from threadcast.models.evaluation import evaluate
from threadcast.models.splits import new_shape

FOLDS = 3
"""Number of parts of the training ops; with each setting, each part is forecast by a model of the others."""


class Tuned(PerformanceModel):
    """The model named `kind`, with the options whose forecasts of held-out training ops are best.


    `fit` tries `trials` settings of the options in the kind's `searched`, proposed by Optuna's tree-structured Parzen
    estimator (Akiba et al. 2019, Optuna: A next-generation hyperparameter optimization framework). It uses the setting
    with the least mean relative error, or the kind's defaults where none is better, and then learns from all
    measurements that it was given. It is stored as a model of its kind.
    """

    def __init__(self, kind: str, *, trials: int = 20, seed: int = 0, **options: Any) -> None:
        check_whole("trials", trials)
        self._kind, self._trials, self._seed, self._options = kind, trials, seed, options
        self.model = registry_of_kinds.create(kind, **options)
        self._searched = {name: range_ for name, range_ in self.model.searched.items() if name not in options}
        if not self._searched:
            raise InvalidInput(f"{kind} has no options to search for")
        self.name = self.model.name
        self.chosen: Mapping[str, int | float] = {}
        """The options that `fit` found, in addition to the given ones."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The chosen options, and what the model's last `fit` left out."""
        chosen = ", ".join(f"{name} {value:.4g}" for name, value in self.chosen.items())
        return (f"tuned: {chosen or 'its defaults'}", *getattr(self.model, "notes", ()))

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """As the model does."""
        return self.model.propose(op, observed, machine)

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The model's proposal among these cases."""
        return self.model.propose_among(op, observed, machine, cases)

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Search, then learn; ModelError on data that cannot be learned from or are too few for a search."""
        import optuna

        def error_of(options: Mapping[str, int | float]) -> float:
            model = registry_of_kinds.create(self._kind, **self._options, **options)
            split = new_shape(folds=FOLDS, seed=self._seed)
            row = evaluate(measurements, [(self.name, model)], split=split, split_name="new_shape").rows[0]
            return math.inf if row.accuracy is None or row.unusable else 1 - row.accuracy

        def error_in(trial: optuna.Trial) -> float:
            return error_of({name: _suggested(trial, name, range_) for name, range_ in self._searched.items()})

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=self._seed))
        before = error_of({})
        if before == math.inf:
            raise ModelError(f"{self.name} cannot be tuned: it cannot forecast ops that are left out of {FOLDS} folds")
        study.optimize(error_in, n_trials=self._trials)
        self.chosen = study.best_params if study.best_value < before else {}
        self.model = registry_of_kinds.create(self._kind, **self._options, **self.chosen).fit(measurements)
        return self

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """As the model does."""
        return self.model.predict(op, observed, cases, machine=machine)

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """As the model does."""
        return self.model.predict_many(ops, observed, cases, machine=machine)

    def to_files(self) -> dict[str, bytes]:
        """The files of the model that was found, which are those of its kind."""
        return self.model.to_files()

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load the files of a model of the kind."""
        self.model = registry_of_kinds.create(self._kind, **self._options).from_files(files)
        return self


def _suggested(trial: Any, name: str, range_: Range) -> int | float:
    if isinstance(range_.low, int):
        whole: int = trial.suggest_int(name, range_.low, int(range_.high), log=True)
        return whole
    number: float = trial.suggest_float(name, range_.low, range_.high, log=True)
    return number
