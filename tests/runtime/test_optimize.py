"""Optimised calls and steps do what the model does, whatever changes around them, or run as before and say why."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import threadcast
from tests.runtime.small_training import batch, net, same_state, sgd, train_eagerly
from threadcast.core.errors import InvalidInput
from threadcast.runtime.optimize import OptimizedStep
from threadcast.runtime.optimized import MAX_SIGNATURES
from threadcast.runtime.tuning.plan_maker import PlanMaker

pytestmark = pytest.mark.usefixtures("one_thread")


def decided(step: OptimizedStep) -> bool:
    return all(report.runs != "measuring" for report in step.reports)


def test_every_step_from_the_first_to_the_settled_trains_as_eager_does(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    names = [id(parameter) for parameter in mine.parameters()]
    seed = 0
    while seed < 5 or not decided(step):
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
        seed += 1
    assert step.reports[0].plan is not None
    assert set(step.reports[0].predicted_s) == {"as given", "channels last"}
    same_state(mine, eager)
    assert [id(parameter) for parameter in mine.parameters()] == names
    step.close()
    assert [p.stride() for p in mine.parameters()] == [p.stride() for p in eager.parameters()]
    same_state(mine, eager)


def test_kinds_of_arguments_that_alternate_do_not_disturb_each_others_layout(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    seed = 0
    while seed < 10 or not decided(step):
        x, y = batch(seed, 4 if seed % 3 else 7)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
        seed += 1
    same_state(mine, eager)
    assert len(step.reports) == 2


def test_whatever_changes_between_steps_is_honoured(trained: Any) -> None:
    step, mine, my_optimizer, eager, eager_optimizer = trained

    def both(seed: int, size: int = 4) -> None:
        x, y = batch(seed, size)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
        same_state(mine, eager)

    both(0)
    for optimizer in (my_optimizer, eager_optimizer):
        optimizer.param_groups[0]["lr"] = 0.01
    both(1)
    for optimizer in (my_optimizer, eager_optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.1
    both(2)
    both(3, size=7)
    for model in (mine, eager):
        model.eval()
    both(4)
    for model in (mine, eager):
        model.out.weight.requires_grad_(False)
    both(5)
    kept, kept_optimizer = copy.deepcopy(eager.state_dict()), copy.deepcopy(eager_optimizer.state_dict())
    both(6)
    for model, optimizer in ((mine, my_optimizer), (eager, eager_optimizer)):
        model.load_state_dict(kept)
        optimizer.load_state_dict(copy.deepcopy(kept_optimizer))
    both(7)
    for model, optimizer in ((mine, my_optimizer), (eager, eager_optimizer)):
        torch.manual_seed(5)
        model.mix = nn.Linear(6, 6).double()
        optimizer.add_param_group({"params": list(model.mix.parameters())})
    both(8)


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


def test_a_model_that_has_its_optimised_self_as_an_attribute_is_collected() -> None:
    model = net()
    model.fast = threadcast.optimize_training(model, cross_entropy, sgd(model), *batch(0))
    for seed in range(3):
        model.fast(*batch(seed))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_an_example_settles_inference_at_once() -> None:
    model = net().eval()
    x, _ = batch(0)
    with closing(threadcast.optimize(model, x, backends=False)) as call, torch.no_grad():
        assert [report.runs != "measuring" for report in call.reports] == [True]
        torch.testing.assert_close(call(x), model(x), rtol=1e-8, atol=1e-10)


def by_data(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_control_flow_by_data_runs_as_before_and_says_so_once() -> None:
    with closing(threadcast.optimize(by_data)) as call:
        with pytest.warns(UserWarning, match="as PyTorch does: cannot capture"):
            assert call(torch.ones(2)).tolist() == [2, 2]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call(-torch.ones(2)).tolist() == [-1, -1]
        assert call.reports[0].runs == "default"


def test_hooks_are_called(trained: Any) -> None:
    step, mine, *_ = trained
    called: list[int] = []
    x, y = batch(0)
    step(x, y)
    handle = mine.mix.register_forward_hook(lambda *_: called.append(1))
    with pytest.warns(UserWarning, match="module Linear has hooks"):
        step(x, y)
    assert len(called) == 2
    handle.remove()
    step(x, y)
    assert len(called) == 2


def test_hooks_of_parameters_that_come_later_are_noticed(trained: Any) -> None:
    step, mine, *_ = trained
    x, y = batch(0)
    step(x, y)
    called: list[int] = []
    handle = mine.mix.weight.register_hook(lambda _: called.append(1))
    with pytest.warns(UserWarning, match="a parameter has hooks"):
        step(x, y)
    assert called == [1]
    handle.remove()
    step(x, y)
    assert called == [1]


def test_a_cache_that_the_first_call_fills_is_no_obstacle() -> None:
    class Cached(nn.Module):
        factors: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.factors is None:
                self.factors = torch.arange(4.0).cos()
            return x * self.factors

    with closing(threadcast.optimize(Cached().eval(), backends=False)) as call, warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(40):
            torch.testing.assert_close(call(torch.full((4,), float(i))), i * torch.arange(4.0).cos())
        assert call.reports[0].reason == ""
    with closing(threadcast.optimize(Cached().eval(), torch.ones(4), backends=False)) as call:
        assert call.reports[0].runs in ("plan", "default")


def test_other_layers_and_other_tensors_than_at_first_count() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    with closing(threadcast.optimize(model, backends=False)) as call:
        x = torch.ones(2, 4)
        torch.testing.assert_close(call(x), model(x))
        model[0] = nn.Linear(4, 4)
        torch.testing.assert_close(call(x), model(x))
        model.append(nn.ReLU())
        torch.testing.assert_close(call(x), model(x))
        model[0].weight.data = torch.randn(4, 4)  # of a layer that came later
        torch.testing.assert_close(call(x), model(x))
        hooked = nn.Linear(4, 4)
        hooked.register_forward_hook(lambda module, given, result: result + 1)
        model[0] = hooked
        with pytest.warns(UserWarning, match="module Linear has hooks"):
            torch.testing.assert_close(call(x), model(x))
    rows = torch.randn(2, 4)
    with closing(threadcast.optimize(lambda a, b: (a - b).tanh())) as call:
        assert call(rows[0], rows[0]).tolist() == [0] * 4
        torch.testing.assert_close(call(rows[0], rows[1]), (rows[0] - rows[1]).tanh())


def test_a_model_that_fails_channels_last_is_planned_as_it_is() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolve = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolve(x).view(len(x), -1)

    model, x = Viewed().eval(), torch.ones(2, 3, 8, 8)
    with closing(threadcast.optimize(model, x, backends=False)) as call:
        assert (call.reports[0].reason, set(call.reports[0].predicted_s)) == ("", {"as given"})
        torch.testing.assert_close(call(x), model(x))


def test_a_training_step_takes_a_tuple_of_tensors_as_an_input() -> None:
    class Paired(nn.Linear):
        def forward(self, pair: Any) -> torch.Tensor:
            return super().forward(pair[0] + pair[1])

    model = Paired(4, 2)
    step = threadcast.optimize_training(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    with closing(step):
        losses = [float(step((torch.ones(3, 4), torch.ones(3, 4)), torch.zeros(3, 2))) for _ in range(5)]
        assert losses == sorted(losses, reverse=True)
        assert step.reports[0].reason == ""


def test_a_model_without_shapes_must_be_called_before() -> None:
    with pytest.raises(InvalidInput, match="call it once"):
        threadcast.optimize(nn.LazyLinear(3))


def test_more_kinds_of_arguments_than_the_limit_run_as_before() -> None:
    with closing(threadcast.optimize(lambda x: x + 1)) as call:
        for size in range(MAX_SIGNATURES):
            call(torch.zeros(size + 1))
        with pytest.warns(UserWarning, match=f"more than {MAX_SIGNATURES} kinds"):
            assert call(torch.zeros(99)).sum() == 99
        assert len(call.reports) == MAX_SIGNATURES


@pytest.mark.parametrize(
    ("argument", "reason"), [(torch.ones(2, requires_grad=True), "requires a gradient"), ([{1}], "is a set")]
)
def test_arguments_that_cannot_be_captured_run_as_before(argument: Any, reason: str) -> None:
    call = threadcast.optimize(lambda x: x)
    with pytest.warns(UserWarning, match=reason):
        assert call(argument) is argument


def test_what_fails_while_measuring_leaves_steps_as_they_were(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: PlanMaker, step: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(PlanMaker, "prepare", fails)
    step, mine, _, eager, eager_optimizer = trained
    for seed in range(4):
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
    same_state(mine, eager)
    assert (step.reports[0].runs, step.reports[0].reason) == ("default", "no space left")


def test_autocast_runs_as_before() -> None:
    model = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    with closing(threadcast.optimize(model, x, backends=False)) as call, torch.no_grad():
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.warns(UserWarning, match="autocast"),
        ):
            assert call(x).dtype == torch.bfloat16
        torch.testing.assert_close(call(x), model(x))


def test_an_example_of_training_needs_inputs_and_a_target() -> None:
    model = net()
    with pytest.raises(InvalidInput, match="inputs and then the target"):
        threadcast.optimize_training(model, cross_entropy, sgd(model), torch.ones(1))


def test_a_model_is_as_it_was_until_its_first_step() -> None:
    model, before = net(), net()
    with closing(threadcast.optimize_training(model, cross_entropy, sgd(model), *batch(0))):
        same_state(model, before)


def test_an_error_comes_back_and_the_next_step_works(trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    x, y = batch(0)
    with pytest.raises(IndexError, match="out of bounds"):
        step(x, y + 100)
    mine.load_state_dict(eager.state_dict())
    torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
