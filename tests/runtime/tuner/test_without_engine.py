"""On a machine without a compiler no plans are made; PyTorch's memory formats are still compared."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import nn

import threadcast
from tests.runtime.conftest import Decided
from threadcast.runtime.engine import engine
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import candidates
from threadcast.runtime.tuner.candidate import CandidateId, Kind


class EagerWins(Decided):
    """PyTorch in another memory format wins."""

    def wins(self, new: CandidateId) -> bool:
        return new.kind is Kind.EAGER


@pytest.fixture(autouse=True)
def no_engine(planned_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "has_engine", lambda: False)
    monkeypatch.setattr(candidates, "Tournament", EagerWins)


@pytest.mark.parametrize("last", [True, False])
def test_only_memory_formats_are_compared_and_the_report_says_why(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = (MemoryFormat.AS_GIVEN, MemoryFormat.CHANNELS_LAST) if last else (MemoryFormat.AS_GIVEN,)
    monkeypatch.setattr(ModelFormat, "worth_trying", lambda *_: formats)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3)).eval()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        for number in range(40):
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
            torch.testing.assert_close(call(x), model(x))
        (report,) = call.reports
    assert report.runs == ("eager, channels last" if last else "default")
    assert "no plans are made: the engine cannot be had" in str(report)
