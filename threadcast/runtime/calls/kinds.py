"""The kinds of calls: calls of one kind can run by the same graphs, others need graphs of their own."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.runtime.watching.constants import exact


class CallKind(NamedTuple):
    """Identifies a kind of calls."""

    arguments: Hashable
    """Shape, type, strides and device of each tensor and whether it is read as conjugate or negative, type and value of
    every other argument, and their nesting."""
    overlaps: Hashable
    """Which tensors share memory, and which are one tensor, with one another and with the model's."""
    settings: Hashable
    """The settings of model and optimizer that a graph has built in."""
    default_dtype: torch.dtype
    autocast: torch.dtype | None = None
    """The type that the caller's autocast casts to; None where it is off."""
    casts_to: torch.dtype = torch.bfloat16
    """The type that autocast would cast to where code turns it on without a type."""
    inference: bool = False
    """Whether the caller's inference mode is on, for which code may ask."""

    def __hash__(self) -> int:
        """Without the settings, which are many and seldom differ."""
        arguments, overlaps, _, dtype, autocast, casts_to, inference = self
        return hash((arguments, overlaps, dtype, autocast, casts_to, inference))


def flattened(arguments: tuple[Any, ...]) -> tuple[list[Any], object]:
    """The leaves of the arguments, and a key of their nesting. Quick where all arguments are tensors."""
    plain = arguments
    if len(arguments) == 2 and [type(part) for part in arguments] == [tuple, dict] and not arguments[1]:
        plain = arguments[0]  # of a call without keywords
    if all(isinstance(value, Tensor) for value in plain):
        return list(plain), (plain is arguments, len(plain))
    return pytree.tree_flatten(arguments)


def kind_of(leaves: list[Any], structure: object, held: frozenset[int], settings: Hashable) -> CallKind:
    """The kind of a call with these leaves in this nesting.

    `held` are the addresses of the storages that the model holds, and its tensors' ids, negative; `settings` those of
    model and optimizer.
    """
    described = tuple(
        [
            (leaf.shape, leaf.dtype, leaf.stride(), leaf.device, *read_as(leaf))
            if isinstance(leaf, Tensor)
            else exact(leaf)
            for leaf in leaves
        ]
    )
    overlaps, casts_to = _overlaps(leaves, held), torch.get_autocast_dtype("cpu")
    autocast = casts_to if torch.is_autocast_enabled("cpu") else None
    default, inference = torch.get_default_dtype(), torch.is_inference_mode_enabled()
    return CallKind((described, structure), overlaps, settings, default, autocast, casts_to, inference)


def kind_of_inputs(inputs: tuple[Any, ...], *, fixed: bool) -> CallKind:
    """The kind of a call of a graph with these inputs, to none of which it writes: they may share memory in any way.

    It is told by shapes, types and strides of tensors, and the values of all others. `fixed`: the inputs are without
    weights, which are the same in all calls.
    """
    described = tuple(
        [
            (value.shape, value.dtype, value.stride(), *read_as(value))
            if isinstance(value, Tensor)
            else (type(value), value)
            for value in inputs
        ]
    )
    return CallKind((described, fixed), None, None, torch.get_default_dtype())


def read_as(tensor: Tensor) -> tuple[bool, ...]:
    """Whether the conjugates, and whether the negatives of the numbers in memory are meant; () where neither are.

    Operators such as `view_as_real` do not take them, and PyTorch calls others in their place.
    """
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    return (conjugate, negative) if conjugate or negative else ()


def _overlaps(leaves: list[Any], held: frozenset[int]) -> Hashable:
    """For each tensor, a number that tensors with the same memory share, and what `held` has: itself, its address.

    Empty tensors share no memory but with themselves. Where any is shared, also at which place each tensor comes first.
    """
    places: dict[int, int] = {}
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    begins = [storage.data_ptr() or -id(tensor) for storage, tensor in zip(storages, tensors, strict=True)]
    memory = begins
    if not all(storage.resizable() for storage in storages):  # memory that is not PyTorch's own, as of NumPy arrays
        sizes = [storage.nbytes() if begin > 0 else 0 for storage, begin in zip(storages, begins, strict=True)]
        memory = _in_one(begins, sizes)
    shared = tuple(
        [
            (places.setdefault(one, len(places)), -id(tensor) if -id(tensor) in held else at if at in held else None)
            for one, at, tensor in zip(memory, begins, tensors, strict=True)
        ]
    )
    if len(places) == len(tensors):
        return shared
    objects = list(map(id, tensors))
    return shared, tuple(map(objects.index, objects))


def _in_one(begins: list[int], sizes: list[int]) -> list[int]:
    """The addresses where storages of these sizes begin; of those that overlap, as of slices of one NumPy array, the
    first one's for all."""
    spans = sorted(zip(begins, sizes, strict=True))
    if all(begin == other or begin + size <= other for (begin, size), (other, _) in pairwise(spans)):
        return begins
    first: dict[int, int] = {}
    start = end = spans[0][0]
    for begin, size in spans:
        start = begin if begin >= end else start
        first[begin], end = start, max(end, begin + size)
    return [first[begin] for begin in begins]
