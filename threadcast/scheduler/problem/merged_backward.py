"""The same step without the split backward pass: what its fine-grained tasks are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from threadcast.core import Case, CurveTable, Edge, Op, OpGraph
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.times import Floats

PARTS = ("input", "weight", "bias")
"""What capture calls the parts of an operator that computes several gradients (`collector.splitting`): the op
"name.weight" of kind "convolution_backward_weight" is a part of "name", a "convolution_backward"."""


def without_split(problem: Problem) -> Problem | None:
    """Return `problem` with the parts of each split operator as one op again; None where no op is such a part.

    On as many cores the whole takes as long as its parts in turn, each on the largest count of its own that these
    cores offer: what the unsplit operator takes, but for what its parts share. It starts after all that its parts
    wait for and all that needs one of them waits for all. None also where that would close a cycle, as no capture
    makes, and where an op of the whole's name is in the graph besides.
    """
    graph = problem.graph
    whole = [_whole_of(op_id, op) for op_id, op in zip(graph.ids, graph.ops)]
    if not any(whole):
        return None
    members: dict[str, list[int]] = {}
    for position, (op_id, found) in enumerate(zip(graph.ids, whole)):
        if found is None and op_id in members:
            return None
        members.setdefault(found[0] if found else op_id, []).append(position)
        if found and len({whole[at] for at in members[found[0]]}) > 1:
            return None
    try:
        merged = _merged(graph, members, {found[0]: found[1] for found in whole if found})
    except InvalidInput:  # a cycle
        return None
    seconds = np.stack([_seconds(problem.times.seconds, positions) for positions in members.values()])
    cases = tuple(Case(count) for count in problem.times.counts)
    source = np.zeros(seconds.shape, dtype=np.int8)
    table = CurveTable(cases, seconds, seconds, seconds, source, problem.curves.model)
    return Problem(merged, table, problem.machine)


def _whole_of(op_id: str, op: Op) -> tuple[str, str] | None:
    """Id and kind of the operator that an op is a part of."""
    for part in PARTS:
        if op_id.endswith(f".{part}") and op.kind.endswith(f"_backward_{part}"):
            return op_id.removesuffix(f".{part}"), op.kind.removesuffix(f"_{part}")
    return None


def _merged(graph: OpGraph, members: Mapping[str, Sequence[int]], kinds: Mapping[str, str]) -> OpGraph:
    """One op for each entry of `members`; InvalidInput for a cycle."""
    new = {old: i for i, positions in enumerate(members.values()) for old in positions}
    ops = tuple(
        _whole(kinds[op_id], [graph.ops[at] for at in positions]) if op_id in kinds else graph.ops[positions[0]]
        for op_id, positions in members.items()
    )
    edges: dict[tuple[int, int], bool] = {}
    for source, target, ordering in graph.edges:
        pair = (new[source], new[target])
        if pair[0] != pair[1]:
            edges[pair] = edges.get(pair, True) and ordering
    return OpGraph(tuple(members), ops, tuple(Edge(*pair, ordering) for pair, ordering in edges.items()))


def _whole(kind: str, parts: Sequence[Op]) -> Op:
    cost = (sum(part.flops for part in parts), sum(part.bytes_moved for part in parts))
    return Op(kind, parts[0].inputs, cost=cost)


def _seconds(seconds: Floats, positions: Sequence[int]) -> Floats:
    """(n_counts,) seconds of ops in turn; of one alone what its curve offers and no more."""
    if len(positions) == 1:
        return np.asarray(seconds[positions[0]])
    rows = seconds[list(positions)]
    offered = np.isfinite(rows)
    last = np.maximum.accumulate(np.where(offered, np.arange(rows.shape[1]), -1), axis=1)
    filled = np.take_along_axis(rows, np.maximum(last, 0), axis=1)  # before the first offered one that is infinite
    return np.asarray(filled.sum(axis=0))
