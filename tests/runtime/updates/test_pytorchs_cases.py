"""Steps that may be fused, for all cases of SGD, Adam and AdamW in PyTorch's optimizer database, in several types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.databases.pytorch_databases import TRAINABLE, optim_db
from tests.runtime.updates.pairs import Look, some_gradients
from threadcast.capture.graph.optimizers import NUMBERS
from threadcast.runtime.updates.fused_updates import FusedUpdates

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = [info for info in optim_db if info.optim_cls in NUMBERS]
CLOSE = {torch.float32: 2e-5, torch.float64: 1e-12}
"""Differences allowed by type after all steps, absolute and relative; of others, which round coarsely, none."""
STEPS = 40


def _trained(optimizer: Optimizer, parameters: list[nn.Parameter]) -> str:
    """Make steps; return the error that ended them, or nothing."""
    for number in range(STEPS):
        for one, gradient in zip(parameters, some_gradients(parameters, number), strict=True):
            one.grad = gradient
        try:
            optimizer.step()
        except Exception as error:  # noqa: BLE001 - the same one is expected of both
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("dtype", [*TRAINABLE, torch.complex64], ids=str)
@pytest.mark.parametrize("info", SETTINGS, ids=lambda info: info.name)
def test_cases_are_as_with_the_loop(info: Any, dtype: torch.dtype, updates: FusedUpdates) -> None:
    fused: list[bool] = []
    for case in info.optim_inputs_func(device="cpu", dtype=dtype):
        generator = torch.Generator().manual_seed(0)
        shapes: tuple[tuple[int, ...], ...] = ((3,), (17,), (5, 13), (), (64, 33))
        mine = [nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in shapes]
        theirs = copy.deepcopy(mine)
        make: Callable[..., Optimizer] = info.optim_cls
        both = [make(parameters, **copy.deepcopy(case.kwargs)) for parameters in (mine, theirs)]
        updates.adopt(mine)
        both[0].register_step_pre_hook(Look(fused))
        errors = [_trained(one, parameters) for one, parameters in zip(both, (mine, theirs), strict=True)]
        assert errors[0] == errors[1], case.kwargs
        saved = [one.state_dict() for one in both]
        assert str(saved[0]["param_groups"]) == str(saved[1]["param_groups"])
        allowed = CLOSE.get(dtype, 0.0)
        torch.testing.assert_close(mine, theirs, rtol=allowed, atol=allowed, equal_nan=True)
        torch.testing.assert_close(saved[0]["state"], saved[1]["state"], rtol=allowed, atol=allowed, equal_nan=True)
    if dtype in CLOSE:
        assert any(fused), "some are"
