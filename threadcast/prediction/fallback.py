"""Fallbacks for a service that does not answer: another predictor, and a roofline that needs no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models.base import Measurements
from threadcast.prediction.predictor import LocalPredictor, Predictor

ROOFLINE = "roofline (nominal)"
"""`table.model` of a forecast that is computed from the machine's cores alone."""


class FirstOf:
    """Asks predictors of one machine in turn and returns the first table; `table.model` says which answered."""

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        if not predictors:
            raise InvalidInput("there is no predictor to ask")
        self.machine = predictors[0].machine
        strange = [p.machine.fingerprint for p in predictors if p.machine != self.machine]
        if strange:
            raise InvalidInput(f"the fallback predicts for {self.machine.fingerprint}, not for {strange[0]}")
        self._predictors = tuple(predictors)

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return the table of the first predictor that can predict; if none can, raise the first one's ModelError."""
        first: ModelError | None = None
        for predictor in self._predictors:
            try:
                return predictor.curves(ops, cases=cases)
            except ModelError as error:
                first = first or error
        raise first or ModelError("no predictor was asked")


def roofline(
    machine: Machine, observed: Mapping[str, Sequence[Measurement]] | Measurements | None = None
) -> LocalPredictor:
    """Return a predictor that always answers, but roughly: `models.nominal_roofline`, and the points in `observed`."""
    from threadcast.models.nominal_roofline import NominalRoofline

    return LocalPredictor(NominalRoofline(machine), machine, {} if observed is None else observed, version=ROOFLINE)
