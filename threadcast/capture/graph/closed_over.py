"""Tensors that a callable takes from elsewhere than its arguments, and that a graph has as constants: which may not be.

A graph has one tensor for all runs. What is another tensor in later calls, though no Python value that is watched
changes, is refused: gradients, and what a call makes itself past PyTorch's operators (`torch.frombuffer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.dependencies import lies_in
from threadcast.capture.graph.program import Program
from threadcast.capture.graph.values import find_refs
from threadcast.core.errors import CaptureError


def check_constants(
    program: Program, held: Mapping[int, Any], written: Sequence[int], reached: Sequence[Tensor]
) -> None:
    """CaptureError where a constant is the gradient of a tensor that the callable's code can reach, one of `reached`.

    Also where it is none of these, and a run writes to it (`written` are such inputs) or returns it.
    """
    constants = {
        slot: held[slot] for slot, entry in enumerate(program.inputs) if entry.role == "constant" and slot in held
    }
    tensors = {slot: value for slot, value in constants.items() if _has_storage(value)}
    gradients = _storages(tensor.grad for tensor in reached if tensor.is_leaf)
    if gradients and any(_storage(value) in gradients for value in tensors.values()):
        raise CaptureError("cannot capture: a gradient (`.grad`) is read, which may be another tensor in later calls")
    known = _storages(reached)
    made = {slot for slot, value in tensors.items() if _storage(value) not in known}
    returned = {
        slot
        for ref in (find_refs(program.outputs) if made else ())
        for slot in lies_in(program.nodes, program.inputs, ref)
    }
    if not made.isdisjoint({*written, *returned}):
        raise CaptureError(
            "cannot capture: a tensor that the call makes past PyTorch's operators (torch.frombuffer) is "
            "written to or returned, and would be the same one in all calls"
        )


def _storages(values: Iterable[Any]) -> set[int]:
    return {_storage(value) for value in values if _has_storage(value)}


def _storage(tensor: Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def _has_storage(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided
