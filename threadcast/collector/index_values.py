"""Gives an op that runs alone indices that vary and lie in range, as far as its shapes and numbers say what is.

On indices that are all 0 an op reads or writes one row: gathering then takes a third of its time, adding twice it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.values import Ref
from threadcast.collector.mask_values import INDEXING
from threadcast.collector.tensor_memory import all_memory
from threadcast.core.tensor import TensorSpec

BY_LISTS = INDEXING | {"_unsafe_index", "_unsafe_index_put"}
"""Operators that take a list with an index, a mask or None for each axis."""

ALONG_DIM = {
    "gather", "index_select", "scatter", "scatter_add", "scatter_reduce",
    "index_add", "index_copy", "index_fill", "index_reduce",
}  # fmt: skip
"""Operators whose `index` is of the axis `dim` of `self`."""

OF_ROWS = {"embedding": "weight", "embedding_renorm": "self", "_embedding_bag": "weight",
           "_embedding_bag_forward_only": "weight", "_embedding_bag_per_sample_weights_backward": "weight"}  # fmt: skip
"""Operators whose `indices` are of the first axis of this argument."""

OF_CLASSES = {"nll_loss_forward": -1, "nll_loss_backward": -1, "nll_loss2d_forward": 1, "nll_loss2d_backward": 1,
              "multi_margin_loss": -1, "multi_margin_loss_backward": -1}  # fmt: skip
"""Operators whose `target` is of this axis of `self`."""

OF_ANY_VALUES = {"sort", "topk", "kthvalue", "median", "nanmedian", "mode"}
"""Operators that take any integers as `self`, and whose time depends on them."""

_CTC = {"_ctc_loss", "_ctc_loss_backward"}

_MAX = 2
"""The mode of bags of embeddings that takes the largest."""

_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def fill_indices(
    name: str,
    arguments: Mapping[str, Any],
    written: Collection[int],
    tensors: Sequence[Tensor],
    outputs: Sequence[TensorSpec],
    generator: torch.Generator,
) -> dict[int, int]:
    """Fill the indices among `tensors`, to which the arguments refer by `Ref`, for the operator `name` of ATen.

    What the operator itself changes (`written`, by slot), and integers of which the legal range is not known, are
    left as they are. Returns the slots of those that `draw_indices` may draw anew, each with the smallest number that
    is out of range.
    """
    name = name if name in BY_LISTS else name.removesuffix("_")
    bags = name.startswith("_embedding_bag")
    refs = [value for value in arguments.values() if isinstance(value, Ref)]
    if bags and len(set(refs)) < len(refs):  # what is an index and an offset at once must be legal as both
        return {}
    limits: dict[int, int] = {}
    for slot, limit in _limits(name, arguments, tensors):
        if slot not in written:
            limits[slot] = min(limit, limits.get(slot, limit))
    for slot, limit in limits.items():
        draw_indices(tensors[slot], limit, generator)
    if bags:
        _fill_bags(arguments, tensors)
    elif name in _POOLS_BACKWARD or name in {"max_unpool2d", "max_unpool3d"}:
        _fill_pooled(name, arguments, tensors)
    elif name in _CTC:
        _fill_lengths(arguments, tensors)
    elif name in {"segment_reduce", "_segment_reduce_backward"}:
        _fill_segments(arguments, tensors)
    elif name in {"bincount", "repeat_interleave"} and outputs:
        _fill_by_output(name, arguments, tensors, outputs[0].shape[0], generator)
    return limits


def draw_indices(index: Tensor, limit: int, generator: torch.Generator) -> None:
    """Fill `index` with numbers of 0 to `limit` - 1 that are equally likely; leave it as it is where there are none."""
    if limit > 0:
        all_memory(index).random_(0, min(limit, torch.iinfo(index.dtype).max), generator=generator)


def _limits(name: str, arguments: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """The slots of indices, each with the smallest number that is out of range; a slot may come again."""

    def shape(argument: str) -> torch.Size:
        tensor: Tensor = tensors[arguments[argument].slot]
        return tensor.shape

    def of(argument: str, limit: int) -> Iterator[tuple[int, int]]:
        if isinstance(ref := arguments.get(argument), Ref) and tensors[ref.slot].dtype in _INTEGERS:
            yield ref.slot, limit

    if name in BY_LISTS:
        yield from _limits_of_list(arguments["indices"], shape("self"), tensors)
    elif name in ALONG_DIM:
        yield from of("index", shape("self")[arguments["dim"]] if shape("self") else 1)
    elif name in {"take", "put"}:
        yield from of("index", shape("self").numel())
    elif name in OF_ROWS:
        yield from of("indices", shape(OF_ROWS[name])[0])
    elif name in {"embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"}:
        yield from of("indices", int(arguments["num_weights"]))
        if arguments.get("mode") == _MAX:
            yield from of("maximum_indices", int(arguments["num_weights"]))
    elif name in OF_CLASSES and shape("self"):
        yield from of("target", shape("self")[OF_CLASSES[name]])
    elif name in _CTC:
        yield from of("targets", shape("log_probs")[-1])
    elif name in OF_ANY_VALUES:
        yield from of("self", shape("self").numel())


def _limits_of_list(
    indices: Sequence[Ref | None], shape: Sequence[int], tensors: Sequence[Tensor]
) -> Iterator[tuple[int, int]]:
    axis = 0
    for ref in indices:
        index = None if ref is None else tensors[ref.slot]
        is_mask = index is not None and index.dtype in {torch.bool, torch.uint8}
        if ref is not None and not is_mask:
            yield ref.slot, shape[axis]
        axis += index.dim() if index is not None and is_mask else 1


def _fill_bags(arguments: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Bags of one size or two."""
    given = {name: tensors[ref.slot] for name, ref in arguments.items() if isinstance(ref, Ref)}
    count, offsets = len(given["indices"]), given.get("offsets")
    if "grad" in given:
        bags = len(given["grad"])
    else:
        bags = 0 if offsets is None else len(offsets) - bool(arguments.get("include_last_offset"))
    if bags <= 0:
        return
    starts = torch.arange(bags + 1) * count // bags
    if offsets is not None:
        _set(offsets, starts[: len(offsets)])
    if "offset2bag" in given:
        _set(given["offset2bag"], torch.arange(bags).repeat_interleave(starts.diff()))
    if "bag_size" in given:
        _set(given["bag_size"], starts.diff())


