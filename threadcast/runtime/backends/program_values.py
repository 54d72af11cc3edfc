"""A program's values: which lie in one memory, which an operator writes to, and the names of operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from threadcast.capture.graph.dependencies import DECLARING, UNDECLARED_VIEWS, UNDECLARED_WRITES


class Memories:
    """Which of a program's values, in its order, may lie in one memory, and which of them operators write to."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._together = {node: [node] for node in nodes}
        self._writes: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
        for node in nodes:
            for one, writes in _shared(node):
                self._writes[node] += [one] if writes else []
                together, others = self._together[one], self._together[node]
                if together is not others:
                    together += others
                    self._together |= dict.fromkeys(others, together)
        self.written = {other for node in nodes for other in self.written_by(node)}
        """The values in memory that an operator writes to."""

    def written_by(self, node: fx.Node) -> list[fx.Node]:
        """Return the values in the memory that an operator writes to."""
        return [other for one in self._writes[node] for other in self._together[one]]

    def alike(self, node: fx.Node) -> Collection[fx.Node]:
        """Return the values in the memory of a value that an operator writes to; of others only itself."""
        return self._together[node] if node in self.written else (node,)


def _shared(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """The arguments whose memory an operator may return, or write to; with whether it may write."""
    if node.op != "call_function":
        return
    if not isinstance(node.target, OpOverload):  # getitem
        yield from ((one, False) for one in node.all_input_nodes)
        return
    schema = node.target._schema
    known = node.target.namespace in DECLARING
    given = dict(zip((argument.name for argument in schema.arguments), node.args)) | node.kwargs
    views = UNDECLARED_VIEWS.get(schema.name)
    writes = () if given.get("training") is False else UNDECLARED_WRITES.get(schema.name, ())
    for argument in schema.arguments:
        shares = argument.alias_info is not None or argument.name == views or argument.name in writes
        value = given.get(argument.name)
        if value is None or (known and not shares):
            continue
        does = argument.name in writes or (argument.alias_info is not None and argument.alias_info.is_write)
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, fx.Node):
                yield one, does


def varying(module: fx.GraphModule, memories: Memories) -> Iterator[fx.Node]:
    """Yield what operators return that depends on the program's arguments, in its order."""
    dependent: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "call_function" and any(one in dependent for one in node.all_input_nodes):
            yield node
        elif node.op != "placeholder":
            continue
        dependent.update(memories.alike(node))


def operator_of(node: fx.Node) -> str:
    """The name of a node's operator, without the mark of those that write to their argument."""
    if not isinstance(node.target, OpOverload):
        return str(node.target)
    return str(node.target._schema.name).removeprefix("aten::").rstrip("_")


def name_of(node: Any) -> str:
    """The same, but "bool" for a conversion to true and false, "amax" for the largest number's norm; "" of others."""
    if not isinstance(node, fx.Node):
        return ""
    if node.kwargs.get("dtype") is torch.bool:
        return "bool"
    name = operator_of(node)
    of_largest = name == "linalg_vector_norm" and len(node.args) > 1 and node.args[1] in (torch.inf, -torch.inf)
    of_largest = of_largest or (name == "scatter_reduce" and node.args[-1] in ("amax", "amin"))
    return "amax" if of_largest else name
