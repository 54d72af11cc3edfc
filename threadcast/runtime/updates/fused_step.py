"""An optimizer's steps by PyTorch's fused kernels: what is changed for each, and set back after it."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any, Self

import torch
from torch.optim import Optimizer

from threadcast.runtime.engine.native.library import loaded_library
from threadcast.runtime.updates.fused_fit import FusedFit

_CHECKED = "_need_device_dtype_check_for_fused"
"""The attribute in which PyTorch's optimizers note that their parameters suit fused kernels."""


class OptimizerUpdate:
    """How the steps of one optimizer are made: by fused kernels where these are right, else by its own loop.

    What is changed for a step by fused kernels is set back after it, or before the next one where it was interrupted.
    """

    def __init__(self, kind: type[Optimizer]) -> None:
        self._fit, self._left = FusedFit(kind), False
        self._tensors: Any = None
        """What the step writes (`UpdateTensors`); None where there is none to be set back."""
        self._changed: list[dict[str, Any]] = []
        """The groups whose setting `fused` is changed."""
        self._noted = False
        """Whether the optimizer had noted by itself that its parameters suit fused kernels."""
        self._lowered: _Lowered | None = None
        self._guards_state = False
        """Whether `state_dict` is hooked, so that it has the setting as it was."""

    @property
    def over(self) -> bool:
        """Whether all further steps are made by the optimizer's own loop, and nothing is left to be set back."""
        return self._left and self._tensors is None and self._lowered is None

    def begin(self, optimizer: Optimizer) -> None:
        """Have the step that begins, in this thread, made by fused kernels, if they are right for it."""
        if self._left or self._fit.waits():
            return
        tensors = self._fit.next_step(optimizer)
        if tensors is None:
            return
        if not self._guards_state:  # a step that was interrupted leaves the setting changed, until the next one
            optimizer.register_state_dict_pre_hook(self.restore)
            self._guards_state = True
        self._tensors, self._noted = tensors, _CHECKED in vars(optimizer)
        self._lowered = _Lowered.to(self._fit.threads)
        for group in optimizer.param_groups:
            self._changed.append(group)
            group["fused"] = True

    def restore(self, optimizer: Optimizer) -> None:
        """Set everything back; a second time does nothing. Other threads than the step's cannot set back its number of
        threads."""
        while self._changed:
            self._changed.pop()["fused"] = None
        if self._tensors is not None:
            if not self._noted:
                vars(optimizer).pop(_CHECKED, None)
            # Fused kernels do not, but by these counts autograd and copies of weights notice that they are stale.
            self._tensors.count_writes()
            self._tensors = None
        if self._lowered is not None and self._lowered.set_back():
            self._lowered = None

    def leave(self, optimizer: Optimizer) -> None:
        """Make all further steps, and the one that begins, by the optimizer's own loop."""
        self._left = True
        self.restore(optimizer)


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
