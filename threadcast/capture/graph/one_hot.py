"""Recognises calls of `one_hot`, which PyTorch replaces by other operators for fake tensors.

Eager PyTorch raises for a class that is negative or too large. Those operators give a row of zeros there, so a graph
calls `one_hot` itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.values import Ref

aten = torch.ops.aten

_STEPS: tuple[OpOverload, ...] = (
    aten.arange.default, aten.unsqueeze.default, aten.eq.Tensor, aten._to_copy.default,
)  # fmt: skip
"""What PyTorch calls for `one_hot(x, classes)`: `(x.unsqueeze(-1) == arange(classes)).to(int64)`."""
_BETWEEN = frozenset(("torch._compile", "torch._dynamo.eval_frame", "threadcast.capture.graph.recorder"))
"""Modules whose functions run between the caller of an operator and this."""


class OneHots:
    """Finds out which recorded operators one call of `one_hot` has made. A program may call the same ones by itself.

    Those of one call come in the midst of one bytecode of one frame.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []
        """Of the results of the steps so far."""
        self._given: tuple[Any, Any] = None, None
        """The values that become classes, and the number of classes."""
        self._frame: FrameType | None = None
        """The frame of the first step: as long as it is held, no other one is at its place."""
        self._at = 0

    def ended_by(
        self, func: OpOverload, args: tuple[Any, ...], named: Mapping[str, Any], slot: int
    ) -> tuple[Any, Any] | None:
        """The arguments of the call of `one_hot` whose last step is this call, into `slot`; None where it is none."""
        if func is not _STEPS[len(self._slots)]:
            if self._slots:
                self._forget()
            if func is not _STEPS[0]:
                return None
        frame = _caller()
        if not self._slots:
            self._frame, self._at = frame, frame.f_lasti
        if frame is not self._frame or frame.f_lasti != self._at or not self._fits(args, named):
            self._forget()
            return None
        self._slots.append(slot)
        if len(self._slots) < len(_STEPS):
            return None
        found = self._given
        self._forget()
        return found

    def _fits(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Whether these are the arguments of the next step."""
        step, whole = len(self._slots), named.get("dtype") is torch.int64
        if step == 0:
            self._given = None, args[0] if args else None
            return whole and len(args) == 1
        if step == 1:
            self._given = args[0], self._given[1]
            return bool(args[1] == -1)
        if step == 2:
            return args == (Ref(self._slots[1]), Ref(self._slots[0]))
        return whole and args == (Ref(self._slots[2]),)

    def _forget(self) -> None:
        self._slots.clear()
        self._given, self._frame = (None, None), None


def _caller() -> FrameType:
    """The frame of Python that has called the operator that is being recorded."""
    here = sys._getframe(2)
    frame: FrameType | None = here
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame or here
