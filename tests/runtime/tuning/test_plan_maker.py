"""Plans come from another process; without it, steps run as before."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import threadcast


def test_a_step_whose_planning_fails_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    x = torch.arange(4.0)
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        for _ in range(40):
            assert call(x).tolist() == [0, 2, 4, 6]
        (report,) = call.reports
        assert (report.runs, "planning failed" in report.reason) == ("default", True)
