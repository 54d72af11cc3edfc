"""What is changed while an optimizer's step is made by PyTorch's fused kernels, and set back after it."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any, Self

import torch
from torch.optim import Optimizer

from threadcast.runtime.engine.native.library import loaded_library

_CHECKED = "_need_device_dtype_check_for_fused"
"""The attribute in which PyTorch's optimizers note that their parameters suit fused kernels."""


class FusedStep:
    """One step that writes `tensors` (`UpdateTensors`). `begin` before it, and `set_back` after it."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        self._changed: list[dict[str, Any]] = []
        """The groups whose setting `fused` is changed."""
        self._noted = False
        """Whether the optimizer had noted by itself that its parameters suit fused kernels."""
        self._lowered: _Lowered | None = None

    def begin(self, optimizer: Optimizer, threads: int) -> None:
        """Have the optimizer's next step, in this thread, made by fused kernels on so many threads at most."""
        self._noted = _CHECKED in vars(optimizer)
        self._lowered = _Lowered.to(threads)
        for group in optimizer.param_groups:
            self._changed.append(group)
            group["fused"] = True

    def set_back(self, optimizer: Optimizer) -> bool:
        """Set everything back; a second time does nothing. False in another thread than the step's, whose number of
        threads it cannot set back."""
        if self._changed:
            while self._changed:
                self._changed.pop()["fused"] = None
            if not self._noted:
                vars(optimizer).pop(_CHECKED, None)
            # Fused kernels do not, but by these counts autograd and copies of weights notice that they are stale.
            self._tensors.count_writes()
        if self._lowered is not None and self._lowered.set_back():
            self._lowered = None
        return self._lowered is None


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A thread whose operators run on fewer threads while it makes a step: how many `before`, and how many `during`."""

    thread: int
    before: int
    during: int

    @classmethod
    def to(cls, threads: int) -> Self | None:
        """Have the calling thread's operators run on so many threads at most; None where they do."""
        before, native = torch.get_num_threads(), loaded_library()
        if before <= threads or native is None:
            return None
        native.set_threads(threads)
        return cls(get_ident(), before, threads)

    def set_back(self) -> bool:
        """Set the number back, unless it was set to another one; return False in other threads, which cannot."""
        native = loaded_library()
        if get_ident() != self.thread or native is None:
            return False
        if torch.get_num_threads() == self.during:
            native.set_threads(self.before)
        return True
