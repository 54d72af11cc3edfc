"""Comparison of a graph that writes to none of its inputs with PyTorch: nothing of the caller's has to be copied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from threadcast.capture.capture import Captured
from threadcast.runtime.verification.differences import NUDGES, Sensitivity, nudged, other_threads, sensitivities
from threadcast.runtime.verification.shadow import Shadowed, leaves
from threadcast.runtime.verification.step_state import StepState, too_large
from threadcast.threads.memory import free_bytes

_logger = logging.getLogger("threadcast")


class FunctionalShadow(Shadowed):
    """How PyTorch runs a graph that changes nothing but the state of random generators: by `eager`.

    Inputs are never written to, not even for a moment: they may be parameters that other threads read, or tensors
    whose version autograd has noted.
    """

    __slots__ = ()

    def __init__(self, eager: Callable[..., Any]) -> None:
        super().__init__(eager, eager, None, None, leaves)

    def state(self, arguments: Any, captured: Captured | None) -> StepState:
        """Return copies of the states of the random generators."""
        return StepState(None, None, ())

    def too_large(self, arguments: Any, captured: Captured | None) -> str | None:
        """Return why memory is too small for the results once more; None if it is not.

        They are taken to be no larger than the inputs.
        """
        return too_large(sum(value.nbytes for value in arguments if isinstance(value, Tensor)), free_bytes())

    def sensitivity(
        self, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any], names: Sequence[str]
    ) -> dict[str, Sensitivity]:
        """Return how sensitive the values `names` of the result `wanted` are to rounding, by runs on changed copies."""
        changed = []
        try:
            for seed in range(NUDGES):
                start.restore()
                inputs = [nudged(value, seed=seed) if isinstance(value, Tensor) else value for value in arguments]
                changed.append({**self.copied(self.eager(*inputs)), **start.now()})
            start.restore()
            with other_threads():
                reordered = {**self.copied(self.eager(*arguments)), **start.now()}
        except Exception as error:  # noqa: BLE001 - the caller's own step has succeeded; only the changed one raises
            _logger.debug("steps on numbers changed by some roundings raise: %s", error)
            return {}
        return sensitivities({name: wanted[name] for name in names}, *changed, reordered=reordered)
