"""Programs of which a backward pass computes parts again (`torch.utils.checkpoint`): PyTorch runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from threadcast.runtime.compiled.graph_by_pytorch import forward_of


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
