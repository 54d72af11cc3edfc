"""Which integers a program may be given so that they are indices that PyTorch accepts.

PyTorch refuses indices that are out of range; ONNX Runtime counts negative ones from the end, and compiled code reads
what is there. So the operators that come before an index, of integers alone, are run for larger and larger integers of
each argument, until one is no index any more. What is an index because of other numbers is left to `probes`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from threadcast.capture.graph.dependencies import may_raise
from threadcast.capture.graph.program import Node
from threadcast.runtime.backends.number_guard import Range, range_of
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.program_values import Memories, operator_of

MOST = 2**20
"""Largest size of integers that arguments are taken to have where nothing says more, more than any vocabulary's. Calls
with larger ones run as PyTorch."""
_INDEXED = {
    "embedding": 1, "index_select": 2, "gather": 2, "scatter": 2, "scatter_add": 2, "scatter_reduce": 2, "index_add": 2,
}  # fmt: skip
"""Position of the indices among the arguments of operators that take indices from 0 on."""
_INDEXED_BY_ALL = frozenset(("index", "_unsafe_index", "index_put"))
"""Operators that take a list of indices, which may count from the end."""
_DIVIDE = frozenset(("div", "floor_divide", "remainder", "fmod"))
"""Operators that raise where integers are divided by 0."""


def is_integer(value: Any) -> bool:
    """Whether a value is a tensor of integers."""
    return isinstance(value, Tensor) and not (
        value.dtype is torch.bool or value.is_floating_point() or value.is_complex()
    )


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
        if not is_integer(value) or not value.numel():
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


class _Indices(fx.Interpreter):
    """Runs a program's example once, and again those operators before indices that compute with integers alone."""

    def __init__(self, program: ReadProgram) -> None:
        super().__init__(program.module, garbage_collect_values=False)
        self._example = program.example
        self._nodes = list(program.module.graph.nodes)
        memories = Memories(self._nodes)
        self._arguments = [node for node in self._nodes if node.op == "placeholder"]
        self._varies: set[fx.Node] = set()
        self._of_others: set[fx.Node] = set()
        """Values that depend on other numbers than integers and truth values."""
        for node in self._nodes:
            depends = node.op == "placeholder" or any(one in self._varies for one in node.all_input_nodes)
            if depends:
                self._varies.update(memories.alike(node))
            if any(one in self._of_others for one in node.all_input_nodes):
                self._of_others.update((node, *memories.alike(node)))
        self.refused: str | None = None
        self._limits: dict[fx.Node, list[tuple[fx.Node, int, int]]] = {}
        """By operator the indices that it takes, each with the least and the largest that are allowed."""
        self.run(*program.example)
        self._needed = self._before_indices(memories)
        """The operators that are run again."""
        self._order = [node for node in self._nodes if node in self._needed or node in self._limits]

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator, and take note of what are its indices."""
        if n.op == "call_function" and n in self._varies:
            self._take(n, operator_of(n))
        value = super().run_node(n)
        real = isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        if (real and n in self._varies) or any(one in self._of_others for one in n.all_input_nodes):
            self._of_others.add(n)
        return value

    def _take(self, node: fx.Node, name: str) -> None:
        source: Any = self._value(node.args[0]) if node.args else None
        if name in _INDEXED_BY_ALL:
            for dim, one in enumerate(node.args[1]):  # type: ignore[arg-type]
                self._limit(node, one, -source.shape[dim], source.shape[dim] - 1)
        elif name in _INDEXED:
            along: Any = 0 if name == "embedding" else node.args[1]
            self._limit(node, node.args[_INDEXED[name]], 0, (source.shape[along] if source.dim() else 1) - 1)
        elif name == "one_hot":
            self._limit(node, node.args[0], 0, int(node.args[1]) - 1)  # type: ignore[arg-type]
        elif name in _DIVIDE:
            by = node.args[1]
            floats = any(isinstance(one, Tensor) and one.is_floating_point() for one in (source, self._value(by)))
            if not floats and isinstance(by, fx.Node) and (by in self._varies or not bool(self._value(by).all())):
                self.refused = self.refused or name
        elif may_raise(Node(node.target, node.args, node.kwargs, "forward")):  # type: ignore[arg-type]
            self.refused = self.refused or name

    def _limit(self, node: fx.Node, indices: Any, low: int, high: int) -> None:
        if indices in self._varies and indices not in self._of_others and is_integer(self._value(indices)):
            self._limits.setdefault(node, []).append((indices, low, high))

    def _value(self, argument: Any) -> Any:
        return self.env.get(argument) if isinstance(argument, fx.Node) else argument

    def _before_indices(self, memories: Memories) -> Collection[fx.Node]:
        """The operators before indices; those that write to the memory of one of them are among them."""
        needed: set[fx.Node] = set()
        pending = [one for limits in self._limits.values() for one, _, _ in limits]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += [*node.all_input_nodes, *memories.alike(node)]
        return needed

    def hold(self, at: int, number: int) -> bool:
        """Return whether indices are allowed where this argument has this number, everywhere or at every second place.

        Both are asked: positions are often counted from where a number is.
        """
        if not self._limits:
            return True
        example = self._example[at]
        everywhere = torch.full_like(example, number)
        every_second = example.clone(memory_format=torch.contiguous_format)
        every_second.view(-1)[::2] = number
        return self._in_range({at: everywhere}) and self._in_range({at: every_second})

    def hold_together(self, ranges: Sequence[Range | None]) -> bool:
        """Return whether indices are allowed where all arguments have their least, their largest, or both by turns."""
        if not self._limits:
            return True
        either = {at: Range(0, 1) for at, one in enumerate(self._example) if one.dtype is torch.bool}
        known = [*either.items(), *((at, one) for at, one in enumerate(ranges) if one is not None)]
        return all(
            self._in_range({at: _filled(self._example[at], one, first, second) for at, one in known})
            for first, second in ((0, 0), (1, 1), (0, 1))
        )

    def _in_range(self, given: Mapping[int, Tensor]) -> bool:
        env: dict[fx.Node, Any] = {}
        places = {node: at for at, node in enumerate(self._arguments)}
        try:
            for node in self._order:
                if not all(range_of(env[one]).within(*limit) for one, *limit in self._limits.get(node, ())):
                    return False
                if node not in self._needed:
                    continue
                if node.op == "placeholder":
                    env[node] = given.get(places[node], self._example[places[node]]).clone()
                elif node.op == "get_attr":
                    env[node] = operator.attrgetter(str(node.target))(self.module)
                else:
                    args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                    env[node] = node.target(*args, **kwargs)
        except (IndexError, RuntimeError):
            return False
        return True


def _filled(example: Tensor, ends: Range, first: int, second: int) -> Tensor:
    value = torch.full_like(example, ends[first], memory_format=torch.contiguous_format)
    value.view(-1)[1::2] = ends[second]
    return value
