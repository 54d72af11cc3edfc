"""Learning from the example of a training step changes nothing that a program can see; the first step is as if new."""

from __future__ import annotations

import copy
import math
import random
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import mse_loss
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR

import threadcast
from tests.runtime.failing_op import at_checkpoints, checkpoint
from threadcast.runtime.doors.own_calls import OwnCalls

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:threadcast runs this as")]


class Small(nn.Module):
    """Parameters, running means, random numbers, and a parameter that is not used.

    A bias in front of the norm would have a gradient of rounding alone, of which Adam makes whole steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)
        )
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(checkpoint(x))
        return found


X, TARGET = torch.rand(6, 8), torch.rand(6, 2)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(value: Any) -> Any:
    """A value in which tensors are replaced by their bits, and what has an identity by that."""
    if isinstance(value, Tensor):
        return id(value), value.dtype, value.stride(), value.detach().clone().view(BITS[value.element_size()]).tolist()
    if isinstance(value, dict):
        return type(value), [(bits(key), bits(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), list(map(bits, value))
    return repr(value)


def seen(model: nn.Module, optimizer: Optimizer, *others: Any) -> Any:
    """All that a step may change, bit by bit."""
    hooks = "_optimizer_state_dict_pre_hooks"
    held = [{name: one for name, one in vars(of).items() if name != hooks} for of in (optimizer, *others)]
    attributes = [{k: v for k, v in vars(part).items() if not k.startswith("_")} for part in model.modules()]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
    return bits([held, attributes, model.state_dict(keep_vars=True), gradients]), repr(drawn)


MADE: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "dampening": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda model: Adam(model.parameters(), amsgrad=True),
    "AdamW": lambda model: AdamW(model.parameters(), lr=torch.tensor(0.01)),
    "RMSprop": lambda model: RMSprop(model.parameters()),
    "Adagrad": lambda model: Adagrad(model.parameters()),
}


def train(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None = None, *, parts: int = 1) -> Tensor:
    """A step as a loop of PyTorch makes it."""
    optimizer.zero_grad()
    for _ in range(parts):
        loss = mse_loss(model(X), TARGET)
        part = loss if parts == 1 else loss / parts
        torch.autograd.backward(part if scaler is None else scaler.scale(part))
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_bits_are_as_before_and_the_first_steps_are_pytorchs(name: str, begun: bool) -> None:
    torch.manual_seed(0)
    model = Small()
    optimizer = MADE[name](model)
    if begun:
        train(model, optimizer)
        for one in model.parameters():
            one.grad = torch.full_like(one, 2.0)
    twin, twins = copy.deepcopy((model, optimizer))
    before = seen(model, optimizer)
    with closing(threadcast.optimize_training(model, mse_loss, optimizer, (X, TARGET), seconds=0.5)) as step:
        assert seen(model, optimizer) == before
        assert step._optimized.tuning is not None
        assert step._optimized.tuning.gain_left < math.inf
        for _ in range(3):
            state = torch.get_rng_state()
            found = step(X, TARGET)
            torch.set_rng_state(state)
            wanted = train(twin, twins)  # a plan's operators may add up on other numbers of threads
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(model.state_dict(), twin.state_dict())
            torch.testing.assert_close(optimizer.state_dict()["state"], twins.state_dict()["state"])


@pytest.mark.parametrize(
    "options", [{"accumulate": 3}, {"keep_grads": True}, {"scaler": True}, {"clip_grad_norm": 0.5}, {"schedule": True}]
)
def test_what_else_a_step_does_is_set_back_too(options: dict[str, Any]) -> None:
    model = Small()
    optimizer = Adam(model.parameters(), lr=0.1)
    others: list[Any] = [StepLR(optimizer, 1)] if options.pop("schedule", False) else []
    if options.pop("scaler", False):
        others = [options.setdefault("scaler", GradScaler("cpu", init_scale=8.0, growth_interval=1))]
    before = seen(model, optimizer, *others)
    with closing(threadcast.optimize_training(model, mse_loss, optimizer, X, TARGET, seconds=0.5, **options)) as step:
        assert seen(model, optimizer, *others) == before
        assert step._update.pending == 0
        assert step._optimized.tuning is not None
        assert step._optimized.tuning.gain_left < math.inf


class Breaks:
    """What breaks a step off in its call with this number, and in later ones."""

    def __init__(self, number: int, error: type[BaseException]) -> None:
        self._left, self._error = number, error

    def __call__(self, _: Tensor) -> None:
        self._left -= 1
        if self._left <= 0 and self._error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        elif self._left <= 0:
            raise self._error("in the midst")


@pytest.mark.parametrize(
    ("error", "within"), [(ValueError, False), (KeyboardInterrupt, False), (KeyboardInterrupt, True)]
)
@pytest.mark.parametrize("number", [1, 4])
def test_what_breaks_off_in_the_midst_is_raised_and_all_is_as_before(
    number: int, error: type[BaseException], within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`within`: one more signal comes while all is set back."""
    model = Small()
    optimizer = MADE["Adam"](model)
    train(model, optimizer)
    before, handler = seen(model, optimizer), signal.getsignal(signal.SIGINT)
    set_back = OwnCalls.set_back

    def interrupted(own: OwnCalls) -> None:
        if within:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        set_back(own)

    monkeypatch.setattr(OwnCalls, "set_back", interrupted)
    with at_checkpoints(Breaks(number, error)), pytest.raises(KeyboardInterrupt if within else error):
        threadcast.optimize_training(model, mse_loss, optimizer, X, TARGET)
    assert seen(model, optimizer) == before
    assert signal.getsignal(signal.SIGINT) is handler


class Foreign(SGD):
    """An optimizer that keeps what it likes."""

    made = 0

    def step(self, closure: Any = None) -> Any:
        type(self).made += 1
        return super().step(closure)


def _hooked(model: nn.Module) -> Optimizer:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(_counts)
    return optimizer


def _counts(*_: object) -> None:
    raise AssertionError("a step was made")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda model: Foreign(model.parameters(), lr=0.1), "what a step of Foreign changes"),
        (lambda model: LBFGS(model.parameters()), "what a step of LBFGS changes"),
        (_hooked, "hooks on the optimizer"),
    ],
)
def test_what_cannot_be_set_back_is_only_captured_and_told_once(make: Any, said: str) -> None:
    model = Small()
    optimizer = make(model)
    before = seen(model, optimizer)
    with pytest.warns(UserWarning, match=f"only captures the step of this example.*{said}") as told:
        threadcast.optimize_training(model, mse_loss, optimizer, X, TARGET).close()
    assert len(told) == 1
    assert seen(model, optimizer) == before
    assert Foreign.made == 0


def test_a_model_with_hooks_is_not_called() -> None:
    model = Small()
    model.layers.register_forward_hook(_counts)
    with closing(threadcast.optimize_training(model, mse_loss, SGD(model.parameters()), X, TARGET)) as step:
        assert "hooks on module Sequential" in step.reports[0].reason
    with pytest.warns(UserWarning, match="learns nothing from this example: there are hooks on module Sequential"):
        threadcast.optimize(model.eval(), X).close()
