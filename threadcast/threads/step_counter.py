"""The progress of a process's optimised models: the steps that they have made and the speeds that they expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, local


class _Depth(local):
    value = 0


class StepCounter:
    """Counts the steps of optimised models and holds the speeds that they expect. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._expected: Mapping[int, float] = {}
        self._depth = _Depth()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the block as one step once it has ended without an error.

        `is_counting` is True inside, so that the step of a torch optimizer inside is not counted a second time.
        """
        self._depth.value += 1
        try:
            yield
        finally:
            self._depth.value -= 1
        with self._lock:
            self._count += 1

    @property
    def is_counting(self) -> bool:
        """Whether the calling thread is inside a `step`."""
        return self._depth.value > 0

    @property
    def count(self) -> int:
        """Steps counted so far."""
        return self._count

    def expect(self, rates: Mapping[int, float]) -> None:
        """State how many steps a second the model that runs now makes with each number of cores."""
        self._expected = dict(rates)

    @property
    def expected(self) -> Mapping[int, float]:
        """Steps a second by number of cores, as last stated; only their ratios count."""
        return self._expected
