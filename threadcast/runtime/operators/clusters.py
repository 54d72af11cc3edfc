"""Finds groups of point-wise operators of one shape to fuse, such that no group depends on itself.

Every op has a depth: the largest number, over all paths to it, of edges between ops that cannot be fused. Point-wise
ops of one shape and one depth that feed each other become one group. A path that leaves a group crosses such an edge,
so its depth rises and it cannot return: the graph of groups has no cycle, and one pass finds all groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import may_be_written, memories, ordered
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.operators.pointwise import CONDITIONS, ONEDNNS, ONEDNNS_MOST, formula, literal, named

aten = torch.ops.aten

MAX_NODES = 24
"""Most operators in a group. A larger loop would have several times as many values as a core has registers."""
_MOST_PRECISE = 1 << 53
"""Largest size up to which each integer is a double, too."""


@dataclass(frozen=True, slots=True)
class Term:
    """A point-wise call as a C++ formula; `operands` maps each name in it to a value, or to a constant expression."""

    formula: str
    operands: Mapping[str, Ref | str]
    in_place: frozenset[int] = frozenset()
    """Nodes (conditions and constants) whose results this term computes itself instead of reading them."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The values that the term reads."""
        return tuple(value for value in self.operands.values() if isinstance(value, Ref))


Group = tuple[int, ...]
"""Positions of nodes to fuse, in the program's order."""


def specs_of(captured: Captured) -> dict[Ref, TensorSpec]:
    """Return what is known of the values that nodes read, and of the results of nodes that have one."""
    program = captured.program
    specs: dict[Ref, TensorSpec] = {}
    for i, (node, op) in enumerate(zip(program.nodes, captured.graph.ops, strict=True)):
        specs.update(zip(dict.fromkeys(find_refs((node.args, node.kwargs))), op.inputs))
        if len(op.outputs) == 1:
            specs[Ref(program.slot_of(i))] = op.outputs[0]
    return specs


