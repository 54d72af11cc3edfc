"""The operator calls of one callable, as `recorder.Recorder` records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from threadcast.capture.graph.program import Phase
from threadcast.capture.graph.values import Ref
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

TRANSPARENT = {aten.detach.default, aten.detach_.default, aten.alias.default, aten.lift.default}
"""Operators that return their argument; below autograd they have no effect and are left out."""

PLAIN = (
    bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size,
)  # fmt: skip
"""Types that arguments and results may have besides tensors: a graph has such values built in, they must not change."""

Result = TensorSpec | None | list[TensorSpec | None]
"""The results of a call: the spec of a tensor, None for anything else, or a list of these for several results."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One call of an operator. `args` and `kwargs` hold a `Ref` for each tensor."""

    number: int
    """The slot number in refs to its results."""
    name: str
    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    phase: Phase
    result: Result


@dataclass(slots=True, eq=False)
class Recording:
    """Operator calls in the order in which they were made; their refs are to arguments, constants and earlier results.

    The first slots are the arguments', by position. `constants` are the tensors of the callable's closure, by slot.
    `specs` are the specs of all tensors. `outputs` is the flat list of refs and plain values that the callable
    returned, `structure` its nested form. `returned` identifies the tensors among the outputs, None for others, and
    `given` by slot those of the arguments and constants: two numbers are equal where it is one tensor. `detached` are
    the positions of outputs that require no gradient.
    """

    specs: dict[Ref, TensorSpec] = field(default_factory=dict)
    calls: list[Recorded] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    returned: list[int | None] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    detached: set[int] = field(default_factory=set)
    structure: pytree.TreeSpec = field(default_factory=lambda: pytree.tree_structure(()))
