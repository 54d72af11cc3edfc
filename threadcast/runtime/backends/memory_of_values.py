"""Which values of a program lie in one memory, and which of these an operator writes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx
from torch._ops import OpOverload

from threadcast.capture.dependencies import DECLARING, UNDECLARED_VIEWS, UNDECLARED_WRITES


def sharing(nodes: Sequence[fx.Node]) -> tuple[dict[fx.Node, list[fx.Node]], set[fx.Node]]:
    """The values that may lie in the memory of each value, and those in memory that an operator writes to."""
    together = {node: [node] for node in nodes}
    written: list[fx.Node] = []
    for node in nodes:
        for one, writes in _shared(node):
            written += [one] if writes else []
            if together[one] is not together[node]:
                together[one] += together[node]
                for other in together[node]:
                    together[other] = together[one]
    return together, {one for node in written for one in together[node]}


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
