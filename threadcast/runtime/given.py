"""What `optimize` and `optimize_training` may be given: checked before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from threadcast.core.arguments import check
from threadcast.core.errors import InvalidInput


def check_inference(function: Any, example: tuple[Any, ...]) -> None:
    """Raise InvalidInput for what is no function, and for an example that it does not take."""
    optimizer = next((value for value in example if isinstance(value, Optimizer)), None)
    training = "for training there is optimize_training(model, loss, optimizer)"
    check(optimizer is None, "example", optimizer, "the arguments of one call", training)
    exchanged = "are model and example exchanged?" if any(isinstance(value, nn.Module) for value in example) else ""
    check(_is_function(function), "function", function, "a model (an nn.Module) or a function", exchanged)
    _check_example(function, example)


def check_training(model: Any, loss: Any, optimizer: Any, example: tuple[Any, ...]) -> None:
    """Raise InvalidInput for what is none of these, for an optimizer of other parameters, and for a wrong example."""
    slip = "are model and optimizer exchanged?" if _is_optimizer(model) else ""
    check(isinstance(model, nn.Module), "model", model, "a model (an nn.Module)", slip)
    slip = "are loss and optimizer exchanged?" if _is_optimizer(loss) else ""
    wanted = "a function of what the model returns and the target, or None where the model returns its loss"
    check(loss is None or (_is_function(loss) and not slip), "loss", loss, wanted, slip)
    slip = "give its .optimizer, and step it beside" if hasattr(optimizer, "optimizer") else ""
    wanted = "an optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1)"
    check(_is_optimizer(optimizer), "optimizer", optimizer, wanted, slip)
    updated = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    of_loss = isinstance(loss, nn.Module) and not updated.isdisjoint(map(id, loss.parameters()))
    slip = "are model and loss exchanged?" if of_loss else "was it made for another model, or for a copy of it?"
    shared = not updated.isdisjoint(map(id, model.parameters()))
    check(shared, "optimizer", optimizer, "made of the model's parameters, and has none of them", slip)
    if example and loss is not None and len(example) < 2:
        raise InvalidInput("the example must be the inputs and then the target")
    _check_example(model, example if loss is None else example[:-1])


def _check_example(function: Any, example: tuple[Any, ...]) -> None:
    for value in example:
        several = isinstance(value, DataLoader | Dataset | Iterator)
        check(not several, "example", value, "the arguments of one call", "give one batch of it")
    called = function.forward if isinstance(function, nn.Module) else function
    if not example or (isinstance(function, nn.Module) and function._forward_pre_hooks):  # which may change arguments
        return
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of what is not written in Python
        return
    try:
        signature.bind(*example)
    except TypeError as error:
        apart = "; give the arguments one by one, not as a tuple" if isinstance(example[0], tuple | list) else ""
        name = getattr(called, "__qualname__", type(function).__name__)
        raise InvalidInput(f"the example does not fit {name}: {error}{apart}") from None


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _is_optimizer(value: object) -> bool:
    """Whether it can be used as PyTorch's optimizers, as those that wrap one."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("param_groups", "step", "zero_grad"))
