"""The progress of a process's optimised models: steps, expected speeds, and what they are still learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock, local
from typing import Self
from weakref import WeakMethod


class _Depth(local):
    value = 0


class StepCounter:
    """Counts the steps of optimised models and holds the speeds that they expect. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._expected: Mapping[int, float] = {}
        self._learning: list[WeakMethod[Callable[[], str]]] = []
        self._depth = _Depth()

    def step(self) -> Self:
        """Count the block as one step once it has ended without an error: `with counter.step(): ...`.

        `is_counting` is True inside, so that the step of a torch optimizer inside is not counted a second time.
        """
        return self

    def __enter__(self) -> None:
        self._depth.value += 1

    def __exit__(self, error: object, *_: object) -> None:
        self._depth.value -= 1
        if error is None:
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

    def ask_learning(self, describe: Callable[[], str]) -> None:
        """Have `learning` include what `describe`, a bound method, returns, as long as its object lives.

        It is called from any thread and returns an empty text where nothing is being learned.
        """
        with self._lock:
            self._learning = [known for known in self._learning if known() is not None]
            self._learning.append(WeakMethod(describe))

    @property
    def learning(self) -> str:
        """What the optimised models are still learning, in words; empty where they have all settled."""
        with self._lock:
            asked = [describe for known in self._learning if (describe := known()) is not None]
        return "; ".join(text for describe in asked if (text := describe()))
