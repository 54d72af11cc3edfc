"""Each program, function and kind of calls of a process is learned, whatever those before it have spent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import nn

import threadcast
from tests.runtime.compiled.running import perceptron, rows
from threadcast.runtime.calls.learned_calls import LearnedCalls
from threadcast.runtime.calls.shared_learning import budget
from threadcast.runtime.doors.compile_backend import compiled_graphs
from threadcast.runtime.doors.optimized_call import OptimizedCall
from threadcast.runtime.tuner.budget import RISES_S, START_S, PartBudget
from threadcast.runtime.tuner.events import RunStage
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is what may be spent without any share, and nothing comes in. A capture takes no time, so that further
    kinds of calls of microseconds are captured."""
    monkeypatch.setattr(LearnedCalls, "_captured_s", property(lambda calls: 0.0 if len(calls._table) else None))
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "0")
    budget(0.0).ran_eager(START_S * RISES_S)


def is_learned(call: Callable[[int], object], tunings: Callable[[], list[Tuning]]) -> bool:
    """Whether operators are looked at in some calls. What may be spent is spent then."""
    for number in range(40):
        call(number)
        for tuning in tunings():
            if isinstance(tuning.tournament.chosen, RunStage):
                spend_all(tuning)
                return True
    return False


def spend_all(tuning: Tuning) -> None:
    spent = tuning.budget._whole if isinstance(tuning.budget, PartBudget) else tuning.budget
    left_s = spent.left_s
    spent.charge(left_s)
    assert tuning.budget.left_s < 1e-6 < left_s


@torch.no_grad()
def test_three_programs_are_learned() -> None:
    for activation in (nn.Tanh(), nn.ReLU(), nn.Sigmoid()):
        model = torch.compile(nn.Sequential(perceptron(), activation), backend="threadcast")
        assert is_learned(lambda i, model=model: model(rows(i)), lambda: compiled_graphs()[-1]._table.tunings)  # type: ignore[misc]


def test_two_shapes_of_one_function_and_another_function_are_learned() -> None:
    for shapes in (2, 1):
        with closing(threadcast.optimize(perceptron())) as model:
            for shape in range(shapes):

                def call(i: int, model: OptimizedCall = model, shape: int = shape) -> object:
                    return model(rows(i)[0] if shape else rows(i))

                table = model._optimized._table
                assert is_learned(call, lambda table=table, shape=shape: table.tunings[shape:])  # type: ignore[misc]
