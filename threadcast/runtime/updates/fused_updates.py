"""Lets optimizers' steps use PyTorch's fused kernels, where these are right and faster.

An optimizer that was made without `fused=True` updates each parameter by several operators, called from Python: 0.1 to
2.4 ms of a training step of 1 to 10 ms (decision 40). By the fused kernels it is 0.2 to 0.8 of that. Results are the
same but for rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from threadcast.capture.graph.optimizers import NUMBERS
from threadcast.capture.guards.unsupported import may_exchange
from threadcast.core.errors import in_one_line
from threadcast.runtime.updates.fused_step import OptimizerUpdate
from threadcast.runtime.watching.hooks import OwnSteps
from threadcast.threads.forks import forks

_logger = logging.getLogger("threadcast")


class FusedUpdates:
    """Decides for each optimizer of `adopt`ed parameters which kernels its steps use.

    The optimizer makes its steps itself; while one runs, the groups' setting `fused` is changed. Left as they are:
    optimizers other than SGD, Adam and AdamW; those with hooks, replaced methods, or `fused`, `foreach`, `capturable`
    or `differentiable` set; steps with a closure; and all in processes that exchange data, whose updates must be equal.
    May be used from several threads, each with optimizers of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._parameters: Any = WeakIdKeyDictionary()
        """The adopted parameters, as keys."""
        self._updates: WeakKeyDictionary[Optimizer, OptimizerUpdate | None] = WeakKeyDictionary()
        """None of optimizers that have no adopted parameter."""
        self._hooks: list[Any] = []
        self._own = OwnSteps()
        self._forks = forks.number

    def adopt(self, tensors: Iterable[Any]) -> None:
        """Take those of `tensors` that are trained parameters."""
        found = [one for one in tensors if type(one) is Parameter and one.requires_grad]
        if not found or self._forks != forks.number:  # another thread of the parent may hold the lock for ever
            return
        with self._lock:
            for one in found:
                self._parameters[one] = True
            for optimizer in [known for known, update in self._updates.items() if update is None]:
                del self._updates[optimizer]
            if not self._hooks:
                self._hooks = [
                    register_optimizer_step_pre_hook(_Hook(self._before)),
                    register_optimizer_step_post_hook(_Hook(self._after)),
                ]

    def close(self) -> None:
        """Leave all optimizers as they are from now on. No step may be running."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._parameters.clear()
            self._updates.clear()

    def of(self, optimizer: Optimizer) -> OptimizerUpdate | None:
        """Return what decides for this optimizer; None for one of whose parameters none is adopted."""
        if type(optimizer) not in NUMBERS or self._forks != forks.number:
            return None
        try:
            return self._updates[optimizer]
        except KeyError:
            pass
        with self._lock:
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            adopted = any(one in self._parameters for one in parameters)
            found = OptimizerUpdate(type(optimizer)) if adopted else None
            self._updates[optimizer] = found
        return found

    def _before(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Choose how the step that begins is made. A closure may make other gradients, so that it is left alone."""
        update = self.of(optimizer)
        if update is None or update.over:
            return
        update.restore(optimizer)
        if len(given) == 1 and named in ({}, {"closure": None}):
            self._choose(update, optimizer)

    def _choose(self, update: OptimizerUpdate, optimizer: Optimizer) -> None:
        try:
            if not may_exchange() and self._own.are_own(optimizer):
                update.begin(optimizer)
        except Exception as error:  # noqa: BLE001 - whatever is strange about an optimizer, its step is its own
            _logger.info("steps of %s stay as they are: %s", type(optimizer).__name__, in_one_line(error))
            update.leave(optimizer)

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        update = self.of(optimizer)
        if update is not None and not update.over:
            update.restore(optimizer)


class _Hook:
    """A hook before or after all optimizers' steps, which Dynamo leaves out of what it traces."""

    only_counts = True
    """Tells `runtime.watching` that an optimised step need not call this hook."""

    def __init__(self, does: Callable[..., Any]) -> None:
        self._does = does

    def __call__(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return None if torch.compiler.is_compiling() else self._does(optimizer, given, named)


@lru_cache(maxsize=1)
def fused_updates() -> FusedUpdates:
    """What decides for the optimizers of this process."""
    return FusedUpdates()
