"""An operator that tests can make raise, and that lets them see the thread it runs in and what it was given."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_hooks: list[Callable[[Tensor], None]] = []


@torch.library.custom_op("threadcast_tests::checkpoint", mutates_args=())
def checkpoint(x: Tensor) -> Tensor:
    for hook in _hooks:
        hook(x)
    return x + 1


@checkpoint.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@contextmanager
def at_checkpoints(hook: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `hook` with the input of every checkpoint inside the block, in the thread that runs it."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


class Seen:
    """A hook that keeps weak references to the values it saw."""

    def __init__(self) -> None:
        self.values: list[weakref.ref[Tensor]] = []

    def __call__(self, value: Tensor) -> None:
        self.values.append(weakref.ref(value))

    def alive(self) -> int:
        """How many of them still exist."""
        return sum(value() is not None for value in self.values)
