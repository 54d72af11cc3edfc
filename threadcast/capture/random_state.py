"""Detects draws of random numbers that a captured graph could not repeat."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch

from threadcast.capture.recording import Recording
from threadcast.core.errors import CaptureError


class RandomStateWatch:
    """A context that detects when the random state is set, or random numbers are drawn by anything but operators.

    A run of the graph could not repeat either. At its end the generators of Python and NumPy are as they were before,
    and so is PyTorch's where the callable has set its seed or state. Else it goes on: other threads may have drawn.
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

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()
        if self._seeded():
            torch.default_generator.set_state(self._state)
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])

    def check(self, recording: Recording) -> None:
        """CaptureError where a run of the graph would draw other random numbers than the callable."""
        if self._set and any(torch.Tag.nondeterministic_seeded in call.target.tags for call in recording.calls):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")
        if self._seeded():
            raise CaptureError("cannot capture: the state of the random generator is set")
        if self._others() != self._before:
            raise CaptureError("cannot capture: random numbers of Python or NumPy are drawn")

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
