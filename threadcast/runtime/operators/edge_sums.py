"""Finds sums of edges' messages in a captured program, as layers of graph networks make them.

A row is read for each edge (`index_select`), perhaps multiplied by a number of the edge, and added to the row that the
edge leads to (`scatter_add_` to zeros). The backward pass does the same in the edges' other direction (`gather`,
`index_add`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import may_be_written, memories
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.operators.clusters import specs_of
from threadcast.runtime.operators.pointwise import named

aten = torch.ops.aten

ADDS = {
    aten.scatter_add_.default, aten.scatter_add.default, aten.index_add_.default, aten.index_add.default,
}  # fmt: skip
"""Operators that add rows to rows by their number."""
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default}
_MOST = 2**31 - 2
"""Most rows and edges: `gather_add` takes their numbers in 32 bits."""


@dataclass(frozen=True, slots=True)
class EdgeSum:
    """A node that adds a message to row to[e] of zeros (`rows`, ...) for each edge e in turn.

    The message is row origin[e] of `source`, or row e without `origin`, times `scale`, where there is one: (edges, 1),
    or (edges, heads, 1) for rows of (heads, ...). All values are float32, all indices int64 of one dimension.
    `replaced` are nodes whose results it does not need as they are.
    """

    node: int
    source: Ref
    origin: Ref | None
    scale: Ref | None
    to: Ref
    rows: int
    replaced: frozenset[int]


def edge_sums(captured: Captured) -> list[EdgeSum]:
    """Return all sums of messages in a program, in its order."""
    search = _Search(captured)
    found = map(search.sum_at, range(len(captured.program.nodes)))
    return [one for one in found if one is not None]


class _Message(NamedTuple):
    """Rows of `source` by `origin`, times `scale`; `nodes` compute a part of that."""

    source: Ref
    origin: Ref | None = None
    scale: Ref | None = None
    nodes: frozenset[int] = frozenset()


class _Column(NamedTuple):
    """Indices of one dimension; `nodes` repeat them along further ones."""

    ref: Ref
    nodes: frozenset[int]


class _Search:
    """Finds the sums of one captured program."""

    def __init__(self, captured: Captured) -> None:
        self._program, self._graph, self._n_inputs = captured.program, captured.graph, len(captured.program.inputs)
        self._specs = specs_of(captured)
        nodes = captured.program.nodes
        self._memory = memories(nodes, captured.program.inputs, undeclared=True)
        self._writers: defaultdict[int, list[int]] = defaultdict(list)
        """Positions of the nodes that write to each memory."""
        for i, node in enumerate(nodes):
            for ref in may_be_written(node):
                self._writers[self._memory[ref.slot]].append(i)
        self._uses = Counter(slot for node in nodes for slot in {ref.slot for ref in node.refs()})
        self._uses.update(ref.slot for ref in find_refs(captured.program.outputs))

    def sum_at(self, i: int) -> EdgeSum | None:
        """Return what node i adds; None where it is no sum of messages."""
        node = self._program.nodes[i]
        if node.target not in ADDS or not isinstance(node.target, OpOverload):
            return None
        given = named(node.target, node.args, node.kwargs)
        by_row = "source" in given  # index_add, whose index has one dimension
        zeros, message = given["self"], given["source" if by_row else "src"]
        if given.get("alpha", 1) != 1 or not (isinstance(zeros, Ref) and isinstance(message, Ref)):
            return None
        into, read, result = self._specs.get(zeros), self._specs.get(message), self._graph.ops[i].outputs[0]
        made = self._node(zeros)
        if into is None or read is None or made is None or not _makes_zeros(made):
            return None
        if self._uses[zeros.slot] != 1:  # it may be written before, or is returned
            return None
        if not into.dtype == read.dtype == "float32" or into.strides is not None or result.strides is not None:
            return None
        if not read.shape or given["dim"] % len(read.shape) or into.shape[1:] != read.shape[1:]:
            return None
        if by_row and len(read.shape) < 2 and node.phase == "forward":  # its errors are not those of `scatter_add_`
            return None
        to = self._column(given["index"], read.shape[:1] if by_row else read.shape)
        if to is None or max(into.shape[0], read.shape[0]) > _MOST:
            return None
        found = self._message(message, read.shape, i)
        replaced = found.nodes | to.nodes | {self._maker(zeros)}
        return EdgeSum(i, found.source, found.origin, found.scale, to.ref, into.shape[0], replaced)

    def _message(self, ref: Ref, shape: tuple[int, ...], until: int) -> _Message:
        """What node `until` may read in place of a message: what that is made of."""
        found = _Message(ref)
        product = self._product(ref, shape)
        if product is not None and self._stays(ref, product, until):
            rows, scale = product
            found = _Message(rows, scale=scale, nodes=frozenset({self._maker(ref)}))
        rows_of = self._rows_read(found.source, shape)
        if rows_of is None or not self._stays(found.source, (rows_of.source,), until):
            return found
        if not self._may_raise_late(self._maker(found.source), until):
            return found
        nodes = found.nodes | rows_of.nodes | {self._maker(found.source)}
        return _Message(rows_of.source, rows_of.origin, found.scale, nodes)

    def _product(self, ref: Ref, shape: tuple[int, ...]) -> tuple[Ref, Ref] | None:
        """The two factors of a product of rows and one number for each row, or for each head of it; rows first."""
        node = self._node(ref)
        if node is None or node.target is not aten.mul.Tensor:
            return None
        factors = tuple(named(aten.mul.Tensor, node.args, node.kwargs).values())
        for rows, scale in (factors, factors[::-1]):
            one, other = self._spec(rows), self._spec(scale)
            if one is None or other is None or not one.dtype == other.dtype == "float32":
                continue
            if one.shape == shape and _is_scale(other.shape, shape):
                return rows, scale
        return None

    def _rows_read(self, ref: Ref, shape: tuple[int, ...]) -> _Message | None:
        """What rows of this shape were read from by their number, and the numbers."""
        node = self._node(ref)
        if node is None or node.target not in (aten.index_select.default, aten.gather.default):
            return None
        by_row = node.target is aten.index_select.default
        given = named(aten.index_select.default if by_row else aten.gather.default, node.args, node.kwargs)
        source, index = given["self"], given["index"]
        spec = self._spec(source)
        if spec is None or spec.dtype != "float32" or not spec.shape or given["dim"] % len(spec.shape):
            return None
        if spec.shape[1:] != shape[1:] or not (by_row or node.phase != "forward"):  # `gather` raises other errors
            return None
        column = self._column(index, shape[:1] if by_row else shape)
        return None if column is None else _Message(source, column.ref, None, column.nodes)

    def _column(self, given: Any, shape: tuple[int, ...]) -> _Column | None:
        """The indices of one dimension that an index of this shape repeats along all sides but the first.

        None where it is no such index, and where its memory is ever written.
        """
        nodes: set[int] = set()
        ref, spec = given, self._spec(given)
        if spec is None or spec.shape != shape or spec.dtype != "int64" or self._writers.get(self._memory[ref.slot]):
            return None
        while (node := self._node(ref)) is not None:
            inner = self._spec(node.args[0]) if node.args else None
            if inner is None or not _repeats(node, inner, spec):
                break
            nodes.add(self._maker(ref))
            ref, spec = node.args[0], inner
        return _Column(ref, frozenset(nodes)) if len(spec.shape) == 1 else None

    def _stays(self, made: Ref, read: Sequence[Ref], until: int) -> bool:
        """Whether node `until` may read values in place of `made`, which another node has made of them before.

        Nothing may have written to any of them in between.
        """
        if self._writers.get(self._memory[made.slot]):
            return False
        since = self._maker(made)
        return not any(since < at < until for ref in read for at in self._writers.get(self._memory[ref.slot], ()))

    def _may_raise_late(self, since: int, until: int) -> bool:
        """Whether node `until` may raise what `since` would: nothing of the caller's is written in between."""
        if self._program.nodes[since].phase != "forward":  # the forward pass has used the same indices
            return True
        held = (at for memory, found in self._writers.items() if memory < self._n_inputs for at in found)
        return not any(since < at < until for at in held)

    def _spec(self, value: Any) -> TensorSpec | None:
        return self._specs.get(value) if isinstance(value, Ref) else None

    def _maker(self, ref: Ref) -> int:
        """The node whose whole result the value is; -1 for inputs and for items of a result."""
        return ref.slot - self._n_inputs if ref.item is None and ref.slot >= self._n_inputs else -1

    def _node(self, ref: Ref) -> Node | None:
        maker = self._maker(ref)
        return None if maker < 0 else self._program.nodes[maker]


def _makes_zeros(node: Node) -> bool:
    """Whether a node makes a new tensor of zeros, none of which is negative."""
    if node.target is aten.full.default:
        value = node.args[1]
        return isinstance(value, int | float) and value == 0 and math.copysign(1.0, value) > 0
    return node.target in (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)


def _repeats(node: Node, inner: TensorSpec, outer: TensorSpec) -> bool:
    """Whether a node makes of `inner` a view `outer` with the same number at all places of a row."""
    if inner.dtype != "int64" or inner.shape[:1] != outer.shape[:1]:
        return False
    if node.target is aten.expand.default:
        return len(inner.shape) == len(outer.shape) and (inner.shape == outer.shape or _is_column(inner.shape))
    return node.target in _RESHAPES and _is_column(inner.shape) and _is_column(outer.shape)


def _is_column(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has numbers along its first side only."""
    return len(shape) > 0 and all(side == 1 for side in shape[1:])


def _is_scale(scale: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a factor has one number for each row, or for each of all but the last side of it."""
    if len(scale) != len(shape) or len(shape) < 2 or scale[0] != shape[0] or scale[-1] != 1:
        return False
    return scale[1:-1] == shape[1:-1] or _is_column(scale)
