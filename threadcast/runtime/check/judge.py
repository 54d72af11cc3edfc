"""Judges what stands for an operator of PyTorch's, operator by operator, on PyTorch's own inputs.

A captured graph calls the operators that PyTorch calls, but for some: gradients are computed one by one, sums of
products are products that add, and operators of ours are in place of slower ones. `judged_run` runs a graph op after
op, compares each of these with what PyTorch's own call gave, and goes on with that; so what the graph returns in the
end has PyTorch's bits, if all is wired as it should be.

`BothOrders` does the same for a call in channels last: each operator that takes images in that order also runs on
contiguous copies of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import TRANSPARENT, below_autograd
from threadcast.capture.graph.values import map_refs
from threadcast.runtime.check.bits import Difference, Room, operator_room, value_difference
from threadcast.runtime.check.limits import is_real_or_complex, precise, sizes_of

_MEMBERS = {"input": 0, "weight": 1, "bias": 2}
"""For each ending of a split operator's id, the index of the gradient that this part returns (`graph.rewriting`)."""
_SUMS = {
    "convolution", "convolution_backward", "sum", "mean", "mm", "bmm", "addmm", "addmm_", "baddbmm", "product",
    "product_", "native_batch_norm", "native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward",
}  # fmt: skip
"""Operators that add up: where terms cancel out, a result is as exact as the sum of their sizes."""
_TERMS = 32
"""Roundings of that sum by which such results may differ; as `operators.products`. Of n terms that are added one by one
the roundings are about sqrt(n) of it more (Higham and Mary 2019): two orders of batch norm's gradient differ by 100."""
_UNSET = ("empty", "new_empty")
"""Beginnings of the names of operators whose results have no numbers yet."""

Compared = dict[int, list[tuple[int | None, str, int | None]]]
"""By node the results that are compared: the item of its own result, the id of PyTorch's call, and the item of that
call's result; None for a result that is one tensor."""


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """An operator whose result differs from PyTorch's: its id, kind and input shapes, and the difference."""

    op: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    difference: Difference

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        called = f"operator {self.op!r} ({self.kind} of {shapes or 'no tensors'})"
        return f"{called} differs from PyTorch's on the same inputs: {self.difference.reason}"


class EagerValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that keeps copies of operator calls' results, in `values` by the id that capture gives the call.

    The calls must be those that `capture.graph.recorder` saw, so run the same step under it. `wanted`: of these only.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: dict[str, Any] = {}
        self._wanted, self._names = wanted, Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            return func(*args, **kwargs)
        if autograd_would_have_decomposed(func, pytree.tree_leaves((args, kwargs))):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        result = func(*args, **kwargs)
        if func in TRANSPARENT:
            return result
        base = func._schema.name.split("::")[-1]
        self._names[base] += 1
        count = self._names[base] - 1
        called = f"{base}_{count}" if count else base
        if called in self._wanted:
            self.values[called] = pytree.tree_map_only(Tensor, _copy, result)
        return result


def substitutes(captured: Captured) -> Compared:
    """Return what nodes give that stand for calls of PyTorch's."""
    found: Compared = {}
    for index, (op_id, node) in enumerate(zip(captured.graph.ids, captured.program.nodes, strict=True)):
        if op_id in captured.stored:
            ids = captured.stored[op_id]
            found[index] = [(n if len(ids) > 1 else None, call, None) for n, call in enumerate(ids)]
            continue
        base = op_id.removesuffix(".fused")
        whole, _, part = base.rpartition(".")
        if part in _MEMBERS and whole:
            single = _name(node.target) == "sum"
            members = [1, 2] if part == "weight" and whole.startswith("native_layer_norm") else [_MEMBERS[part]]
            found[index] = [(None if single else i, whole, i) for i in members]
        elif "." not in base and not _is_call(base, _name(node.target)) and not base.startswith(_UNSET):
            found[index] = [(item, base, item) for item in (None, 0, 1)]
    return found


