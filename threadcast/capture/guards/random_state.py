"""Detects draws of random numbers that a captured graph could not repeat."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch._ops import OpOverload

from threadcast.core.errors import CaptureError

P = ParamSpec("P")
T = TypeVar("T")


class NumbersDrawn(CaptureError):
    """Numbers of Python's or NumPy's generators were drawn during a recording, by the callable or by another thread.

    The generators go on after them. `set_back` gives them the state that they had before.
    """

    def __init__(self, states: tuple[Any, Any]) -> None:
        super().__init__("cannot capture: random numbers of Python or NumPy are drawn")
        self._states = states

    def set_back(self) -> None:
        """Let both generators draw the same numbers once more."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])


def told_apart(capture: Callable[P, T]) -> Callable[P, T]:
    """Return `capture`, which is tried once more where it raises NumbersDrawn: a callable that draws would again.

    If it succeeds then, another thread has drawn, whose next numbers are others. Else the generators are set back.
    """

    @wraps(capture)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return capture(*arguments, **named)
        except NumbersDrawn as error:
            drawn = error
            if threading.active_count() == 1:
                drawn.set_back()
                raise
        try:
            return capture(*arguments, **named)
        except BaseException:
            drawn.set_back()
            raise

    return called


@contextmanager
def random_state_watched() -> Iterator[Callable[[Iterable[OpOverload]], None]]:
    """A context that detects when the random state is set, or random numbers are drawn by anything but operators.

    A run of the graph could not repeat either. Yields what raises CaptureError where a run of given operators would
    draw other random numbers than the callable. At the end the generators of Python and NumPy are as they were before,
    but after NumbersDrawn, and so is PyTorch's where the callable has set its seed or state. Else it goes on: other
    threads may have drawn.
    """
    before, states = _others(), (random.getstate(), np.random.get_state())
    generator, here, by_name = torch.default_generator, threading.get_ident(), list[str]()
    seed, state = generator.initial_seed(), generator.get_state()

    def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == here:
                by_name.append(function.__name__)
            return function(*arguments, **named)

        return called

    def seeded() -> bool:
        """Whether the generator goes on from elsewhere: its seed or state was set. Other threads may have drawn."""
        return bool(by_name and not torch.equal(generator.get_state(), state)) or generator.initial_seed() != seed

    def check(called: Iterable[OpOverload]) -> None:
        if by_name and any(torch.Tag.nondeterministic_seeded in operator.tags for operator in called):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")
        if seeded():
            raise CaptureError("cannot capture: the state of the random generator is set")
        if _others() != before:
            raise NumbersDrawn(states)

    try:
        with ExitStack() as patches:
            for module in (torch, torch.random):
                for name in ("set_rng_state", "manual_seed"):
                    patches.enter_context(patch.object(module, name, noticed(getattr(module, name))))
            yield check
    except NumbersDrawn:
        raise
    except BaseException:
        if _others() != before:
            NumbersDrawn(states).set_back()
        raise
    finally:
        if seeded():
            generator.set_state(state)


def _others() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state(legacy=False))
