"""The paper's regression models: one regressor for each case, from counters and times at a few sampled cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ModelError
from threadcast.core.json_reading import check_schema
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import BatchModel
from threadcast.models.case_learning import learn
from threadcast.models.case_regression import CaseRegression, Recipe, Scale
from threadcast.models.interpolation import forecast_table, through_forecasts, with_known
from threadcast.models.measured import by_case, by_machine, group, usable
from threadcast.models.regressors.contract import Regressor
from threadcast.models.sampling import evenly_spread

SCHEMA = "threadcast.per_case/2"


class PerCase(BatchModel):
    """One regressor for each case of a machine, over features of N sampled cases of the op.

    Source: Liu et al. 2018, III-B. Features are, at each sampled case, the time and the four selected counters
    (`feature_selection`), standardised; the target is the time in the case. `samples` is N: 1, 4, 8 or 16 in the
    paper. Departs from it in one point unless `scale` is "linear": times are learned as logarithms, since ops differ
    by five orders of magnitude and the score is relative.

    A counter that was not read is replaced by its median in training. A counter that was read seldom is not a feature;
    without counters, features are the sampled times alone. Forecasts are clipped to a range around the ratios to the
    sampled times that occurred in training. The interval is the central 90 % of out-of-fold residuals in log time, at
    the nearest of eight probed cases of the affinity, none of them a sampled one. It is slightly too narrow, since
    scaling and selection have used the held-out ops too, and ops unlike those of training fall outside more often.
    Cases that were measured too seldom to learn from are interpolated.

    It learns each machine by itself, and cannot forecast for another one, nor for an op without all sampled cases.
    """

    def __init__(self, regressor: Regressor, *, samples: int = 4, scale: Scale = "log", seed: int = 0) -> None:
        self.recipe = Recipe(regressor, samples, scale, seed)
        self.name = regressor.name
        self.notes: tuple[str, ...] = ()
        """What the last `fit` left out, and how many regressors did not converge."""
        self._learned: dict[str, CaseRegression] = {}

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The next sampled case, by threads: the cases chosen in training; before `fit`, evenly spread legal ones."""
        learned = self._learned.get(machine.fingerprint)
        samples = learned.samples if learned else evenly_spread(machine.cases(), self.recipe.samples)
        measured_at = by_case(observed)
        return next((case for case in samples if case not in measured_at), None)

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn one set of regressors for each machine; ModelError where one has too few usable ops."""
        entries, refused = usable(group(measurements))
        notes = [f"op {key} left out: {why}" for key, why in refused.items()]
        learned = {}
        for fingerprint, listed in by_machine(entries).items():
            learned[fingerprint], more = learn(listed, self.recipe)
            notes += [f"{fingerprint}: {note}" for note in more]
        self._learned, self.notes = learned, tuple(notes)
        return self

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each. Each regressor is called once: 1,000 ops take little longer than one.

        ModelError for a machine that was not learned from, and for an op without measurements of all sampled cases.
        """
        learned = self._learned.get(machine.fingerprint)
        if learned is None:
            others = ", ".join(self._learned) or "none: fit it first"
            raise ModelError(f"{self.name} has not learned {machine.fingerprint}, only {others}")
        self.check_batch(ops, observed)
        known = list(map(by_case, observed))
        sampled = [_sampled(op, measured_at, learned, self.name) for op, measured_at in zip(ops, known, strict=True)]
        forecast = learned.forecast(sampled)
        if not set(cases) <= set(learned.cases):
            between = through_forecasts(learned.cases, forecast, known, cases, between="threads", model=self.name)
            return with_known(between, known)
        columns = [learned.cases.index(case) for case in cases]
        seconds, low, high = (np.ascontiguousarray(array[:, columns]) for array in forecast)
        return with_known(forecast_table(cases, seconds, low, high, self.name), known)

    def to_files(self) -> dict[str, bytes]:
        """`model.json`, and for each machine its scaler and regressors."""
        machines, files = {}, {}
        for i, (fingerprint, learned) in enumerate(self._learned.items()):
            document, more = learned.to_files(f"machine{i}")
            machines[fingerprint] = document
            files.update(more)
        return {
            "model.json": json_bytes({"schema": SCHEMA, "recipe": self.recipe.to_json(), "machines": machines}),
            **files,
        }

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned for the same regressor."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            regressor = self.recipe.regressor
            recipe = Recipe.from_json(document["recipe"], regressor)
            learned = {
                name: CaseRegression.from_files(part, f"machine{i}", files, regressor)
                for i, (name, part) in enumerate(document["machines"].items())
            }
        self.recipe, self._learned, self.notes = recipe, learned, ()
        return self


def _sampled(op: Op, measured_at: Mapping[Case, Measurement], learned: CaseRegression, name: str) -> list[Measurement]:
    missing = [case for case in learned.samples if case not in measured_at]
    if missing:
        raise ModelError(f"{name} needs {op.key} measured at {', '.join(map(str, missing))}; measure it there first")
    return [measured_at[case] for case in learned.samples]
