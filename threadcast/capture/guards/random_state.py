"""Detects draws of random numbers that a captured graph could not repeat; those by names of modules: `printing`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.guards.one_capture import replaced
from threadcast.capture.guards.printing import GENERATORS
from threadcast.core.errors import CaptureError

_PYTHON, _NUMPY = GENERATORS[0][1], GENERATORS[1][1]


@contextmanager
def random_state_watched() -> Iterator[Callable[[Iterable[OpOverload]], None]]:
    """A context in which this thread does not set the random state, as recomputation and `fork_rng` do.

    Yields what raises CaptureError where a run of given operators would draw other random numbers than the callable.
    While there is no other thread, which may draw as it likes, Python's and NumPy's generators are looked at too, and
    set back.
    """
    given, before = list[Tensor](), _others() if threading.active_count() == 1 else None

    def noted(_: Callable[..., None], state: Tensor) -> None:
        given.append(state)
        if not torch.equal(state, torch.get_rng_state()):
            raise CaptureError("cannot capture: the state of the random generator is set")

    def check(called: Iterable[OpOverload]) -> None:
        if before is not None and repr(_others()) != repr(before):
            _PYTHON.setstate(before[0])
            _NUMPY.set_state(before[1])
            raise CaptureError("cannot capture: it draws random numbers of Python or NumPy")
        if given and any(torch.Tag.nondeterministic_seeded in operator.tags for operator in called):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")

    with replaced((torch, "set_rng_state", noted), (torch.random, "set_rng_state", noted)):
        yield check


def _others() -> tuple[Any, Any]:
    return _PYTHON.getstate(), _NUMPY.get_state(legacy=False)
