"""What cannot be captured or measured runs as PyTorch does, and says why."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import threadcast
from tests.runtime.small_training import batch, same_state, train_eagerly
from tests.runtime.taken_turn import Taken
from threadcast.capture.guards import one_capture
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.runtime.calls.fallback import Fallback, FirstCall
from threadcast.runtime.calls.shared_learning import budget
from threadcast.runtime.doors import optimized_call
from threadcast.runtime.tuner.looks import Looks
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


def by_data(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_control_flow_by_data_runs_as_before_and_says_so_once() -> None:
    with closing(threadcast.optimize(by_data)) as call:
        with pytest.warns(UserWarning, match="as PyTorch does: cannot capture"):
            assert call(torch.ones(20)).tolist() == [2] * 20
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call(-torch.ones(20)).tolist() == [-1] * 20
        assert call.reports[0].runs == "default"


@pytest.mark.parametrize(
    ("argument", "reason"), [(torch.ones(2, requires_grad=True), "requires a gradient"), ([{1}], "is a set")]
)
def test_arguments_that_cannot_be_captured_run_as_before(argument: Any, reason: str) -> None:
    call = threadcast.optimize(lambda x: x)
    with pytest.warns(UserWarning, match=reason):
        assert call(argument) is argument


def test_what_fails_while_measuring_leaves_steps_as_they_were(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Looks) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Looks, "open", fails)
    step, mine, _, eager, eager_optimizer = trained
    for seed in range(4):
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
    same_state(mine, eager)
    assert (step.reports[0].runs, step.reports[0].reason) == ("default", "no space left")


def runner(call: Any, x: Tensor) -> Tuning | Fallback | FirstCall:
    """What would run a call with `x`."""
    return call._optimized.prepare((x,), {})


@pytest.mark.filterwarnings("error")
def test_each_kind_is_captured_at_its_second_call_however_many_there_are() -> None:
    x = torch.arange(3.0)
    with closing(threadcast.optimize(lambda x, factor: x * factor + factor)) as call:
        for some in (range(1, 8), range(8, 15), range(15, 21)):
            for number in (*some, *some):
                torch.testing.assert_close(call(x, 0.5 * number), x * 0.5 * number + 0.5 * number)
        assert len(call.reports) == 20


def test_kinds_make_room_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_MOST_BYTES", "100000")
    model = nn.Linear(3, 3)
    with closing(threadcast.optimize(model)) as call:
        for rows in range(1, 11):
            for _ in range(2):
                x = torch.ones(rows, 3)
                torch.testing.assert_close(call(x), model(x))
        assert 1 <= len(call.reports) < 10
        assert isinstance(call._optimized._found(((x,), {})), Tuning), "the last kind stays"


def test_a_call_whose_capture_gets_no_turn_runs_as_pytorch_and_a_later_one_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(*_: object, **__: object) -> Any:
        raise NoTurn("cannot capture: other threads were capturing")

    x = torch.ones(20)
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(optimized_call, "capture_forward", waits)
            assert isinstance(runner(call, x), FirstCall)
            assert call(x).tolist() == [2] * 20
        assert isinstance(runner(call, x), Tuning)
        assert call(x).tolist() == [2] * 20


def test_calls_run_as_pytorch_while_another_thread_captures_and_only_learning_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "0.05")
    x, turn = torch.ones(20), Taken()
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(one_capture, "_turn", turn)
            assert call(x).tolist() == [2] * 20
            assert turn.waits_s == [0.0]
            assert call.learning
            with call._optimized.hurry():
                assert call(x).tolist() == [2] * 20
            assert turn.waits_s == [0.0, one_capture.WAIT_S]
        assert call(x).tolist() == [2] * 20
        assert isinstance(call._optimized._last, Tuning)


def test_models_that_learn_at_the_same_time_leave_the_share_of_parts_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "0.05")
    with closing(threadcast.optimize(lambda x: x * 2)) as one, closing(threadcast.optimize(lambda x: x + 1)) as other:
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(one._optimized.hurry())
            second.enter_context(other._optimized.hurry())
            first.close()
        assert not budget(0.05).unlimited


class Symmetric(nn.Module):
    """A parametrization: a matrix that is symmetric."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def test_weights_that_pytorch_keeps_for_several_calls_are_in_no_graph() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 3).eval(), torch.ones(2, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        with parametrize.cached():
            with pytest.warns(UserWarning, match="parametrize.cached"):
                before = call(x)
            for _ in range(5):
                torch.testing.assert_close(call(x), before)
                model.parametrizations.weight.original.add_(1.0)  # type: ignore[union-attr, operator]
            assert type(model.weight) is Tensor, "no fake tensor is kept"
        for _ in range(10):
            torch.testing.assert_close(call(x), model(x))
            model.parametrizations.weight.original.add_(1.0)  # type: ignore[union-attr, operator]
        assert isinstance(call._optimized._last, Tuning)


@pytest.mark.usefixtures("plans_win")
@pytest.mark.filterwarnings("ignore:threadcast runs", "ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_trace_has_what_pytorch_runs() -> None:
    weight, x, other = torch.randn(8, 8), torch.randn(5, 8), torch.randn(5, 8)

    def function(x: Tensor) -> Tensor:
        return (x @ weight).relu() + (x * 2).sin()

    with closing(threadcast.optimize(function, backends=False)) as call, torch.no_grad():
        for _ in range(50):
            call(x)
        assert call.reports[0].runs == "plan"
        traced = torch.jit.trace(lambda x: call(x), (x,), check_trace=False)
        torch.testing.assert_close(traced(other), function(other))
        assert call.reports[0].runs == "plan"
