"""What only unused results lead to has no gradient, as in eager PyTorch: an optimizer would train it by zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compiled.running import rows, run_until_settled, runners
from tests.runtime.small_training import same_state
from threadcast.runtime.compiled import unused_results

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


class Heads(nn.Module):
    """Two results of one body, the second through layers of its own, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.other = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.head(h), self.other(h * 2).sin().view(-1, 1)


def loss_of(found: tuple[Tensor, Tensor], step: int) -> Tensor:
    """Of both results in each third step, else of one of them."""
    of = found if step % 3 == 0 else found[step % 2 :][:1]
    return torch.stack([one.square().mean() for one in of]).sum()


@pytest.mark.parametrize(("dynamic", "most", "graphs"), [(False, 8, 3), (False, 0, 1), (True, 8, 0)])
def test_gradients_are_none_where_eagers_are(
    dynamic: bool, most: int, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a backward graph for each set of unused results, up to so many, else one that gets zeros."""
    monkeypatch.setattr(unused_results, "_MOST", most)
    mine, eager = Heads(), Heads()
    compiled = torch.compile(mine, backend="threadcast", dynamic=dynamic)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1) for model in (mine, eager)]

    def train(step: int) -> None:
        x = rows(step, 5 + step % 4 if dynamic else 5)
        for call, optimizer in zip((compiled, eager), optimizers, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(call(x), step))
        for (name, one), other in zip(mine.named_parameters(), eager.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), f"{name} in step {step}"
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad)
        for optimizer in optimizers:
            optimizer.step()
        same_state(mine, eager)

    if not graphs:
        for step in range(24):
            train(step)
    else:
        run_until_settled(train, least=24)
        assert runners() == {"forward": ["plan"], "backward": graphs * ["plan"]}


@pytest.mark.compared
def test_processes_that_train_together_have_zeros_in_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DistributedDataParallel` counts on the same gradients in each step; eager PyTorch would leave some out."""
    monkeypatch.setattr(unused_results, "may_exchange", lambda: True)
    model = Heads()
    compiled = torch.compile(model, backend="threadcast")
    for step in range(60):
        model.zero_grad()
        torch.autograd.backward(compiled(rows(step))[0].sum())
        assert model.other.weight.grad is not None, f"step {step}"
        assert not model.other.weight.grad.any()


def test_hooks_of_parameters_that_no_used_result_needs_are_not_called() -> None:
    model = Heads()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    compiled = torch.compile(model, backend="threadcast")
    for step in range(30):
        model.zero_grad()
        torch.autograd.backward(compiled(rows(step))[0].sum())
        assert model.other.weight.grad is None
        assert model.head.weight.grad is not None


class Apart(nn.Module):
    """Two results, of which the second needs no argument."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.other = nn.Linear(8, 8), nn.Parameter(torch.ones(8))
        self.double()

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(h).tanh().sum(), (self.other.double() * 2).sum()


@pytest.mark.parametrize("hooked", ["activation", "body", "after gradients", None])
@pytest.mark.parametrize("compiled_body", [False, True])
def test_nothing_before_an_argument_that_no_used_result_needs_is_trained_or_called(
    hooked: str | None, compiled_body: bool
) -> None:
    torch.manual_seed(0)
    models = [nn.ModuleList([nn.Linear(8, 8).double(), Apart()]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1) for model in models]
    called: list[list[int]] = [[], []]
    for model, calls in zip(models, called, strict=True):
        if hooked == "after gradients":
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda parameter, calls=calls: calls.append(2))
        if hooked == "body":
            model[0].register_full_backward_hook(lambda *_, calls=calls: calls.append(1))
    pairs = [[torch.compile(one, backend="threadcast") for one in models[0]], list(models[1])]
    if not compiled_body:
        pairs[0][0] = models[0][0]
    for step in range(30):
        for (body, head), optimizer, calls in zip(pairs, optimizers, called, strict=True):
            optimizer.zero_grad()
            h = body(rows(step).requires_grad_())
            if hooked == "activation":
                h.register_hook(lambda gradient, calls=calls: calls.append(1) or gradient * 0.5)
            results = head(h)
            torch.autograd.backward(results[1] if step % 2 else sum(results))
            optimizer.step()
        assert called[0] == called[1]
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), f"step {step}"
        same_state(*models)


def test_hooks_of_arguments_that_all_results_need_leave_the_graphs_to_plans() -> None:
    model = Heads()
    model.body.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    compiled = torch.compile(model, backend="threadcast")
    run_until_settled(lambda step: torch.autograd.backward(loss_of(compiled(rows(step)), step)))
    assert runners()["forward"] == ["plan"]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        found: Tensor = gradient * 2 * x
        return found


class Both(torch.autograd.Function):
    """Of two results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_y: Tensor) -> tuple[Tensor, Tensor]:
        return of_x * 2, of_y * 3


class OwnFunction(nn.Module):
    """The second result is behind the function only where it has several results."""

    def __init__(self, *, several: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.several = nn.Linear(8, 2), nn.Linear(8, 2), several
        self.double()

    def forward(self, x: Tensor) -> Any:
        if self.several:
            return Both.apply(self.first(x), self.second(x))
        return Squared.apply(self.first(x)), self.second(x)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of Dynamo's
@pytest.mark.parametrize("several", [False, True])
def test_what_a_function_of_the_users_own_leads_to_has_eagers_gradients(several: bool) -> None:
    mine, eager = OwnFunction(several=several), OwnFunction(several=several)
    compiled = torch.compile(mine, backend="threadcast")
    for step in range(30):
        for call, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            torch.autograd.backward(call(rows(step))[0].sum())
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad)


def distances(x: Tensor) -> Any:
    """The derivative of the second result is infinite at 0."""
    return x * 3, x.square().sum(-1).sqrt()


def parts_of_a_sum(x: Tensor) -> Any:
    y = x.tanh()
    return y.exp() + 1, (y * 2).sum(0), (x / x.abs()).sum()


def rows_apart(x: Tensor) -> Any:
    first, second, *_ = x.sin().unbind()
    return first.exp(), second * 2, torch.cat([x, x * 2])[3:]


def normalised(x: Tensor) -> Any:
    y = nn.functional.layer_norm(x, (8,))
    return y.relu(), nn.functional.softmax(y, -1), y.sum()


PROGRAMS = [distances, parts_of_a_sum, rows_apart, normalised]


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_results_that_are_unused_are_undefined_and_not_zeros(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros would be NaN where they are multiplied by what is infinite."""
    monkeypatch.setattr(unused_results, "_MOST", 16)
    weight = torch.eye(8, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(8, dtype=torch.float64, requires_grad=True)

    def model(x: Tensor) -> Any:
        found = program(x @ weight)
        return *found, found[0] * bias

    compiled = torch.compile(model, backend="threadcast")
    x = rows(1)
    x[2] = 0.0
    results = len(model(x))

    def step(number: int) -> None:
        used = [i for i in range(results) if (number + 1) >> i & 1] or [0]
        gradients = [
            torch.autograd.grad(
                [call(x)[i].sum() for i in used], (weight, bias), allow_unused=True
            ) for call in (compiled, model)
        ]  # fmt: skip
        for mine, wanted in zip(*gradients, strict=True):
            assert (mine is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(mine, wanted, equal_nan=True)

    for number in range(4 * 2**results):
        step(number % 2**results if number % 3 else 0)
