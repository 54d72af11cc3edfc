"""Comparison of a graph that writes to none of its inputs with PyTorch: nothing of the caller's has to be copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from threadcast.capture.graph.captured import Captured
from threadcast.runtime.check.shadow import Shadowed, leaves, may_be_drawn
from threadcast.runtime.check.step_state import Drawn, StepState, too_large
from threadcast.threads.memory import free_bytes


class FunctionalShadow(Shadowed):
    """How PyTorch runs a graph that changes nothing but the state of random generators: by `eager`.

    Inputs are never written to, not even for a moment: they may be parameters that other threads read, or tensors
    whose version autograd has noted. `trace` runs the graph in the order of memory that it was captured in last, by
    default as `eager` does.
    """

    __slots__ = ()

    def __init__(self, eager: Callable[..., Any], trace: Callable[..., Any] | None = None, **_: Any) -> None:
        super().__init__(eager, eager if trace is None else trace, None, None, leaves)

    def state(self, arguments: Any, captured: Captured | None) -> StepState:
        """Return copies of the states of the random generators from which a graph of operators may draw."""
        drawn = Drawn(python=False) if captured is None else may_be_drawn(captured)
        return StepState(None, None, (), drawn=drawn)

    def too_large(self, arguments: Any, captured: Captured | None) -> str | None:
        """Return why memory is too small for the results once more; None if it is not.

        They are taken to be no larger than the inputs.
        """
        return too_large(sum(value.nbytes for value in arguments if isinstance(value, Tensor)), free_bytes())