class Clusters:
    """The groups of a captured program that can be fused, and the term of each point-wise node.

    Once the groups are fused, `before[i]` are the nodes that node i waits for, `readers[slot]` are the nodes that read
    a slot, and `unneeded` are the nodes whose results nothing reads. Nodes of `without` are in no group.
    """

    def __init__(self, captured: Captured, *, without: frozenset[int] = frozenset()) -> None:
        self.captured, self.program, self.graph = captured, captured.program, captured.graph
        self.n_inputs = len(captured.program.inputs)
        self.specs = specs_of(captured)
        self.before = [set(predecessors) for predecessors in captured.graph.predecessors]
        nodes, inputs = captured.program.nodes, captured.program.inputs
        self._memory = memories(nodes, inputs, undeclared=True)
        self._written = {self._memory[ref.slot] for node in nodes for ref in may_be_written(node)}
        self._ordered: defaultdict[int, set[int]] = defaultdict(set)
        for first, second in ordered(nodes, inputs):
            self._ordered[first].add(second)
            self._ordered[second].add(first)
        self.terms: dict[int, Term] = {}
        for i, (node, op) in enumerate(zip(self.program.nodes, self.graph.ops, strict=True)):
            if i in without or len(op.outputs) != 1 or op.outputs[0].dtype != "float32":
                continue
            if node.target in ONEDNNS and op.outputs[0].numel > ONEDNNS_MOST:
                continue
            if (term := self._expressed(node, i)) is not None:
                self.terms[i] = term
                self._compute_in_place(i, term)
        self._depths = self._all_depths()
        self.groups = self._found()
        self.readers, self.unneeded = self._read_by()

    def _maker(self, ref: Ref) -> int:
        """The node whose whole result the value is; -1 for inputs and for items of a result."""
        return ref.slot - self.n_inputs if ref.item is None and ref.slot >= self.n_inputs else -1

    def _expressed(self, node: Node, reader: int) -> Term | None:
        """The node as a formula of float32 values; None where it cannot be written as one."""
        if not isinstance(node.target, OpOverload):
            return None
        arguments = named(node.target, node.args, node.kwargs)
        found = CONDITIONS.get(node.target) or formula(node.target, arguments)
        if found is None:
            return None
        operands: dict[str, Ref | str] = {}
        in_place: set[int] = set()
        for name, given in arguments.items():
            if "{" + name + "}" not in found:
                continue
            if isinstance(given, bool | int | float):
                if not _is_precise(given):
                    return None
                operands[name] = literal(float(given))
                continue
            if not isinstance(given, Ref):
                return None
            maker = self._maker(given)
            constant = self._constant(maker)
            if constant is not None and name != "condition":
                operands[name] = literal(constant)
                in_place.add(maker)
            elif name == "condition":
                condition = self._condition(maker, reader)
                if condition is None:
                    return None
                renamed = {part: f"{name}_{part}" for part in condition.operands}
                operands.update({renamed[part]: value for part, value in condition.operands.items()})
                inner = condition.formula.format_map({part: "{" + new + "}" for part, new in renamed.items()})
                found = found.replace("{" + name + "}", f"({inner})")
                in_place |= {maker} | condition.in_place
            elif (spec := self.specs.get(given)) is not None and spec.dtype == "float32":
                operands[name] = given
            else:
                return None
        reads = any(isinstance(value, Ref) for value in operands.values())
        return Term(found, operands, frozenset(in_place)) if reads else None

    def _constant(self, maker: int) -> float | None:
        """The number that a node turns into a constant tensor; None for other nodes."""
        if maker < 0 or self._is_written(maker) or self.program.nodes[maker].target is not aten.scalar_tensor.default:
            return None
        value, spec = self.program.nodes[maker].args[0], self.graph.ops[maker].outputs[0]
        is_number = isinstance(value, bool | int | float) and spec.dtype == "float32"
        return float(value) if is_number and _is_precise(value) else None

    def _is_written(self, node: int) -> bool:
        """Whether any node writes to this node's result."""
        return self._memory[self.program.slot_of(node)] in self._written

    def _condition(self, maker: int, reader: int) -> Term | None:
        """The condition that a node computes, if `reader` may compute it instead: nothing is written in between."""
        if maker < 0 or self._is_written(maker):
            return None
        node = self.program.nodes[maker]
        if node.target not in CONDITIONS or any(maker < other <= reader for other in self._ordered[maker]):
            return None
        return self._expressed(node, reader)

    def _compute_in_place(self, i: int, term: Term) -> None:
        """Give node i the dependencies of the nodes that it computes itself, in both directions."""
        if not term.in_place:
            return
        self.before[i] -= term.in_place
        self.before[i] |= {maker for ref in term.refs if (maker := ref.slot - self.n_inputs) >= 0}
        for node in term.in_place:
            for other in self._ordered[node]:
                if other < node:
                    self.before[i].add(other)
                else:
                    self.before[other].add(i)

    def _all_depths(self) -> list[int]:
        """The depth of each node: one higher than that of a node before it with which it cannot be fused."""
        depths = [0] * len(self.program.nodes)
        for i in range(len(depths)):
            one = set(self._same(i))
            depths[i] = max((depths[p] + (p not in one) for p in self.before[i]), default=0)
        return depths

    def _same(self, i: int) -> list[int]:
        """The nodes that node i reads and could be fused with."""
        term = self.terms.get(i)
        makers = [self._maker(ref) for ref in term.refs] if term is not None else []
        return [maker for maker in makers if maker in self.terms and self._shape(maker) == self._shape(i)]

    def _shape(self, i: int) -> tuple[int, ...]:
        return self.graph.ops[i].outputs[0].shape

    def _found(self) -> tuple[Group, ...]:
        together = _Together(len(self.program.nodes))
        for i in self.terms:
            for maker in self._same(i):
                if self._depths[maker] == self._depths[i]:
                    together.join(maker, i)
        members: defaultdict[int, list[int]] = defaultdict(list)
        for i in self.terms:
            members[together.first(i)].append(i)
        groups = []
        for nodes in members.values():
            for begin in range(0, len(nodes), MAX_NODES):
                part = tuple(nodes[begin : begin + MAX_NODES])
                alone = self.terms[part[0]].in_place or self.program.nodes[part[0]].target in ONEDNNS
                if len(part) > 1 or alone:
                    groups.append(part)
        return tuple(groups)

    def _read_by(self) -> tuple[dict[int, set[int]], frozenset[int]]:
        grouped = {i for group in self.groups for i in group}
        readers: defaultdict[int, set[int]] = defaultdict(set)
        outputs = {ref.slot for ref in find_refs(self.program.outputs)}
        optional = {node for term in self.terms.values() for node in term.in_place}
        unneeded = set()
        for i in range(len(self.program.nodes) - 1, -1, -1):
            node, slot = self.program.nodes[i], self.program.slot_of(i)
            if i in optional and slot not in outputs and not readers[slot]:
                unneeded.add(i)
                continue
            for ref in self.terms[i].refs if i in grouped else node.refs():
                readers[ref.slot].add(i)
        return readers, frozenset(unneeded)


def _is_precise(number: float) -> bool:
    """Whether a Python number is the same as a double, through which it becomes a float32; a large integer may not be,
    and PyTorch rounds it once."""
    return not isinstance(number, int) or abs(number) <= _MOST_PRECISE


class _Together:
    """Disjoint sets of numbers (union-find); each set is identified by its lowest number."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def first(self, i: int) -> int:
        while self._above[i] != i:
            self._above[i] = self._above[self._above[i]]
            i = self._above[i]
        return i

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.first(one), self.first(other)))
        self._above[high] = low
