"""How PyTorch runs a graph that Dynamo has traced: with its modes as they were where an operator raises."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule
from torch.nn.attention import _cur_sdpa_kernel_backends, _sdpa_kernel

from threadcast.runtime.compiled.graph_by_pytorch import forward_of

_CHANGING = {
    "_set_grad_enabled", "_sdpa_kernel", "_vmap_increment_nesting", "_grad_increment_nesting", "_jvp_increment_nesting",
}  # fmt: skip
"""Names of functions in Dynamo's graphs that change a mode."""


def as_traced(graph: GraphModule) -> Callable[..., Any]:
    """Return what runs a graph of Dynamo's by PyTorch, with gradients.

    In such a graph `with torch.no_grad()`, `torch.vmap` and the like are two calls each, the second of which an
    exception leaves out. The modes are then set back to what they were before the call.
    """
    forward = forward_of(graph)
    nodes = [node for part in graph.modules() if isinstance(part, GraphModule) for node in part.graph.nodes]
    devices: set[Any] = {node.args[0] for node in nodes if node.target is torch.amp.autocast_mode._enter_autocast}
    names = {getattr(node.target, "__name__", "") for node in nodes}
    if not devices and not names & _CHANGING:
        return forward
    attends = "_sdpa_kernel" in names

    def run(*arguments: Any) -> Any:
        before = _Modes(devices, attends=attends)
        try:
            return forward(*arguments)
        except BaseException:
            before.restore()
            raise

    return run


class _Modes:
    """The modes of the calling thread now: gradients, transformations, autocast for these types of devices.

    With `attends` also how attention may be computed.
    """

    def __init__(self, devices: Collection[str], *, attends: bool) -> None:
        self._gradients = torch.is_grad_enabled()
        self._casts = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices
        ]
        self._keeps, self._contexts = torch.is_autocast_cache_enabled(), _autocast_contexts()
        self._transformations = len(torch._C._functorch.get_interpreter_stack() or ())
        self._attention = _cur_sdpa_kernel_backends(with_priority=True) if attends else None

    def restore(self) -> None:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._transformations)
        if self._attention is not None:
            _sdpa_kernel(self._attention, set_priority=True)
        torch._C._set_grad_enabled(self._gradients)
        for device, enabled, dtype in self._casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._keeps)
        left = _autocast_contexts() - self._contexts
        for _ in range(left):
            torch.autocast_decrement_nesting()
        if left and not self._contexts:  # else casts of weights would be kept for good
            torch.clear_autocast_cache()


def _autocast_contexts() -> int:
    """How many autocast contexts the calling thread is within."""
    inside = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return inside - 1
