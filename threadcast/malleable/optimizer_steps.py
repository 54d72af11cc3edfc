"""Steps of torch's optimizers and of optimised models: how a process of which nothing is known gets on."""

from __future__ import annotations

import sys

from threadcast.core.steps import inside_step, steps_made


class OptimizerSteps:
    """Counts the steps of all of torch's optimizers, once torch is there, and of optimised models."""

    def __init__(self) -> None:
        self._counter = _Counter()
        self._registered = False

    def __call__(self) -> float:
        """How many there were."""
        optimizers = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is not None and not self._registered:
            self._registered = True
            register(self._counter)
        return self._counter.count + steps_made()


class _Counter:
    only_counts = True
    """For `runtime.watch`: an optimised step need not call it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += not inside_step()
