"""Operators that have a form in ONNX which computes something else than PyTorch for some numbers.

The example may have none of these numbers. The forms are those of PyTorch's exporter (onnxscript 0.7,
`function_libs/torch_lib`), as ONNX Runtime and OpenVINO run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

_BY_QUOTIENT = frozenset(("remainder", "fmod"))
"""They begin with a rounded quotient, `fmod` in OpenVINO: 1.0 by 0.1 leaves 0, in PyTorch 0.1."""
_SHIFTS = frozenset(("bitwise_left_shift", "bitwise_right_shift", "__lshift", "__rshift"))
"""By as many bits as a number has, or more, processors shift by fewer."""

_EXACT_IN_FLOAT32 = 2**24
"""Divisions of integers with a rounding mode are computed in float32, and right for integers up to this."""
_EXACT_IN_FLOAT64 = 2**53
"""ONNX Runtime computes powers of integers in float64."""
_MOST_EXPONENT = 64


def computes_otherwise(
    node: fx.Node, name: str, source: Any, range_of: Callable[[Any], tuple[int, int] | None], *, integers: bool
) -> bool:
    """Return whether the operator `name` of `node` computes other numbers in ONNX for some arguments.

    `source` is the value of its first argument, `range_of` tells the least and the largest integer of an argument (None
    where these are not known), `integers` whether it returns integers.
    """
    if name == "angle":
        return bool(source.is_complex())
    if name in _BY_QUOTIENT:
        return not integers and not is_power_of_two(node.args[1])
    if name in _SHIFTS:
        bits = torch.iinfo(source.dtype).bits if integers and isinstance(source, Tensor) else 0
        return not _is_within(range_of(node.args[1]), 0, bits - 1)
    if name == "div" and integers:
        return not all(_is_within(range_of(one), -_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT32) for one in node.args[:2])
    return name == "pow" and integers and not _is_exact_power(*map(range_of, node.args[:2]))


def is_power_of_two(divisor: Any) -> bool:
    """Whether quotients by this number are exact: it is a power of two, or one with a minus."""
    return isinstance(divisor, int | float) and divisor != 0 and math.frexp(abs(divisor))[0] == 0.5


def _is_within(given: tuple[int, int] | None, low: int, high: int) -> bool:
    return given is not None and low <= given[0] and given[1] <= high


def _is_exact_power(base: tuple[int, int] | None, exponent: tuple[int, int] | None) -> bool:
    if base is None or exponent is None or exponent[0] < 0 or exponent[1] > _MOST_EXPONENT:
        return False
    return bool(max(map(abs, base)) ** exponent[1] <= _EXACT_IN_FLOAT64)
