"""What operators return while a callable is recorded, where PyTorch's fake tensors do not say it, or say it late.

`FakeTensorMode` looks each call up by all of its arguments' properties, and where it does not know them follows a
formula operator by operator: 0.3 ms a call, 3 ms for a batch normalisation, 1.3 s for a training step of DenseNet-121,
whose layers have as many widths. `told_at_once` asks the operator's rule for shapes itself, in a tenth of the time.

Sizes depend on values (`x[mask]`, `nonzero`), once the values are counted. `_grouped_mm`, by which mixtures of experts
multiply the tokens of each expert with its weights, has a GPU's rule, which refuses all types but bfloat16; on a CPU it
multiplies group by group in any type (source: ATen/native/GroupedMMUtils.h). `one_hot` becomes other operators, which
give a row of zeros for a class that is negative or too large, where eager PyTorch raises: a graph calls it itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils import _pytree as pytree

from threadcast.capture.graph.values import Ref

aten = torch.ops.aten

_CPU = torch.device("cpu")
_AT_ONCE = frozenset((
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.exp.default,
    aten.rsqrt.default, aten.pow.Tensor_Scalar, aten.sigmoid.default, aten.sigmoid_backward.default,
    aten.tanh.default, aten.tanh_backward.default, aten.silu.default, aten.gelu.default, aten.gelu_backward.default,
    aten.relu.default, aten.threshold_backward.default, aten.cat.default, aten.mm.default, aten.addmm.default,
    aten.bmm.default, aten.sum.dim_IntList, aten.mean.dim, aten.slice.Tensor, aten.select.int, aten.view.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.expand.default,
    aten.split.Tensor, aten.detach.default,
))  # fmt: skip
"""Operators that write nothing and whose results follow from shapes, types and strides alone, as PyTorch computes them
where no numbers are (the key Meta). Those for which `FakeTensorMode` has a rule of its own, as convolutions, do not."""


def told_at_once(mode: FakeTensorMode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func` returns for fake tensors of fixed sizes; None where `mode` has to be asked.

    That is so for other operators, and for tensors made of Python numbers, whose values `mode` knows.
    """
    first = next((leaf for leaf in pytree.tree_leaves(args[:1]) if isinstance(leaf, FakeTensor)), None)
    if first is None or first.constant is not None:
        return None
    if func is aten.native_batch_norm.default:
        return _normalised(args)
    if func is aten.native_batch_norm_backward.default:
        return _normalised_backward(args)
    if func not in _AT_ONCE:
        return None
    with in_kernel_invocation_manager(mode):
        found = func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, lambda one: FakeTensor(mode, one, _CPU), found)


def _normalised(args: tuple[Any, ...]) -> Any:
    """The result, and each channel's mean and deviation, of a batch normalisation, which has these where it trains."""
    image, weight, _, mean, _, trains, *_ = args
    if (made := _laid_out(image)) is None:
        return None
    return made, *(_of_channels(image, weight, mean, trains) for _ in range(2))


def _normalised_backward(args: tuple[Any, ...]) -> Any:
    """Its gradients, of which that of the image lies as the image does, however the result's gradient lies."""
    gradient, image, weight, mean, *_, mask = args
    if (made := _laid_out(image, gradient)) is None:
        return None
    gradients = made, *(_of_channels(image, weight, mean) for _ in range(2))
    return tuple(one if wanted else None for one, wanted in zip(gradients, mask, strict=True))


def _of_channels(image: Tensor, weight: Tensor | None, mean: Tensor | None, trains: bool = True) -> Tensor:
    """Numbers of the channels, of the type of the parameters where there are any."""
    like = next(one for one in (weight, mean, image) if one is not None)
    return like.new_empty(image.shape[1] if trains else 0)


def _laid_out(image: Tensor, gradient: Tensor | None = None) -> Tensor | None:
    """A tensor like what a normalisation of `image` returns; None for an empty image.

    Images of one channel that are last in memory are also contiguous: then what is returned is contiguous, but for a
    gradient that lies otherwise.
    """
    if not image.numel():
        return None
    memory_format = suggest_memory_format(image)
    alike = gradient is None or (
        suggest_memory_format(gradient) is memory_format
        and (gradient.is_contiguous() or gradient.is_contiguous(memory_format=memory_format))
    )
    contiguous = image.is_contiguous() and alike
    return torch.empty_like(image, memory_format=torch.contiguous_format if contiguous else memory_format)


_CTC = (aten._ctc_loss.default, aten._ctc_loss.Tensor)
_CTC_BACKWARD = (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)


