"""How PyTorch runs a graph: below autograd, also in its first run, which AOTAutograd examines; and as Dynamo traced it.

As traced means: with gradients, with its modes as they were where an operator raises, and with parts that are computed
again in the backward pass (`torch.utils.checkpoint`) computed as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter
from torch.nn.attention import _cur_sdpa_kernel_backends, _sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

_KNOWN = (Tensor, torch.nn.Parameter)
"""Types of tensors that AOTAutograd's mode lets pass."""
_CHANGING = {
    "_set_grad_enabled", "_sdpa_kernel", "_vmap_increment_nesting", "_grad_increment_nesting", "_jvp_increment_nesting",
}  # fmt: skip
"""Names of functions in Dynamo's graphs that change a mode."""


def forward_of(graph: GraphModule) -> Callable[..., Any]:
    """Return the function that runs a graph. It calls no hooks of all modules: a graph is no module of the program.

    Code that is made only when the graph is called first would be called as a module.
    """
    make_code = getattr(graph, "real_recompile", None)  # of PyTorch's graphs that put it off
    if make_code is not None:
        make_code()
    forward: Callable[..., Any] = graph.forward
    return forward


def as_pytorch(graph: GraphModule) -> Callable[..., Any]:
    """Return what runs a graph by PyTorch, without gradients."""
    forward = forward_of(graph)

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return forward(*inputs)

    return run


def is_first_run() -> bool:
    """Whether AOTAutograd examines the operators of the first run of a graph, by a mode of its own."""
    modes = _get_current_dispatch_mode_stack()
    return len(modes) == 1 and type(modes[0]).__module__.startswith("torch._functorch.")


def first_run(run: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return what `run`, a graph by PyTorch, gives in its first run.

    AOTAutograd's mode warns, or raises, where a custom operator returns memory of its inputs. It is left where an input
    is of a subclass of tensors, as it refuses these.
    """
    known = all(type(value) in _KNOWN for value in inputs if isinstance(value, Tensor))
    with nullcontext() if known else _disable_current_modes():
        return run(*inputs)


def without_gradients(inputs: tuple[Any, ...]) -> list[Any]:
    """Return the inputs, of which ordinary tensors do not require gradients: a graph below autograd computes none."""
    plain = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return [value.detach() if type(value) in plain else value for value in inputs]


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


def computes_again(graph: GraphModule) -> bool:
    """Return whether a part of the program is computed again in its backward pass (`torch.utils.checkpoint`).

    Eager PyTorch then repeats what the part writes, such as running statistics. AOTAutograd does not.
    """
    return next(_parts_computed_again(graph), None) is not None


def computing_again(graph: GraphModule) -> Callable[..., Any]:
    """Return what runs a graph by PyTorch, with such parts computed again as `torch.utils.checkpoint` does it.

    As Dynamo traced them, they would draw other random numbers the second time: it leaves that to its compiler.
    """
    for part in list(_parts_computed_again(graph)):
        part.target = computed_again
    for module in graph.modules():
        if isinstance(module, GraphModule):
            module.recompile()
    return forward_of(graph)


def computed_again(part: GraphModule, *arguments: Any, **options: Any) -> Any:
    """Run a part of a program that its backward pass computes again; `options` are those of `checkpoint`.

    Dynamo made arguments of all that the part reads. As arguments of `checkpoint`, buffers that it writes would raise.
    RuntimeError, as there, where another argument was written to before it is computed again; weights may be.
    """
    if (contexts := part.meta.get("_checkpoint_context_fn")) is not None:
        options["context_fn"] = contexts
    options["use_reentrant"] = False  # as compilers do, whatever the program says
    given = [one for one in arguments if isinstance(one, Tensor) and not isinstance(one, Parameter)]
    before = [0 if one.is_inference() else one._version for one in given]
    kept: list[tuple[Tensor, int]] = []

    def run() -> Any:
        if any(one._version != version for one, version in kept):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: an "
                "argument of torch.utils.checkpoint"
            )
        return part(*arguments)

    found = checkpoint(run, **options)
    kept += [(one, n) for one, n in zip(given, before, strict=True) if not one.is_inference() and one._version == n]
    return found


def _parts_computed_again(graph: GraphModule) -> Iterator[Node]:
    again = torch.ops.higher_order.tag_activation_checkpoint
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return (node for module in modules for node in module.graph.nodes if node.target is again)
