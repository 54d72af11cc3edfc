"""What methods and properties of arguments' own classes read is watched, or calls with them run as PyTorch does."""

from __future__ import annotations

import enum
import itertools
import sys
from collections import namedtuple
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils import _pytree as pytree

import threadcast
from tests.runtime.watching.test_unnoticed_changes import follows
from threadcast.capture.guards.libraries import own_classes
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching import model as watched_model

pytestmark = pytest.mark.usefixtures("one_thread")

GAIN = 1.0
NUMBERS = itertools.count()
X = torch.ones(3)


class Batch(NamedTuple):
    """A tuple with a property that reads a global variable."""

    x: Tensor

    @property
    def scaled(self) -> Tensor:
        return self.x * GAIN


class Counted(NamedTuple):
    """As `Batch`, with a property that counts how often it was read."""

    x: Tensor
    read = 0

    @property
    def scaled(self) -> Tensor:
        type(self).read += 1
        return self.x * 2


class Numbered(NamedTuple):
    """As `Batch`, with a property that gives something else each time."""

    x: Tensor

    @property
    def scaled(self) -> Tensor:
        return self.x * next(NUMBERS)


@dataclass
class Pair:
    """Two tensors, known to `torch.utils._pytree`."""

    x: Tensor
    y: Tensor

    def total(self) -> Tensor:
        return self.x + self.y * GAIN


pytree.register_pytree_node(Pair, lambda pair: ([pair.x, pair.y], None), lambda parts, _: Pair(*parts))


class Level(int):
    """A number with an attribute of its class."""

    gain = 1.0


class Mode(enum.StrEnum):
    """Texts with an attribute."""

    WEAK = "weak"
    STRONG = "strong"

    def __init__(self, _: str) -> None:
        self.weight = 1.0


class Rounded(float):
    """A number that shows no digits."""

    def __repr__(self) -> str:
        return "about 1"


def scaled(batch: Any) -> Tensor:
    return batch * 2 if isinstance(batch, Tensor) else batch.scaled  # type: ignore[no-any-return]


def test_classes_of_libraries_are_no_own_ones() -> None:
    arguments = ([X, {"a": Batch(X)}, 1.0, torch.Size([1])], {"level": Level(1), "mode": Mode.WEAK})
    assert own_classes(arguments) == [Batch, Level, Mode]


@pytest.mark.parametrize(
    ("function", "arguments", "owner", "name", "value"),
    [
        pytest.param(scaled, (Batch(X),), None, "GAIN", 3.0, id="a tuple"),
        pytest.param(lambda pair: pair.total(), (Pair(X, X),), None, "GAIN", 3.0, id="a registered class"),
        pytest.param(lambda parts: parts["a"][0].scaled, ({"a": [Batch(X)]},), None, "GAIN", 3.0, id="within others"),
        pytest.param(scaled, (Batch(X),), Batch, "scaled", property(lambda self: self.x * 5), id="another method"),
        pytest.param(lambda x, level: x * level.gain, (X, Level(2)), Level, "gain", 3.0, id="of a class"),
        pytest.param(lambda x, mode: x * mode.weight, (X, Mode.WEAK), Mode.WEAK, "weight", 3.0, id="of an enumeration"),
    ],
)
def test_values_that_their_methods_read_are_watched(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], owner: Any, name: str, value: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    owner = sys.modules[__name__] if owner is None else owner
    follows(function, lambda: monkeypatch.setattr(owner, name, value), *arguments)


@pytest.mark.usefixtures("looks_run_steps")
def test_steps_notice_what_targets_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = threadcast.optimize_training(model, lambda out, target: mse_loss(out, target.scaled), optimizer, cores=1)
    with closing(step):
        for number in range(6):
            if number == 3:
                monkeypatch.setitem(globals(), "GAIN", 3.0)
            torch.testing.assert_close(step(X, Batch(X)), mse_loss(model(X), X * GAIN).detach())
        assert step.reports[0].reason == ""


def test_numbers_with_attributes_of_their_own_run_as_pytorch_does() -> None:
    with closing(threadcast.optimize(lambda x, level: x * level.gain, cores=1, backends=False)) as call:
        for _ in range(3):
            assert torch.equal(call(X, Level(2)), X)
        level = Level(2)
        level.gain = 3.0
        with pytest.warns(UserWarning, match="is a Level with attributes of its own"):
            assert torch.equal(call(X, level), X * 3)
        assert [report.reason for report in call.reports] == ["", "an argument is a Level with attributes of its own"]


def test_numbers_that_show_too_few_digits_are_told_apart() -> None:
    with closing(threadcast.optimize(lambda x, factor: x * factor, cores=1, backends=False)) as call:
        for factor in (1.0, 1.25, 1.0, 1.25, 1.25):
            assert torch.equal(call(X, Rounded(factor)), X * factor)
        assert [report.reason for report in call.reports] == ["", ""]


def test_what_a_property_sets_in_each_call_runs_as_pytorch_does() -> None:
    with closing(threadcast.optimize(scaled, cores=1, backends=False)) as call:
        Counted.read = 0
        with pytest.warns(UserWarning, match="Counted.read is set in every call"):
            found = [call(Counted(X)) for _ in range(4)]
        assert all(torch.equal(one, X * 2) for one in found)
        assert Counted.read == 4


def test_a_class_that_cannot_be_watched_leaves_calls_without_it_as_they_are() -> None:
    with closing(threadcast.optimize(scaled, cores=1, backends=False)) as call:
        for _ in range(3):
            assert torch.equal(call(X), X * 2)
        with pytest.warns(UserWarning, match="it reads a count, which gives another value each time"):
            found = [float(call(Numbered(X))[0]) for _ in range(4)]
        assert found == sorted(set(found))
        assert torch.equal(call(X), X * 2)
        assert [report.reason for report in call.reports][:1] == [""]
        assert call._optimized.prepare((X,), {}) is call._optimized._table.tunings[0]


def test_classes_that_are_made_anew_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_model, "MOST_CLASSES", 3)
    with closing(threadcast.optimize(lambda batch: batch.x * 2, backends=False, cores=1)) as call:
        for number in range(8):
            batch = namedtuple("batch", ["x"])(X * number)  # type: ignore[misc]
            for _ in range(3):
                assert call(batch).tolist() == [2.0 * number] * 3
            assert isinstance(call._optimized._last, Tuning)
            assert len(call._optimized._watch._classes) <= 3