def ctc_result(func: OpOverload, args: tuple[Any, ...]) -> Any:
    """Return what a CTC loss of (steps, batch, classes) or its gradient returns, as fakes; None for other operators.

    The loss's second result, which only its gradient reads, has the places of the longest target that there may be.
    """
    if func in _CTC_BACKWARD:
        return torch.empty_like(args[1], memory_format=torch.contiguous_format)
    if func not in _CTC or args[0].dim() != 3:
        return None
    scores, targets = args[:2]
    steps, batch = scores.shape[:2]
    return scores.new_empty(batch), scores.new_empty(batch, steps, 2 * targets.shape[-1] + 1)


def counted_result(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], count: Callable[[Tensor], int | None]
) -> Tensor | None:
    """Return what `func` returns, for fake tensors in an active mode; None for other operators and unknown counts.

    `count` returns the number of elements of a tensor that are not 0.
    """
    if kwargs:
        return None
    if func is aten.nonzero.default:
        return _positions(args[0], count)
    if func is aten.masked_select.default:
        values, mask = torch.broadcast_tensors(args[0], args[1])  # type: ignore[no-untyped-call]
        found = count(args[1])
        return None if found is None else values.new_empty(found * (mask.numel() // max(args[1].numel(), 1)))
    if func is not aten.index.Tensor:
        return None
    indices: list[Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype is not torch.bool:
            indices.append(index)
            continue
        positions = _positions(index, count)
        if positions is None:
            return None
        indices.extend(positions.unbind(1))
    return func(args[0], indices)  # type: ignore[no-any-return]


def _positions(mask: Tensor, count: Callable[[Tensor], int | None]) -> Tensor | None:
    """What `nonzero` returns: (elements that are not 0, dimensions), int64, one column after the other in memory."""
    found = count(mask)
    if found is None:
        return None
    return torch.empty_strided((found, mask.dim()), (1, found), dtype=torch.int64, device=mask.device)


_ALIGNED_BYTES = 16
"""Rows of the result begin at multiples of this."""


def grouped_product(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Return an empty tensor like the result of `_grouped_mm(a, b, offs, bias, out_dtype)`, which has no other values.

    Matrices are (rows, columns) or (groups, rows, columns); `offs` (groups) are where groups of a shared side end.
    """
    if a.dim() == b.dim():
        groups = a.shape[0] if offs is None else offs.shape[0]
        shape = [groups, a.shape[-2], b.shape[-1]]
    else:
        shape = [a.shape[-2], b.shape[-1]]
    dtype = a.dtype if out_dtype is None else out_dtype
    numbers = _ALIGNED_BYTES // dtype.itemsize
    row = -(-shape[-1] // numbers) * numbers
    strides = [shape[1] * row, row, 1] if len(shape) == 3 else [row, 1]
    return a.new_empty_strided(shape, strides, dtype=dtype)


_STEPS: tuple[OpOverload, ...] = (
    aten.arange.default, aten.unsqueeze.default, aten.eq.Tensor, aten._to_copy.default,
)  # fmt: skip
"""What PyTorch calls for `one_hot(x, classes)`: `(x.unsqueeze(-1) == arange(classes)).to(int64)`."""
_BETWEEN = frozenset(("torch._compile", "torch._dynamo.eval_frame", "threadcast.capture.graph.recorder"))
"""Modules whose functions run between the caller of an operator and this."""


class OneHots:
    """Finds out which recorded operators one call of `one_hot` has made. A program may call the same ones by itself.

    Those of one call come in the midst of one bytecode of one frame.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Ref, tuple[Any, ...], Any, FrameType, int]] = []
        """Of the steps so far the results, arguments and types, and where Python was: a frame that is held is no other
        one's."""

    def ended_by(
        self, func: OpOverload, args: tuple[Any, ...], named: Mapping[str, Any], slot: int
    ) -> tuple[Any, Any] | None:
        """The arguments of the call of `one_hot` whose last step is this call, into `slot`; None where it is none."""
        if func is not _STEPS[len(self._steps)]:
            self._steps.clear()
            if func is not _STEPS[0]:
                return None
        frame = _caller()
        self._steps.append((Ref(slot), args, named.get("dtype"), frame, frame.f_lasti))
        if len(self._steps) < len(_STEPS):
            return None
        steps, self._steps = self._steps, []
        made, given, types, frames, places = zip(*steps, strict=True)
        (classes, *more), (values, at), compared, copied = given
        together = compared == (made[1], made[0]) and copied == (made[2],)
        whole = types[0] is types[3] is torch.int64 and not more and at == -1
        return (values, classes) if together and whole and len({*frames}) == len({*places}) == 1 else None


def _caller() -> FrameType:
    """The frame of Python that has called the operator that is being recorded."""
    here = sys._getframe(2)
    frame: FrameType | None = here
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame or here
