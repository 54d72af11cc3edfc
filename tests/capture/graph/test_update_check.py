"""A fused kernel is used where it does what the optimizer does; else PyTorch makes the update."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from threadcast.capture.graph import update_check
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused, updates_of
from threadcast.threads.openmp import torch_threads

NOT_RIGHT = r"fused kernel of \w+ is not right for"


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


def test_only_the_kernel_is_checked_with_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, step, threads = torch._fused_sgd_, update_check._step, set[tuple[str, int]]()

    def noted(name: str, function: Any, *args: Any, **kwargs: Any) -> None:
        threads.add((name, torch.get_num_threads()))
        function(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_sgd_", partial(noted, "kernel", kernel))
    monkeypatch.setattr(update_check, "_step", partial(noted, "step", step))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))])
    with torch_threads(3):
        (update,) = updates_of(optimizer).values()
        assert update_check.fused_step_is_right(update, torch.ones(3), [])
        assert torch.get_num_threads() == 3
    assert threads == {("kernel", 3), ("step", 3), ("step", 1)}, "the kernel's steps, and those of the optimizer's loop"


def test_a_kernel_that_leaves_parameters_as_they_are_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *args, **kwargs: None)
    with pytest.raises(OptimizerRefused, match=NOT_RIGHT):
        captured(torch.optim.SGD, torch.float32, lr=0.1)


def test_a_kernel_that_is_wrong_for_some_sizes_only_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._fused_sgd_

    def wrong(parameters: list[Tensor], gradients: list[Tensor], *args: Any, **kwargs: Any) -> None:
        if parameters[0].numel() != 65:
            right(parameters, gradients, *args, **kwargs)

    monkeypatch.setattr(torch, "_fused_sgd_", wrong)
    with pytest.raises(OptimizerRefused, match=NOT_RIGHT):
        captured(torch.optim.SGD, torch.float32, lr=0.1)


@pytest.mark.parametrize("number", ["momentum", "weight_decay", "lr"])
def test_a_kernel_that_takes_another_number_is_not_used(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._fused_sgd_

    def wrong(*args: Any, **kwargs: Any) -> None:
        right(*args, **{**kwargs, number: 0.05})

    monkeypatch.setattr(torch, "_fused_sgd_", wrong)
    with pytest.raises(OptimizerRefused, match=NOT_RIGHT):
        captured(torch.optim.SGD, torch.float32, lr=0.1, momentum=0.9, weight_decay=0.1)


def test_coupled_decay_is_not_taken_for_decoupled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_adamw_", torch._fused_adam_)
    with pytest.raises(OptimizerRefused, match=NOT_RIGHT):
        captured(torch.optim.AdamW, torch.float32, lr=0.1)


def test_a_kernel_is_checked_once_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    right = update_check._Updates
    monkeypatch.setattr(update_check, "_Updates", lambda *args, **kwargs: made.append(1) or right(*args, **kwargs))
    for _ in range(2):
        captured(torch.optim.SGD, torch.float32, lr=0.1)
    assert len(made) == 1
    captured(torch.optim.SGD, torch.float64, lr=0.1)
    assert len(made) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_pytorch_updates_what_rounds_coarsely(optimizer: Any, dtype: torch.dtype) -> None:
    with pytest.raises(OptimizerRefused, match=f"{NOT_RIGHT} weight, {dtype}"):
        captured(optimizer, dtype, lr=0.1)


def test_pytorch_updates_parameters_with_gaps() -> None:
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(torch.randn(8, 16)[:, ::2])
    with pytest.raises(OptimizerRefused, match=NOT_RIGHT):
        capture_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(2, 8),), None)
