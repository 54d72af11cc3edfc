"""A program's values: which depend on its arguments, which are the same in every call, and the names of operators.

A node's `meta` says whether it is "varying", and in which "memory" it lies where an operator writes to that
(`program_file`); of a program that does not say so all values are varying.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

_MOST_BYTES = 2**20
"""Largest size of what is computed beforehand: to load more takes longer than to compute it."""


def varying(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield what operators return that depends on the program's arguments, in its order."""
    return (node for node in module.graph.nodes if node.op == "call_function" and node.meta.get("varying", True))


def is_written(node: fx.Node) -> bool:
    """Whether an operator writes to the memory of a value."""
    return "memory" in node.meta


class _Constants(fx.Interpreter):
    """Runs a program once, and keeps what does not vary: weights, and what operators make of them alone."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._varying = set(varying(module))
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator."""
        value = super().run_node(n)
        if n.op in ("get_attr", "call_function") and n not in self._varying:
            self.values[n] = value
        return value


def constants(module: fx.GraphModule, example: Sequence[Tensor]) -> tuple[dict[fx.Node, Tensor], set[fx.Node]]:
    """Return the values that are the same in every call, and the operators that are not needed with these.

    Exporters take long to trace and to fold these, and longest where masks are written to (Swin: 3 of 5 s). The program
    runs for its example once.
    """
    run, varies = _Constants(module), list(varying(module))
    run.run(*example)
    fixed = [node for node in run.values if node.op == "call_function"]
    weights = {value.untyped_storage()._cdata for node, value in run.values.items() if node.op == "get_attr"}

    def is_small(value: Any) -> bool:
        own = isinstance(value, Tensor) and value.untyped_storage()._cdata not in weights
        return own and value.nbytes <= _MOST_BYTES

    known = {node for node in fixed if not is_written(node) and is_small(run.values[node])}
    together = defaultdict(list)
    for node in fixed:
        together[node.meta.get("memory", node)].append(node)
    pending = [one for node in varies for one in node.all_input_nodes if one not in known]
    pending += [one for node in module.graph.nodes if node.op == "output" for one in node.all_input_nodes]
    needed = set[fx.Node]()
    while pending:
        node = pending.pop()
        if node in run.values and node not in needed:
            needed.add(node)
            pending += [*node.all_input_nodes, *together[node.meta.get("memory", node)]]
    used = {one for node in varies for one in node.all_input_nodes} & (known - needed)
    return {node: run.values[node].contiguous().clone() for node in used}, set(fixed) - needed - used


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