def _fill_lengths(arguments: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Sequences and targets of the greatest length of all; of no length an op would have nothing to do."""
    steps, *batch, _ = tensors[arguments["log_probs"].slot].shape
    targets = tensors[arguments["targets"].slot]
    count = batch[0] if batch else 1
    of_targets = (torch.arange(count + 1) * targets.numel() // max(count, 1)).diff()
    if isinstance(ref := arguments.get("log_alpha"), Ref):  # its rows have place for targets of this length
        of_targets.clamp_(max=(tensors[ref.slot].shape[-1] - 1) // 2)
    for name, lengths in (("input_lengths", torch.full((count,), steps)), ("target_lengths", of_targets)):
        if isinstance(ref := arguments[name], Ref):
            _set(tensors[ref.slot], lengths.view(tensors[ref.slot].shape))


def _fill_segments(arguments: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Segments of one size or two."""
    rows = tensors[arguments["data"].slot].shape[arguments.get("axis") or 0]
    for name, more in (("lengths", 0), ("offsets", 1)):
        if isinstance(ref := arguments.get(name), Ref):
            of_segments = tensors[ref.slot]
            starts = torch.arange(of_segments.shape[-1] + 1 - more) * rows // max(of_segments.shape[-1] - more, 1)
            _set(of_segments, (starts if more else starts.diff()).expand(of_segments.shape))


_POOLS_BACKWARD = {
    "max_pool2d_with_indices_backward": torch.ops.aten.max_pool2d_with_indices.default,
    "max_pool3d_with_indices_backward": torch.ops.aten.max_pool3d_with_indices.default,
    "adaptive_max_pool2d_backward": torch.ops.aten.adaptive_max_pool2d.default,
    "adaptive_max_pool3d_backward": torch.ops.aten.adaptive_max_pool3d.default,
}


def _fill_pooled(name: str, arguments: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """The places of the largest elements, or for unpooling places as far from each other."""
    source, indices = tensors[arguments["self"].slot], tensors[arguments["indices"].slot]
    if name in _POOLS_BACKWARD:
        window = [arguments.get(k) for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
        adaptive = [list(indices.shape[-2 if "2d" in name else -3 :])]
        indices.copy_(_POOLS_BACKWARD[name](source, *(adaptive if name.startswith("adaptive") else window))[1])
    else:
        size = arguments["output_size"]
        pooled = indices.shape[-len(size) :]
        places = torch.arange(pooled.numel()) * torch.Size(size).numel() // max(pooled.numel(), 1)
        _set(indices, places.view(pooled).expand(indices.shape))


def _fill_by_output(
    name: str, arguments: Mapping[str, Any], tensors: Sequence[Tensor], size: int, generator: torch.Generator
) -> None:
    """Integers for which the output has `size` elements."""
    own = tensors[arguments["repeats" if name == "repeat_interleave" else "self"].slot]
    count = own.numel()
    if own.dtype not in _INTEGERS or not count or not size:
        return
    if name == "repeat_interleave":
        values = (torch.arange(count + 1) * size // count).diff()
    else:
        values = torch.randint(min(size, torch.iinfo(own.dtype).max), (count,), generator=generator)
        if size > int(arguments.get("minlength") or 0):
            values[0] = size - 1
    if size <= torch.iinfo(own.dtype).max:
        _set(own, values.view(own.shape))


def _set(tensor: Tensor, values: Tensor) -> None:
    """Copy values of the same shape, but not different ones into elements that share memory."""
    if tensor.shape != values.shape:
        return
    for axis, (side, step) in enumerate(zip(tensor.shape, tensor.stride())):
        if side > 1 and not step:
            first = values.narrow(axis, 0, 1)
            if not torch.equal(values, first.expand(values.shape)):
                return
            tensor, values = tensor.narrow(axis, 0, 1), first
    tensor.copy_(values)
