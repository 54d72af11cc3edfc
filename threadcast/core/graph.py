"""A directed acyclic graph of ops, and its JSON form `threadcast.graph/1`."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, finite, member, read_json
from threadcast.core.json_writing import write_json
from threadcast.core.op import Op
from threadcast.core.read_only import made_anew

SCHEMA = "threadcast.graph/1"
MAX_OPS = 100_000
"""Graphs of more ops are refused: planning takes more memory and time with each op. No known network comes near."""


class Edge(NamedTuple):
    """A dependency: `target` starts after `source` has finished; both are positions in `OpGraph.ops`.

    `ordering` is True where no value flows and only the order counts: mutation of shared memory, running statistics,
    random state, exceptions.
    """

    source: int
    target: int
    ordering: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OpGraph:
    """Ops with unique ids and the edges between them; InvalidInput where they form a cycle.

    `curves[id]` maps thread counts to seconds where the graph file contains measured times.
    """

    ids: tuple[str, ...]
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...] = ()
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    predecessors: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    successors: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    topological_order: tuple[int, ...] = field(init=False, repr=False)
    """Positions in an order in which every op comes after its dependencies; among several possible ones the lowest."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.ops):
            raise InvalidInput(f"{len(self.ids)} ids for {len(self.ops)} ops: there must be one id an op")
        if len(self.ops) > MAX_OPS:
            raise InvalidInput(f"{len(self.ops)} ops are more than the {MAX_OPS} that a graph may have; split it")
        if len(set(self.ids)) != len(self.ids):
            ((twice, _),) = Counter(self.ids).most_common(1)
            raise InvalidInput(f"op id {twice!r} is used twice; ids must be unique")
        unknown = sorted(set(self.curves) - set(self.ids))
        if unknown:
            raise InvalidInput(f"curves are given for unknown op ids: {', '.join(unknown[:5])}")
        object.__setattr__(self, "curves", MappingProxyType(dict(self.curves)))
        before: list[dict[int, None]] = [{} for _ in self.ops]
        after: list[dict[int, None]] = [{} for _ in self.ops]
        for edge in self.edges:
            if not (0 <= edge.source < len(self.ops) and 0 <= edge.target < len(self.ops)):
                raise InvalidInput(f"edge {tuple(edge)} points outside the {len(self.ops)} ops")
            before[edge.target][edge.source] = None
            after[edge.source][edge.target] = None
        object.__setattr__(self, "predecessors", tuple(map(tuple, before)))
        object.__setattr__(self, "successors", tuple(map(tuple, after)))
        object.__setattr__(self, "topological_order", self._sorted())

    __reduce__ = made_anew

    def _sorted(self) -> tuple[int, ...]:
        waiting = [len(p) for p in self.predecessors]
        ready = [i for i, n in enumerate(waiting) if n == 0]
        order = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for successor in self.successors[index]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    heapq.heappush(ready, successor)
        if len(order) != len(self.ops):
            stuck = [self.ids[i] for i, n in enumerate(waiting) if n > 0]
            raise InvalidInput(f"the graph has a cycle through or before {', '.join(stuck[:5])}; edges must be acyclic")
        return tuple(order)

    def __len__(self) -> int:
        return len(self.ops)

    def distinct_ops(self) -> dict[str, Op]:
        """Each different op once, by key, in order of first appearance."""
        distinct: dict[str, Op] = {}
        for op in self.ops:
            distinct.setdefault(op.key, op)
        return distinct

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.graph/1`."""
        ops = []
        for op_id, op in zip(self.ids, self.ops):
            entry = {"id": op_id, **op.to_json()}
            if op_id in self.curves:
                entry["curve"] = {str(threads): s for threads, s in sorted(self.curves[op_id].items())}
            ops.append(entry)
        document: dict[str, Any] = {"schema": SCHEMA, "ops": ops}
        document["edges"] = [[self.ids[e.source], self.ids[e.target]] for e in self.edges]
        ordering = [[self.ids[e.source], self.ids[e.target]] for e in self.edges if e.ordering]
        if ordering:
            document["ordering_edges"] = ordering
        return document

    @classmethod
    def from_json(cls, document: Any) -> OpGraph:
        """Read a `threadcast.graph/1` document; FormatError with a JSON pointer to whatever is wrong."""
        check_schema(document, SCHEMA)
        entries = member(document, "ops", list)
        if len(entries) > MAX_OPS:
            raise FormatError(f"{len(entries)} ops are more than the {MAX_OPS} allowed; split it", pointer="/ops")
        ops: list[Op] = []
        positions: dict[str, int] = {}
        curves: dict[str, dict[int, float]] = {}
        for i, entry in enumerate(entries):
            pointer = f"/ops/{i}"
            op_id = member(entry, "id", str, pointer=pointer)
            if not op_id:
                raise FormatError("an op id must have at least one character", pointer=f"{pointer}/id")
            if positions.setdefault(op_id, i) != i:
                raise FormatError(f"op id {op_id!r} is used twice; ids must be unique", pointer=f"{pointer}/id")
            ops.append(Op.from_json(entry, pointer=pointer))
            if "curve" in entry:
                curves[op_id] = _read_curve(entry["curve"], f"{pointer}/curve")
        pairs = _read_pairs(document, "edges", positions)
        ordering = _read_pairs(document, "ordering_edges", positions)
        known, marked = set(pairs), set(ordering)
        for i, pair in enumerate(ordering):
            if pair not in known:
                raise FormatError("an ordering edge must be among edges too", pointer=f"/ordering_edges/{i}")
        try:
            return cls(tuple(positions), tuple(ops), tuple(Edge(s, t, (s, t) in marked) for s, t in pairs), curves)
        except InvalidInput as error:
            raise FormatError(str(error), pointer="/edges") from error  # all else has been checked: a cycle

    def write(self, path: Path | str) -> None:
        """Write the JSON form to `path`."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path | str) -> OpGraph:
        """Read the JSON form from `path`, without blanks around kinds; FormatError where it has another form, OSError
        where it cannot be read."""
        graph = read_json(path, cls.from_json)
        if all(op.kind == op.kind.strip() for op in graph.ops):
            return graph
        return replace(graph, ops=tuple(Op.from_json({**op.to_json(), "kind": op.kind.strip()}) for op in graph.ops))


def _read_curve(document: Any, pointer: str) -> dict[int, float]:
    if not isinstance(document, dict) or not document:
        raise FormatError("a curve must map thread counts to seconds and have at least one point", pointer=pointer)
    curve = {}
    for threads, seconds in document.items():
        if not re.fullmatch("[1-9][0-9]{0,8}", threads):
            raise FormatError(f"{threads!r} is not a thread count of at least 1", pointer=f"{pointer}/{threads}")
        curve[int(threads)] = finite(seconds, pointer=f"{pointer}/{threads}", minimum=0.0)
    return curve


def _read_pairs(document: Any, name: str, positions: Mapping[str, int]) -> list[tuple[int, int]]:
    pairs = []
    for i, pair in enumerate(member(document, name, list, default=[])):
        pointer = f"/{name}/{i}"
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(end, str) for end in pair):
            raise FormatError(f"an edge must be [from, to], got {pair!r}", pointer=pointer)
        for end in pair:
            if end not in positions:
                raise FormatError(f"edge names the unknown op {end!r}", pointer=pointer)
        pairs.append((positions[pair[0]], positions[pair[1]]))
    return pairs
