"""How PyTorch runs a graph below autograd, also in its first run, in which AOTAutograd examines its operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

_KNOWN = (Tensor, torch.nn.Parameter)
"""Types of tensors that AOTAutograd's mode lets pass."""


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
