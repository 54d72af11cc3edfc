"""How the results of a call lie in memory in eager PyTorch; those of a run in another memory format lie so too.

Programs rely on it: `view` raises for other strides, and `dropout` draws in the order of numbers in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.model_format import ModelFormat, is_image
from threadcast.runtime.plans.strides import with_strides
from threadcast.runtime.plans.variant import MemoryFormat


class ResultLayout:
    """The strides of the results of one kind of calls, and which of them share memory, by a call in the given format.

    Where results share memory otherwise in another format, or with what that format copies, a run in it raises
    ExecutionError. That is known from its first step on, which is compared with eager PyTorch.
    """

    def __init__(self, model: nn.Module | None, model_format: ModelFormat) -> None:
        self._model, self._format = model, model_format
        self._strides: list[tuple[int, ...] | None] | None = None
        """Strides of each result, None for what is no tensor; None as long as no call is known."""
        self._shared: list[tuple[int, int]] = []
        """What `_shared` returns of the results."""
        self._bound = False
        """Whether a result lies in memory that another format copies: an image among the arguments, or a weight."""

    def eager(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run`, which runs a call by eager PyTorch in the current format, with the results of the given one."""
        restore = self._restoring()

        def call(*arguments: Any) -> Any:
            result = run(*arguments)
            if self._format.current is not MemoryFormat.AS_GIVEN:
                return restore(result)
            if self._strides is None:
                self._learn(arguments, result)
            return result

        return call

    def restored(self, captured: Captured) -> Captured:
        """Return a graph in another format, which gives results as in the given one."""
        return replace(captured, restore=self._restoring())

    def _learn(self, arguments: Any, result: Any) -> None:
        results = pytree.tree_leaves(result)
        images = (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor) and is_image(leaf))
        self._shared, self._bound = _shared(results), _lie_in(results, [*images, *self._weights()])
        self._strides = [value.stride() if isinstance(value, Tensor) else None for value in results]

    def _weights(self) -> list[Tensor]:
        return [] if self._model is None else [one for one in self._model.parameters() if one.dim() == 4]

    def _restoring(self) -> Callable[[Any], Any]:
        """Return what gives the results of a run in another format the strides of the given one."""
        checked = False

        def restore(result: Any) -> Any:
            nonlocal checked
            if self._strides is None:
                raise ExecutionError("it is not known yet how the results of eager PyTorch lie in memory")
            found, structure = ([result], None) if isinstance(result, Tensor) else pytree.tree_flatten(result)
            laid: dict[int, Tensor] = {}
            for value, strides in zip(found, self._strides, strict=True):
                if strides is not None and value.stride() != strides and id(value) not in laid:
                    laid[id(value)] = _laid_out(value, strides)
            if laid:
                found = [laid.get(id(value), value) for value in found]
            if not checked:
                self._check(found)
                checked = True
            if not laid:
                return result
            return found[0] if structure is None else pytree.tree_unflatten(found, structure)

        return restore

    def _check(self, results: Sequence[Any]) -> None:
        if self._bound or _shared(results) != self._shared or _lie_in(results, self._weights()):
            raise ExecutionError("a result shares memory with another, an argument or a weight in one format only")


def _laid_out(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor with other strides: itself seen so where only sides of length 1 have others, else a copy."""
    sides = zip(value.shape, value.stride(), strides, strict=True)
    if all(size == 1 or own == wanted for size, own, wanted in sides):
        return value.as_strided(value.shape, strides)
    return with_strides(value, strides)


def _shared(results: Sequence[Any]) -> list[tuple[int, int]]:
    """For each result the first one with the same memory, and the first one that is the same tensor."""
    memory: dict[int, int] = {}
    tensors: dict[int, int] = {}
    found = []
    for i, value in enumerate(results):
        same = isinstance(value, Tensor)
        found.append((memory.setdefault(_memory(value), i), tensors.setdefault(id(value), i)) if same else (i, i))
    return found


def _lie_in(results: Iterable[Any], others: Iterable[Tensor]) -> bool:
    """Whether a result shares memory with one of the other tensors."""
    memory = set(map(_memory, others))
    return any(isinstance(value, Tensor) and _memory(value) in memory for value in results)


def _memory(tensor: Tensor) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory
