"""Workloads of types that fused kernels do not update are captured as gradients alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from threadcast.capture.workloads import OptimizerName, capture_workload, eager_step
from threadcast.networks import Workload


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_of_bfloat16_is_captured_without_its_update(optimizer: OptimizerName) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16)
    workload = Workload("linear", "tiny", 2, model, (x,), torch.zeros(2, 3, dtype=torch.bfloat16), mse_loss)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    captured = capture_workload(workload, optimizer=optimizer)
    captured.run()
    found = [parameter.grad for parameter in model.parameters()]
    eager_step(workload, "training", optimizer=optimizer)()
    for gradient, parameter, unchanged in zip(found, model.parameters(), before, strict=True):
        assert gradient is not None
        assert torch.equal(gradient, parameter.grad)
        assert torch.equal(parameter, unchanged)
