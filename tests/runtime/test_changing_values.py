"""Python values that change from call to call: PyTorch runs the calls, and the reason names the value."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")

CALLS = 0
STATS: dict[str, Any] = {"seen": [0], "total": 0}


class Block(nn.Module):
    """Does something beside its product, and multiplies by what `tau` is."""

    def __init__(self, does: Callable[[Any], object]) -> None:
        super().__init__()
        self.layer, self.does = nn.Linear(3, 3).double(), does
        self.steps, self._hidden, self.tau = 0, 0, 1.0
        self.seen: list[int] = []
        self.info: dict[str, Any] = {"calls": 0, "nested": {"sizes": [0]}}
        self.config = SimpleNamespace(factor=1.0)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.does(self)
        read = self.steps, self._hidden, self.seen, self.info, self.last
        found: Tensor = self.layer(x) * self.tau * self.config.factor
        return found if read else x

    @property
    def values(self) -> tuple[Any, ...]:
        """All Python values that a call changes."""
        return self.steps, self._hidden, self.tau, self.seen, self.info, self.config.factor


def _set(name: str, value: Callable[[Any], Any]) -> Callable[[Any], object]:
    return lambda block: setattr(block, name, value(getattr(block, name)))


def count_globally(_: Any) -> None:
    global CALLS
    CALLS += 1


def count_in_a_global_dictionary(_: Any) -> None:
    STATS["total"] += 1


def grow_a_global_list(_: Any) -> None:
    STATS["seen"].append(1)


def closure() -> Callable[[Any], object]:
    counted = 0

    def count(_: Any) -> None:
        nonlocal counted
        counted += 1

    return count


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a counter": (_set("steps", lambda n: n + 1), "Block.steps"),
    "a private counter": (_set("_hidden", lambda n: n + 1), "Block._hidden"),
    "a factor": (_set("tau", lambda n: n * 0.999), "Block.tau"),
    "a list that grows": (lambda block: block.seen.append(1), "Block.seen"),
    "a dictionary": (lambda block: block.info.update(calls=block.info["calls"] + 1), "Block.info['calls']"),
    "a nested list": (lambda block: block.info["nested"]["sizes"].append(2), "Block.info['nested']['sizes']"),
    "a configuration": (lambda block: setattr(block.config, "factor", block.config.factor * 0.9), "config.factor"),
    "a tensor": (lambda block: setattr(block, "last", torch.ones(1)), "Block.last"),
    "a global variable": (count_globally, f"{__name__}.CALLS"),
    "a global dictionary": (count_in_a_global_dictionary, f"{__name__}.STATS['total']"),
    "a global list": (grow_a_global_list, f"{__name__}.STATS['seen']"),
    "a closure's variable": (closure(), "counted (a variable of count)"),
}


def numbers(seed: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def settled_on_pytorch(one: Any, name: str) -> None:
    assert not one.learning
    assert one.reports[0].runs == "default"
    assert name in one.reports[0].reason
    assert name in repr(one)


@pytest.mark.parametrize("nested", [False, True], ids=["model", "submodule"])
@pytest.mark.parametrize(("does", "name"), CHANGES.values(), ids=list(CHANGES))
def test_a_value_that_each_call_changes_is_left_to_pytorch_after_ten_calls(
    does: Callable[[Any], object], name: str, nested: bool
) -> None:
    block = Block(does)
    model: Any = nn.Sequential(nn.Linear(3, 3).double(), block).eval() if nested else block.eval()
    eager = copy.deepcopy(model)
    of_eager = eager[1] if nested else eager
    name = name.replace("Block.", "Sequential.1.") if nested else name
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():

        def both(seeds: Iterable[int]) -> None:
            for seed in seeds:
                torch.testing.assert_close(call(numbers(seed)), eager(numbers(seed)))

        with pytest.warns(UserWarning, match=re.escape(name)):
            both(range(10))
        settled_on_pytorch(call, name)
        both(range(10, 30))
        settled_on_pytorch(call, name)
    assert block.values == of_eager.values


def test_a_value_that_changes_rarely_hinders_no_plan() -> None:
    model = Block(bool).eval()
    with (
        closing(threadcast.optimize(model, cores=1, backends=False)) as call,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        planned = 0
        for step in range(1000):
            model._hidden, model.tau = step // 100, 1.0 + step // 100
            torch.testing.assert_close(call(numbers(step)), model(numbers(step)))
            planned += isinstance(call._optimized._last, Tuning)
        assert planned > 900


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model, step: setattr(model, "epoch", step), id="a number that no code reads"),
        pytest.param(lambda model, step: setattr(model[0], "name", f"{step}"), id="a text that no code reads"),
        pytest.param(lambda model, step: model.train(step % 2 == 0), id="the mode"),
        pytest.param(lambda model, step: setattr(model[1], "tau", 1.0 + step % 3), id="one of three numbers"),
    ],
)
def test_what_is_only_assigned_or_has_few_values_hinders_no_plan(change: Callable[[Any, int], object]) -> None:
    model = nn.Sequential(nn.Linear(3, 3).double(), Block(bool))
    with (
        closing(threadcast.optimize(model, cores=1, backends=False)) as call,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for step in range(20):
            change(model, step)
            torch.testing.assert_close(call(numbers(step)), model(numbers(step)))
        assert isinstance(call._optimized._last, Tuning)
        assert {report.reason for report in call.reports} == {""}


class Remembers(nn.Module):
    """Keeps what it saw of its input, which is equal in all calls of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.shape, self._name = 0, torch.Size(()), ""

    def forward(self, x: Tensor) -> Tensor:
        self.size, self.shape, self._name = x.numel() * 1000, x.shape, f"of {x.dim()} dimensions"
        return x * 2


def test_equal_values_that_each_call_assigns_hinder_no_plan() -> None:
    model = Remembers()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call:
        for step in range(12):
            x = numbers(step)[: 2 if step in (4, 5, 6) else 4]
            torch.testing.assert_close(call(x), x * 2)
            assert (model.size, model.shape) == (x.numel() * 1000, x.shape)
        assert isinstance(call._optimized._last, Tuning)
