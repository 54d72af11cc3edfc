"""Which values of a program lie in one memory, and which of these an operator writes to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

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
