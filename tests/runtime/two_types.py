"""Calls in float32 or bfloat16, of a small network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.doors.type_choice import TypeChoice
from threadcast.runtime.tuner.tuning import Tuning

CALLS = 80
"""Calls in which both types have learned what runs them."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 40),
        nn.Tanh(),
        nn.Linear(40, 5),
    ).eval()


def in_bfloat16(call: Any) -> TypeChoice:
    """The choice of the last call, made for bfloat16."""
    choice: TypeChoice = call._choice
    choice.report.runs, choice.report.reason, choice.checks = "bfloat16", "", 0
    choice.offer()
    assert call._watches()
    return choice


def call_until_captured(call: Any, x: Tensor) -> None:
    for _ in range(CALLS):
        call(x)
        if isinstance(call._optimized._last, Tuning):
            return
    pytest.fail("float32 was not captured")
