"""What has been settled is watched, and what fails is left to the default."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Case, Machine
from threadcast.runtime import tuning
from threadcast.runtime.comparison import sequential
from threadcast.runtime.plan_store import PlanStore
from threadcast.runtime.tuning import DRIFT_STEPS, Tuning


class Judges:
    """In place of the guard: each keeps after its first step what it is told to."""

    def __init__(self, kept: str) -> None:
        self.kept, self.made = kept, 0

    def __call__(self, default: Callable[..., Any], planned: Callable[..., Any], *, rest: Callable[[], None]) -> Any:
        self.made += 1
        return _Judge(planned, self.kept)


class _Judge:
    def __init__(self, run: Callable[..., Any], kept: str) -> None:
        self.verdict: Any = None
        self._run, self._kept = run, kept

    def __call__(self, *arguments: Any) -> Any:
        self.verdict = SimpleNamespace(kept=self._kept, gain=1.0)
        return self._run(*arguments)


class _Maker:
    """In place of the plan maker: a plan of all ops in order, without a step."""

    def __init__(self, captured: Captured, machine: Machine, *, before: Callable[[], None]) -> None:
        self._plan = sequential(captured.graph, machine, Case(1))

    def made(self) -> Generator[Callable[..., Any], None, SimpleNamespace]:
        return SimpleNamespace(plan=self._plan, step_s=1.0, problem=None)
        yield


@pytest.mark.parametrize("kept", ["default", "plan"])
def test_what_has_become_slower_is_compared_anew(
    kept: str, monkeypatch: pytest.MonkeyPatch, machine: Machine, tmp_path: Path
) -> None:
    judges, clock = Judges(kept), Clock()
    monkeypatch.setattr(tuning, "Guard", judges)
    monkeypatch.setattr(tuning, "PlanMaker", _Maker)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=clock))
    captured = capture_forward(lambda x: x + 1, torch.ones(3))
    found = Tuning(
        lambda x: x + 1, lambda layout: captured, lambda layout: None, ("as given",), machine,
        call="a call", plans=PlanStore(tmp_path, machine), fuse=False,
    )  # fmt: skip
    try:
        steps = [found(torch.full((3,), float(i))).tolist() for i in range(1 + DRIFT_STEPS)]
        assert steps == [[i + 1.0] * 3 for i in range(1 + DRIFT_STEPS)]
        assert (judges.made, found.report.runs) == (1, kept)
        for _ in range(3 * DRIFT_STEPS):
            found(torch.ones(3))
        assert judges.made == 1, "as fast as it was"
        clock.step_s *= 2
        for _ in range(DRIFT_STEPS + 2):
            found(torch.ones(3))
        assert judges.made == 2
        assert found.report.runs == kept, "the judge says so again"
    finally:
        found.close()


class Clock:
    """Goes on by a step whenever it is asked."""

    def __init__(self) -> None:
        self.step_s, self.now_s = 1.0, 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s
