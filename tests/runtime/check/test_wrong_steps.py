"""Steps of built-in networks that are wrong in one thing only are told from right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import threadcast
from threadcast import networks
from threadcast.runtime.check.shadow import checked_step
from threadcast.runtime.doors.optimize import OptimizedStep

Change = Callable[[nn.Module, Optimizer], Any]


@contextmanager
def setting(optimizer: Optimizer, **changed: Any) -> Iterator[None]:
    """Other settings of the optimizer within the context."""
    before = {name: optimizer.param_groups[0][name] for name in changed}
    optimizer.param_groups[0].update(changed)
    yield
    optimizer.param_groups[0].update(before)


@contextmanager
def without_gradient(model: nn.Module) -> Iterator[None]:
    """The second parameter has a gradient of 0 within the context."""
    handle = list(model.parameters())[1].register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
    yield
    handle.remove()


@contextmanager
def without_update(model: nn.Module) -> Iterator[None]:
    """The second parameter has the same value after the context as before it."""
    parameter = list(model.parameters())[1]
    before = parameter.detach().clone()
    yield
    parameter.detach().copy_(before)


@contextmanager
def without_any_update(model: nn.Module) -> Iterator[None]:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    yield
    for parameter, value in zip(model.parameters(), before, strict=True):
        parameter.detach().copy_(value)


WRONG: dict[str, tuple[type[Optimizer], Change]] = {
    "a skipped update": (AdamW, lambda model, _: without_update(model)),
    "a dropped gradient": (AdamW, lambda model, _: without_gradient(model)),
    "coupled decay": (AdamW, lambda _, optimizer: setting(optimizer, decoupled_weight_decay=False)),
    "momentum too small by a tenth": (SGD, lambda _, optimizer: setting(optimizer, momentum=0.81)),
}


def training(name: str, kind: type[Optimizer], dtype: torch.dtype) -> tuple[OptimizedStep, Optimizer, Any, Any]:
    """A step that has run twice by eager PyTorch, its optimizer, and arguments for it; its model comes last."""
    torch.manual_seed(0)
    workload = networks.load(name, "tiny", batch=4)
    model = workload.model.to(dtype).train()
    settings: dict[str, Any] = (
        {"lr": 0.05, "momentum": 0.9} if kind is SGD else {"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-4}
    )
    optimizer = kind(model.parameters(), **settings)
    assert workload.loss is not None
    assert workload.target is not None
    step = threadcast.optimize_training(model, workload.loss, optimizer, cores=1)
    given = tuple(x.to(dtype) if x.is_floating_point() else x for x in (*workload.inputs, workload.target))
    arguments: tuple[Any, ...] = (given, {})
    for _ in range(2):
        step._optimized._shadowed.eager(*arguments)
    return step, optimizer, arguments, model


def difference(step: OptimizedStep, arguments: Any, wrong: Callable[[], Any]) -> Any:
    shadowed = step._optimized._shadowed

    def run(*given: Any) -> Any:
        with wrong():
            return shadowed.eager(*given)

    return checked_step(shadowed, run, arguments, None)[1]


@pytest.mark.parametrize("name", ["lenet", "lstm", "transformer", "dcgan_discriminator"])
@pytest.mark.parametrize("way", WRONG)
def test_a_step_in_single_precision_that_is_wrong_in_one_thing_is_found(name: str, way: str) -> None:
    kind, change = WRONG[way]
    step, optimizer, arguments, model = training(name, kind, torch.float32)
    with closing(step):
        assert difference(step, arguments, lambda: change(model, optimizer)) is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_step_in_half_precision_without_updates_is_found(kind: type[Optimizer], dtype: torch.dtype) -> None:
    step, _, arguments, model = training("lenet", kind, dtype)
    with closing(step):
        assert difference(step, arguments, lambda: without_any_update(model)) is not None
