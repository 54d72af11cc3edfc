"""Merges the split backward pass of a step again, to find out what the split gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from threadcast.core import Case, CurveTable, Edge, Op, OpGraph
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.times import Floats

PARTS = ("input", "weight", "bias")
"""Endings of the ids of the parts of an operator that computes several gradients (`capture.splitting`): the op
"name.weight" of kind "convolution_backward_weight" is a part of "name", a "convolution_backward"."""


def without_split(problem: Problem) -> Problem | None:
    """Return `problem` with the parts of each split operator merged into one op; None where there are no such parts.

    On a number of cores, the merged op takes the sum of its parts' times, each at its largest offered count up to that
    number. That is the time of the unsplit operator, apart from work that the parts share. The merged op starts after
    everything that its parts wait for, and what waits for a part waits for the merged op. None also where merging would
    close a cycle (captured graphs have none), and where the graph has an op with the merged op's id already.
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
    """Id and kind of the operator of which the op is a part; None for other ops."""
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
    """(n_counts,) seconds of ops one after the other. A single op keeps its curve, infinite where not offered."""
    if len(positions) == 1:
        return np.asarray(seconds[positions[0]])
    rows = seconds[list(positions)]
    offered = np.isfinite(rows)
    last = np.maximum.accumulate(np.where(offered, np.arange(rows.shape[1]), -1), axis=1)
    filled = np.take_along_axis(rows, np.maximum(last, 0), axis=1)  # before the first offered one that is infinite
    return np.asarray(filled.sum(axis=0))
