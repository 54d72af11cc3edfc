"""The readiness probe: a prediction that a service must be able to make before it reports that it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from threadcast.core import Machine, Op, TensorSpec
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.prediction.predictor import LocalPredictor
from threadcast.store import Store

PredictorOf = Callable[[Machine], LocalPredictor]

UNMEASURED = (
    Op("mm", (TensorSpec((256, 256)), TensorSpec((256, 256))), outputs=(TensorSpec((256, 256)),)),
    Machine.uniform("readiness", 2),
)
"""The op and the machine that are predicted while the store is empty."""


MOST_TRIED = 20
"""Newest measurements of each machine among which an op is looked for that the model can predict."""


class ReadinessProbe:
    """Predicts one op with the store and the default model: a measured op on its machine, where there is one.

    The op that was predicted last is tried first, because finding another one reads the store.
    """

    def __init__(self) -> None:
        self._last: tuple[Op, Machine] | None = None

    def predict(self, store: Store, predictor_of: PredictorOf) -> str:
        """Predict one op, and return the "name@number" of the model.

        It predicts the first op that the model can predict of those that were measured last on each machine, or else of
        all. Any error is raised, except a ModelError while nothing is measured.
        """
        refused: ModelError | InvalidInput | None = None
        for chosen in self._candidates(store):
            predictor = predictor_of(chosen[1])
            try:
                predictor.curves([chosen[0]])
            except (ModelError, InvalidInput) as error:
                refused = error
                continue
            self._last = chosen
            return predictor.version
        if refused is not None:
            raise refused
        return self._predict_unmeasured(predictor_of)

    def _predict_unmeasured(self, predictor_of: PredictorOf) -> str:
        predictor = predictor_of(UNMEASURED[1])
        with suppress(ModelError):
            predictor.curves([UNMEASURED[0]])
        return predictor.version

    def _candidates(self, store: Store) -> Iterator[tuple[Op, Machine]]:
        if self._last is not None:
            yield self._last
        machines = store.machines()
        for machine in machines:
            of_machine = store.measurements(machine=machine.fingerprint, last=MOST_TRIED)
            for op in {m.op.key: m.op for m in of_machine}.values():
                yield op, machine
        for op in store.ops()[:1]:
            yield from ((op, machine) for machine in machines)
