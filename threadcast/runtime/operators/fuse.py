"""Rewrites a captured program so that each group of point-wise operators is one operator."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node
from threadcast.core.errors import ExecutionError
from threadcast.core.op import Op
from threadcast.runtime.operators.aggregation import with_edge_sums
from threadcast.runtime.operators.clusters import Clusters, Group
from threadcast.runtime.operators.kernels import Kernel, kernel_of
from threadcast.runtime.operators.library import FusedOperators
from threadcast.runtime.operators.loop_check import LoopChecks
from threadcast.runtime.operators.products import with_products
from threadcast.runtime.operators.replacing import Block, rebuilt

KIND = "fused_pointwise"

_operators = FusedOperators()
_checks = LoopChecks(_operators)
_logger = logging.getLogger("threadcast")


def loops_of(captured: Captured) -> list[Kernel]:
    """Return the loops that `fused` compiles first."""
    clusters = Clusters(with_edge_sums(captured))
    return [kernel_of(clusters, group) for group in clusters.groups]


def fused(captured: Captured) -> Captured | None:
    """Return `captured` with each of its point-wise groups as one op.

    So are sums of edges' messages (`aggregation`); None where there is neither. Matrices are multiplied by our
    operators where these are faster (`products`). The results are the same up to rounding of the last bit: a group
    whose loop gives other results stays as it is, with a warning. The loops of the groups are compiled if they never
    were on this machine, which takes some seconds. ExecutionError where they cannot be compiled.
    """
    refused: frozenset[int] = frozenset()
    summed = with_edge_sums(captured)
    ours = with_products(summed)
    while (clusters := Clusters(ours, without=refused)).groups:
        kernels = [kernel_of(clusters, group) for group in clusters.groups]
        operators = _operators.of(kernels)
        wrong = frozenset(i for group in _differing(clusters, kernels) for i in group)
        if not wrong:
            found = _rewritten(clusters, kernels, operators)
            if set(found.written) - set(captured.written):  # nobody would copy them before steps are compared
                raise ExecutionError("a fused operator would write to an input")
            return found
        refused |= wrong
    return None if summed is captured else ours


def _differing(clusters: Clusters, kernels: Sequence[Kernel]) -> Iterator[Group]:
    """Yield the groups whose kernels do not give what their nodes give, and warn once of each kernel."""
    warned = set()
    for group, kernel in zip(clusters.groups, kernels, strict=True):
        difference = _checks.difference(clusters, kernel)
        if difference is not None:
            if kernel.symbol not in warned:
                kinds = ", ".join(clusters.graph.ops[i].kind for i in group)
                _logger.warning("operators are not fused: %s of %s: %s", kernel.symbol, kinds, difference)
            warned.add(kernel.symbol)
            yield group


def _rewritten(clusters: Clusters, kernels: Sequence[Kernel], operators: Sequence[Any]) -> Captured:
    """The captured program with its groups as operators, and all nodes in an order that their edges allow."""
    captured, n_nodes = clusters.captured, len(clusters.program.nodes)
    blocks, stored = list[Block](), dict[str, tuple[str, ...]]()
    for number in _ordered(clusters):
        if number < n_nodes:
            slot, op_id = clusters.program.slot_of(number), captured.graph.ids[number]
            blocks.append(Block(slot, clusters.program.nodes[number], op_id, captured.graph.ops[number]))
            continue
        kernel, group = kernels[number - n_nodes], clusters.groups[number - n_nodes]
        last = kernel.nodes[-1]
        node = Node(operators[number - n_nodes], kernel.inputs, {}, clusters.program.nodes[last].phase)
        results = [clusters.program.slot_of(i) for i in kernel.nodes]
        op_id, op = f"{captured.graph.ids[last]}.fused", _op(clusters, kernel, group)
        blocks.append(Block(clusters.program.slot_of(number), node, op_id, op, results))
        stored[op_id] = tuple(captured.graph.ids[i] for i in kernel.nodes)
    return replace(rebuilt(captured, blocks), stored=stored)


def _ordered(clusters: Clusters) -> list[int]:
    """Nodes, and behind their number those of groups, dependencies first.

    Among those that are ready, the one comes first that does so in the captured program.
    """
    n_nodes = len(clusters.program.nodes)
    group_of = {i: n_nodes + g for g, one in enumerate(clusters.groups) for i in one}
    before: dict[int, set[int]] = {}
    first: dict[int, int] = {}
    for node in range(n_nodes):
        if node in clusters.unneeded:
            continue
        block = group_of.get(node, node)
        first.setdefault(block, node)
        needed = clusters.before[node] - clusters.unneeded
        before.setdefault(block, set()).update(group_of.get(other, other) for other in needed)
        before[block].discard(block)
    sorter, ready, order = TopologicalSorter(before), list[tuple[int, int]](), list[int]()
    sorter.prepare()
    while sorter.is_active():
        for block in sorter.get_ready():
            heapq.heappush(ready, (first[block], block))
        _, block = heapq.heappop(ready)
        order.append(block)
        sorter.done(block)
    return order


def _op(clusters: Clusters, kernel: Kernel, group: Group) -> Op:
    ops = [clusters.graph.ops[i] for i in group]
    inputs = tuple(clusters.specs[ref] for ref in kernel.inputs)
    moved = sum(spec.size_bytes for spec in (*inputs, *kernel.outputs))
    attributes = {"operator": kernel.name, "fused": [op.kind for op in ops]}
    return Op(KIND, inputs, attributes, kernel.outputs, (sum(op.flops for op in ops), moved))
