"""A backend that won is the first that a later process tries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.runtime.tuner.small_tuning import Clock, function, made, run_until
from threadcast.core import Machine
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.tuner.contender import Contender, backend


@pytest.mark.usefixtures("planned_at_once")
def test_a_backend_that_won_is_noted_for_later_processes(machine: Machine, tmp_path: Path) -> None:
    clock = Clock()

    def fast(x: torch.Tensor) -> torch.Tensor:
        clock.now_s -= clock.other_s / 4
        return function(x)

    with made(clock, machine, tmp_path, backend=Contender(backend("fast"), fast)) as tuned:
        before = PlanStore(tmp_path, machine).backends(tuned.captured.graph)
        run_until(tuned, lambda: not tuned.learning)
        assert tuned.report.runs == "fast"
        noted = PlanStore(tmp_path, machine).backends(tuned.captured.graph)
        assert noted.cost_s < before.cost_s
        assert noted.gain > 1
