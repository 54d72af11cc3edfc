"""Python numbers that stand for tensors of one element while a callable is recorded, so that a graph reads them anew.

PyTorch's fused kernels take learning rates and betas as Python floats. Recorded as they are, their values would be
built into the graph.
"""

from __future__ import annotations

from random import Random
from typing import Any

from threadcast.capture.graph.values import AsNumber, Ref
from threadcast.core.errors import CaptureError


class Numbers:
    """All such numbers of one recording.

    Operators receive them as plain floats. Each is therefore a random float, by which it is recognised in their
    arguments; nothing that is recorded depends on its value.
    """

    def __init__(self) -> None:
        self._refs: dict[float, Ref] = {}
        self._random = Random(0)

    def standing_for(self, ref: Ref) -> float:
        """A number between 0 and 1 that stands for the one element of the tensor that `ref` refers to."""
        value = self._random.uniform(0.2, 0.8)
        self._refs[value] = ref
        return value

    def put_in(self, arguments: Any) -> Any:
        """A call's arguments, positional or named, with `AsNumber` in place of each float that is one of these."""
        if not self._refs:
            return arguments
        if isinstance(arguments, dict):
            return {name: self._put(value) for name, value in arguments.items()}
        return tuple([self._put(value) for value in arguments])

    def _put(self, value: Any) -> Any:
        if isinstance(value, list) and any(map(self._knows, value)):
            raise CaptureError("cannot capture: an operator takes a list of numbers that change")
        return AsNumber(self._refs[value]) if self._knows(value) else value

    def _knows(self, value: Any) -> bool:
        return isinstance(value, float) and value in self._refs
