"""Steps of torch's optimizers and of optimised models: how a process of which nothing is known gets on."""

from __future__ import annotations

import sys

from threadcast.threads.step_counter import StepCounter


class OptimizerSteps:
    """Counts the steps of all of torch's optimizers, once torch is there, and of optimised models."""

    def __init__(self, optimized: StepCounter) -> None:
        self._optimized, self._counter = optimized, _Counter(optimized)
        self._registered = False

    def __call__(self) -> float:
        """How many there were."""
        optimizers = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is not None and not self._registered:
            self._registered = True
            register(self._counter)
        return self._counter.count + self._optimized.count


class _Counter:
    only_counts = True
    """For `runtime.watch`: an optimised step need not call it."""

    def __init__(self, optimized: StepCounter) -> None:
        self.count, self._optimized = 0, optimized

    def __call__(self, *_: object) -> None:
        self.count += not self._optimized.is_counting
