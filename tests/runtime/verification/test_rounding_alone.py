"""What is rounding alone refuses nothing: gradients of a bias before a batch norm, and what an optimizer keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.verification.shadow import Checked, Shadowed, checked_step

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam, "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad, "amsgrad": lambda given: torch.optim.Adam(given, amsgrad=True),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
}  # fmt: skip


def _checked(make: Callable[..., torch.optim.Optimizer], change: Callable[[nn.Module], Any] | None = None) -> Checked:
    """A step in channels last beside eager's as given, after a few; `change` makes its model compute otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = make(model.parameters())

    def eager(x: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 10)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def lie(memory_format: torch.memory_format) -> None:
        for one in model.modules():
            if isinstance(one, nn.Conv2d):
                one.weight.data = one.weight.data.contiguous(memory_format=memory_format)

    def run(x: Tensor) -> dict[str, Tensor]:
        handle = None if change is None else change(model)
        lie(torch.channels_last)
        found = eager(x.contiguous(memory_format=torch.channels_last))
        lie(torch.contiguous_format)
        if handle is not None:
            handle.remove()
        return found

    for _ in range(3):
        eager(torch.randn(16, 3, 32, 32))
    step = Shadowed(eager, eager, model, optimizer, lambda result: result)
    return checked_step(step, run, (torch.randn(16, 3, 32, 32),), None, jumps=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bias_before_a_batch_norm_refuses_no_channels_last(name: str) -> None:
    difference = _checked(OPTIMIZERS[name]).difference
    biases = "0.bias", "4.bias", "parameter 0.1", "parameter 0.5"
    assert difference is None or not difference.name.endswith(biases), difference  # others may be chance (`chance.py`)


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
@pytest.mark.parametrize("number", [0, 1], ids=["a weight", "the bias"])
def test_wrong_gradients_beside_it_and_of_it_are_found(name: str, number: int) -> None:
    def change(model: nn.Module) -> Any:
        parameter = list(model.parameters())[number]
        return parameter.register_hook(lambda gradient: gradient * 1.01 + 1e-4)  # type: ignore[no-untyped-call]

    assert _checked(OPTIMIZERS[name], change).difference is not None
