"""Which integers a program may be given so that backends compute the same as PyTorch.

PyTorch computes whole numbers in 64 bits and refuses indices that are out of range. OpenVINO computes them in 32 bits,
ONNX Runtime counts negative indices from the end. So the range of every integer that follows from the arguments is
worked out from the ranges of the arguments, by interval arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.verification.limits import real_type

MOST = 2**20
"""Largest size of integers that arguments are taken to have where nothing says more, more than any vocabulary's. Calls
with larger ones run as PyTorch."""
_BITS_32 = torch.iinfo(torch.int32)

_KEEP = frozenset((
    "alias", "view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
    "select", "clone", "contiguous", "flatten", "narrow", "split", "chunk", "unbind", "split_with_sizes", "repeat",
    "flip", "roll", "lift_fresh_copy", "detach", "_to_copy", "to", "unfold", "expand_as", "diagonal", "index", "gather",
    "index_select",
))  # fmt: skip
"""Operators whose results hold integers of their first argument, and no others."""
_AMONG: Mapping[str, tuple[int, ...]] = {
    "where": (1, 2), "masked_fill": (0, 2), "cat": (0,), "stack": (0,), "amax": (0,), "amin": (0,), "sort": (0,),
    "topk": (0,), "max": (0,), "min": (0,),
}  # fmt: skip
"""Operators whose results hold integers of some of their arguments, and of which."""
_FILLED = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"))
"""Operators that take only shape and type of their first argument."""
_LIMIT: Mapping[str, tuple[int | None, int | None]] = {
    "clamp": (1, 2), "clamp_min": (1, None), "clamp_max": (None, 1), "maximum": (1, None), "minimum": (None, 1),
}  # fmt: skip
"""Operators whose first argument is limited by others, and which of these is the least and which the most."""
_POSITIONS = frozenset((
    "argmax", "argmin", "argsort", "sort", "topk", "max", "min", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool2d",
))  # fmt: skip
"""Operators whose results are positions in their first argument, or have these beside values."""
_INDEXED = {
    "embedding": 1, "index_select": 2, "gather": 2, "scatter": 2, "scatter_add": 2, "scatter_reduce": 2, "index_add": 2,
}  # fmt: skip
"""Position of the indices among the arguments of operators that take indices from 0 on."""
_INDEXED_BY_ALL = frozenset(("index", "_unsafe_index"))
"""Operators that take a list of indices, which may count from the end."""
_MAY_INDEX = ("index", "scatter", "gather", "embedding", "put", "take", "bucketize", "searchsorted")


_DIVIDE = frozenset(("div", "floor_divide", "remainder", "fmod"))


class Range(NamedTuple):
    """The least and the largest integer of a value."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Whether no integer is below `low` or above `high`."""
        return low <= self.low and self.high <= high


@dataclass(frozen=True, slots=True)
class IntegerLimits:
    """For which integers of the arguments a program can run elsewhere."""

    arguments: Sequence[Range | None]
    """The range of each argument for which the next two hold; None where it has no integers."""
    wide: str | None
    """The first operator whose integers may need more than 32 bits; None where there is none."""
    refused: str | None
    """The first operator whose integers may not fit their type or may be no indices; None where there is none."""
    divides: str | None
    """The first operator that may divide integers by 0; None where there is none."""
    double: bool
    """Whether there are numbers in double precision."""


def integer_limits(program: ReadProgram) -> IntegerLimits:
    """Return what the arguments' integers may be; the program runs for its example, twice where these are indices."""
    ranges = [_first_range(value) for value in program.example]
    found = _Ranges(program.module, ranges)
    found.run(*program.example)
    if found.limits:
        for number, limit in found.limits.items():
            if (one := ranges[number]) is not None:
                ranges[number] = Range(max(one.low, limit.low), min(one.high, limit.high))
        found = _Ranges(program.module, ranges)
        found.run(*program.example)
    fit = all(one is None or one.within(_BITS_32.min, _BITS_32.max) for one in ranges)
    return IntegerLimits(ranges, found.wide if fit else "an argument", found.refused, found.divides, found.double)


