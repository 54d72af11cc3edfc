"""Detects draws of random numbers that a captured graph could not repeat."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar
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


class RandomStateWatch:
    """A context that detects when the random state is set, or random numbers are drawn by anything but operators.

    A run of the graph could not repeat either. At its end the generators of Python and NumPy are as they were before,
    but after NumbersDrawn, and so is PyTorch's where the callable has set its seed or state. Else it goes on: other
    threads may have drawn.
    """

    def __enter__(self) -> Self:
        self._set = False
        self._before, self._states = self._others(), (random.getstate(), np.random.get_state())
        self._thread = threading.get_ident()
        self._seed, self._state = torch.default_generator.initial_seed(), torch.default_generator.get_state()
        self._patches = [
            patch.object(module, name, self._noticed(getattr(module, name)))
            for module in (torch, torch.random)
            for name in ("set_rng_state", "manual_seed")
        ]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for one in self._patches:
            one.stop()
        if self._seeded():
            torch.default_generator.set_state(self._state)
        if error is not None and not isinstance(error, NumbersDrawn) and self._others() != self._before:
            NumbersDrawn(self._states).set_back()

    def check(self, called: Iterable[OpOverload]) -> None:
        """CaptureError where a run of these operators would draw other random numbers than the callable."""
        if self._set and any(torch.Tag.nondeterministic_seeded in operator.tags for operator in called):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")
        if self._seeded():
            raise CaptureError("cannot capture: the state of the random generator is set")
        if self._others() != self._before:
            raise NumbersDrawn(self._states)

    def _seeded(self) -> bool:
        """Whether the generator goes on from elsewhere: its seed or state was set. Other threads may have drawn."""
        generator = torch.default_generator
        changed = self._set and not torch.equal(generator.get_state(), self._state)
        return changed or generator.initial_seed() != self._seed

    def _noticed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self._set = self._set or threading.get_ident() == self._thread
            return function(*arguments, **named)

        return called

    @staticmethod
    def _others() -> tuple[Any, ...]:
        return random.getstate(), repr(np.random.get_state(legacy=False))
