"""The readiness probe: a prediction that a service must be able to make before it reports that it is ready."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from threadcast.core import Machine, Op, TensorSpec
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.prediction.predictor import LocalPredictor
from threadcast.store import Store

UNMEASURED = (
    Op("mm", (TensorSpec((256, 256)), TensorSpec((256, 256))), outputs=(TensorSpec((256, 256)),)),
    Machine.uniform("readiness", 2),
)
"""The op and the machine that are predicted where nothing is measured, or what is cannot be predicted."""


def predict_one(store: Store, predictor_of: Callable[[Machine], LocalPredictor]) -> str:
    """Predict the op that was measured last, on its machine; return the "name@number" of the model.

    Any error of the store or of loading the model is raised. That the model refuses an op does not keep a service from
    being ready: others may be asked for.
    """
    for measured in store.measurements(last=1):
        with suppress(ModelError, InvalidInput):
            predictor = predictor_of(measured.machine)
            predictor.curves([measured.op])
            return predictor.version
    predictor = predictor_of(UNMEASURED[1])
    with suppress(ModelError):
        predictor.curves([UNMEASURED[0]])
    return predictor.version
