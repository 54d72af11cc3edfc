"""Prepares one op to be run alone, on tensors of its own, for the collector to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.graph.dependencies import writes
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import AsNumber, Ref, decode, find_refs
from threadcast.collector.index_values import fill_indices
from threadcast.collector.mask_values import fill_masks
from threadcast.collector.tensor_memory import all_memory
from threadcast.core.errors import CaptureError, FormatError
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class PreparedOp:
    """An op with tensors of its own. Enter `program.below_autograd()` on the thread that calls `run`."""

    op: Op
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    written: tuple[tuple[Tensor, Tensor], ...]
    """Tensors that a run changes, each with a copy of its first values."""
    indices: tuple[tuple[Tensor, int], ...] = ()
    """Indices of which any values will do, each with the smallest number that is out of range."""
    seed: int = 0
    """Of the random values; others of the indices are drawn from it, too."""

    def run(self) -> None:
        """Execute the op once."""
        self.target(*self.args, **self.kwargs)

    def reset(self) -> None:
        """Restore the first values of tensors that a run changes, before they overflow or become denormal."""
        for tensor, first in self.written:
            tensor.copy_(first)


def prepare(op: Op, *, seed: int = 0) -> PreparedOp:
    """The operator of `op`, with new tensors of the op's shapes, types and strides.

    Floats are standard normal, but positive where an operator needs that (variances); indices are in range; half of a
    mask's elements are true, in runs.
    CaptureError when the op does not name an operator of this PyTorch, or does not say how to call it.
    """
    target = _find_operator(op)
    generator = torch.Generator().manual_seed(seed)
    tensors = [_make_tensor(spec, generator) for spec in op.inputs]
    try:
        refs: list[Any] = [Ref(i) for i in range(len(tensors))]
        call = Node(target, tuple(decode(a, refs) for a in op.attributes["args"]),
                    {n: decode(v, refs) for n, v in op.attributes["kwargs"].items()}, "forward")  # fmt: skip
        for value in (*call.args, *call.kwargs.values()):
            if isinstance(value, AsNumber):
                tensors[value.ref.slot].fill_(0.5)  # a momentum or a rate that each optimizer can meet
        args = tuple(decode(arg, tensors) for arg in op.attributes["args"])
        kwargs = {name: decode(value, tensors) for name, value in op.attributes["kwargs"].items()}
    except (KeyError, FormatError) as error:
        raise CaptureError(f"op {op.key} does not say how to call {target}: {error}") from error
    limits = _make_valid(target, call, tensors, op.outputs, generator)
    changed = sorted({ref.slot for ref in writes(call)})
    written = tuple((tensors[i], tensors[i].clone()) for i in changed)
    return PreparedOp(op, target, args, kwargs, written, tuple((tensors[i], limits[i]) for i in limits), seed)


_PROBABILITIES = {"binary_cross_entropy": ("self", "target"), "binary_cross_entropy_backward": ("self", "target"),
                  "bernoulli": ("self",), "multinomial": ("self",)}  # fmt: skip
"""Arguments of operators that are from 0 to 1."""
_RUN = 64
"""Elements of a mask that are the same, side by side, as for padding or attention to earlier words: where each one is
by chance, `masked_fill` takes three times as long, as the processor cannot predict its branches."""

_OF_POSITIVE = {"sqrt", "rsqrt", "log", "reciprocal", "div", "floor_divide", "fmod", "remainder", "pow"}
"""Operators that get positive numbers only."""


def _find_operator(op: Op) -> OpOverload:
    name = op.attributes.get("target")
    if not isinstance(name, str) or name.count(".") != 2:
        raise CaptureError(
            f"op {op.key} names no operator to call: attributes must have a target like 'aten.mm.default'"
        )
    namespace, packet, overload = name.split(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError as error:
        raise CaptureError(f"op {op.key}: PyTorch {torch.__version__} has no operator {name}") from error
    if not isinstance(found, OpOverload):
        raise CaptureError(f"op {op.key}: {name} is not an operator")
    return found


def _make_tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    # Elements of a strided tensor lie within 1 + sum((side - 1) * stride) places.
    strides = spec.strides
    if strides is None:
        return _fill(torch.empty(spec.shape, dtype=dtype), generator)
    places = 1 + sum((side - 1) * stride for side, stride in zip(spec.shape, strides)) if spec.numel else 0
    return _fill(torch.empty(places, dtype=dtype), generator).as_strided(spec.shape, strides)


def _fill(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.normal_(generator=generator)
    if tensor.dtype is torch.bool:
        return tensor.copy_((torch.arange(tensor.numel()) // _RUN % 2 == 1).view(tensor.shape))
    return tensor.zero_()


def _make_valid(
    target: OpOverload, call: Node, tensors: list[Tensor], outputs: Sequence[TensorSpec], generator: torch.Generator
) -> dict[int, int]:
    """Set valid values where an operator cannot run on any value: indices, masks, variances, divisors.

    Returns the limits of indices by slot, as `fill_indices` does.
    """
    name = target._schema.name.removeprefix("aten::")
    arguments = {argument.name: value for argument, value in zip(target._schema.arguments, call.args)} | call.kwargs

    def tensor(argument: str) -> Tensor | None:
        return next((tensors[ref.slot] for ref in find_refs(arguments.get(argument))), None)

    written = {ref.slot for ref in writes(call)}
    limits = fill_indices(name, arguments, written, tensors, outputs, generator)
    fill_masks(name, arguments, tensors, outputs, generator)
    if name == "nll_loss_backward" and (weight := tensor("total_weight")) is not None:
        weight.fill_(1.0)
    if name == "_grouped_mm" and (ends := tensor("offs")) is not None:
        a, b = tensors[arguments["self"].slot], tensors[arguments["mat2"].slot]
        shared = a.shape[1] if a.dim() == b.dim() == 2 else a.shape[0] if a.dim() == 2 else b.shape[1]
        ends.copy_(torch.arange(1, len(ends) + 1) * shared // len(ends))  # groups of the same size
    for argument in ("running_var", "save_invstd", "rstd", "exp_avg_sqs", "state_steps", "lr", "save_var"):
        for ref in find_refs(arguments.get(argument)):
            all_memory(tensors[ref.slot]).abs_().clamp_(1e-3)
    for argument in _PROBABILITIES.get(name, ()):
        for ref in find_refs(arguments.get(argument)):
            all_memory(tensors[ref.slot]).sigmoid_()
    if name in {"linalg_cholesky_ex", "cholesky"} and (matrix := tensor("self")) is not None:  # others end early
        for axis, (side, step) in enumerate(zip(matrix.shape, matrix.stride())):
            matrix = matrix.narrow(axis, 0, 1) if side > 1 and not step else matrix
        matrix.diagonal(dim1=-2, dim2=-1).fill_(4.0 * (1 + matrix.shape[-1] ** 0.5))
    for argument in ("pivots", "LU_pivots", "is_target"):
        for ref in find_refs(arguments.get(argument)):
            all_memory(tensors[ref.slot]).fill_(1)
    if name.removesuffix("_") in _OF_POSITIVE:
        for one in tensors:
            if one.is_floating_point():
                all_memory(one).abs_().clamp_(1e-3)
            else:
                all_memory(one).fill_(1)
    return limits
