"""The prediction that a service must be able to make before it says that it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from threadcast.core import Machine, Op, TensorSpec
from threadcast.core.errors import ModelError

if TYPE_CHECKING:
    from threadcast.service.context import Context

UNMEASURED = (
    Op("mm", (TensorSpec((256, 256)), TensorSpec((256, 256))), outputs=(TensorSpec((256, 256)),)),
    Machine.uniform("golden", 2),
)
"""An ordinary op and machine, for a store that holds nothing yet."""


class Golden:
    """Predicts one op through the store and the default model: a measured one, on its machine, once there is one.

    What was predicted last is tried first, since finding an op reads the store.
    """

    def __init__(self) -> None:
        self._last: tuple[Op, Machine] | None = None

    def predict(self, here: Context) -> str:
        """Predict it; the "name@number" that answered.

        Takes the first measured op on the first machine that the model knows. Raises whatever goes wrong, but for
        a model that can tell nothing while nothing is measured.
        """
        refused: ModelError | None = None
        for chosen in self._candidates(here):
            predictor = here.predictor(chosen[1])
            try:
                predictor.curves([chosen[0]])
            except ModelError as error:
                refused = error
                continue
            self._last = chosen
            return predictor.version
        if refused is not None:
            raise refused
        return self._predict_unmeasured(here)

    def _predict_unmeasured(self, here: Context) -> str:
        predictor = here.predictor(UNMEASURED[1])
        with suppress(ModelError):
            predictor.curves([UNMEASURED[0]])
        return predictor.version

    def _candidates(self, here: Context) -> Iterator[tuple[Op, Machine]]:
        if self._last is not None:
            yield self._last
        ops = here.store.ops()[:1]
        if ops:
            yield from ((ops[0], machine) for machine in here.store.machines())
