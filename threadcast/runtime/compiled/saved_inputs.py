"""Parts that a backward pass computes again, and inputs that it needs as they were before the program wrote to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from threadcast.runtime.layout.graph_by_pytorch import forward_of


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


def copy_written_inputs(graph: GraphModule, written: Collection[int], results: int) -> None:
    """Let `graph` return copies of those inputs at the positions `written` that it saves for its backward pass.

    Its first `results` outputs are the program's, and stay as they are. AOTAutograd writes to inputs after the graph
    has run, and autograd then refuses the saved ones: so with batch norm whose activations are computed again in the
    backward pass.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    positions = {node: i for i, node in enumerate(inputs)}
    output = graph.graph.output_node()
    returned: list[Any] = list(cast("tuple[Any, ...]", output.args[0]))
    changed = False
    with graph.graph.inserting_before(output):
        for i, node in enumerate(returned[results:], results):
            if positions.get(node) in written and isinstance(node.meta.get("val"), Tensor):
                copied = graph.graph.call_function(torch.ops.aten.clone.default, (node,))
                copied.meta = dict(node.meta)
                returned[i], changed = copied, True
    if changed:
        output.args = (tuple(returned),)
        graph.recompile()
