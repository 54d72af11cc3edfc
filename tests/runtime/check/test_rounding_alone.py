"""What is rounding alone refuses nothing: a bias before a batch norm, and what an optimizer makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.runtime.check.shadow import Checked, Shadowed, checked_step

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam,
    "amsgrad": lambda given: torch.optim.Adam(given, amsgrad=True, maximize=True),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9, nesterov=True),
    "SGD": lambda given: torch.optim.SGD(given, lr=0.1), "of gradients alone": lambda _: NoUpdate(),
}  # fmt: skip

Wrong = Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]]


def _checked(name: str, *, seed: int = 0, steps: int = 3, wrong: Wrong = lambda *_: nullcontext()) -> Checked:
    """A step in channels last beside eager's as given, after some; `wrong` makes it compute otherwise."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = OPTIMIZERS[name](model.parameters())
    if isinstance(optimizer, torch.optim.Adam) and seed != 1:  # as a capture makes it, or as PyTorch's first step does
        entries = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if optimizer.defaults["amsgrad"] else [])]
        for parameter in model.parameters():
            state = {entry: torch.zeros_like(parameter).detach() for entry in entries}
            optimizer.state[parameter].update(step=torch.zeros(()), **state)

    def eager(x: Tensor) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 10)
        loss.backward()  # type: ignore[no-untyped-call]
        if not isinstance(optimizer, NoUpdate):
            optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def lie(memory_format: torch.memory_format) -> None:
        for one in model.modules():
            if isinstance(one, nn.Conv2d):
                one.weight.data = one.weight.data.contiguous(memory_format=memory_format)

    def run(x: Tensor) -> dict[str, Tensor]:
        with wrong(model, optimizer):
            lie(torch.channels_last)
            found = eager(x.contiguous(memory_format=torch.channels_last))
            lie(torch.contiguous_format)
        return found

    for _ in range(steps):
        eager(torch.randn(8, 3, 32, 32))
        if isinstance(optimizer, NoUpdate):
            model.zero_grad()
    step = Shadowed(eager, eager, model, optimizer, lambda result: result)
    return checked_step(step, run, (torch.randn(8, 3, 32, 32),), None, jumps=True)


@pytest.mark.parametrize("steps", [0, 3], ids=["fresh state", "after steps"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rounding_alone_refuses_no_channels_last(name: str, steps: int) -> None:
    for seed in range(3):
        assert _checked(name, seed=seed, steps=steps).difference is None


def _hook(number: int, change: Callable[[Tensor], Tensor]) -> Wrong:
    """Another gradient of one parameter."""

    @contextmanager
    def wrong(model: nn.Module, _: torch.optim.Optimizer) -> Iterator[None]:
        handle = list(model.parameters())[number].register_hook(change)  # type: ignore[no-untyped-call]
        yield
        handle.remove()

    return wrong


def _setting(**others: Any) -> Wrong:
    """Other settings of the optimizer."""

    @contextmanager
    def wrong(_: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        group = optimizer.param_groups[0]
        given = {name: group[name] for name in others}
        group.update(others)
        yield
        group.update(given)

    return wrong


def _undone(of: Callable[[nn.Module], Tensor]) -> Wrong:
    """A tensor as before the step."""

    @contextmanager
    def wrong(model: nn.Module, _: torch.optim.Optimizer) -> Iterator[None]:
        before = of(model).detach().clone()
        yield
        of(model).data = before

    return wrong


_GRADIENTS: dict[str, Wrong] = {
    "a weight's gradient": _hook(0, lambda gradient: gradient * 1.001),
    "a bias' gradient": _hook(9, lambda gradient: gradient * 1.001),
    "that of a bias before a norm": _hook(1, lambda gradient: gradient + 1e-4),
    "a stale buffer": _undone(lambda model: model.get_buffer("1.running_mean")),
}
_UPDATES: dict[str, Wrong] = {
    "another beta": _setting(betas=(0.9, 0.998)), "another first beta": _setting(betas=(0.899, 0.999)),
    "no update of a weight": _undone(lambda model: model.get_parameter("4.weight")),
    "no update of a bias before a norm": _undone(lambda model: model.get_parameter("4.bias")),
    "another learning rate": _setting(lr=1.001e-3),
}  # fmt: skip


@pytest.mark.parametrize("wrong", _GRADIENTS.values(), ids=_GRADIENTS)
@pytest.mark.parametrize("name", ["AdamW", "momentum", "of gradients alone"])
def test_wrong_numbers_beside_it_are_found(name: str, wrong: Wrong) -> None:
    assert _checked(name, wrong=wrong).difference is not None


@pytest.mark.parametrize("steps", [0, 3], ids=["fresh state", "after steps"])
@pytest.mark.parametrize(("name", "wrong"), [
    *(("Adam", wrong) for wrong in _UPDATES.values()), ("AdamW", _setting(weight_decay=0.0)),
    ("momentum", _setting(nesterov=False)), ("momentum", _UPDATES["no update of a weight"]),
], ids=[*_UPDATES, "no weight decay", "no nesterov", "no update by momentum"])  # fmt: skip
def test_wrong_updates_are_found(name: str, wrong: Wrong, steps: int) -> None:
    assert _checked(name, steps=steps, wrong=wrong).difference is not None
