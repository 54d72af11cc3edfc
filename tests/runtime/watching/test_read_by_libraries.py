"""Methods and attributes that only code of libraries reads, of users' classes and layers, are watched."""

from __future__ import annotations

import threading
import unittest
from collections import UserDict
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from tests.runtime.watching.test_called_by_pytorch import is_noticed
from tests.runtime.watching.test_unnoticed_changes import follows
from threadcast.capture.guards.python_state import PythonState

pytestmark = pytest.mark.usefixtures("one_thread")

GAIN = 1.0


class Scaling:
    """The method of a convolution, in a class that knows nothing of PyTorch."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = super()._conv_forward(x, weight * GAIN * self._factor, bias)  # type: ignore[misc]
        return found


class Scaled(Scaling, nn.Conv2d):
    """Standardises its weights in a method that only PyTorch calls, as many models do."""

    def __init__(self) -> None:
        super().__init__(1, 1, 1)
        self._factor = 1.0


class Block(nn.TransformerEncoderLayer):
    """Scales what its second half adds."""

    def _ff_block(self, x: Tensor) -> Tensor:
        return super()._ff_block(x) * GAIN


class Inner(nn.Module):
    """A user's layer, of which PyTorch calls nothing but `forward`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


IMAGE, SEQUENCE = torch.ones(1, 1, 8, 8), torch.linspace(0, 1, 16).reshape(1, 4, 4)


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_globals_of_a_method_that_only_pytorch_calls_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, x in ((Scaled(), IMAGE), (Inner(Block(4, 2, 8, dropout=0.0, batch_first=True)), SEQUENCE)):
        monkeypatch.setitem(globals(), "GAIN", 1.0)
        follows(model, lambda: monkeypatch.setitem(globals(), "GAIN", 0.5), x)


def test_attributes_of_a_method_that_only_pytorch_calls_are_watched() -> None:
    model = Scaled()
    follows(model, lambda: setattr(model, "_factor", 3.0), IMAGE)


def test_a_method_that_only_pytorch_calls_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def tripled(self: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.conv2d(x, weight * 3, bias)

    model = Inner(nn.Conv2d(1, 1, 1))
    follows(model, lambda: setattr(model.layer, "_conv_forward", tripled.__get__(model.layer)), IMAGE)
    scaled = Scaled()
    follows(scaled, lambda: monkeypatch.setattr(Scaling, "_conv_forward", tripled), IMAGE)
    follows(Inner(nn.Conv2d(1, 1, 1)), lambda: monkeypatch.setattr(nn.Conv2d, "_conv_forward", tripled), IMAGE)


def test_what_a_replaced_method_reads_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forward", "_conv_forward"):
        layer = nn.Conv2d(1, 1, 1)
        before = getattr(layer, name)

        def scaled(*arguments: Any, before: Callable[..., Any] = before) -> Any:
            return before(*arguments) * GAIN

        setattr(layer, name, scaled)
        monkeypatch.setitem(globals(), "GAIN", 1.0)
        follows(Inner(layer), lambda: monkeypatch.setitem(globals(), "GAIN", 0.5), IMAGE)


class Multiplied(torch.autograd.Function):
    """Multiplies by a global variable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * GAIN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * GAIN


class Multiplying:
    """As `Multiplied`, an object."""

    def __call__(self, x: Tensor, *others: Any) -> Tensor:
        return x * GAIN

    def called(self, x: Tensor, *others: Any) -> Tensor:
        return x * GAIN


@wraps(nn.functional.relu)
def multiplied(x: Tensor, *others: Any) -> Tensor:
    return x * GAIN


REPLACEMENTS: dict[str, Any] = {
    "function": multiplied, "partial": partial(multiplied), "partial of a library's": partial(map, multiplied),
    "autograd function": Multiplied.apply, "object": Multiplying(), "bound method": Multiplying().called,
    "static method": staticmethod(multiplied),
}  # fmt: skip


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_what_stands_in_place_of_a_librarys_function_is_followed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gain(value: float) -> Callable[[], None]:
        return lambda: monkeypatch.setitem(globals(), "GAIN", value)

    layer = nn.Conv2d(1, 1, 1)
    vars(layer)["_conv_forward"] = REPLACEMENTS[kind]
    assert is_noticed(Inner(layer), gain(0.5))
    monkeypatch.setattr(nn.functional, "relu", REPLACEMENTS[kind])
    assert is_noticed(lambda x: nn.functional.relu(x), gain(0.25))
    monkeypatch.setattr(nn.Linear, "forward", REPLACEMENTS[kind])
    assert is_noticed(nn.Linear(1, 1), gain(0.125))


def test_a_list_of_numbers_that_only_pytorch_reads_is_watched() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    padding = list(layer._reversed_padding_repeated_twice)  # a tuple in some releases of PyTorch
    layer._reversed_padding_repeated_twice = padding  # type: ignore[assignment]
    follows(layer, lambda: padding.__setitem__(0, 0), IMAGE)


class Schedule(LRScheduler):
    """A schedule of the user's own."""

    def get_lr(self) -> list[float]:
        return [0.5 for _ in self.base_lrs]


class Settings(UserDict[str, float]):
    """Settings that a class of the standard library holds."""


def test_attributes_that_methods_of_libraries_read_are_watched() -> None:
    settings = Settings(gain=1.0)
    assert is_noticed(lambda x: x * settings["gain"], lambda: settings.update(gain=3.0))


def test_a_schedule_of_the_users_own_is_refused() -> None:
    schedule = Schedule(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    assert PythonState([lambda x: x * schedule.get_last_lr()[0]]).unwatchable is not None


class Case(unittest.TestCase):
    """A test whose function reads an attribute of it."""

    gain = 1.0

    def look(self) -> None:
        self.watched = PythonState([lambda x: x * self.gain])
        assert self.watched.unwatchable is None


class Worker(threading.Thread):
    """A thread of the user's own."""

    gain = 1.0


def test_what_runs_tests_and_threads_is_not_looked_at() -> None:
    case, result = Case("look"), unittest.TestResult()
    case.run(result)
    assert result.wasSuccessful()
    assert case.watched.changed() is None
    case.gain = 2.0
    assert case.watched.changed() is not None

    worker = Worker()
    state = PythonState([lambda x: x * worker.gain])
    worker.start()
    worker.join()
    assert (state.unwatchable, state.changed()) == (None, None)
    worker.gain = 2.0
    assert state.changed() is not None
