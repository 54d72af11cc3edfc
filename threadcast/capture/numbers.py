"""Python numbers that a recorded callable computes from tensors of one element, so that a graph computes them anew.

An optimizer's loop takes learning rates, betas and step counts as Python floats: `param.add_(grad, alpha=-lr)`.
Recorded as they are, their values would be built into the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.values import AsNumber, Ref
from threadcast.core.errors import CaptureError

aten = torch.ops.aten


class Number(float):
    """A float that stands for a value of the graph; arithmetic with it gives another such float, and adds to the graph.

    A comparison with other numbers raises CaptureError, because its answer would be built into the graph. Only the
    question whether it equals 0 has an answer: no.
    """

    _numbers: Numbers

    def __new__(cls, value: float, numbers: Numbers) -> Number:
        number = super().__new__(cls, value)
        number._numbers = numbers
        return number

    def __neg__(self) -> float:
        return self._numbers.computed(aten.neg.default, -float(self), self)

    def __add__(self, other: Any) -> Any:
        return self._with(other, aten.add.Tensor, float.__add__)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, aten.add.Tensor, float.__add__)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, aten.sub.Tensor, float.__sub__)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, aten.sub.Tensor, float.__sub__, after=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, aten.mul.Tensor, float.__mul__)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, aten.mul.Tensor, float.__mul__)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, aten.div.Tensor, float.__truediv__)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, aten.div.Tensor, float.__truediv__, after=True)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        return self._with(other, aten.pow.Tensor_Tensor, float.__pow__)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        return self._with(other, aten.pow.Tensor_Tensor, float.__pow__, after=True)

    def __eq__(self, other: object) -> bool:
        return self._is_zero(other)

    def __ne__(self, other: object) -> bool:
        return not self._is_zero(other)

    def __lt__(self, other: Any) -> bool:
        return self._is_zero(None)

    __le__ = __gt__ = __ge__ = __lt__

    def __hash__(self) -> int:
        return float.__hash__(self)

    def _is_zero(self, other: object) -> bool:
        if type(other) in (int, float) and other == 0:
            return False
        raise CaptureError("cannot capture: the optimizer decides by the value of a setting or of a step count")

    def _with(
        self, other: Any, target: OpOverload, compute: Callable[[float, float], Any], *, after: bool = False
    ) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented  # the tensor's own operator then uses this as a plain float
        first, second = (other, self) if after else (self, other)
        return self._numbers.computed(target, compute(float(first), float(second)), first, second)


class Numbers:
    """All `Number`s of one recording.

    `add` records an operator call on refs and returns the ref of its result, a tensor of one float64. Operators receive
    the numbers as plain floats. Each is therefore a random float, by which it is recognised in their arguments; nothing
    that is recorded depends on its value.
    """

    def __init__(self, add: Callable[[OpOverload, tuple[Any, ...]], Ref]) -> None:
        self._add = add
        self._refs: dict[float, Ref] = {}
        self._calls: dict[tuple[Any, ...], Ref] = {}
        self._random = Random(0)

    def standing_for(self, ref: Ref) -> Number:
        """A number between 0 and 1 that stands for the one element of the tensor that `ref` refers to."""
        return self._number(self._random.uniform(0.2, 0.8), ref)

    def computed(self, target: OpOverload, value: Any, *operands: float) -> Number:
        """A number of value `value`, which the graph will compute from the operands with the operator `target`."""
        if not isinstance(value, float):
            raise CaptureError("cannot capture: the optimizer computes with numbers that are not real")
        return self._number(value, self._called(target, *map(self._ref, operands)))

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
        return AsNumber(self._refs[float(value)]) if self._knows(value) else value

    def _knows(self, value: Any) -> bool:
        return isinstance(value, float) and float(value) in self._refs

    def _number(self, value: float, ref: Ref) -> Number:
        self._refs[value] = ref
        return Number(value, self)

    def _ref(self, operand: float) -> Ref:
        value = float(operand)
        return self._refs[value] if value in self._refs else self._called(aten.full.default, [], value)

    def _called(self, target: OpOverload, *arguments: Any) -> Ref:
        key = target, *map(repr, arguments)
        if key not in self._calls:
            self._calls[key] = self._add(target, arguments)
        return self._calls[key]
