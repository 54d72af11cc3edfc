"""Rewrites a captured program so that each group of point-wise operators is one operator."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import edges
from threadcast.capture.graph.program import Node, Program
from threadcast.capture.graph.values import Ref, map_refs
from threadcast.core.errors import ExecutionError
from threadcast.core.graph import OpGraph
from threadcast.core.op import Op
from threadcast.runtime.operators.aggregation import with_edge_sums
from threadcast.runtime.operators.clusters import Clusters, Group
from threadcast.runtime.operators.faster import with_faster_operators
from threadcast.runtime.operators.kernels import Kernel, kernel_of
from threadcast.runtime.operators.library import FusedOperators
from threadcast.runtime.operators.loop_check import LoopChecks
from threadcast.runtime.operators.parts import bases

KIND = "fused_pointwise"

_operators = FusedOperators()
_checks = LoopChecks(_operators)
_logger = logging.getLogger("threadcast")


def loops_of(captured: Captured) -> list[Kernel]:
    """Return the loops that `fused` compiles first."""
    if captured.sizes is not None:
        return []
    clusters = Clusters.of(with_edge_sums(captured))
    return [kernel_of(clusters, group) for group in clusters.groups]


def fused(captured: Captured) -> Captured | None:
    """Return `captured` with each of its point-wise groups as one op.

    So are sums of edges' messages (`aggregation`). None where there is neither, and for a graph of several sizes: a
    loop is for one. Matrices are multiplied by our operators where these are faster (`products`).
    The results are the same up to rounding of the last bit: a group whose loop gives other results stays as it is, with
    a warning. The loops of the groups are compiled if they never were on this machine, which takes some seconds.
    ExecutionError where they cannot be compiled.
    """
    if captured.sizes is not None:
        return None
    refused: frozenset[int] = frozenset()
    summed = with_edge_sums(captured)
    ours = with_faster_operators(summed)
    while (clusters := Clusters.of(ours, without=refused)).groups:
        kernels = [kernel_of(clusters, group) for group in clusters.groups]
        operators = _operators.of(kernels)
        wrong = frozenset(i for group in _differing(clusters, kernels) for i in group.nodes)
        if not wrong:
            found = _Rewriting(clusters, kernels, operators).captured()
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
                kinds = ", ".join(clusters.graph.ops[i].kind for i in group.nodes)
                _logger.warning("operators are not fused: %s of %s: %s", kernel.symbol, kinds, difference)
            warned.add(kernel.symbol)
            yield group


class _Rewriting:
    """Replaces the groups by operators, and puts all nodes into an order that their edges allow."""

    def __init__(self, clusters: Clusters, kernels: Sequence[Kernel], operators: Sequence[Any]) -> None:
        self._captured, self._clusters, self._kernels, self._operators = clusters.captured, clusters, kernels, operators
        self._n_nodes = len(clusters.program.nodes)
        self._group_of = {i: g for g, group in enumerate(clusters.groups) for i in (*group.nodes, *group.concatenated)}
        self._order = self._ordered()
        self._slots = self._new_slots()

    def captured(self) -> Captured:
        """Return the captured program with its groups as operators."""
        old = self._captured
        nodes = tuple(self._node(block) for block in self._order)
        ids = tuple(self._id(block) for block in self._order)
        ops = tuple(self._op(block) for block in self._order)
        outputs = map_refs(self._renumbered, old.program.outputs)
        program = Program(old.program.inputs, nodes, outputs, old.program.structure)
        graph = OpGraph(ids, ops, edges(nodes, program.inputs))
        before = self._captured.graph.ids
        stored = {self._id(self._n_nodes + g): tuple(before[i] for i in kernel.nodes)
                  for g, kernel in enumerate(self._kernels)}  # fmt: skip
        return replace(old, graph=graph, program=program, stored=stored)

    def _new_slots(self) -> dict[int, Ref]:
        """For each slot of the captured program, the reference to its value in the new program."""
        old = self._captured.program
        slots = {slot: Ref(slot) for slot in range(len(old.inputs))}
        for position, block in enumerate(self._order):
            slot = len(old.inputs) + position
            if block < self._n_nodes:
                slots[old.slot_of(block)] = Ref(slot)
                continue
            stored = self._kernels[block - self._n_nodes].nodes
            for n, node in enumerate(stored):
                slots[old.slot_of(node)] = Ref(slot, n if len(stored) > 1 else None)
        return slots

    def _block(self, node: int) -> int:
        """The block that contains the node: the node itself, or `_n_nodes` plus the number of its group."""
        group = self._group_of.get(node)
        return node if group is None else self._n_nodes + group

    def _ordered(self) -> list[int]:
        """Blocks, dependencies first; among blocks that are ready, the one that comes first in the captured program."""
        before: dict[int, set[int]] = {}
        first: dict[int, int] = {}
        for node in range(self._n_nodes):
            if node in self._clusters.unneeded:
                continue
            block = self._block(node)
            first.setdefault(block, node)
            before.setdefault(block, set()).update(self._needed(node))
            before[block].discard(block)
        after: dict[int, list[int]] = {}
        for block, needed in before.items():
            for other in needed:
                after.setdefault(other, []).append(block)
        left = {block: len(needed) for block, needed in before.items()}
        ready = [(first[block], block) for block, count in left.items() if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            _, block = heapq.heappop(ready)
            order.append(block)
            for other in after.get(block, ()):
                left[other] -= 1
                if left[other] == 0:
                    heapq.heappush(ready, (first[other], other))
        assert len(order) == len(before)
        return order

    def _needed(self, node: int) -> set[int]:
        """The blocks that a node waits for."""
        return {self._block(p) for p in self._clusters.before[node] if p not in self._clusters.unneeded}

    def _node(self, block: int) -> Node:
        if block < self._n_nodes:
            old = self._captured.program.nodes[block]
            return Node(
                old.target, map_refs(self._renumbered, old.args), map_refs(self._renumbered, old.kwargs), old.phase
            )
        kernel = self._kernels[block - self._n_nodes]
        phase = self._captured.program.nodes[kernel.nodes[-1]].phase
        return Node(
            self._operators[block - self._n_nodes],
            tuple(self._renumbered(part.base) for part in kernel.parts),
            {},
            phase,
        )

    def _renumbered(self, ref: Ref) -> Ref:
        new = self._slots[ref.slot]
        return new if ref.item is None else Ref(new.slot, ref.item)

    def _id(self, block: int) -> str:
        ids = self._captured.graph.ids
        return ids[block] if block < self._n_nodes else f"{ids[self._kernels[block - self._n_nodes].nodes[-1]]}.fused"

    def _op(self, block: int) -> Op:
        if block < self._n_nodes:
            return self._captured.graph.ops[block]
        kernel, group = self._kernels[block - self._n_nodes], self._clusters.groups[block - self._n_nodes]
        inputs = tuple(self._clusters.specs[ref] for ref in bases(kernel.parts))
        flops = sum(self._captured.graph.ops[i].flops for i in group.nodes)
        moved = sum(spec.size_bytes for spec in (*inputs, *kernel.outputs))
        attributes = {"operator": kernel.name, "fused": [self._captured.graph.ops[i].kind for i in group.nodes]}
        return Op(KIND, inputs, attributes, kernel.outputs, (flops, moved))
