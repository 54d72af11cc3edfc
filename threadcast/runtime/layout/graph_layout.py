"""Graphs of a training step with images in channels last, though the model's weights stay in the order as given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node

from threadcast.capture.graph.capture import overruns_in_channels_last
from threadcast.runtime.check.telling import tells
from threadcast.runtime.layout.graph_by_pytorch import forward_of
from threadcast.runtime.plans.model_format import is_image
from threadcast.runtime.plans.strides import with_strides

aten = torch.ops.aten

_ORDERED = "threadcast_ordered_results"
"""Key in the metadata of graphs that may run in channels last: how many results need the strides as traced."""
_CONVOLUTIONS = aten.convolution.default, aten.convolution_backward.default
_VIEWS = {
    aten.expand.default, aten.permute.default, aten.reshape.default, aten.select.int, aten.slice.Tensor,
    aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.unsqueeze.default, aten.view.default,
}  # fmt: skip
_SAME_TENSOR = aten.detach.default, aten.alias.default
_ANY_STRIDES = {
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default, aten._log_softmax.default,
    aten._log_softmax_backward_data.default, aten._native_batch_norm_legit_functional.default, aten._to_copy.default,
    aten.addmm.default, aten.alias.default, aten.arange.default, aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default, aten.cat.default, aten.clone.default, aten.constant_pad_nd.default,
    aten.detach.default, aten.elu_backward.default, aten.expand.default, aten.full.default, aten.full_like.default,
    aten.hardsigmoid_backward.default, aten.hardswish.default, aten.hardswish_backward.default,
    aten.hardtanh_backward.default, aten.leaky_relu_backward.default, aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default, aten.mean.default, aten.mean.dim, aten.mish_backward.default,
    aten.mm.default, aten.native_batch_norm_backward.default, aten.new_zeros.default, aten.nll_loss_backward.default,
    aten.nll_loss_forward.default, aten.ones_like.default, aten.permute.default, aten.reshape.default,
    aten.scalar_tensor.default, aten.select.int, aten.slice.Tensor, aten.softplus_backward.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.sum.default, aten.sum.dim_IntList, aten.t.default, aten.transpose.int,
    aten.unsqueeze.default, aten.view.default, aten.zeros_like.default,
}  # fmt: skip
"""Operators, beside those on single elements, whose results are the same numbers in whatever order each input lies:
tests/runtime/compiled/test_layout_operators.py tries them. Batch norm's gradient and convolutions are so except
for strides of dimensions of size 1, which `_has_unclear_order` keeps from them. Others are not, without an error:
`native_group_norm_backward`, `_weight_norm_interface`, scaled dot product attention, fractional pooling, and the input
gradient of some transposed convolutions are wrong where an image and its gradient lie in different orders."""


def partitioned(joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **others: Any) -> tuple[Any, Any]:
    """Divide a graph into forward and backward pass as PyTorch's default does, and note whether both may run in
    channels last: what the forward pass saves may then have other strides, so `view` becomes `reshape` in both."""
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)
    known = _convolves_images(forward) and all(map(_takes_any_strides, (forward, backward)))
    if known and _saves_apart(forward, num_fwd_outputs):
        for graph in (forward, backward):
            for node in graph.graph.nodes:
                if node.target is aten.view.default:
                    node.target = aten.reshape.default
            graph.recompile()
        forward.meta[_ORDERED], backward.meta[_ORDERED] = num_fwd_outputs, len(_results_of(backward))
    return forward, backward


def channels_last_forward(graph: GraphModule) -> ChannelsLast | None:
    """Return a forward graph in channels last; None where it may not run so."""
    ordered = graph.meta.get(_ORDERED)
    return None if ordered is None else ChannelsLast(graph, ordered)


def channels_last_backward(graph: GraphModule, arguments: Sequence[Any]) -> ChannelsLast | None:
    """Return a backward graph in channels last if what the forward pass has saved is; None where it is not."""
    ordered = graph.meta.get(_ORDERED)
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    pairs = zip(inputs, arguments, strict=True)
    if ordered is None or not any(_reordered(value, node.meta.get("val")) for node, value in pairs):
        return None
    return ChannelsLast(graph, ordered)


class ChannelsLast:
    """Runs a graph with the images and weights that its convolutions take converted to channels last before.

    The first `ordered` results have the strides that they had when the graph was traced, on which their users rely.
    Results that are inputs are these inputs themselves, and those that are one tensor with such a result are that
    result. All others keep the strides that they come in.
    """

    def __init__(self, graph: GraphModule, ordered: int) -> None:
        self._graph, self._module = forward_of(graph), graph
        results, inputs = _results_of(graph), [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._converted = {i for i, node in enumerate(inputs) if _is_convolved(node)}
        self._inputs = [inputs.index(node) if node in inputs else None for node in results]
        self._strides = [_strides(node) if i < ordered else None for i, node in enumerate(results)]
        self._given = [_strides(node) for node in inputs]
        self._shared = _shared(results, ordered)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Run the graph below autograd."""
        with torch.no_grad():
            converted = [
                value.contiguous(memory_format=torch.channels_last)
                if i in self._converted and isinstance(value, Tensor) and is_image(value)
                else value
                for i, value in enumerate(arguments)
            ]
            found = list(self._graph(*converted))
            for i, (number, strides) in enumerate(zip(self._inputs, self._strides, strict=True)):
                if number is not None:
                    found[i] = arguments[number]
                elif strides is not None:
                    found[i] = with_strides(found[i], strides)
                elif i in self._shared:
                    found[i] = found[self._shared[i]].detach()
        return found

    def as_given(self, *arguments: Any) -> list[Any]:
        """Run the graph on inputs in the order in which it was traced, whatever order they come in."""
        with torch.no_grad():
            found = self._graph(*map(_as_traced, arguments, self._given))
        pairs = zip(found, self._inputs, strict=True)
        return [value if number is None else arguments[number] for value, number in pairs]

    def arranges(self, found: Sequence[Any]) -> bool:
        """Whether results of `as_given` that must have the strides of the trace have them: PyTorch's may differ."""
        pairs = zip(found, self._strides, self._inputs, strict=True)
        return all(
            strides is None or number is not None or not _lies_otherwise(value, strides)
            for value, strides, number in pairs
        )

    def tells(self, found: Sequence[Any]) -> bool:
        """Whether results of `as_given` would show wrong numbers: they are finite, and none is zero throughout.

        Those of two and more dimensions are not constant either; the gradient of a bias is, where results are summed.
        """
        values = [value for value, number in zip(found, self._inputs, strict=True) if number is None]
        floats = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
        return all(
            bool(value.isfinite().all()) and bool(value.any()) and (value.dim() < 2 or tells(value)) for value in floats
        )


