"""Names of a program's operators, as libraries are asked about them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload


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
