"""Which integers a program may be given so that they are indices that PyTorch accepts.

PyTorch refuses indices that are out of range; ONNX Runtime counts negative ones from the end, and compiled code reads
what is there. So the program runs in PyTorch, as far as its last index, for larger and larger integers of each
argument, until PyTorch refuses one. What is an index because of other numbers is left to `probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from threadcast.capture.graph.dependencies import may_raise
from threadcast.capture.graph.program import Node
from threadcast.runtime.backends.number_guard import Range, range_of
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.program_values import operator_of, varying

MOST = 2**20
"""Largest size of integers that arguments are taken to have where nothing says more, more than any vocabulary's. Calls
with larger ones run as PyTorch."""
_INDEXED = frozenset((
    "embedding", "index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index",
    "index_put", "one_hot",
))  # fmt: skip
"""Operators that take indices, and raise where one is out of range."""
_DIVIDE = frozenset(("div", "floor_divide", "remainder", "fmod"))
"""Operators that raise where integers are divided by 0."""


class IndexRanges(NamedTuple):
    """The range of each argument's integers, None where it has none; and the first operator that may still raise."""

    arguments: Sequence[Range | None]
    refused: str | None


def index_ranges(program: ReadProgram) -> IndexRanges:
    """Return what the arguments' integers may be. The program runs for its example once.

    Arguments that are no indices may have integers up to `MOST`; those of zeros and ones, as masks are, only these.
    """
    indices = _Indices(program)
    found: list[Range | None] = []
    for at, value in enumerate(program.example):
        if value.dtype is torch.bool or value.is_floating_point() or value.is_complex() or not value.numel():
            found.append(None)
            continue
        known, bounds = range_of(value), torch.iinfo(value.dtype)
        if known.within(0, 1):
            low, high = 0, 1
        else:
            low = max(bounds.min, min(known.low, -MOST)) if known.low < 0 else 0
            high = min(bounds.max, max(known.high, MOST))
        ends = []
        for begin, end in ((known.low, low), (known.high, high)):
            ends.append(_farthest(begin, end, lambda one: indices.hold(at, one)))  # noqa: B023 - used at once
        found.append(Range(*ends))
    if indices.refused is None and not indices.hold_together(found):
        indices.refused = "an operator that takes indices"
    return IndexRanges(found, indices.refused)


def _farthest(begin: int, end: int, holds: Callable[[int], bool]) -> int:
    """The farthest number from `begin` to `end` for which it holds, where it does for all that are nearer."""
    if holds(end):
        return end
    while abs(end - begin) > 1:
        middle = (begin + end) // 2
        begin, end = (middle, end) if holds(middle) else (begin, middle)
    return begin


class _Enough(Exception):
    """The last index was taken."""


class _Indices(fx.Interpreter):
    """Runs a program's example once, and again with other integers, as far as the last operator that takes indices."""

    def __init__(self, program: ReadProgram) -> None:
        super().__init__(program.module)
        self.extra_traceback = False
        self._example = program.example
        self._varying = set(varying(program.module))
        self._last = next((n for n in reversed(program.module.graph.nodes) if self._takes_indices(n)), None)
        self._is_example = True
        self.refused: str | None = None
        self.run(*(one.clone() for one in program.example))
        self._is_example = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator, and take note of whether it may raise."""
        if self._is_example and n in self._varying and self.refused is None and self._may_raise(n):
            self.refused = operator_of(n)
        value = super().run_node(n)
        if n is self._last and not self._is_example:
            raise _Enough
        return value

    def _takes_indices(self, node: fx.Node) -> bool:
        return node in self._varying and operator_of(node) in _INDEXED

    def _may_raise(self, node: fx.Node) -> bool:
        """Whether an operator may raise because of values that are no indices."""
        if operator_of(node) in _DIVIDE:
            by = node.args[1]
            values = [self.env[one] for one in node.args[:2] if isinstance(one, fx.Node)]
            floats = any(value.is_floating_point() for value in values)
            return not floats and isinstance(by, fx.Node) and (self._varies(by) or not bool(self.env[by].all()))
        made = Node(node.target, node.args, node.kwargs, "forward")  # type: ignore[arg-type]
        return not self._takes_indices(node) and may_raise(made)

    def _varies(self, node: fx.Node) -> bool:
        return node.op == "placeholder" or node in self._varying

    def hold(self, at: int, number: int) -> bool:
        """Return whether indices are allowed where this argument has this number, everywhere or at every second place.

        Both are asked: positions are often counted from where a number is.
        """
        everywhere, every_second = (one.clone(memory_format=torch.contiguous_format) for one in [self._example[at]] * 2)
        everywhere.fill_(number)
        every_second.view(-1)[::2] = number
        return all(self._in_range(at, given) for given in (everywhere, every_second))

    def _in_range(self, at: int, given: Tensor) -> bool:
        return self._runs([given if place == at else one for place, one in enumerate(self._example)])

    def hold_together(self, ranges: Sequence[Range | None]) -> bool:
        """Return whether indices are allowed where all arguments have their least, their largest, or both by turns."""
        known = [Range(0, 1) if one.dtype is torch.bool else ranges[at] for at, one in enumerate(self._example)]
        return all(
            self._runs([_filled(one, limit, *places) for one, limit in zip(self._example, known, strict=True)])
            for places in ((0, 0), (1, 1), (0, 1))
        )

    def _runs(self, given: Sequence[Tensor]) -> bool:
        if self._last is None:
            return True
        try:
            self.run(*(one.clone() for one in given))
        except _Enough:
            return True
        except (IndexError, RuntimeError):
            return False
        return True


def _filled(example: Tensor, ends: Range | None, first: int, second: int) -> Tensor:
    if ends is None:
        return example
    value = torch.full_like(example, ends[first], memory_format=torch.contiguous_format)
    value.view(-1)[1::2] = ends[second]
    return value
