"""Which integers a program may be given so that backends compute the same as PyTorch.

PyTorch computes whole numbers in 64 bits and refuses indices that are out of range. OpenVINO computes them in 32 bits,
and some in single precision; ONNX Runtime counts negative indices from the end. So the range of every integer that
follows from the arguments is worked out from the ranges of the arguments, by interval arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from threadcast.capture.graph.dependencies import may_raise
from threadcast.capture.graph.program import Node
from threadcast.runtime.backends.least_and_most import ends
from threadcast.runtime.backends.memory_of_values import Memories
from threadcast.runtime.backends.number_signs import operator_of
from threadcast.runtime.backends.onnx_forms import computes_otherwise, is_power_of_two
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.check.limits import real_type

MOST = 2**20
"""Largest size of integers that arguments are taken to have where nothing says more, more than any vocabulary's. Calls
with larger ones run as PyTorch."""
_EXACT = 2**24
"""Largest size of integers that every backend computes: some compute sums, division and matrix products in single
precision (OpenVINO's issues 37766 and 37956), other operators in 32 bits."""

_KEEP = frozenset((
    "alias", "view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
    "select", "clone", "contiguous", "flatten", "narrow", "split", "chunk", "unbind", "split_with_sizes", "repeat",
    "flip", "roll", "lift_fresh_copy", "detach", "_to_copy", "to", "unfold", "expand_as", "diagonal", "index", "gather",
    "index_select",
))  # fmt: skip
"""Operators whose results hold integers of their first argument, and no others."""
_AMONG: Mapping[str, tuple[int, ...]] = {
    "where": (1, 2), "masked_fill": (0, 2), "cat": (0,), "stack": (0,), "amax": (0,), "amin": (0,), "sort": (0,),
    "topk": (0,), "max": (0,), "min": (0,), "copy": (1,), "fill": (1,), "index_put": (0, 2), "constant_pad_nd": (0, 2),
}  # fmt: skip
"""Operators whose results hold integers of some of their arguments, and of which."""
_FILLED = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zero"))
"""Operators that take only shape and type of their first argument."""
_LIMIT: Mapping[str, tuple[int | None, int | None]] = {
    "clamp": (1, 2), "clamp_min": (1, None), "clamp_max": (None, 1), "maximum": (1, None), "minimum": (None, 1),
}  # fmt: skip
"""Operators whose first argument is limited by others, and which of these is the least and which the most."""
_POSITIONS: Mapping[str, tuple[int, int | None]] = {
    "argmax": (1, None), "argmin": (1, None), "argsort": (1, -1), "sort": (1, -1), "topk": (2, -1), "max": (1, None),
    "min": (1, None), "max_pool2d_with_indices": (9, None), "max_pool3d_with_indices": (9, None),
    "adaptive_max_pool2d": (9, None),
}  # fmt: skip
"""Operators whose results are positions in their first argument, or have these beside values: where among the arguments
the dimension is in which they count, and which it is by default (None: all dimensions together)."""
_ONLY_POSITIONS = frozenset(("argmax", "argmin"))
"""Those of them that return nothing but positions."""
_INDEXED = {
    "embedding": 1, "index_select": 2, "gather": 2, "scatter": 2, "scatter_add": 2, "scatter_reduce": 2, "index_add": 2,
}  # fmt: skip
"""Position of the indices among the arguments of operators that take indices from 0 on."""
_INDEXED_BY_ALL = frozenset(("index", "_unsafe_index", "index_put"))
"""Operators that take a list of indices, which may count from the end."""
_DIVIDE = frozenset(("div", "floor_divide", "remainder", "fmod"))
"""Operators that raise where integers are divided by 0."""
_EXTREMES = frozenset(("amin", "amax", "aminmax", "min", "max", "argmin", "argmax"))
"""Operators that Inductor's code gives a 0 besides, where their numbers have 8 bits (PyTorch's issue 191499)."""


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
    wide: Collection[str]
    """The operators whose integers may be too large for some backends: for 32 bits, or for single precision."""
    refused: str | None
    """The first operator that may raise because of values, whose integers may not fit their type, or that backends may
    compute otherwise; None: there is none."""
    double: bool
    """Whether there are numbers in double precision."""
    otherwise: str | None = None
    """The first operator that computes something else in ONNX for some numbers; None where there is none."""


def integer_limits(program: ReadProgram) -> IntegerLimits:
    """Return what the arguments' integers may be; the program runs for its example, up to three times.

    An argument may have what is allowed by operators that take it as indices. Others, such as masks, may have integers
    up to `MOST`, or those of the example where that is too much.
    """
    ranges = [_first_range(value) for value in program.example]
    found = _Ranges(program.module, ranges)
    found.run(*program.example)
    limits = found.limits
    if limits:
        ranges = [one and _within(one, limits.get(at)) for at, one in enumerate(ranges)]
        found = _Ranges(program.module, ranges)
        found.run(*program.example)
    too_much = found.refused or found.wide or found.otherwise
    if too_much and any(one and at not in limits for at, one in enumerate(ranges)):
        narrow = [
            one if one is None or at in limits else _union([range_of(value), Range(0, 1)])
            for at, (one, value) in enumerate(zip(ranges, program.example, strict=True))
        ]
        again = _Ranges(program.module, narrow)
        again.run(*program.example)
        gains = (found.wide and not again.wide) or (found.otherwise and not again.otherwise)
        if not again.refused and (found.refused or gains):
            ranges, found = narrow, again
    fit = all(one is None or one.within(-_EXACT, _EXACT) for one in ranges)
    wide = found.wide if fit else [*found.wide, "an argument"]
    return IntegerLimits(ranges, wide, found.refused, found.double, found.otherwise)


def _within(one: Range, limit: Range | None) -> Range:
    return one if limit is None else Range(max(one.low, limit.low), min(one.high, limit.high))


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
    if not value.numel():
        return Range(0, 0)
    return Range(*ends(value))


def _union(ranges: Iterable[Range | None]) -> Range | None:
    known = list(ranges)
    if not known or None in known:
        return None
    return Range(min(one.low for one in known if one), max(one.high for one in known if one))


def _joined(one: Range, other: Range) -> Range:
    return Range(min(one.low, other.low), max(one.high, other.high))


def _times(one: Range, other: Range) -> Range:
    products = [a * b for a in one for b in other]
    return Range(min(products), max(products))


def _positions(node: fx.Node, source: Tensor, at: int, default: int | None) -> Range:
    """The range of positions in a tensor, along the dimension that an operator is given."""
    dim = node.kwargs.get("dim", node.args[at] if len(node.args) > at else default)
    along = type(dim) is int and source.dim() > 0
    return Range(0, max(0, (source.shape[dim] if along else source.numel()) - 1))  # type: ignore[index]


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
    arguments: Mapping[int, Range] = field(default_factory=dict)
    """The arguments whose integers these are, each with what is added to them, the same in each call; other integers
    that are the same in each call may be among them."""


class _Ranges(fx.Interpreter):
    """Runs a program for its example, with the range of every integer that follows from the arguments."""

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Range | None]) -> None:
        super().__init__(module)
        self._memories = Memories(list(module.graph.nodes))
        self._arguments = iter(enumerate(arguments))
        self._known: dict[fx.Node, _Known] = {}
        self._examples: dict[int, Range] = {}
        """By argument, the range of the example's integers."""
        self.limits: dict[int, Range] = {}
        """By argument, the range that operators allow which take its integers as indices."""
        self.wide: list[str] = []
        self.refused: str | None = None
        self.otherwise: str | None = None
        self.double = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator, and work out the range of its result."""
        shared = self._sharing(n)
        value = super().run_node(n)
        self.double = self.double or (isinstance(value, Tensor) and real_type(value.dtype) is torch.float64)
        if n.op == "placeholder":
            number, given = next(self._arguments)
            self._known[n] = _Known(given, {number: Range(0, 0)})
            if given is not None:
                self._examples[number] = range_of(value)
        elif n.op == "call_function" and any(one in self._known for one in (*n.all_input_nodes, *shared)):
            self._known[n] = known = self._result_of(n, value)
            if shared:
                written = _Known(_union([known.range, *shared.values()]))
                self._known |= dict.fromkeys((n, *shared), written)
        return value

    def _sharing(self, node: fx.Node) -> dict[fx.Node, Range | None]:
        """The values with integers in the memory that an operator writes to, with their ranges before."""
        return {one: self._range(one) for one in self._memories.written_by(node) if _is_integer(self.env.get(one))}

    def _result_of(self, node: fx.Node, value: Any) -> _Known:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self._known.get(source, _Known()) if _is_integer(value) else _Known()
        name = operator_of(node)
        integers = [one for one in (value if isinstance(value, (tuple, list)) else [value]) if _is_integer(one)]
        self._check_values(node, name, integers=bool(integers))
        if not integers:
            return _Known()
        found = self._range_after(node, name, value)
        if found is None or not found.within(-_EXACT, _EXACT):
            self.wide.append(name)
        if found is None:
            return _Known()
        bounds = [torch.iinfo(one.dtype) for one in integers]
        if not all(found.within(one.min, one.max) for one in bounds):
            self.refused = self.refused or name
        return _Known(found, self._kept(node, name))

    def _kept(self, node: fx.Node, name: str) -> Mapping[int, Range]:
        """The arguments whose integers, with something added that is the same in each call, an operator returns."""
        if name in ("add", "sub"):
            return self._shifted(node, name)
        joins = name in ("cat", "stack")
        if not joins and name not in _KEEP:
            return {}
        parts = node.all_input_nodes if joins else node.all_input_nodes[:1]
        kept = [self._known[one].arguments for one in parts if one in self._known]
        if not all(kept):
            return {}
        found: dict[int, Range] = {}
        for one in kept:
            for argument, shift in one.items():
                found[argument] = _joined(found.get(argument, shift), shift)
        return found

    def _shifted(self, node: fx.Node, name: str) -> Mapping[int, Range]:
        first, second = node.args[:2]
        if name == "add" and second in self._known:
            first, second = second, first
        known, constant = self._known.get(first), self._range(second)  # type: ignore[arg-type]
        if known is None or constant is None or second in self._known or node.kwargs or len(node.args) > 2:
            return {}
        shift = constant if name == "add" else Range(-constant.high, -constant.low)
        return {argument: _plus(one, shift) for argument, one in known.arguments.items()}

    def _check_values(self, node: fx.Node, name: str, *, integers: bool) -> None:
        """Note what the arguments may be where they are indices, and what may raise or differ because of values."""
        source: Any = self._value(node.args[0]) if node.args else None
        if computes_otherwise(node, name, source, self._range, integers=integers):
            self.otherwise = self.otherwise or name
        narrow = name in _EXTREMES and _is_integer(source) and source.element_size() == 1
        if name in _INDEXED_BY_ALL:
            for dim, one in enumerate(node.args[1]):  # type: ignore[arg-type]
                self._allow(one, Range(-source.shape[dim], source.shape[dim] - 1), name)
        elif name in _INDEXED:
            along: Any = 0 if name == "embedding" else node.args[1]
            size = source.shape[along] if source.dim() else 1
            self._allow(node.args[_INDEXED[name]], Range(0, size - 1), name)
        elif name == "one_hot":
            self._allow(node.args[0], Range(0, int(node.args[1]) - 1), name)  # type: ignore[arg-type]
        elif name in _DIVIDE:
            by = self._range(node.args[1]) if integers else Range(1, 1)
            floors = not integers and (name == "floor_divide" or node.kwargs.get("rounding_mode") == "floor")
            if by is None or by.low <= 0 <= by.high or (floors and not is_power_of_two(node.args[1])):
                self.refused = self.refused or name
        elif narrow or may_raise(Node(node.target, node.args, node.kwargs, "forward")):  # type: ignore[arg-type]
            self.refused = self.refused or name

    def _allow(self, indices: Any, limit: Range, name: str) -> None:
        known = self._known.get(indices)
        if known is None or not _is_integer(self._value(indices)):
            return  # the same in each call, or a mask
        for argument, shift in known.arguments.items():
            before = _within(Range(limit.low - shift.low, limit.high - shift.high), self.limits.get(argument))
            example = self._examples.get(argument)
            if example is not None and example.within(*before):  # None: true and false
                self.limits[argument] = before
        if known.range is None or not known.range.within(*limit):
            self.refused = self.refused or name

    def _range_after(self, node: fx.Node, name: str, value: Any) -> Range | None:
        """The range of an operator's integers; None where it is not known."""
        source = self._value(node.args[0])
        positions = [_positions(node, source, *_POSITIONS[name])] if name in _POSITIONS else []
        if positions and (name in _ONLY_POSITIONS or not _is_integer(source)):
            return positions[0]
        if name == "one_hot":
            return Range(0, 1)
        if name in _FILLED:
            return range_of(value)
        if name == "index_put" and node.kwargs.get("accumulate", node.args[3:] == (True,)):
            return None  # sums
        if name in _AMONG:
            others = [one for one in node.args[1:] if isinstance(self._value(one), Tensor)] if positions else []
            given = [*(node.args[at] if at < len(node.args) else 0 for at in _AMONG[name]), *others]
            return _union([*map(self._range, given), *positions])
        first, second = (*map(self._range, node.args), None, None)[:2]
        if name in _LIMIT:
            return self._limited(node, *_LIMIT[name])
        if first is None or name in _KEEP:
            return None if str(node.target).endswith(".dtype") else first  # which reads the same bits otherwise
        if name in ("sum", "cumsum"):
            several = source.shape[node.args[1]] if name == "cumsum" and source.dim() else source.numel()
            return _times(first, Range(0, several if name == "cumsum" else several // max(1, value.numel())))
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