def calls_of(captured: Captured) -> Compared:
    """Return the same for all other nodes, which must give the bits of PyTorch's calls."""
    names = [_name(node.target) for node in captured.program.nodes]
    pairs = enumerate(zip(captured.graph.ids, names, strict=True))
    return {i: [(item, op, item) for item in (None, 0, 1)] for i, (op, name) in pairs if not name.startswith(_UNSET)}


def copied_bytes(captured: Captured, compared: Compared) -> int:
    """Return about how many bytes PyTorch's own results of what is compared take."""
    return sum(spec.size_bytes for at in compared for spec in captured.graph.ops[at].outputs)


def judged_run(
    captured: Captured, inputs: Sequence[Any], eager: Mapping[str, Any], compared: Compared
) -> tuple[Any, WrongOperator | None]:
    """Run a graph op after op on the calling thread, with PyTorch's own results in place of those `compared`.

    `eager` holds these (`EagerValues`). Returns the graph's result, and the first operator that differs from PyTorch's
    beyond what another order of its sums may change.
    """
    program = captured.program
    slots, left = program.new_slots(inputs), list(program.uses)
    with below_autograd(grad=program.grad):
        for index, node in enumerate(program.nodes):
            result = node.call(slots)
            for item, name, member in compared.get(index, ()):
                mine, theirs = _item(result, item), _item(eager.get(name), member)
                if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
                    continue
                args, kwargs = map_refs(lambda ref: ref.value(slots), (node.args, node.kwargs))
                difference = _replaced("its result", mine, theirs, partial(_room, node.target, args, kwargs, item or 0))
                if difference is not None:
                    op = captured.graph.ops[index]
                    shapes = tuple(spec.shape for spec in op.inputs)
                    return None, WrongOperator(captured.graph.ids[index], op.kind, shapes, difference)
            slots[program.slot_of(index)] = result
            for slot in program.touches[index]:
                left[slot] -= 1
                if left[slot] == 0:
                    slots[slot] = None
    return captured.finish(program.collect(slots), inputs), None


class BothOrders(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which operators that take images in channels last have the results that they have on
    contiguous ones; `difference` is the first by which results of both differ beyond rounding, None where none do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.difference: Difference | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not isinstance(func, OpOverload) or not any(map(_in_channels_last, given)):
            return func(*args, **kwargs)
        if autograd_would_have_decomposed(func, given):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        copies = {id(one): _contiguous(one) for one in given}
        own_args, own_kwargs = pytree.tree_map_only(Tensor, lambda one: copies[id(one)], (args, kwargs))
        if "memory_format" in own_kwargs:
            own_kwargs = {**own_kwargs, "memory_format": None}
        wanted, result = func(*own_args, **own_kwargs), func(*args, **kwargs)
        found, written = pytree.tree_leaves(result), [copies[id(one)] for one in given]
        self._compare(func, own_args, [*found, *given], [*pytree.tree_leaves(wanted), *written])
        return result

    def _compare(self, func: OpOverload, args: Sequence[Any], found: Sequence[Any], wanted: Sequence[Any]) -> None:
        """Compare results, or what an operator may have written to, and go on with the wanted numbers."""
        called = f"{func._schema.name} in channels last"
        for i, (mine, theirs) in enumerate(zip(found, wanted)):
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
                difference = _replaced(called, mine, theirs, partial(_room, func, args, {}, i))
                self.difference = self.difference or difference


def _replaced(name: str, mine: Tensor, theirs: Tensor, room: Callable[[], Room]) -> Difference | None:
    """Give a result PyTorch's numbers; where it differs beyond roundings and beyond this `room`, return how."""
    difference = value_difference(name, theirs, mine, operator_room)
    if difference is not None:
        difference = value_difference(name, theirs, mine, room())
    if difference is None and not torch.equal(mine, theirs):
        mine.detach().copy_(theirs)
    return difference


def _room(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], at: int) -> Room:
    """How far an operator's result number `at` may be from PyTorch's: also by roundings of the sum of its terms' sizes.

    Behind its results are the tensors that it takes, some of which it may have written to.
    """
    if _name(target) not in _SUMS:
        return operator_room
    return _with_terms(pytree.tree_leaves(_on_sizes(target, args, kwargs))[at], _count(target, args))


