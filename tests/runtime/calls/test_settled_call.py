"""A settled call of an optimised model enters few files: nothing is decided in it any more."""

from __future__ import annotations

import sys
from contextlib import closing
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import threadcast
from tests.runtime.compiler import needs_compiler

MOST_FILES = 15


@needs_compiler
@pytest.mark.usefixtures("one_thread", "plans_win")
def test_a_settled_call_enters_few_files_and_sees_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
    model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.Tanh())]).eval()
    x, entered = torch.randn(4, 8), set[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/threadcast/" in frame.f_code.co_filename:
            entered.add(frame.f_code.co_filename)

    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        for _ in range(60):
            call(x)
        assert call.reports[0].runs == "plan"
        fewest = MOST_FILES + 1
        for _ in range(30):
            entered.clear()
            sys.setprofile(note)
            call(x)
            sys.setprofile(None)
            fewest = min(fewest, len(entered))
        assert fewest <= MOST_FILES
        for other in (
            torch.randn(3, 8),
            torch.randn(8, 4).T,
            torch.randn(4, 8),
            torch.randn(4, 8, dtype=torch.float64),
        ):
            if other.dtype is torch.float64:
                model.double()
            torch.testing.assert_close(call(other), model(other))
        model.float()[0].weight = nn.Parameter(torch.randn(8, 8))
        torch.testing.assert_close(call(x), model(x))
        with torch.autocast("cpu"):
            assert call(x).dtype is torch.bfloat16
