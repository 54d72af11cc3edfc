"""Graphs of a training step with images in channels last, though the model's weights stay in the order as given."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node

from threadcast.capture.unsafe_kernels import overruns_in_channels_last

aten = torch.ops.aten

_ORDERED = "threadcast_ordered_results"
"""Key in the metadata of forward graphs that may run in channels last: how many results need the strides as traced."""
_CONVOLUTIONS = aten.convolution.default, aten.convolution_backward.default
_BY_STRIDES = {
    aten.as_strided.default, aten.as_strided_scatter.default, aten.view.dtype, aten.view_as_complex.default,
    aten.view_as_real.default,
}  # fmt: skip
"""Operators whose results, or whether they raise, depend on the order of numbers in memory."""


def partitioned(joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **others: Any) -> tuple[Any, Any]:
    """Divide a graph into forward and backward pass as PyTorch's default does, and note whether both may run in
    channels last: what the forward pass saves may then have other strides, so `view` becomes `reshape` in both."""
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)
    if _convolves_images(forward) and all(map(_takes_any_strides, (forward, backward))):
        for graph in (forward, backward):
            for node in graph.graph.nodes:
                if node.target is aten.view.default:
                    node.target = aten.reshape.default
            graph.recompile()
        forward.meta[_ORDERED] = num_fwd_outputs
    return forward, backward


def channels_last_forward(graph: GraphModule) -> ChannelsLast | None:
    """Return a forward graph in channels last; None where it may not run so."""
    ordered = graph.meta.get(_ORDERED)
    return None if ordered is None else ChannelsLast(graph, ordered)


def channels_last_backward(graph: GraphModule, arguments: Sequence[Any]) -> ChannelsLast | None:
    """Return a backward graph in channels last if what the forward pass has saved is; None where it is not."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(inputs, arguments, strict=True):
        if _is_image(value) and _reordered(value, node.meta.get("val")):
            return ChannelsLast(graph, len(_results_of(graph)))
    return None


class ChannelsLast:
    """Runs a graph with the images and weights that its convolutions take converted to channels last before.

    The first `ordered` results have the strides that they had when the graph was traced, on which their users rely.
    Results that are inputs are these inputs themselves. All others keep the strides that they come in.
    """

    def __init__(self, graph: GraphModule, ordered: int) -> None:
        self._graph = graph.forward
        results, inputs = _results_of(graph), [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._converted = {
            i for i, node in enumerate(inputs) if any(user.target in _CONVOLUTIONS for user in node.users)
        }
        self._inputs = [inputs.index(node) if node in inputs else None for node in results]
        self._strides = [_strides(node) if i < ordered else None for i, node in enumerate(results)]
        self._given = [_strides(node) for node in inputs]

    def __call__(self, *arguments: Any) -> list[Any]:
        """Run the graph below autograd."""
        with torch.no_grad():
            converted = [
                value.contiguous(memory_format=torch.channels_last)
                if i in self._converted and _is_image(value)
                else value
                for i, value in enumerate(arguments)
            ]
            found = list(self._graph(*converted))
            for i, (number, strides) in enumerate(zip(self._inputs, self._strides, strict=True)):
                if number is not None:
                    found[i] = arguments[number]
                elif strides is not None:
                    found[i] = _with_strides(found[i], strides)
        return found

    def as_given(self, *arguments: Any) -> list[Any]:
        """Run the graph on inputs in the order in which it was traced, whatever order they come in."""
        with torch.no_grad():
            found = self._graph(*map(_image_with_strides, arguments, self._given))
        pairs = zip(found, self._inputs, strict=True)
        return [value if number is None else arguments[number] for value, number in pairs]

    def arranged_as(self, example: Sequence[Any]) -> Callable[..., list[Any]]:
        """Return `as_given` with results in the strides that those of `example` have."""
        strides = [tuple(value.stride()) if isinstance(value, Tensor) else None for value in example]

        def arranged(*arguments: Any) -> list[Any]:
            found = zip(self.as_given(*arguments), strides, self._inputs, strict=True)
            return [
                _with_strides(value, wanted) if wanted is not None and number is None else value
                for value, wanted, number in found
            ]

        return arranged


def _channels_last(value: Any) -> Any:
    return value.contiguous(memory_format=torch.channels_last) if _is_image(value) else value


def _image_with_strides(value: Any, strides: tuple[int, ...] | None) -> Any:
    return value if strides is None or not _is_image(value) else _with_strides(value, strides)


def _with_strides(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def _convolves_images(forward: GraphModule) -> bool:
    nodes = list(forward.graph.nodes)
    convolutions = [node for node in nodes if node.target is aten.convolution.default]
    return any(_is_image(node.meta.get("val")) for node in convolutions)


def _takes_any_strides(graph: GraphModule) -> bool:
    """Whether a graph's results are the same numbers whatever the strides of its inputs are."""
    for node in graph.graph.nodes:
        if isinstance(node.meta.get("val"), SymInt) or (node.op == "placeholder" and _varies(node)):
            return False
        if node.op == "get_attr":
            return False
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        random = torch.Tag.nondeterministic_seeded in node.target.tags  # drawn in the order of numbers in memory
        if random or node.target.namespace != "aten" or node.target in _BY_STRIDES or _overruns(node):
            return False
    return True


def _overruns(node: Node) -> bool:
    if node.target is not aten.convolution_backward.default:
        return False
    weight: Any = node.args[2]
    strides: Any = node.args[4]
    return overruns_in_channels_last(weight.meta["val"].shape, strides, transposed=bool(node.args[7]))


def _varies(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return value is not None
    return value.layout is not torch.strided or any(isinstance(size, SymInt) for size in value.shape)


def _reordered(value: Tensor, traced: Any) -> bool:
    """Whether a tensor's numbers lie in another order than when the graph was traced."""
    if not isinstance(traced, Tensor):
        return False
    strides = zip(value.shape, value.stride(), traced.stride(), strict=True)
    return any(size > 1 and stride != other for size, stride, other in strides)


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()


def _results_of(graph: GraphModule) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return list(output.args[0])


def _strides(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.stride()) if isinstance(value, Tensor) else None
