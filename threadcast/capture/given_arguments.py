"""Refuses to record code that changes lists, dictionaries or other containers among its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch.utils import _pytree as pytree

from threadcast.core.errors import CaptureError


@contextmanager
def arguments_left_alone(arguments: Any) -> Iterator[None]:
    """At the end of the block, CaptureError where containers among `arguments` hold other objects than before.

    A run of a graph takes the tensors out of a caller's containers, and puts nothing into them.
    """
    before, structure = pytree.tree_flatten(arguments)
    yield
    now, structure_now = pytree.tree_flatten(arguments)
    if structure_now != structure or not all(map(is_, now, before)):
        raise CaptureError(
            "cannot capture: a list, a dictionary or another container among the arguments is changed, which a graph "
            "would not do"
        )
