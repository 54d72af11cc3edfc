"""Calls that PyTorch runs in any case need no closer look for a while."""

from __future__ import annotations

import math
import warnings
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import nn

import threadcast
from threadcast.runtime.calls.left_alone import CALLS, SHORT_CALLS, CallsLeftAlone
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Observation


def call(*sizes: int, **named: object) -> tuple[Any, ...]:
    return (torch.zeros(*sizes),), named


@pytest.mark.parametrize(
    ("why", "calls", "alike", "other"),
    [
        ({"short": True}, SHORT_CALLS, [call(2, 3)], [call(3, 2), call(2), call(2, 3, more=1)]),
        ({}, CALLS, [call(2, 3)], [call(3, 2), call(2), call(2, 3, more=1)]),
        ({"varies": True}, CALLS, [call(2, 3), call(9, 9)], [call(2), call(2, 3, more=1)]),
        ({"looking": 0.1}, CALLS, [call(2, 3)], [call(3, 2)]),
        ({"looking": 0.5}, 50, [call(2, 3)], [call(3, 2)]),
        ({"looking": 100.0}, SHORT_CALLS, [call(2, 3)], [call(3, 2)]),
        ({"looking": math.inf}, SHORT_CALLS, [call(2, 3)], [call(3, 2)]),
        ({"looking": math.nan}, SHORT_CALLS, [call(2, 3)], [call(3, 2)]),
    ],
)
def test_the_next_calls_that_look_alike_are_left_alone(
    why: dict[str, Any], calls: int, alike: list[tuple[Any, ...]], other: list[tuple[Any, ...]]
) -> None:
    left_alone = CallsLeftAlone()
    assert not left_alone.has(call(2, 3))
    left_alone.after(call(2, 3), **why)
    assert left_alone.short == ("short" in why)
    for _ in range(calls):
        assert all(map(left_alone.has, alike))
        assert not any(map(left_alone.has, other))
        left_alone.count()
    assert not any(map(left_alone.has, alike))


def test_calls_that_pytorch_runs_fastest_are_left_alone_and_counted_as_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(threadcast.optimize(lambda x: x * 2 + 1, backends=False)) as call:
        optimized, x = call._optimized, torch.ones(64, 64)
        call(x)
        monkeypatch.setattr(Tuning, "leaves_alone", lambda self, looking_s: looking_s > 0)
        for _ in range(100):
            call(x)
            if optimized._left_alone.has(((x,), {})):
                break
        before_s = optimized._budget.spent_s
        assert call(x).equal(x * 2 + 1)
        assert optimized._budget.spent_s > before_s
        assert call(torch.ones(3)).equal(torch.ones(3) * 2 + 1)


def test_nested_tensors_run_as_pytorch_does() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that its nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with closing(threadcast.optimize(doubled, backends=False)) as call:
        for _ in range(30):
            call(torch.ones(3))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = call(nested)
        assert [part.tolist() for part in found.unbind()] == [[2.0] * 2, [2.0] * 3]
        assert any("nested tensor" in str(warning.message) for warning in said)


@pytest.mark.usefixtures("one_thread", "plans_win")
def test_a_change_before_a_call_that_is_left_alone_is_seen() -> None:
    """The format of the model is put back for such a call: what has changed before must not hide behind that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()
    large, small = torch.randn(4, 3, 16, 16), torch.randn(1, 3, 8, 8)
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        for _ in range(200):
            call(large)
        assert call.reports[0].runs == "plan"
        optimized = call._optimized
        optimized._left_alone.after(((small,), {}))
        optimized._format.set(MemoryFormat.CHANNELS_LAST)  # as a plan in channels last leaves it
        model[2].weight = nn.Parameter(3 * model[2].weight.detach())
        torch.testing.assert_close(call(small), model(small))
        torch.testing.assert_close(call(large), model(large))


@pytest.mark.parametrize("why", ["hooks", "a number that is read"])
@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_looks_at_calls_that_are_left_to_pytorch_come_ever_later(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = nn.functional.linear(x, self.weight, self.bias)
            return found + 1 if why != "hooks" and found.sum().item() > 1e9 else found

    model, looks = Net(4, 4), 0
    hook = model.register_forward_hook(lambda *_: None) if why == "hooks" else None
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 4)
    with closing(threadcast.optimize_training(model, nn.functional.mse_loss, optimizer, cores=1)) as step:
        observe = step._optimized._watch.observe

        def counted() -> Observation:
            nonlocal looks
            looks += 1
            return observe()

        monkeypatch.setattr(step._optimized._watch, "observe", counted)
        for _ in range(1_000):
            step(x, x)
        assert looks <= 12
        assert "default" in str(step)
        if hook is not None:
            hook.remove()
            for _ in range(1_500):
                step(x, x)
            assert "there are hooks" not in str(step)
