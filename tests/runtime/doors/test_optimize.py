"""Optimised calls and steps do what the model does, from the first call to the settled one."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import threadcast
from tests.runtime.small_training import batch, net, run_until_settled, same_state, sgd, train_eagerly
from tests.waiting import attempts
from threadcast.core.errors import InvalidInput
from threadcast.runtime.tuner.events import Staged

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


def test_every_step_from_the_first_to_the_settled_trains_as_eager_does(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    names = [id(parameter) for parameter in mine.parameters()]

    def train(seed: int) -> None:
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)

    run_until_settled(step, train)
    assert step.reports[0].plan is not None
    predicted = set(step.reports[0].predicted_s)
    assert predicted
    assert predicted <= {"as given", "channels last"}
    same_state(mine, eager)
    assert [id(parameter) for parameter in mine.parameters()] == names
    step.close()
    assert [p.stride() for p in mine.parameters()] == [p.stride() for p in eager.parameters()]
    same_state(mine, eager)


def test_kinds_of_arguments_that_alternate_do_not_disturb_each_others_memory_format(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained

    def train(seed: int) -> None:
        x, y = batch(seed, 4 if seed % 3 else 7)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)

    run_until_settled(step, train)
    same_state(mine, eager)
    assert len(step.reports) == 2


def test_dropout_is_reproducible_and_differs_from_step_to_step() -> None:
    with closing(threadcast.optimize(lambda x: dropout(x, 0.5))) as call:
        x = torch.ones(64)
        torch.manual_seed(4)
        first, second = call(x), call(x)
        torch.manual_seed(4)
        assert torch.equal(call(x), first)
        assert not torch.equal(first, second)
        assert set(first.tolist()) == {0.0, 2.0}


def test_inference_takes_keywords_and_nested_values_and_a_change_of_parameters() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, pair: dict[str, Tensor], *, factor: float = 1.0) -> dict[str, Any]:
            return {"sum": (pair["a"] + pair["b"]) * self.scale * factor, "list": [pair["a"], None, factor]}

    model = Nested()
    pair = {"a": torch.ones(3), "b": torch.arange(3.0)}
    with closing(threadcast.optimize(model, backends=False)) as call:
        assert call(pair)["sum"].tolist() == [1, 2, 3]
        found = call(pair, factor=2.0)
        assert found["sum"].tolist() == [2, 4, 6]
        assert found["list"][1:] == [None, 2.0]
        with torch.no_grad():
            model.scale.mul_(3)
        assert call(pair)["sum"].tolist() == [3, 6, 9]
        model.scale = nn.Parameter(torch.zeros(3))
        assert call(pair)["sum"].tolist() == [0, 0, 0]


@pytest.mark.usefixtures("plans_win")
def test_a_detached_parameter_is_a_result_without_a_gradient_in_the_parameters_memory() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            return self.layer(x), {"scale": self.scale.detach(), "weight": self.layer.weight.detach().t()}

    model = Scaled().eval()
    with closing(threadcast.optimize(model, cores=1, backends=False).learn(torch.ones(2, 3))) as call:
        assert call.reports[0].runs == "plan"
        y, found = call(torch.ones(2, 3))
        assert not (y * found["scale"]).requires_grad
        found["scale"].mul_(2)
        found["weight"].zero_()
        assert model.scale.tolist() == [2, 2, 2]
        assert not model.layer.weight.any()


def test_numbers_that_are_read_as_their_conjugates_are_another_kind_of_argument() -> None:
    def parts(z: Tensor) -> Tensor:
        return z.real * 2 + z.imag

    z = torch.randn(6, dtype=torch.complex64)
    with closing(threadcast.optimize(parts, backends=False)) as call:
        for _ in range(20):
            torch.testing.assert_close(call(z), parts(z))
            torch.testing.assert_close(call(z.conj()), parts(z.conj()))
        assert [report.reason for report in call.reports] == ["", ""]


@pytest.mark.usefixtures("planned_at_once")
def test_a_step_learns_from_before_its_first_call_until_nothing_is_left_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "1")
    model = net()
    with closing(threadcast.optimize_training(model, cross_entropy, sgd(model))) as step:
        learning = [step.learning]
        for _ in attempts():
            step(*batch(0))
            learning.append(step.learning)
            if not learning[-1]:
                break
        assert learning == [True] * (len(learning) - 1) + [False]
        assert step.reports[0].runs != "measuring"


def test_a_model_that_fails_channels_last_is_planned_as_it_is() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolve = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolve(x).view(len(x), -1)

    model, x = Viewed().eval(), torch.ones(2, 3, 8, 8)
    with closing(threadcast.optimize(model, backends=False).learn(x)) as call:
        assert (call.reports[0].reason, set(call.reports[0].predicted_s)) == ("", {"as given"})
        torch.testing.assert_close(call(x), model(x))


def test_a_model_without_shapes_must_be_called_before() -> None:
    with pytest.raises(InvalidInput, match="call it once"):
        threadcast.optimize(nn.LazyLinear(3))


def test_a_model_that_has_its_optimised_self_as_an_attribute_is_collected() -> None:
    model = net()
    model.fast = threadcast.optimize_training(model, cross_entropy, sgd(model), *batch(0))
    for seed in range(3):
        model.fast(*batch(seed))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_an_error_comes_back_and_the_next_step_works(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    x, y = batch(0)
    with pytest.raises(IndexError, match="out of bounds"):
        step(x, y + 100)
    mine.load_state_dict(eager.state_dict())
    torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("plans_win")
def test_classes_out_of_range_raise_what_eager_pytorch_raises(one_thread: None) -> None:
    x = torch.tensor([0, 3, 1])

    def function(x: Tensor) -> Tensor:
        return nn.functional.one_hot(x, 4) * 2

    with closing(threadcast.optimize(function, backends=False)) as call:
        run_until_settled(call, lambda _: call(x))
        assert call.reports[0].runs == "plan"
        with pytest.raises(RuntimeError, match="must be smaller than num_classes"):
            call(x + 1)
        assert torch.equal(call(x), function(x))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_of_what_is_optimised_is_refused_with_what_to_copy_instead(copied: Any) -> None:
    model = nn.Linear(2, 2)
    step = threadcast.optimize_training(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    for optimised in (threadcast.optimize(model), step):
        with pytest.raises(TypeError, match=r"Copy the model \(copy.deepcopy\)"):
            copied(optimised)


@pytest.mark.parametrize("way", ["plan", "verified"])
def test_gradients_of_parameters_that_are_not_the_optimizers_add_up_as_eagers(
    way: str, plans_win: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "3" if way == "verified" else "0")
    mine, eager = net(), net()
    optimizers = [torch.optim.SGD(model.out.parameters(), lr=0.05, momentum=0.9) for model in (mine, eager)]

    def train(seed: int) -> None:
        mine.out.weight.grad = torch.ones_like(mine.out.weight)  # which a step drops
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, optimizers[1], x, y), rtol=1e-8, atol=1e-10)
        for name, parameter in mine.named_parameters():
            assert (parameter.grad is None) == name.startswith("out."), name
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, eager.get_parameter(name).grad, rtol=1e-8, atol=1e-10)

    with closing(threadcast.optimize_training(mine, cross_entropy, optimizers[0])) as step:
        run_until_settled(step, train)
        assert step.reports[0].runs == "plan"
        for seed in range(6):
            train(seed)
    same_state(mine, eager)


@pytest.mark.usefixtures("plans_win")
def test_calls_of_other_shapes_begin_with_the_plan_of_those_known_without_looks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        first, second = torch.randn(5, 8), torch.randn(3, 8)
        run_until_settled(call, lambda _: torch.testing.assert_close(call(first), model(first)))
        assert call.reports[0].runs == "plan"
        for _ in range(30):
            torch.testing.assert_close(call(second), model(second))
        assert [report.runs for report in call.reports] == ["plan", "plan"]
        assert call.reports[1].plan == call.reports[0].plan
        log = call._optimized._table.tunings[1].tournament.log
        assert not any(isinstance(event, Staged) for event in log), "nothing was measured for it"
