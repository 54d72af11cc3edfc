"""What changes around an optimised call or step between two calls counts for the next one."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import threadcast
from tests.runtime.small_training import Net, batch, net, run_until_settled, same_state, train_eagerly

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


Change = Callable[[Net, torch.optim.Optimizer], object]


def set_in_group(name: str, value: float) -> Change:
    def change(_: Net, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0][name] = value

    return change


def freeze(model: Net, _: torch.optim.Optimizer) -> None:
    model.out.weight.requires_grad_(False)


def load(model: Net, optimizer: torch.optim.Optimizer) -> None:
    other = net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        entry["momentum_buffer"].mul_(0.5)
    model.load_state_dict(other.state_dict())
    optimizer.load_state_dict(state)


def swap_layer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(5)
    model.mix = nn.Linear(6, 6).double()
    optimizer.add_param_group({"params": list(model.mix.parameters())})


def exchange_layers(model: Net, optimizer: torch.optim.Optimizer) -> None:
    """The old layers' state stays in `optimizer.state`, by parameters that are in no group any more."""
    torch.manual_seed(5)
    model.mix, model.out = nn.Linear(6, 6).double(), nn.Linear(6, 4).double()
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.state["a note"] = 1  # type: ignore[index,assignment]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(set_in_group("lr", 0.01), id="learning rate"),
        pytest.param(set_in_group("weight_decay", 0.1), id="weight decay"),
        pytest.param(lambda model, _: model.eval(), id="eval mode"),
        pytest.param(freeze, id="a frozen parameter"),
        pytest.param(load, id="a loaded state"),
        pytest.param(swap_layer, id="another layer"),
    ],
)
def test_what_changes_between_steps_is_honoured(change: Change, trained: Any) -> None:
    step, mine, my_optimizer, eager, eager_optimizer = trained

    def both(seed: int) -> None:
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
        same_state(mine, eager)

    both(0)
    both(1)
    change(mine, my_optimizer)
    change(eager, eager_optimizer)
    both(2)
    both(3)


@pytest.mark.usefixtures("plans_win")
def test_state_of_layers_that_were_exchanged_refuses_no_plan(trained: Any) -> None:
    step, mine, my_optimizer, eager, eager_optimizer = trained

    def both(seed: int) -> None:
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)

    both(0)
    exchange_layers(mine, my_optimizer)
    exchange_layers(eager, eager_optimizer)
    run_until_settled(step, both)
    same_state(mine, eager)
    assert [(report.runs, report.reason) for report in step.reports] == [("plan", "")]
    assert len(my_optimizer.state) == len(eager_optimizer.state)


def test_hooks_of_parameters_that_come_later_are_noticed(trained: Any) -> None:
    step, mine, *_ = trained
    x, y = batch(0)
    step(x, y)
    called: list[int] = []
    handle = mine.mix.weight.register_hook(lambda _: called.append(1))
    with pytest.warns(UserWarning, match="hooks on a parameter"):
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


def test_an_example_leaves_no_fake_tensor_in_a_functions_cache() -> None:
    @functools.lru_cache(maxsize=1)
    def mask(size: int) -> Tensor:
        return torch.full((size, size), -torch.inf, dtype=torch.float64).triu(1)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.net(x) + mask(len(x)).exp()[:, :1]
            return found

    mine = Masked()
    eager = copy.deepcopy(mine)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (mine, eager)]
    with closing(threadcast.optimize_training(mine, cross_entropy, optimizers[0], *batch(0))) as step:
        assert mask.cache_info().currsize == 0
        for seed in range(12):
            x, y = batch(seed, size=4 if seed // 2 % 2 else 5)
            torch.testing.assert_close(step(x, y), train_eagerly(eager, optimizers[1], x, y))
            assert type(mask(len(x))) is Tensor
        same_state(mine, eager)


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
        with pytest.warns(UserWarning, match="hooks on module Linear"):
            torch.testing.assert_close(call(x), model(x))
    rows = torch.randn(2, 4)
    with closing(threadcast.optimize(lambda a, b: (a - b).tanh())) as call:
        assert call(rows[0], rows[0]).tolist() == [0] * 4
        torch.testing.assert_close(call(rows[0], rows[1]), (rows[0] - rows[1]).tanh())


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_gradients_that_are_others_in_each_step_count() -> None:
    model = nn.Linear(4, 4)

    def scaled(factor: Tensor) -> Tensor:
        gradient = model.weight.grad
        return factor if gradient is None else gradient * factor

    with closing(threadcast.optimize(scaled, backends=False)) as call:
        for seed in range(6):
            model.zero_grad()
            torch.autograd.backward(model(torch.full((2, 4), float(seed))).sum())
            torch.testing.assert_close(call(torch.ones(1)), model.weight.grad)
