"""Whether optimizers' steps are PyTorch's own: without hooks that may change something, or replaced methods."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_globals

from threadcast.runtime.watching.hooks import why_update_apart


class OwnSteps:
    """Answers what `why_update_apart` finds out in less time, where nothing was hooked or replaced since."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Optimizer, tuple[Any, ...]] = WeakKeyDictionary()
        """Hooks and methods of each optimizer when its steps were found to be its own."""

    def are_own(self, optimizer: Optimizer) -> bool:
        """Return whether the next step of this optimizer is; its type must be one of `capture.optimizers.NUMBERS`."""
        kind: Any = type(optimizer)
        own = vars(optimizer).get
        found = (
            kind.step, kind.zero_grad, kind._init_group, own("step"), own("zero_grad"), own("_init_group"),
            tuple(optimizer._optimizer_step_pre_hooks), tuple(optimizer._optimizer_step_post_hooks),
            tuple(optimizer_globals._global_optimizer_pre_hooks), tuple(optimizer_globals._global_optimizer_post_hooks),
        )  # fmt: skip
        if self._seen.get(optimizer) != found:
            if why_update_apart(optimizer) is not None:
                return False
            self._seen[optimizer] = found
        return True
