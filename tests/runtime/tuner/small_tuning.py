"""Tuning of a small function on a clock of its own, and a search for backends that is told what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.candidate import Way
from threadcast.runtime.tuner.tuning import Tuning


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + (x + 1).cos()


class Clock:
    """Goes on by what a step of the default takes, whenever one is run."""

    def __init__(self, other_s: float = 1.0) -> None:
        self.default_s, self.other_s, self.now_s = 1.0, other_s, 0.0

    def __call__(self) -> float:
        self.now_s += self.other_s
        return self.now_s

    def default(self, x: torch.Tensor) -> torch.Tensor:
        self.now_s += self.default_s
        return function(x)


class Found:
    """A search for backends that has one, after its first `looks` looks."""

    working = has_turn = True

    def __init__(self, way: Way, looks: int = 1) -> None:
        self._left, self.over = [*[None] * looks, way], False
        self.waits, self.waited_s, self.rests, self.broken_off = 0, 0.0, False, False

    def start(self) -> None:
        """Nothing to start."""

    def poll(self, *, unlimited: bool = False) -> Way | None:
        """What it has found, or what comes before it."""
        found = self._left.pop(0)
        self.over = not self._left
        return found

    def wait(self, timeout_s: float) -> None:
        """Count how often it is waited for."""
        self.waits, self.waited_s = self.waits + 1, self.waited_s + timeout_s

    def rest(self, rests: bool) -> None:
        """Note it."""
        self.rests = rests

    def close(self) -> None:
        """No more."""
        self.over = True


@contextmanager
def made(
    clock: Clock, machine: Machine, folder: Path, *, backend: Way | None = None, looks: int = 1,
    default: Callable[[torch.Tensor], torch.Tensor] | None = None,
    capture: Callable[[MemoryFormat], Captured] | None = None,
    formats: tuple[MemoryFormat, ...] = (MemoryFormat.AS_GIVEN,), feedback: StepFeedback | None = None,
    budget: Budget | None = None, looking_s: float = 0.0,
) -> Iterator[Tuning]:  # fmt: skip
    captured = capture_forward(function, torch.ones(3))
    found = Tuning(
        default or clock.default, capture or (lambda _: captured), ModelFormat(None), formats, machine, call="a call",
        plans=PlanStore(folder, machine), fuse=False, clock=clock, feedback=feedback, budget=budget,
        looking_s=lambda: looking_s,
        backends=None if backend is None else lambda *_: Found(backend, looks),
    )  # fmt: skip
    with closing(found):
        yield found


def run(tuning: Tuning, steps: int) -> None:
    for i in range(steps):
        x = torch.full((3,), float(i % 7))
        torch.testing.assert_close(tuning(x), function(x))


def run_until(tuning: Tuning, wanted: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if wanted():
            return
        run(tuning, 1)
    raise AssertionError(tuning.story())
