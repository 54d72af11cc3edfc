"""Kernels that look at whether gradients are enabled find what they find in eager PyTorch, whoever calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine


@pytest.mark.parametrize("enabled", [False, True])
def test_an_lstm_without_gradients_has_the_bits_of_no_grad(machine: Machine, enabled: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(8, 8, batch_first=True).eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        wanted = model(x)[0]
        captured = capture_forward(lambda x: model(x)[0], x)
    plan = make_random_plan(captured.graph, tuple(range(len(machine.cores))), seed=1)
    with Engine(captured, plan, machine) as engine, torch.set_grad_enabled(enabled):
        assert torch.equal(engine.run(captured.bind(x)), wanted)
        assert torch.equal(captured.run(x), wanted)
        assert torch.is_grad_enabled() is enabled
