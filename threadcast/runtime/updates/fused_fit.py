"""Whether PyTorch's fused kernels are right for an optimizer's next step.

They walk through memory, whatever shapes and strides say, and raise for some types and settings that loops take. So a
step is made by them only where its settings and tensors are as those of a step that was looked at closely.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from threadcast.capture.graph.optimizers import (
    CHOICES,
    NUMBERS,
    OptimizerRefused,
    may_be_fused,
    state_names,
    updates_of,
)
from threadcast.runtime.engine.native.library import loaded_library

MOST_WAIT = 1_000
"""Most steps between two close looks. A convention."""
OF_THREAD = 2**14
"""Numbers of a parameter for which another thread is worth it: kernels divide each parameter among all their threads.
"""
FEW = {SGD: 8, Adam: 2, AdamW: 2}
"""Parameters below which the loop is as fast: with 4 by SGD it took 20 us and fused kernels 23, with 10 by SGD with
momentum 72 and 38, with 51 by AdamW 1,105 and 255."""
WORTH = 20
"""Steps that one close look must serve to be worth its time: it takes as long as some steps. A convention."""

_NUMBERS = {kind: itemgetter(*names) for kind, names in NUMBERS.items()}
_CHOICES = {kind: itemgetter(*names) for kind, names in CHOICES.items()}


class FusedFit:
    """Finds out for each step of an optimizer of a type in `NUMBERS` whether its fused kernels are right."""

    def __init__(self, kind: type[Optimizer]) -> None:
        self._kind = kind
        self._seen: list[Any] = []
        """The settings of the step that was looked at closely."""
        self._looks: Any = None
        """What other steps' tensors must have in common with that step's; None where the kernels are not right."""
        self.threads = 1
        """Number of threads on which the kernels make such a step fastest, about."""
        self._served = 0
        """Steps since then that were like it."""
        self._wait, self._waits = 0, 1
        """Steps that go by before the next close look, and before the one after it."""

    def waits(self) -> bool:
        """Return whether the next step goes by without a look, as the last looks were of no use."""
        if self._wait > 0:
            self._wait -= 1
            return True
        return False

    def next_step(self, optimizer: Optimizer) -> Any:
        """Return the tensors of the next step (`UpdateTensors`), if it may be made by fused kernels; else None."""
        if torch.are_deterministic_algorithms_enabled():
            return None
        settings, groups = self._settings(optimizer), self._groups(optimizer)
        if self._looks is not None and settings == self._seen:
            found = self._looks.fit_update(groups, optimizer.state)
            if found is not None:
                self._served += 1
                return found
        self._waits = 1 if self._served >= WORTH else min(2 * self._waits, MOST_WAIT)
        self._served, self._looks, native = 0, None, loaded_library()
        if native is not None and self._right(optimizer):
            self._looks, self._seen = native.Looks.of_update(groups, optimizer.state), settings
            sizes = [one.numel() for parameters, _ in groups for one in parameters]
            self.threads = max(1, min(torch.get_num_threads(), sum(sizes) // len(sizes) // OF_THREAD))
        if self._looks is None or self._waits > WORTH:
            self._wait = self._waits
            return None
        return self._looks.fit_update(groups, optimizer.state)

    def _settings(self, optimizer: Optimizer) -> list[Any]:
        """What decides whether the kernels are right; numbers such as learning rates may change."""
        choices, numbers = _CHOICES[self._kind], _NUMBERS[self._kind]
        found = []
        for group in optimizer.param_groups:
            chosen, values = choices(group), list(numbers(group))
            for one in values.copy():
                if isinstance(one, tuple | list):
                    values += one
            found.append((chosen, [*map(type, chosen)], [*map(type, values)], [*map(bool, values)]))
        return found

    def _groups(self, optimizer: Optimizer) -> list[tuple[Sequence[Tensor], tuple[str, ...]]]:
        """Of each group its parameters, and the names of each one's state."""
        return [(group["params"], state_names(self._kind, group)) for group in optimizer.param_groups]

    def _right(self, optimizer: Optimizer) -> bool:
        """Whether the fused kernels do what the loop does, for each parameter that has a gradient."""
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return False
        if not all(map(self._may_be_fused, optimizer.param_groups)):
            return False
        if sum(len(group["params"]) for group in optimizer.param_groups) < FEW[self._kind]:
            return False
        try:
            updates = updates_of(optimizer)
        except OptimizerRefused:
            return False
        for parameter, update in updates.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            own = optimizer.state.get(parameter, {})
            state = [own.get(name) for name in update.state_names]
            if type(parameter) is not Parameter or not all(map(_is_plain, (gradient, *state))):
                return False
            # the kernels walk through memory, whatever shapes and strides say
            wanted = parameter.dtype, parameter.shape, parameter.stride()
            if (gradient.dtype, gradient.shape, gradient.stride()) != wanted:
                return False
            if not may_be_fused(update, parameter, state):
                return False
        return True

    def _may_be_fused(self, group: dict[str, Any]) -> bool:
        """Whether a group's settings leave the choice to PyTorch, and are of the types that kernels take."""
        chosen, values = _CHOICES[self._kind](group), _NUMBERS[self._kind](group)
        if group["fused"] is not None or group["foreach"] is not None:
            return False
        numbers = [part for one in values for part in (one if isinstance(one, tuple) else (one,))]
        return all(one is None or isinstance(one, bool) for one in chosen) and all(
            type(number) in (int, float) for number in numbers
        )


def _is_plain(tensor: Any) -> bool:
    """Whether this is a tensor of PyTorch's own type in the CPU's memory, whose numbers are those that lie there."""
    return (
        type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
        and not tensor.is_neg() and not tensor._is_zerotensor()
    )  # fmt: skip
