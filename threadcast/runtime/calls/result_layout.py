"""How the results of a call lie in memory in eager PyTorch; those of a run in another memory format lie so too.

Programs rely on it: `view` raises for other strides, and `dropout` draws in the order of numbers in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError, ExecutionError
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat


class ResultLayout:
    """How the results of one kind of calls lie in memory (`ResultMemory`), by a call in the given format.

    Where results share memory otherwise in another format, or in a way that is not known, a run in it raises
    ExecutionError. That is known from its first step on, which is compared with eager PyTorch. Calls that return what
    another format copies have the given format only (`formats_with_equal_results`).
    """

    def __init__(self, model_format: ModelFormat) -> None:
        self._format = model_format
        self._memory: ResultMemory | None = None
        """How the results lie; None as long as no call is known, and where they share memory in an unknown way."""

    def eager(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run`, which runs a call by eager PyTorch in the current format, with the results of the given one."""
        restore = self._restoring()

        def call(*arguments: Any) -> Any:
            result = run(*arguments)
            if self._format.current is not MemoryFormat.AS_GIVEN:
                return restore(result)
            if self._memory is None:
                with suppress(CaptureError):
                    self._memory = ResultMemory(_tensors(result))
            return result

        return call

    def restored(self, captured: Captured) -> Captured:
        """Return a graph in another format, which gives results as in the given one."""
        return replace(captured, restore=self._restoring())

    def _restoring(self) -> Callable[[Any], Any]:
        """Return what gives the results of a run in another format the strides of the given one."""
        checked = False

        def restore(result: Any) -> Any:
            nonlocal checked
            if self._memory is None:
                raise ExecutionError("it is not known how the results of eager PyTorch lie in memory")
            found = _tensors(result)
            laid = self._memory.laid_out(found)
            if not checked and not ResultMemory(laid).is_like(self._memory):
                raise ExecutionError("a result shares memory with another in one format only")
            checked = True
            if laid is found:
                return result
            if isinstance(result, Tensor):
                return laid[0]
            following = iter(laid)
            return pytree.tree_map_only(Tensor, lambda _: next(following), result)

        return restore


def _tensors(values: Any) -> list[Tensor]:
    leaves = [values] if isinstance(values, Tensor) else pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