def _on_sizes(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Tensor]]:
    """What an operator that adds up gives of the sizes of its terms, and the tensors that it takes, some written to."""
    own_args, own_kwargs = pytree.tree_map_only(
        Tensor, lambda one: one.detach().abs() if is_real_or_complex(one) else one.clone(), (args, dict(kwargs))
    )
    with torch.no_grad():
        if target is torch.ops.aten.native_batch_norm_backward.default:
            result = _sizes_of_batch_norm_backward(*own_args)
        else:
            result = target(*own_args, **own_kwargs)
    return result, [leaf for leaf in pytree.tree_leaves((own_args, own_kwargs)) if isinstance(leaf, Tensor)]


def _sizes_of_batch_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, variance: Tensor | None,
    batch_mean: Tensor | None, batch_scale: Tensor | None, train: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The sums that this gradient consists of, of the sizes of their terms: the operator itself subtracts some."""
    if not train and mean is not None and variance is not None:
        batch_mean, batch_scale = mean, (variance + eps).rsqrt()
    assert batch_mean is not None
    assert batch_scale is not None
    sides, others = [1, -1] + [1] * (x.dim() - 2), [i for i in range(x.dim()) if i != 1]
    scale = batch_scale.reshape(sides)
    normed = (x + batch_mean.reshape(sides)) * scale
    of_weight, of_bias = (gradient * normed).sum(others), gradient.sum(others)
    count, of_x = x.numel() // x.shape[1], gradient
    if train:
        of_x = gradient + (of_bias.reshape(sides) + normed * of_weight.reshape(sides)) / count
    of_x = of_x * scale * (1.0 if weight is None else weight.reshape(sides))
    return tuple(one if asked else None for one, asked in zip((of_x, of_weight, of_bias), wanted, strict=True))


def _count(target: Any, args: Sequence[Any]) -> int:
    """About how many terms the longest sums have, of operators that add up over whole images and batches."""
    largest = max((one for one in pytree.tree_leaves(args) if isinstance(one, Tensor)), key=Tensor.numel)
    adds = target._schema.name.split("::")[-1] in ("sum", "mean", "convolution_backward", "native_batch_norm_backward")
    return largest.numel() // largest.shape[1] if adds and largest.dim() > 1 and largest.numel() else 1


def _with_terms(sizes: Tensor, count: int) -> Room:
    def room(wanted: Tensor) -> Tensor:
        terms = sizes_of(precise(sizes)).reshape(wanted.shape)
        return operator_room(wanted) + (_TERMS + math.sqrt(count)) * torch.finfo(wanted.dtype).eps * terms

    return room


def _in_channels_last(tensor: Tensor) -> bool:
    """Whether an image's strides are those of channels last: also where sides of 1 let it be contiguous as well."""
    if tensor.layout is not torch.strided or tensor.dim() not in (4, 5):
        return False
    if tensor.stride() == make_contiguous_strides_for(tensor.shape):
        return False
    order = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=order)


def _contiguous(tensor: Tensor) -> Tensor:
    if _in_channels_last(tensor):
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensor.detach().clone()


def _name(target: Any) -> str:
    return target._schema.name.split("::")[-1] if isinstance(target, OpOverload) else ""


def _is_call(op_id: str, name: str) -> bool:
    """Whether the id is that of a call of the operator of this name."""
    return op_id == name or (op_id.startswith(f"{name}_") and op_id.removeprefix(f"{name}_").isdigit())


def _item(result: Any, item: int | None) -> Any:
    if item is None:
        return result
    return result[item] if isinstance(result, list | tuple) and item < len(result) else None


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
