"""Fallbacks for a service that does not answer: another predictor, and a roofline that needs no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from threadcast.core import CurveTable, Machine, Measurement, Op
from threadcast.core.errors import FeatureError, ModelError
from threadcast.models.base import Measurements
from threadcast.prediction.predictor import LocalPredictor, Predictor

ROOFLINE = "roofline (nominal)"
"""`table.model` of a forecast that is computed from the machine's cores alone."""


OPS_AT_ONCE = 256
"""Ops that a predictor is asked for between two looks at the clock."""

ROOFLINE_S_PER_POINT = 6e-7
"""Seconds that the roofline of one op at one case takes, with a margin of two: 0.19 to 0.26 s for 10,000 ops x 68 cases
on a 2-core AMD EPYC virtual machine."""


def first_curves(
    predictors: Sequence[Predictor], ops: Sequence[Op], *, until_s: float, clock: Callable[[], float] = time.monotonic
) -> CurveTable:
    """Return the table of the first of these predictors of one machine that can predict; `table.model` says which one
    did. If none can, raise the first one's ModelError, and a FeatureError at once.

    `until_s`: seconds of the clock until which it is wanted. All but the last predictor are given up when the time for
    them has passed: `until_s`, less what a roofline takes, which is what should come last.
    """
    first: ModelError | None = None
    *others, last = predictors
    for predictor in others:
        try:
            return _in_time(predictor, ops, until_s - reserve_s(len(ops), predictor.machine), clock)
        except FeatureError:  # a guess would hide that the op is misspelt
            raise
        except ModelError as error:
            first = first or error
    try:
        return last.curves(ops)
    except ModelError as error:
        raise first or error from None


def _in_time(predictor: Predictor, ops: Sequence[Op], until_s: float, clock: Callable[[], float]) -> CurveTable:
    parts = []
    for start in range(0, len(ops), OPS_AT_ONCE):
        if clock() > until_s:
            raise ModelError(f"only {start} of {len(ops)} ops were predicted in time")
        parts.append(predictor.curves(ops[start : start + OPS_AT_ONCE]))
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
