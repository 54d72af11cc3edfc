"""Detects draws of random numbers that a captured graph could not repeat."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch

from threadcast.capture.recording import Recording
from threadcast.core.errors import CaptureError


class RandomStateWatch:
    """A context that detects when the random state is set, or random numbers are drawn by anything but operators.

    A run of the graph could not repeat either. At its end the generators of PyTorch, Python and NumPy are as they were
    before.
    """

    def __enter__(self) -> Self:
        self._set = False
        self._before, self._states = self._others(), (random.getstate(), np.random.get_state())
        self._torch = torch.default_generator.get_state()
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
        if not self._is_kept():
            torch.default_generator.set_state(self._torch)
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])

    def check(self, recording: Recording) -> None:
        """CaptureError where a run of the graph would draw other random numbers than the callable."""
        if self._set and any(torch.Tag.nondeterministic_seeded in call.target.tags for call in recording.calls):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")
        if not self._is_kept():  # operators draw nothing while they are recorded
            raise CaptureError("cannot capture: the state of the random generator is set")
        if self._others() != self._before:
            raise CaptureError("cannot capture: random numbers of Python or NumPy are drawn")

    def _is_kept(self) -> bool:
        return torch.equal(torch.default_generator.get_state(), self._torch)

    def _noticed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self._set = True
            return function(*arguments, **named)

        return called

    @staticmethod
    def _others() -> tuple[Any, ...]:
        return random.getstate(), repr(np.random.get_state(legacy=False))
