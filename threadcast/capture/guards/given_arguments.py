"""Refuses to record code that changes its arguments in other ways than by writing to the tensors' numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.core.errors import CaptureError


@contextmanager
def arguments_left_alone(arguments: Any, *, own: int = 0) -> Iterator[None]:
    """At the end of the block, CaptureError where containers among `arguments` hold other objects than before, or
    where their tensors have other Python attributes; those of the first `own` leaves may change.

    A run of a graph takes the tensors out of a caller's containers, and puts nothing into them.
    """
    before, structure = pytree.tree_flatten(arguments)
    attributes = _attributes(before[own:])
    yield
    now, structure_now = pytree.tree_flatten(arguments)
    if structure_now != structure or not all(map(is_, now, before)):
        raise CaptureError(
            "cannot capture: a list, a dictionary or another container among the arguments is changed, which a graph "
            "would not do"
        )
    if _attributes(before[own:]) != attributes:
        raise CaptureError("cannot capture: an attribute of an argument is set, which a graph would not do")


def _attributes(values: Iterable[Any]) -> list[frozenset[str]]:
    """The names of the Python attributes of each tensor among the values."""
    return [frozenset(vars(value)) for value in values if isinstance(value, Tensor)]
