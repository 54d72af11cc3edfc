"""What `optimize` and `optimize_training` may be given: what cannot work is refused before anything is done."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from threadcast.core.arguments import check


def check_inference(function: Any, example: tuple[Any, ...]) -> None:
    """Raise InvalidInput for what is no function."""
    exchanged = "are model and example exchanged?" if any(isinstance(value, nn.Module) for value in example) else ""
    check(_is_function(function), "function", function, "a model (an nn.Module) or a function", exchanged)


def check_training(model: Any, loss: Any, optimizer: Any) -> None:
    """Raise InvalidInput for what is none of these, and warn of an optimizer of other parameters."""
    slip = "are model and optimizer exchanged?" if _is_optimizer(model) else ""
    check(isinstance(model, nn.Module), "model", model, "a model (an nn.Module)", slip)
    slip = "are loss and optimizer exchanged?" if _is_optimizer(loss) else ""
    wanted = "a function of what the model returns and the target, or None where the model returns its loss"
    check(loss is None or _is_function(loss), "loss", loss, wanted, slip)
    slip = "give its .optimizer, and step it beside" if hasattr(optimizer, "optimizer") else ""
    wanted = "an optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1)"
    check(_is_optimizer(optimizer), "optimizer", optimizer, wanted, slip)
    updated = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    of_loss = isinstance(loss, nn.Module) and not updated.isdisjoint(map(id, loss.parameters()))
    exchanged = isinstance(model, _Loss) and of_loss
    check(not exchanged, "model", model, "the model of the optimizer's parameters", "are model and loss exchanged?")
    if not of_loss and updated.isdisjoint(map(id, model.parameters())):
        text = "the optimizer has none of the model's parameters; was it made for another model, or for a copy of it?"
        warnings.warn(text, stacklevel=3)


def likely_slip(example: tuple[Any, ...]) -> str:
    """What may be wrong with the arguments of a call that failed, or of which nothing can be learned; else empty."""
    if any(isinstance(value, Optimizer) for value in example):
        return "for training there is optimize_training(model, loss, optimizer)"
    if any(isinstance(value, DataLoader | Dataset | Iterator) for value in example):
        return "an example is the arguments of one call: of what gives many batches, one batch"
    if example and isinstance(example[0], tuple | list):
        return "the arguments of an example are given one by one, not as a tuple: optimize(model, x)"
    return ""


def _is_function(value: object) -> bool:
    return callable(value) and not (isinstance(value, type) and issubclass(value, nn.Module | Optimizer))


def _is_optimizer(value: object) -> bool:
    """Whether it can be used as PyTorch's optimizers, as those that wrap one."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("param_groups", "step", "zero_grad"))
