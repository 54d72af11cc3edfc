"""Which graphs may run by a plan: those of which every operator may; and what they return beside tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from threadcast.capture.guards.unsupported import check_operator
from threadcast.core.errors import CaptureError

_NUMBERS = (SymInt, SymFloat, SymBool)


def check_operators(graph: GraphModule) -> None:
    """Raise CaptureError where a graph has operators that only PyTorch can run: it then runs as Dynamo has traced it.

    They are operators that call graphs or functions of their own, that have results whose sizes depend on values, or
    that exchange data with other processes: these could run in another order than there, and all would wait without
    end.
    """
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if isinstance(node.target, OpOverload):
                check_operator(node.target)
    for node in graph.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise CaptureError(f"{node.target} calls graphs or functions of its own")
        if node.op == "call_function" and any(_varies(one.meta.get("val")) for one in (node, *node.all_input_nodes)):
            raise CaptureError(f"{node.target} has sizes or integers that depend on values")


def _varies(value: Any) -> bool:
    """Whether a size or an integer depends on the values of tensors; a float that does is an argument alone."""
    leaves = pytree.tree_leaves(value)
    return any(isinstance(leaf, Tensor | SymInt | SymBool) and free_unbacked_symbols(leaf) for leaf in leaves)


def returns_numbers(graph: GraphModule) -> bool:
    """Whether a graph returns numbers that follow from sizes, as what is saved for a backward pass may be."""
    return any(map(_is_number, _results_of(graph)))


def tensors_of(graph: GraphModule) -> GraphModule:
    """The graph without the numbers that it returns."""
    return _with_results(graph, [one for one in _results_of(graph) if not _is_number(one)])


def with_numbers(graph: GraphModule, run: Callable[..., Sequence[Any]]) -> Callable[..., list[Any]]:
    """Return what runs a graph: by `run` as far as it returns tensors; the numbers follow from its arguments."""
    results = _results_of(graph)
    numbers = _with_results(graph, [one for one in results if _is_number(one)])

    def called(*arguments: Any) -> list[Any]:
        computed, found = iter(numbers.forward(*arguments)), iter(run(*arguments))
        return [next(computed if _is_number(one) else found) for one in results]

    return called


def _with_results(graph: GraphModule, results: Sequence[Any]) -> GraphModule:
    made, copies = Graph(), dict[Node, Node]()
    made.graph_copy(graph.graph, copies)
    made.output(tuple(copies[one] if isinstance(one, Node) else one for one in results))
    made.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return GraphModule(graph, made)


def _is_number(result: Any) -> bool:
    return isinstance(result, Node) and isinstance(result.meta.get("val"), _NUMBERS)


def _results_of(graph: GraphModule) -> list[Any]:
    """What a graph returns: nodes and constants."""
    return list(graph.graph.output_node().args[0])  # type: ignore[arg-type]
