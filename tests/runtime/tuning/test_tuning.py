"""The steps of a call are run as the states say, on real engines; what fails is left to the default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Machine
from threadcast.core.errors import CaptureError, ExecutionError
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender import Contender
from threadcast.runtime.tuning.contender_id import backend
from threadcast.runtime.tuning.drift import DRIFT_STEPS
from threadcast.runtime.tuning.plan_maker import PlanMaker
from threadcast.runtime.tuning.tuning import Tuning

pytestmark = pytest.mark.usefixtures("planned_at_once")
MOST_STEPS = 2_000
"""Far more than tuning takes."""


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + (x + 1).cos()


class Clock:
    """Goes on by what a step of the default takes, whenever one is run."""

    def __init__(self) -> None:
        self.default_s, self.other_s, self.now_s = 1.0, 1.0, 0.0

    def __call__(self) -> float:
        self.now_s += self.other_s
        return self.now_s

    def default(self, x: torch.Tensor) -> torch.Tensor:
        self.now_s += self.default_s
        return function(x)


class Found:
    """A search for backends that has one, at its second look."""

    def __init__(self, contender: Contender) -> None:
        self._left, self.over = [None, contender], False

    def start(self) -> None:
        """Nothing to start."""

    def poll(self) -> Contender | None:
        """The contender, or what comes before it."""
        found = self._left.pop(0)
        self.over = not self._left
        return found

    def close(self) -> None:
        """No more."""
        self.over = True


@contextmanager
def made(
    clock: Clock, machine: Machine, folder: Path, *, backend: Contender | None = None,
    capture: Callable[[MemoryFormat], Captured] | None = None, 
    formats: tuple[MemoryFormat, ...] = (MemoryFormat.AS_GIVEN,),
) -> Iterator[Tuning]:  # fmt: skip
    captured = capture_forward(function, torch.ones(3))
    found = Tuning(
        clock.default, capture or (lambda _: captured), ModelFormat(None), formats, machine, call="a call",
        plans=PlanStore(folder, machine), fuse=False, clock=clock,
        backends=None if backend is None else lambda _: Found(backend),
    )  # fmt: skip
    with closing(found):
        yield found


def run(tuning: Tuning, steps: int) -> None:
    for i in range(steps):
        x = torch.full((3,), float(i % 7))
        torch.testing.assert_close(tuning(x), function(x))


def run_until(tuning: Tuning, wanted: Callable[[], bool]) -> None:
    for _ in range(MOST_STEPS):
        if wanted():
            return
        run(tuning, 1)
    raise AssertionError(f"not within {MOST_STEPS} steps: {tuning.report}")


def test_the_fastest_is_found_stored_and_compared_again_once_it_is_slower(machine: Machine, tmp_path: Path) -> None:
    clock = Clock()
    with made(clock, machine, tmp_path) as tuned:
        assert tuned.report.runs == "measuring"
        run_until(tuned, lambda: not tuned.report.measuring)
        assert (tuned.report.runs, tuned.fastest.name) == ("plan", "plan, as given")
        assert tuned.report.plan is not None
        assert list(tuned.report.verdicts) == ["plan, as given"]
        run(tuned, 2 * DRIFT_STEPS)
        assert list(tmp_path.glob("*.json"))
        clock.other_s *= 3
        run_until(tuned, lambda: tuned.report.measuring)
        clock.default_s = 0.0
        run_until(tuned, lambda: not tuned.report.measuring)
        assert tuned.report.runs == "default"
        assert not list(tmp_path.glob("*.json")), "a plan that has become slow is not for the next process"


def test_a_stored_plan_runs_at_once_in_the_next_process(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path) as first:
        run_until(first, lambda: not first.report.measuring)
        run(first, DRIFT_STEPS + 1)
        plan = first.report.plan
    with made(Clock(), machine, tmp_path) as second:
        run(second, 1)
        assert (second.report.runs, second.report.plan) == ("plan", plan)


def test_a_backend_is_left_when_it_no_longer_does_what_the_default_does(machine: Machine, tmp_path: Path) -> None:
    clock, unchanged = Clock(), True

    def fast(x: torch.Tensor) -> torch.Tensor:
        clock.now_s -= clock.other_s / 2
        return function(x)

    contender = Contender(backend("fast"), fast, lambda: unchanged)
    with made(clock, machine, tmp_path, backend=contender) as tuned:
        run_until(tuned, lambda: not tuned.learning)
        assert tuned.report.runs == "fast"
        unchanged = False
        run(tuned, 1)
        assert tuned.report.measuring
        run_until(tuned, lambda: not tuned.report.measuring)
        assert tuned.report.runs == "plan"


def test_a_memory_format_that_cannot_be_captured_is_left_out(machine: Machine, tmp_path: Path) -> None:
    captured = capture_forward(function, torch.ones(3))

    def capture(memory_format: MemoryFormat) -> Captured:
        if memory_format is MemoryFormat.CHANNELS_LAST:
            raise CaptureError("views need another order")
        return captured

    with made(Clock(), machine, tmp_path, capture=capture, formats=tuple(MemoryFormat)) as tuned:
        run_until(tuned, lambda: not tuned.report.measuring)
        assert set(tuned.report.predicted_s) == {"as given"}


@pytest.mark.parametrize("error", [OSError("no space left"), ExecutionError("planning failed"), ValueError()])
def test_what_fails_between_steps_leaves_them_to_the_default(
    error: Exception,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(_: PlanMaker) -> Any:
        raise error

    monkeypatch.setattr(PlanMaker, "start_planning", fails)
    with caplog.at_level(logging.WARNING), made(Clock(), machine, tmp_path) as tuned:
        run_until(tuned, lambda: not tuned.report.measuring)
        reason = str(error) or "measuring was broken off"
        assert (tuned.report.runs, tuned.report.reason, tuned.fastest.name) == ("default", reason, "default")
        assert reason in caplog.text
        run(tuned, 2 * DRIFT_STEPS)


def test_a_step_that_raises_is_not_counted(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path) as tuned:
        run(tuned, 3)
        before = dict(tuned._states.steps)
        with pytest.raises(Exception, match="captured for"):
            tuned(torch.ones(3, 2))
        assert dict(tuned._states.steps) == before
        run_until(tuned, lambda: not tuned.report.measuring)
