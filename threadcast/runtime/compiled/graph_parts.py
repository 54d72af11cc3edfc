"""Divides a graph into parts that can be planned, and parts of operators that only PyTorch can run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from threadcast.capture.graph.dependencies import may_draw
from threadcast.capture.guards.unsupported import check_operator

_NUMBERS = (SymInt, SymFloat, SymBool)


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart:
    """Some operators of a graph, as a graph of their own that takes and returns values of the whole graph."""

    graph: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    refused: str | None
    """Why only PyTorch can run it, empty for integers that follow from sizes; None where it may be planned."""


def returns_integers(graph: GraphModule) -> bool:
    """Return whether a graph returns integers that follow from sizes, as what is saved for a backward pass may be."""
    return any(isinstance(node, Node) and isinstance(node.meta.get("val"), _NUMBERS) for node in _output_of(graph))


def check_collectives(graph: GraphModule) -> None:
    """Raise Collective where a graph, or one that it calls, exchanges data with other processes.

    Parts of it could run in another order than in other processes, or once more, and all would wait without end.
    """
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if isinstance(node.target, OpOverload):
                check_operator(node.target)


def parts_of(graph: GraphModule) -> list[GraphPart]:
    """Return the parts of a graph that writes to nothing, in an order in which they can run.

    PyTorch runs operators that call graphs or functions of their own, those whose results have sizes that depend on
    values, and all operators on such sizes. A part that can be planned is as large as possible: operators join the
    first one after all that they need. Where random numbers may be drawn, the order of operators stays. Integers that
    follow from sizes are computed in each part that needs them.
    """
    refused = {node: reason for node in graph.graph.nodes if (reason := _why_refused(node)) is not None}
    ordered = any(map(_may_draw, graph.graph.nodes))
    of_sizes = _of_sizes(graph)
    numbers: dict[Node, int] = {}
    last = 0
    for node in graph.graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module") or node in of_sizes:
            continue
        before = [numbers[other] for other in node.all_input_nodes if other in numbers]
        number = max(before, default=0)
        if node.target is not operator.getitem or not before:  # which belongs to what returns several results
            number = max(number, last) if ordered else number
            number += (number % 2 == 0) if node in refused else (number % 2 == 1)
        numbers[node] = last = number
    found = []
    for number in sorted(set(numbers.values())):
        nodes = [node for node in graph.graph.nodes if numbers.get(node) == number]
        reasons = dict.fromkeys(refused[node] for node in nodes if node in refused)
        found.append(_part(graph, nodes, "; ".join(reasons) if number % 2 else None, of_sizes))
    output = _output_of(graph)
    returned = [node for node in graph.graph.nodes if node in of_sizes and node in output]
    return [*found, _part(graph, returned, "", of_sizes)] if returned else found


class PartsInTurn:
    """Runs the parts of a graph one after the other; returns what the whole graph returns.

    `runs` has what runs each part: a callable of its inputs that returns its outputs.
    """

    def __init__(
        self, graph: GraphModule, parts: Sequence[GraphPart], runs: Sequence[Callable[..., Sequence[Any]]]
    ) -> None:
        self._inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._outputs = _output_of(graph)
        self._steps = [(part.inputs, part.outputs, run) for part, run in zip(parts, runs, strict=True)]
        needed = {node for node in self._outputs if isinstance(node, Node)}
        self._dropped: list[list[Node]] = []
        """After each part the values that no later part needs."""
        for part in reversed(parts):
            self._dropped.append([node for node in {*part.inputs, *part.outputs} if node not in needed])
            needed |= set(part.inputs)
        self._dropped.reverse()

    def __call__(self, *arguments: Any) -> list[Any]:
        values = dict(zip(self._inputs, arguments, strict=True))
        del arguments
        for (inputs, outputs, run), dropped in zip(self._steps, self._dropped, strict=True):
            values.update(zip(outputs, run(*[values[node] for node in inputs]), strict=True))
            for node in dropped:
                del values[node]
        return [values[node] if isinstance(node, Node) else node for node in self._outputs]


def _why_refused(node: Node) -> str | None:
    if node.op != "call_function":
        return None
    if isinstance(node.target, HigherOrderOperator):
        return f"{node.target} calls graphs or functions of its own"
    if _varies(node.meta.get("val")):
        return f"{node.target} has results whose sizes or integers depend on values"
    if any(_varies(other.meta.get("val")) for other in node.all_input_nodes):
        return "operators on sizes or integers that depend on values"
    return None


def _may_draw(node: Node) -> bool:
    """Whether an operator may draw random numbers: what a higher-order one calls need not be in the graph."""
    return isinstance(node.target, HigherOrderOperator) or may_draw(node.target)


def _varies(value: Any) -> bool:
    """Whether a size or an integer depends on the values of tensors; a float that does is an argument alone."""
    leaves = pytree.tree_leaves(value)
    return any(isinstance(leaf, Tensor | SymInt | SymBool) and free_unbacked_symbols(leaf) for leaf in leaves)


def _output_of(graph: GraphModule) -> list[Any]:
    """What a graph returns: nodes and constants."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return list(output.args[0])


def _of_sizes(graph: GraphModule) -> set[Node]:
    """The nodes that compute integers from integers alone, none of which depends on values."""
    found: set[Node] = set()
    for node in graph.graph.nodes:
        values = [other.meta.get("val") for other in (node, *node.all_input_nodes)]
        if node.op == "call_function" and all(isinstance(value, _NUMBERS) for value in values):
            found |= {node} if _why_refused(node) is None else set()
    return found


def _part(graph: GraphModule, nodes: Sequence[Node], refused: str | None, of_sizes: set[Node]) -> GraphPart:
    own, made = set(nodes), Graph()
    copies: dict[Node, Node] = {}
    needed = _needed(nodes, own, of_sizes)
    inlined = [node for node in needed if node.op == "get_attr" or node in of_sizes]
    inputs = [node for node in needed if node not in inlined]
    for node in inputs:
        copies[node] = made.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    for node in [*sorted(inlined, key=order.__getitem__), *nodes]:
        copies[node] = made.node_copy(node, copies.__getitem__)
    outputs = tuple(node for node in nodes if any(user not in own for user in node.users))
    made.output(tuple(copies[node] for node in outputs))
    return GraphPart(GraphModule(graph, made), tuple(inputs), outputs, refused)


def _needed(nodes: Sequence[Node], own: set[Node], of_sizes: set[Node]) -> list[Node]:
    """All other nodes that `nodes` need, and what those of them that are `of_sizes` need."""
    found: dict[Node, None] = {}
    waiting = [other for node in nodes for other in node.all_input_nodes]
    for node in waiting:
        if node not in own and node not in found:
            found[node] = None
            if node in of_sizes:
                waiting.extend(node.all_input_nodes)
    return list(found)
