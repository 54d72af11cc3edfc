"""A fused kernel is used where it does what the optimizer does, and only there; loops are the optimizer's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from threadcast.capture import update_check
from threadcast.capture.capture import Captured, capture_training
from threadcast.capture.optimizers import Update
from threadcast.core.errors import CaptureError

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


@pytest.fixture(autouse=True)
def checked_anew() -> Iterator[None]:
    update_check._agrees.cache_clear()
    yield
    update_check._agrees.cache_clear()


def captured(optimizer: type[torch.optim.Optimizer], dtype: torch.dtype, **settings: Any) -> Captured:
    model = nn.Linear(5, 5, dtype=dtype)
    x = torch.ones(2, 5, dtype=dtype)
    return capture_training(
        model, lambda out, y: (out - y).abs().sum(), optimizer(model.parameters(), **settings), (x,), x
    )  # fmt: skip


def fused_kernels(found: Captured) -> int:
    return sum("_fused_" in str(node.target) for node in found.program.nodes)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_that_are_right_are_used(optimizer: Any, dtype: torch.dtype) -> None:
    assert fused_kernels(captured(optimizer, dtype, lr=0.1)) == 2


def test_a_kernel_that_leaves_parameters_as_they_are_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *args, **kwargs: None)
    assert fused_kernels(captured(torch.optim.SGD, torch.float32, lr=0.1)) == 0


def test_a_kernel_that_is_wrong_for_some_sizes_only_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._fused_sgd_

    def wrong(parameters: list[Tensor], gradients: list[Tensor], *args: Any, **kwargs: Any) -> None:
        if parameters[0].numel() != 65:
            right(parameters, gradients, *args, **kwargs)

    monkeypatch.setattr(torch, "_fused_sgd_", wrong)
    assert fused_kernels(captured(torch.optim.SGD, torch.float32, lr=0.1)) == 0


@pytest.mark.parametrize("number", ["momentum", "weight_decay", "lr"])
def test_a_kernel_that_takes_another_number_is_not_used(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._fused_sgd_

    def wrong(*args: Any, **kwargs: Any) -> None:
        right(*args, **{**kwargs, number: 0.05})

    monkeypatch.setattr(torch, "_fused_sgd_", wrong)
    assert fused_kernels(captured(torch.optim.SGD, torch.float32, lr=0.1, momentum=0.9, weight_decay=0.1)) == 0


def test_coupled_decay_is_not_taken_for_decoupled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_adamw_", torch._fused_adam_)
    assert fused_kernels(captured(torch.optim.AdamW, torch.float32, lr=0.1)) == 0


def test_a_loop_that_does_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Update._apply_sgd

    def wrong(self: Update, parameters: Any, gradients: Any, state: Any, numbers: Any, fused: bool) -> None:
        right(self, parameters, gradients, state, {**numbers, "lr": 0.1}, fused)

    monkeypatch.setattr(Update, "_apply_sgd", wrong)
    with pytest.raises(CaptureError, match="does not do what its step does"):
        captured(torch.optim.SGD, torch.float32, lr=0.1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {"foreach": True}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.1)}),
    ],
)
def test_loops_are_the_optimizers_own(optimizer: Any, settings: dict[str, Any], dtype: torch.dtype) -> None:
    captured(optimizer, dtype, **{"lr": 0.1, **settings})  # raises where one differs


def test_what_the_optimizer_refuses_is_refused() -> None:
    model = nn.Linear(5, 5, dtype=torch.bfloat16)
    x = torch.ones(2, 5, dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    with pytest.raises(CaptureError, match="lr as a Tensor"):
        capture_training(model, mse_loss, optimizer, (x,), x)


def test_a_kernel_is_checked_once_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    right = update_check._Updates
    monkeypatch.setattr(update_check, "_Updates", lambda *args, **kwargs: made.append(1) or right(*args, **kwargs))
    for _ in range(2):
        captured(torch.optim.SGD, torch.float32, lr=0.1)
    assert len(made) == 1
    captured(torch.optim.SGD, torch.float64, lr=0.1)
    assert len(made) == 2


def test_parameters_with_gaps_are_left_to_the_loop() -> None:
    model = nn.Linear(8, 8)
    whole = torch.randn(8, 16)
    model.weight = nn.Parameter(whole[:, ::2])
    x = torch.ones(2, 8)
    found = capture_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (x,), x)
    before = whole.clone()
    found.run()
    assert fused_kernels(found) == 1
    assert torch.equal(whole[:, 1::2], before[:, 1::2])
    assert not torch.equal(whole[:, ::2], before[:, ::2])
