"""Which optimizers' steps a compiled program has tried by PyTorch's fused kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from threadcast.runtime.updates.fused_updates import fused_updates


def _trained(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def test_optimizers_of_a_compiled_programs_parameters_are_known() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    own, others = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(nn.Linear(2, 2).parameters())
    _trained(torch.compile(model, backend="threadcast"), own)
    assert fused_updates().of(own) is not None
    assert fused_updates().of(others) is None


@pytest.mark.parametrize("how", ["option", "setting"])
def test_without_fused_operators_updates_are_not_fused_either(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "setting":
        monkeypatch.setenv("THREADCAST_ENGINE_FUSE", "false")
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    options = {"fuse": False} if how == "option" else {}
    _trained(torch.compile(model, backend="threadcast", options=options), optimizer)
    assert fused_updates().of(optimizer) is None