def _first_range(value: Tensor) -> Range | None:
    """What an argument may have where nothing is known but its example."""
    if not _is_integer(value):
        return None
    found, bounds = range_of(value), torch.iinfo(value.dtype)
    low = max(bounds.min, min(found.low, -MOST)) if found.low < 0 else 0
    return Range(low, min(bounds.max, max(found.high, MOST)))


def _is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and not (
        value.dtype is torch.bool or value.is_floating_point() or value.is_complex()
    )


def range_of(value: Tensor) -> Range:
    """The range of the integers in a tensor; 0 to 0 where it is empty."""
    least, most = torch.aminmax(value) if value.numel() else (0, 0)
    return Range(int(least), int(most))


def _name_of(target: Any) -> str:
    return (
        str(target._schema.name).removeprefix("aten::").rstrip("_") if isinstance(target, OpOverload) else str(target)
    )


def _union(ranges: Iterable[Range | None]) -> Range | None:
    known = list(ranges)
    if not known or None in known:
        return None
    return Range(min(one.low for one in known if one), max(one.high for one in known if one))


def _times(one: Range, other: Range) -> Range:
    products = [a * b for a in one for b in other]
    return Range(min(products), max(products))


def _plus(one: Range, other: Range) -> Range:
    return Range(one.low + other.low, one.high + other.high)


