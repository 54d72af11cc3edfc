"""A backward graph as it is where no loss has used some results: their gradients are undefined, and not zeros.

Eager PyTorch then never computes what only these lead to. By zeros it would be zeros, but not where it is multiplied by
what is infinite, as the derivative of a square root at 0.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten
_MAKING = {"ones_like", "full_like", "new_ones", "new_full", "empty_like", "new_empty", "new_empty_strided"}
"""Operators whose results have numbers that do not depend on those of their argument."""


def without(backward: GraphModule, gradients: Collection[int], unused: Collection[int]) -> GraphModule | None:
    """Return the graph without its inputs at the positions `unused`; None where it is not known how.

    They are some of the `gradients` among its inputs. Results that depend on them alone are None. The graph must be
    linear in the gradients, as autograd's own are, and of fixed sizes.
    """
    graph, copies = Graph(), dict[Node, Node]()
    output = graph.output(graph.graph_copy(backward.graph, copies))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    undefined = {inputs[i] for i in unused}
    defined = {inputs[i] for i in gradients if i not in unused}
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        of = set(node.all_input_nodes)
        if not of & undefined:
            if of & defined:
                defined.add(node)
        elif not of & defined:
            if not _is_linear(node):
                return None
            undefined.add(node)
        elif (part := _defined_part(node, undefined)) is not None:
            node.replace_all_uses_with(part)
        else:
            _fill(graph, node, [one for one in node.all_input_nodes if one in undefined])
            defined.add(node)
    results: Any = output.args[0]
    output.args = (tuple(None if one in undefined else one for one in results),)
    graph.eliminate_dead_code()
    if any(inputs[i].users for i in unused):  # by an operator that does more than compute
        return None
    for i in unused:
        graph.erase_node(inputs[i])
    return GraphModule(backward, graph)


def _is_linear(node: Node) -> bool:
    """Whether an operator gives zeros for zeros, as far as that is known."""
    name = str(getattr(getattr(node.target, "_schema", None), "name", "")).rpartition("::")[2]
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return name not in _MAKING and all(not isinstance(one, Tensor) or one.is_floating_point() for one in values)


def _defined_part(node: Node, undefined: Collection[Node]) -> Node | None:
    """The other part of a sum of which one is undefined; None where the operator is not such a sum."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    parts = [one for one in node.args if isinstance(one, Node) and one not in undefined]
    if len(parts) != 1:
        return None
    mine, whole = parts[0].meta.get("val"), node.meta.get("val")
    if not isinstance(mine, Tensor) or not isinstance(whole, Tensor):
        return None
    return parts[0] if mine.shape == whole.shape and mine.dtype == whole.dtype else None


def _fill(graph: Graph, node: Node, undefined: Collection[Node]) -> None:
    """Give a node zeros for the inputs that are undefined, as autograd does."""
    for one in undefined:
        value = one.meta["val"]
        with graph.inserting_before(node):
            options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            zeros = graph.call_function(aten.full.default, (list(value.shape), 0), options)
        zeros.meta["val"] = value
        node.replace_input_with(one, zeros)
