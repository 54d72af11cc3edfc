"""Detects draws of PyTorch's random numbers that a captured graph could not repeat; for others see `printing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.guards.one_capture import replaced
from threadcast.core.errors import CaptureError


@contextmanager
def random_state_watched() -> Iterator[Callable[[Iterable[OpOverload]], None]]:
    """A context in which this thread does not set the random state, as recomputation and `fork_rng` do.

    Yields what raises CaptureError where a run of given operators would draw other random numbers than the callable.
    """
    given = list[Tensor]()

    def noted(_: Callable[..., None], state: Tensor) -> None:
        given.append(state)
        if not torch.equal(state, torch.get_rng_state()):
            raise CaptureError("cannot capture: the state of the random generator is set")

    def check(called: Iterable[OpOverload]) -> None:
        if given and any(torch.Tag.nondeterministic_seeded in operator.tags for operator in called):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")

    with replaced((torch, "set_rng_state", noted), (torch.random, "set_rng_state", noted)):
        yield check
