"""Whether indices of a plan's result point at what eager's point at, where a near tie makes them other numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node, Program
from threadcast.capture.graph.values import Ref
from threadcast.runtime.check.differences import value_difference

aten = torch.ops.aten

_POOLS: Mapping[Any, int] = {
    aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2, aten.adaptive_max_pool3d.default: 3,
    aten.fractional_max_pool2d.default: 2, aten.fractional_max_pool3d.default: 3,
}  # fmt: skip
"""Operators whose second result are indices into so many last dimensions of the first argument, taken as one."""
_ALONG: Mapping[Any, int | None] = {
    aten.max.dim: 1, aten.min.dim: 1, aten.median.dim: 1, aten.nanmedian.dim: 1, aten.kthvalue.default: 1,
    aten.mode.default: 1, aten.cummax.default: 1, aten.cummin.default: 1, aten.argmax.default: None,
    aten.argmin.default: None, aten.sort.default: 1, aten.sort.stable: 1, aten.topk.default: 1,
    aten.argsort.default: None, aten.argsort.stable: None,
}  # fmt: skip
"""Operators of which this result (None: the only one) are indices along one dimension of the first argument."""
_PERMUTING: frozenset[Any] = frozenset(
    (aten.sort.default, aten.sort.stable, aten.topk.default, aten.argsort.default, aten.argsort.stable)
)
"""Those of them that name no element twice."""
_PREFIX = "result "


def pointing_alike(
    captured: Captured | None, begin: Callable[[], Sequence[Any]], eager: Mapping[str, Any], plan: Mapping[str, Any]
) -> set[str]:
    """Return the names of results that are other indices in `plan` than in `eager`, but of values that are equal within
    rounding. `begin()` sets all back to before the step, and returns the inputs of a run of the graph.
    """
    found: dict[str, Node] = {}
    if captured is None:
        return set()
    for name, wanted in eager.items():
        other = plan.get(name)
        if isinstance(wanted, Tensor) and isinstance(other, Tensor) and wanted.dtype is other.dtype is torch.int64:
            node = None if wanted.shape != other.shape or wanted.equal(other) else _node_of(captured, name)
            if node is not None:
                found[name] = node
    if not found:
        return set()
    refs = [node.args[0] for node in found.values()]
    program = Program(
        captured.program.inputs, captured.program.nodes, tuple(refs), pytree.tree_structure([0] * len(refs))
    )
    values = [value.clone() for value in replace(captured, program=program).program.run(begin())]
    return {
        name for (name, node), compared in zip(found.items(), values, strict=True)
        if _alike(node, compared, eager[name], plan[name])
    }  # fmt: skip


def _node_of(captured: Captured, name: str) -> Node | None:
    """The operator of which a result are the indices; None where it is another one."""
    program = captured.program
    at = int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else len(program.outputs)
    ref = program.outputs[at] if at < len(program.outputs) else None
    if not isinstance(ref, Ref) or ref.slot < len(program.inputs):
        return None
    node = program.nodes[ref.slot - len(program.inputs)]
    item = 1 if node.target in _POOLS else _ALONG.get(node.target, -1)
    return node if item == ref.item and isinstance(node.args[0], Ref) else None


def _alike(node: Node, compared: Tensor, eager: Tensor, plan: Tensor) -> bool:
    """Whether both indices point at values of `compared` that are equal within rounding."""
    target: Any = node.target
    along = -1
    if target in _POOLS:
        compared, eager, plan = (one.flatten(-_POOLS[target]) for one in (compared, eager, plan))
    else:
        given = dict(zip((one.name for one in target._schema.arguments), node.args)) | node.kwargs
        last = -1 if target in _PERMUTING or target is aten.kthvalue.default else None
        dim = given.get("dim", last)
        compared, along = (compared.flatten(), 0) if dim is None else (compared, dim)
        if eager.dim() < compared.dim():
            eager, plan = eager.unsqueeze(along), plan.unsqueeze(along)
        eager, plan = eager.view(-1) if compared.dim() == 1 else eager, plan.view(-1) if compared.dim() == 1 else plan
    if not plan.numel() or int(plan.min()) < 0 or int(plan.max()) >= compared.shape[along]:
        return False
    if target in _PERMUTING and not bool(plan.sort(along).values.diff(dim=along).all()):
        return False
    return value_difference("", compared.gather(along, eager), compared.gather(along, plan)) is None
