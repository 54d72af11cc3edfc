"""Fallbacks for a service that does not answer: another predictor, and a roofline that needs no model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import FeatureError, InvalidInput, ModelError
from threadcast.models.base import Measurements
from threadcast.prediction.predictor import LocalPredictor, Predictor

ROOFLINE = "roofline (nominal)"
"""`table.model` of a forecast that is computed from the machine's cores alone."""


OPS_AT_ONCE = 256
"""Ops that a predictor is asked for between two looks at the clock."""

ROOFLINE_S_PER_POINT = 6e-7
"""Seconds that the roofline of one op at one case takes, with a margin of two: 0.19 to 0.26 s for 10,000 ops x 68 cases
on a 2-core AMD EPYC virtual machine."""


class FirstOf:
    """Asks predictors of one machine in turn and returns the first table; `table.model` says which answered.

    All but the last one are given up when the time for them has passed: `until_s`, less what a roofline takes, which is
    what should come last.
    """

    def __init__(self, predictors: Sequence[Predictor], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        if not predictors:
            raise InvalidInput("there is no predictor to ask")
        self.machine = predictors[0].machine
        strange = [p.machine.fingerprint for p in predictors if p.machine != self.machine]
        if strange:
            raise InvalidInput(f"the fallback predicts for {self.machine.fingerprint}, not for {strange[0]}")
        self._predictors = tuple(predictors)

    def curves(
        self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None, until_s: float = math.inf
    ) -> CurveTable:
        """Return the table of the first predictor that can predict; if none can, raise the first one's ModelError, and
        a FeatureError at once.

        `until_s`: seconds of the clock until which it is wanted.
        """
        first: ModelError | None = None
        *others, last = self._predictors
        for predictor in others:
            try:
                return self._in_time(predictor, ops, cases, until_s - reserve_s(len(ops), self.machine))
            except FeatureError:  # a guess would hide that the op is misspelt
                raise
            except ModelError as error:
                first = first or error
        try:
            return last.curves(ops, cases=cases)
        except ModelError as error:
            raise first or error from None

    def _in_time(
        self, predictor: Predictor, ops: Sequence[Op], cases: Sequence[Case] | None, until_s: float
    ) -> CurveTable:
        if until_s == math.inf or not ops:
            return predictor.curves(ops, cases=cases)
        parts = []
        for start in range(0, len(ops), OPS_AT_ONCE):
            if self._clock() > until_s:
                raise ModelError(f"only {start} of {len(ops)} ops were predicted in time")
            parts.append(predictor.curves(ops[start : start + OPS_AT_ONCE], cases=cases))
        return CurveTable.concat(parts)


def reserve_s(ops: int, machine: Machine) -> float:
    """Return the seconds that a roofline of so many ops takes at most."""
    return ops * len(machine.cases()) * ROOFLINE_S_PER_POINT


def roofline(
    machine: Machine, observed: Mapping[str, Sequence[Measurement]] | Measurements | None = None
) -> LocalPredictor:
    """Return a predictor that always answers, but roughly: `models.nominal_roofline`, and the points in `observed`."""
    from threadcast.models.nominal_roofline import NominalRoofline

    return LocalPredictor(NominalRoofline(machine), machine, {} if observed is None else observed, version=ROOFLINE)
