"""Lets optimizers' steps use PyTorch's fused kernels, where these are right and faster.

An optimizer that was made without `fused=True` updates each parameter by several operators, called from Python: 0.1 to
2.4 ms of a training step of 1 to 10 ms (decision 80). By the fused kernels it is a third of that. Results are the same
but for rounding. On many cores small tensors may cost more by them, so both ways are compared in the steps themselves.
"""

from __future__ import annotations

import logging
import time
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

from threadcast.capture.optimizers import NUMBERS
from threadcast.capture.unsupported import may_exchange
from threadcast.runtime.fallback import in_one_line
from threadcast.runtime.fused_fit import FusedFit
from threadcast.runtime.tuning.guard import Guard
from threadcast.runtime.watching.hooks import why_update_apart
from threadcast.threads.forks import forks

LEAST_S = 50e-6
"""Seconds of an optimizer's step below which it is left alone: looking at it takes some of them. A convention."""

_CHECKED = "_need_device_dtype_check_for_fused"
"""The attribute in which PyTorch's optimizers note that their parameters suit fused kernels."""
_logger = logging.getLogger("threadcast")


class FusedUpdates:
    """Decides for each optimizer of `adopt`ed parameters which kernels its steps use, in these steps themselves.

    The optimizer makes its steps itself; while one runs, the groups' setting `fused` is changed. Left as they are:
    optimizers other than SGD, Adam and AdamW; those with hooks, replaced methods, or `fused`, `foreach`, `capturable`
    or `differentiable` set; steps with a closure; and all in processes that exchange data, whose updates must be equal.
    May be used from several threads, each with optimizers of its own.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, Lock()
        self._parameters: Any = WeakIdKeyDictionary()
        """For each adopted parameter, what says whether its optimizer's steps can be compared now."""
        self._updates: WeakKeyDictionary[Optimizer, OptimizerUpdate | None] = WeakKeyDictionary()
        """None of optimizers that have no adopted parameter."""
        self._hooks: list[Any] = []
        self._forks = forks.number

    def adopt(self, tensors: Iterable[Any], disturbed: Callable[[], bool] = lambda: False) -> None:
        """Take those of `tensors` that are trained parameters. While `disturbed` no step of theirs is compared."""
        found = [one for one in tensors if type(one) is Parameter and one.requires_grad]
        if not found or self._forks != forks.number:  # another thread of the parent may hold the lock for ever
            return
        with self._lock:
            for one in found:
                self._parameters[one] = disturbed
            for optimizer in [known for known, update in self._updates.items() if update is None]:
                del self._updates[optimizer]
            if not self._hooks:
                self._hooks = [
                    register_optimizer_step_pre_hook(_Hook(self._before)),
                    register_optimizer_step_post_hook(_Hook(self._after)),
                ]

    def close(self) -> None:
        """Leave all optimizers as they are from now on."""
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
            disturbed = next((self._parameters[one] for one in parameters if one in self._parameters), None)
            found = None if disturbed is None else OptimizerUpdate(type(optimizer), disturbed, self._clock)
            self._updates[optimizer] = found
        return found

    def _before(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        update = self.of(optimizer)
        if update is None or update.over:
            return
        try:
            update.restore(optimizer)
            closure = any(one is not None for one in (*given[1:], *named.values()))  # the first is the optimizer
            if not closure and not may_exchange() and why_update_apart(optimizer) is None:
                update.begin(optimizer)
        except Exception as error:  # noqa: BLE001 - whatever is strange about an optimizer, its step is its own
            _logger.info("steps of %s stay as they are: %s", type(optimizer).__name__, in_one_line(error))
            update.leave(optimizer)

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        update = self.of(optimizer)
        if update is not None and not update.over:
            update.end(optimizer)


class OptimizerUpdate:
    """Which kernels the steps of one optimizer use: its own loop, or PyTorch's fused ones."""

    def __init__(self, kind: type[Optimizer], disturbed: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._kind, self._disturbed, self._clock = kind, disturbed, clock
        self._guard, self._fit = Guard(at_once=False), FusedFit(kind)
        self._left = False
        self._changed: list[dict[str, Any]] = []
        """The groups whose setting is changed now."""
        self._tensors: Any = None
        """Those of a step by fused kernels that runs now."""
        self._noted = False
        """Whether the optimizer had noted by itself that its parameters suit fused kernels."""
        self._guards_state = False
        """Whether `state_dict` is hooked, so that it has the setting as it was."""
        self._started_s: float | None = None

    @property
    def fused(self) -> bool:
        """Whether all further steps use the fused kernels, where these are right."""
        return not self._left and self._guard.verdict is not None and self._guard.verdict.kept == "plan"

    @property
    def over(self) -> bool:
        """Whether all further steps are made by the optimizer's own loop, and nothing is left to be set back."""
        lost = self._guard.verdict is not None and self._guard.verdict.kept == "default"
        return (self._left or lost) and not self._changed

    def begin(self, optimizer: Optimizer) -> None:
        """Choose the kernels of the step that begins."""
        verdict, began_s = self._guard.verdict, self._clock()
        tensors = self._fit.next_step(optimizer)
        if tensors is None or (verdict is None and self._disturbed()):
            self._guard.break_off()
            return
        tries = self._guard.next_runner() == "plan"
        if verdict is None:
            self._started_s = began_s if tries else self._clock()  # what is looked at counts for the fused kernels
        if tries:
            if not self._guards_state:  # a step that was interrupted leaves the setting changed, until the next one
                optimizer.register_state_dict_pre_hook(self.restore)
                self._guards_state = True
            self._noted, self._tensors = _CHECKED in vars(optimizer), tensors
            for group in optimizer.param_groups:
                self._changed.append(group)
                group["fused"] = True

    def end(self, optimizer: Optimizer) -> None:
        """Take note that the step has ended."""
        started_s, self._started_s = self._started_s, None
        seconds = None if started_s is None else self._clock() - started_s
        self.restore(optimizer)
        if started_s is None or seconds is None:
            return
        self._guard.observe(started_s=started_s, seconds=seconds)
        loop_s, verdict = self._guard.step_s("default"), self._guard.verdict
        if loop_s is not None and loop_s < LEAST_S:
            self._left = True
        if verdict is not None:
            kept = "PyTorch's fused kernels" if self.fused else "its own loop"
            _logger.info("%s updates by %s (gain %.2f)", self._kind.__name__, kept, verdict.gain)

    def restore(self, optimizer: Optimizer) -> None:
        """Set back what was changed for the last step, also after one that has raised."""
        if not self._changed:
            return
        while self._changed:
            self._changed.pop()["fused"] = None
        if not self._noted:
            vars(optimizer).pop(_CHECKED, None)
        # Fused kernels do not, but by these counts autograd and copies of weights notice that they are stale.
        self._tensors.count_writes()
        self._tensors = None

    def leave(self, optimizer: Optimizer) -> None:
        """Make all further steps, and the one that begins, by the optimizer's own loop."""
        self._left, self._started_s = True, None
        self.restore(optimizer)


class _Hook:
    """A hook of all optimizers' steps, which Dynamo leaves out of what it traces."""

    only_counts = True
    """Tells `runtime.watching` that an optimised step need not call this hook."""

    def __init__(self, does: Callable[..., None]) -> None:
        self._does = does

    def __call__(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self._does(optimizer, given, named)


@lru_cache(maxsize=1)
def fused_updates() -> FusedUpdates:
    """What decides for the optimizers of this process."""
    return FusedUpdates()