def _quotient(one: Range, by: Range) -> Range | None:
    if by.low <= 0:
        return None
    return Range(min(a // b for a in one for b in by), max(a // b if a >= 0 else -(-a // b) for a in one for b in by))


def _remainder(one: Range, by: Range) -> Range | None:
    return Range(0, by.high - 1) if by.low > 0 and one.low >= 0 else None


_OF_TWO: Mapping[str, Callable[[Range, Range], Range | None]] = {
    "mul": _times, "floor_divide": _quotient, "remainder": _remainder, "fmod": _remainder,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a value that follows from the arguments."""

    range: Range | None = None
    """The range of its integers; None where it has none, or nothing is known of them."""
    arguments: frozenset[int] = frozenset()
    """The arguments whose integers these are, unchanged; others may be among them that are the same in each call."""


class _Ranges(fx.Interpreter):
    """Runs a program for its example, with the range of every integer that follows from the arguments."""

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Range | None]) -> None:
        super().__init__(module)
        self._arguments = iter(enumerate(arguments))
        self._known: dict[fx.Node, _Known] = {}
        self.limits: dict[int, Range] = {}
        """By argument, the range that operators allow which take its integers as indices."""
        self.wide: str | None = None
        self.refused: str | None = None
        self.divides: str | None = None
        self.double = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator, and work out the range of its result."""
        value = super().run_node(n)
        self.double = self.double or (isinstance(value, Tensor) and real_type(value.dtype) is torch.float64)
        if n.op == "placeholder":
            number, given = next(self._arguments)
            self._known[n] = _Known(given, frozenset((number,)))
        elif n.op == "call_function" and any(one in self._known for one in n.all_input_nodes):
            self._known[n] = self._result_of(n, value)
        return value

    def _result_of(self, node: fx.Node, value: Any) -> _Known:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self._known[source] if _is_integer(value) else _Known()
        name = _name_of(node.target)
        self._check_indices(node, name)
        integers = [one for one in (value if isinstance(value, (tuple, list)) else [value]) if _is_integer(one)]
        if not integers:
            return _Known()
        if name in _DIVIDE:
            by = self._range(node.args[1])
            if by is None or by.low <= 0 <= by.high:
                self.divides = self.divides or name
        found = self._range_after(node, name, value)
        if found is None or not found.within(_BITS_32.min, _BITS_32.max):
            self.wide = self.wide or name
        if found is None:
            return _Known()
        bounds = [torch.iinfo(one.dtype) for one in integers]
        if not all(found.within(one.min, one.max) for one in bounds):
            self.refused = self.refused or name
        return _Known(found, self._kept(node, name))

    def _kept(self, node: fx.Node, name: str) -> frozenset[int]:
        """The arguments whose integers, and no others but constants, an operator returns."""
        joins = name in ("cat", "stack")
        if not joins and name not in _KEEP:
            return frozenset()
        parts = node.all_input_nodes if joins else node.all_input_nodes[:1]
        kept = [self._known[one].arguments for one in parts if one in self._known]
        return frozenset().union(*kept) if all(kept) else frozenset()

    def _check_indices(self, node: fx.Node, name: str) -> None:
        """Note what the arguments may be where they are indices, and where indices may be out of range."""
        source: Any = self._value(node.args[0]) if node.args else None
        if name in _INDEXED_BY_ALL:
            for dim, one in enumerate(node.args[1]):  # type: ignore[arg-type]
                self._allow(one, Range(-source.shape[dim], source.shape[dim] - 1), name)
        elif name in _INDEXED:
            along: Any = 0 if name == "embedding" else node.args[1]
            size = source.shape[along] if source.dim() else 1
            self._allow(node.args[_INDEXED[name]], Range(0, size - 1), name)
        elif any(part in name for part in _MAY_INDEX) and any(
            one in self._known and _is_integer(self._value(one)) for one in node.all_input_nodes
        ):
            self.refused = self.refused or name

    def _allow(self, indices: Any, limit: Range, name: str) -> None:
        known = self._known.get(indices)
        if known is None or not _is_integer(self._value(indices)):
            return  # the same in each call, or a mask
        for argument in known.arguments:
            other = self.limits.get(argument, limit)
            self.limits[argument] = Range(max(other.low, limit.low), min(other.high, limit.high))
        if known.range is None or not known.range.within(*limit):
            self.refused = self.refused or name

    def _range_after(self, node: fx.Node, name: str, value: Any) -> Range | None:
        """The range of an operator's integers; None where it is not known."""
        source = self._value(node.args[0])
        positions = [Range(0, max(0, source.numel() - 1))] if name in _POSITIONS and isinstance(source, Tensor) else []
        if positions and not _is_integer(source):
            return positions[0]
        if name in _FILLED:
            return range_of(value)
        if name in _AMONG:
            others = [one for one in node.args[1:] if isinstance(self._value(one), Tensor)] if positions else []
            given = [*(node.args[at] for at in _AMONG[name]), *others]
            return _union([*map(self._range, given), *positions])
        first, second = (*map(self._range, node.args), None, None)[:2]
        if name in _LIMIT:
            return self._limited(node, *_LIMIT[name])
        if first is None or name in _KEEP:
            return first
        if name in ("sum", "cumsum"):
            return _times(first, Range(0 if first.low < 0 < first.high else 1, max(1, source.numel())))
        if name == "neg":
            return _times(first, Range(-1, -1))
        if name == "abs":
            return Range(0 if first.low <= 0 <= first.high else min(map(abs, first)), max(map(abs, first)))
        if second is None:
            return None
        if name in ("add", "sub", "rsub"):
            alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
            factor = self._range(alpha if name == "add" else -alpha)  # type: ignore[operator]
            one, other = (second, first) if name == "rsub" else (first, second)
            return None if factor is None else _plus(one, _times(other, factor))
        if name == "div" and node.kwargs.get("rounding_mode") is not None:
            return _quotient(first, second)
        return _OF_TWO[name](first, second) if name in _OF_TWO else None

    def _limited(self, node: fx.Node, least: int | None, most: int | None) -> Range | None:
        """The range of values limited by others: by the arguments at these positions, None where there is none."""
        given = {1: node.kwargs.get("min"), 2: node.kwargs.get("max")} | dict(enumerate(node.args))
        found = self._range(node.args[0])
        for at, limit in ((least, max), (most, min)):
            if at is None or given.get(at) is None:
                continue
            other = self._range(given[at])
            if found is None or other is None:
                return None
            found = Range(limit(found.low, other.low), limit(found.high, other.high))
        return found

    def _value(self, argument: Any) -> Any:
        return self.env.get(argument) if isinstance(argument, fx.Node) else argument

    def _range(self, argument: Any) -> Range | None:
        """The range of an operator's argument; None where it is not known, or the argument has no integers."""
        if isinstance(argument, (list, tuple)):
            return _union(map(self._range, argument))
        value = self._value(argument)
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype is torch.bool):
            return Range(0, 1)
        if isinstance(value, int):
            return Range(value, value)
        if not _is_integer(value):
            return None
        return self._known[argument].range if argument in self._known else range_of(value)
