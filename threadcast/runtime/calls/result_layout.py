"""How the results of a call lie in memory in eager PyTorch; those of a run in another memory format lie so too.

Programs rely on it: `view` raises for other strides, and `dropout` draws in the order of numbers in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError, ExecutionError
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.runtime.plans.model_format import ModelFormat, is_image
from threadcast.runtime.plans.variant import MemoryFormat

_IN_ONE = "a result shares memory with another, an argument or a weight in one format only"


class ResultLayout:
    """How the results of one kind of calls lie in memory (`ResultMemory`), by a call in the given format.

    Where results share memory otherwise in another format, or with what that format copies, a run in it raises
    ExecutionError. That is known from its first step on, which is compared with eager PyTorch.
    """

    def __init__(self, model_format: ModelFormat) -> None:
        self._format = model_format
        self._memory: ResultMemory | None = None
        """How the results lie; None as long as no call is known, and where they share memory in an unknown way."""
        self._bound = False
        """Whether a result lies in memory that another format copies: an image among the arguments, or a weight."""

    def eager(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run`, which runs a call by eager PyTorch in the current format, with the results of the given one."""
        restore = self._restoring()

        def call(*arguments: Any) -> Any:
            result = run(*arguments)
            if self._format.current is not MemoryFormat.AS_GIVEN:
                return restore(result)
            if self._memory is None and not self._bound:
                self._learn(arguments, _tensors(result))
            return result

        return call

    def restored(self, captured: Captured) -> Captured:
        """Return a graph in another format, which gives results as in the given one."""
        return replace(captured, restore=self._restoring())

    def _learn(self, arguments: Any, results: list[Tensor]) -> None:
        images = filter(is_image, _tensors(arguments))
        self._bound = _lie_in(results, [*images, *self._format.images])
        try:
            self._memory = ResultMemory(results)
        except CaptureError:
            self._bound = True

    def _restoring(self) -> Callable[[Any], Any]:
        """Return what gives the results of a run in another format the strides of the given one."""
        known: ResultMemory | None = None

        def restore(result: Any) -> Any:
            nonlocal known
            found = _tensors(result)
            laid = (known or self._memory_of_eager()).laid_out(found)
            known = known or self._checked(laid)
            if laid is found:
                return result
            if isinstance(result, Tensor):
                return laid[0]
            following = iter(laid)
            return pytree.tree_map_only(Tensor, lambda _: next(following), result)

        return restore

    def _memory_of_eager(self) -> ResultMemory:
        if self._memory is None:
            unknown = "it is not known yet how the results of eager PyTorch lie in memory"
            raise ExecutionError(_IN_ONE if self._bound else unknown)
        return self._memory

    def _checked(self, results: Sequence[Tensor]) -> ResultMemory:
        memory = self._memory_of_eager()
        if self._bound or _lie_in(results, self._format.images) or not ResultMemory(results).is_like(memory):
            raise ExecutionError(_IN_ONE)
        return memory


def _tensors(values: Any) -> list[Tensor]:
    leaves = [values] if isinstance(values, Tensor) else pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _lie_in(results: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether a result shares memory with one of the other tensors."""
    memory = {tensor.untyped_storage()._cdata for tensor in others}
    return any(value.untyped_storage()._cdata in memory for value in results)