def _as_traced(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A tensor in the order in which the graph was traced; an expanded one, whose places overlap, as it is."""
    if strides is None or not isinstance(value, Tensor) or 0 in strides or not _lies_otherwise(value, strides):
        return value
    return with_strides(value, strides)


def _convolves_images(forward: GraphModule) -> bool:
    return any(node.target is aten.convolution.default for node in forward.graph.nodes)


def _takes_any_strides(graph: GraphModule) -> bool:
    """Whether a graph's results are known to be the same numbers whatever the strides of its inputs are."""
    for node in graph.graph.nodes:
        if isinstance(node.meta.get("val"), SymInt) or (node.op == "placeholder" and _varies(node)):
            return False
        if node.op == "get_attr":
            return False
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload) or not _is_known(node):
            return False
    return True


def _is_known(node: Node) -> bool:
    target: Any = node.target
    if target in _CONVOLUTIONS:
        return _convolves_as_given(node)
    if torch.Tag.nondeterministic_seeded in target.tags:  # drawn in the order of numbers in memory
        return False
    if target in _VIEWS and _has_unclear_order(node.meta["val"]):
        return False
    single = target.namespace == "aten" and torch.Tag.pointwise in target.tags and not target._schema.is_mutable
    return single or target in _ANY_STRIDES


def _has_unclear_order(value: Tensor) -> bool:
    """Whether images may get strides in dimensions of size 1 that batch norm's gradient and convolutions misread.

    `images[:1]` in channels last is read rightly, but not `images[0].unsqueeze(0)`, whose first stride is smaller, and
    not `images[:, :, ::2]` of images with one row.
    """
    return value.dim() > 3 and 1 in value.shape and any(size > 1 for size in value.shape[2:])


def _convolves_as_given(node: Node) -> bool:
    """Whether a convolution, or its gradients, of images is computed rightly in channels last."""
    backward = node.target is aten.convolution_backward.default
    image: Any = node.args[1 if backward else 0]
    weight: Any = node.args[2 if backward else 1]
    strides: Any = node.args[4 if backward else 3]
    transposed = bool(node.args[7 if backward else 6])
    value = image.meta["val"]
    if transposed or value.dim() != 4 or value.dtype not in (torch.float32, torch.float64):
        return False
    return not (backward and overruns_in_channels_last(weight.meta["val"].shape, strides, transposed=False))


def _saves_apart(forward: GraphModule, ordered: int) -> bool:
    """Whether what is saved shares no memory with an input that is converted, or with a result, through a view.

    In channels last it would be a copy, and a write by way of `.data` between both passes would not reach it.
    """
    results = [node for node in _results_of(forward) if isinstance(node, Node)]
    returned = {_memory_of(node): _itself(node) for node in _results_of(forward)[:ordered] if isinstance(node, Node)}
    for node in results:
        memory = _memory_of(node)
        if memory.op == "placeholder":
            if node is not memory and _is_convolved(memory):
                return False
        elif returned.get(memory, _itself(node)) is not _itself(node):
            return False
    return True


def _shared(results: Sequence[Any], ordered: int) -> dict[int, int]:
    """The places of saved results that are one tensor with a result before `ordered`, and the places of those."""
    first = {_itself(node): i for i, node in enumerate(results[:ordered]) if isinstance(node, Node)}
    later = list(enumerate(results))[ordered:]
    return {i: first[_itself(node)] for i, node in later if isinstance(node, Node) and _itself(node) in first}


def _itself(node: Node) -> Node:
    """The node that computes a tensor which this one is, too."""
    while node.target in _SAME_TENSOR:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _memory_of(node: Node) -> Node:
    """The node that computes the tensor of which this one may be a view."""
    while isinstance(node.target, torch._ops.OpOverload) and any(
        result.alias_info is not None for result in node.target._schema.returns
    ):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_convolved(node: Node) -> bool:
    return any(user.target in _CONVOLUTIONS for user in node.users)


def _varies(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return value is not None
    return value.layout is not torch.strided or any(isinstance(size, SymInt) for size in value.shape)


def _reordered(value: Any, traced: Any) -> bool:
    """Whether a tensor's numbers lie in another order than when the graph was traced."""
    return isinstance(traced, Tensor) and isinstance(value, Tensor) and _lies_otherwise(value, traced.stride())


def _lies_otherwise(value: Tensor, strides: Sequence[int]) -> bool:
    places = zip(value.shape, value.stride(), strides, strict=True)
    return any(size > 1 and stride != other for size, stride, other in places)


def _results_of(graph: GraphModule) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return list(output.args[0])


def _strides(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.stride()) if isinstance(value, Tensor) else None
