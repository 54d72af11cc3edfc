"""Counts the steps of torch's optimizers and of optimised models, so that programs need not report their steps."""

from __future__ import annotations

import sys
from threading import Lock

from threadcast.threads.step_counter import StepCounter


class OptimizerSteps:
    """A callable that returns the number of steps so far: those that `optimized` counts, and all of torch's optimizers.

    Steps of torch's optimizers count from the first call that finds torch imported. Safe to use from several threads.
    """

    def __init__(self, optimized: StepCounter) -> None:
        self._optimized, self._hook = optimized, _CountingHook(optimized)
        self._lock = Lock()
        self._registered = False

    def __call__(self) -> float:
        optimizers = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        with self._lock:
            if register is not None and not self._registered:
                self._registered = True
                register(self._hook)
        return self._hook.count + self._optimized.count


class _CountingHook:
    only_counts = True
    """Tells `runtime.watching` that an optimised step need not call this hook."""

    def __init__(self, optimized: StepCounter) -> None:
        self.count, self._optimized = 0, optimized

    def __call__(self, *_: object) -> None:
        self.count += not self._optimized.is_counting
