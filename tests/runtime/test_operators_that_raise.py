"""Operators that raise because of values: whatever a plan has done by then, the call is what it is in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.small_training import run_until_settled

pytestmark = [
    pytest.mark.usefixtures("plans_win", "one_thread"),
    pytest.mark.filterwarnings("ignore:the model is in training mode"),
]

GOOD, BAD = torch.eye(4).double() + 0.25, torch.zeros(4, 4).double()
"""A matrix on which every operator below works, and one on which each raises."""

Risky = Callable[[Tensor], Tensor]


def _indices(k: Tensor) -> Tensor:
    return torch.where(k.diagonal() == 0, 100, 3)


RISKY: dict[str, tuple[Risky, Risky]] = {
    "cholesky": (torch.linalg.cholesky, lambda k: torch.linalg.cholesky(k + torch.eye(4).double())),
    "inverse": (torch.linalg.inv, lambda k: torch.linalg.inv(k + torch.eye(4).double())),
    "embedding": (lambda k: nn.functional.embedding(_indices(k), k), lambda k: k + 1),
    "multinomial": (lambda k: torch.multinomial(k, 4).double(), lambda k: torch.multinomial(k + 1, 4).double()),
}
"""What raises on a bad matrix, and what a model does then."""


class Catching(nn.Module):
    """Draws, counts and writes to an argument before and after what may raise; `catches` says whether it goes on."""

    def __init__(self, kind: str, *, catches: bool = True) -> None:
        super().__init__()
        self.kind, self.catches = kind, catches
        self.first, self.norm, self.out = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, k: Tensor, marks: Tensor) -> Tensor:
        self.seen.add_(1)
        marks[0].mul_(2).add_(1)
        x = self.drop(self.norm(self.first(x)))
        risky, otherwise = RISKY[self.kind]
        try:
            found = risky(k)
        except (RuntimeError, IndexError):
            if not self.catches:
                raise
            found = otherwise(k)
        marks[1].add_(self.seen)
        result: Tensor = self.out(self.drop(x @ found))
        return result


def _twins(kind: str, **options: bool) -> tuple[Catching, Catching]:
    torch.manual_seed(0)
    mine = Catching(kind, **options).double()
    return mine, copy.deepcopy(mine)


def _arguments(number: int, *, bad: bool) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=made).double(), BAD if bad else GOOD, torch.ones(2, 3).double()


def _outcome(call: Callable[..., Any], number: int, *, bad: bool) -> tuple[Any, ...]:
    """What a call gives or raises, the argument that it writes to, and the next random number."""
    x, k, marks = _arguments(number, bad=bad)
    torch.manual_seed(number)
    try:
        found: Any = call(x, k, marks)
    except (RuntimeError, IndexError) as error:
        found = type(error), str(error)
    return found, marks, torch.rand(())


def _same(mine: Any, eager: Any) -> None:
    """Compare values, or outcomes: what was raised must be the same."""
    if isinstance(mine, tuple) and (isinstance(mine[0], tuple) or isinstance(eager[0], tuple)):
        assert mine[0] == eager[0]
        mine, eager = mine[1:], eager[1:]
    torch.testing.assert_close(mine, eager, rtol=1e-9, atol=1e-12)  # a step twice, or other draws, are far more


Step = Callable[..., Tensor]


def _eager_step(model: Catching, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, k: Tensor, marks: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x, k, marks), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.fixture(params=["inference", "training"])
def pair(request: pytest.FixtureRequest) -> Iterator[Callable[..., tuple[Any, Step, Step, list[Any], list[Any]]]]:
    """What makes an optimised callable, calls of it and of its eager twin, and the state of both."""
    made: list[Any] = []

    def make(kind: str, **options: bool) -> tuple[Any, Step, Step, list[Any], list[Any]]:
        mine, eager = _twins(kind, **options)
        if request.param == "inference":
            fast = threadcast.optimize(mine, backends=False)
            made.append(fast)

            def by_eager(*arguments: Tensor) -> Tensor:
                with torch.no_grad():
                    result: Tensor = eager(*arguments)
                    return result

            return fast, fast, by_eager, [mine.state_dict()], [eager.state_dict()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in (mine, eager)]
        step = threadcast.optimize_training(mine, nn.MSELoss(), optimizers[0])
        made.append(step)
        target = torch.ones(8, 4).double()
        by_pytorch = _eager_step(eager, optimizers[1])
        states = [[model.state_dict(), optimizer] for model, optimizer in zip((mine, eager), optimizers, strict=True)]
        return step, lambda *a: step(*a, target), lambda *a: by_pytorch(*a, target), *states

    yield make
    for one in made:
        one.close()


def _values(state: list[Any]) -> list[Any]:
    return [one.state_dict()["state"] if isinstance(one, torch.optim.Optimizer) else one for one in state]


@pytest.mark.parametrize("kind", RISKY)
def test_what_the_model_catches_is_as_in_pytorch_and_the_plan_goes_on(kind: str, pair: Any) -> None:
    fast, mine, eager, state, wanted = pair(kind)

    def check(number: int, *, bad: bool = False) -> None:
        _same(_outcome(mine, number, bad=bad), _outcome(eager, number, bad=bad))
        _same(_values(state), _values(wanted))

    run_until_settled(fast, check)
    assert [report.runs for report in fast.reports] == ["plan"]
    for number in range(100, 260):
        check(number, bad=number % 50 == 49)
    assert [report.runs for report in fast.reports] == ["plan"]


@pytest.mark.parametrize("kind", RISKY)
def test_what_nobody_catches_is_raised_as_by_pytorch_with_the_state_that_it_leaves(kind: str, pair: Any) -> None:
    fast, mine, eager, state, wanted = pair(kind, catches=False)
    run_until_settled(fast, lambda number: _same(*(_outcome(one, number, bad=False) for one in (mine, eager))))
    assert [report.runs for report in fast.reports] == ["plan"]
    for number in range(3):
        found = _outcome(mine, number, bad=number == 1)
        _same(found, _outcome(eager, number, bad=number == 1))
        assert isinstance(found[0], tuple) == (number == 1)
        _same(_values(state), _values(wanted))


def test_matrices_that_are_bad_while_it_is_learned_hinder_no_plan(pair: Any) -> None:
    fast, mine, eager, state, wanted = pair("cholesky")

    def check(number: int) -> None:
        _same(_outcome(mine, number, bad=number == 3), _outcome(eager, number, bad=number == 3))

    run_until_settled(fast, check)
    _same(_values(state), _values(wanted))
    assert [report.runs for report in fast.reports] == ["plan"]


def test_a_model_that_often_catches_is_left_to_pytorch_with_the_reason(pair: Any) -> None:
    fast, mine, eager, state, wanted = pair("cholesky")
    run_until_settled(fast, lambda number: _same(*(_outcome(one, number, bad=False) for one in (mine, eager))))

    def calls() -> None:
        for number in range(60):
            _same(*(_outcome(one, number, bad=number % 5 == 0) for one in (mine, eager)))

    with pytest.warns(UserWarning, match="a plan raised _LinAlgError"):
        calls()
    _same(_values(state), _values(wanted))
    assert [report.runs for report in fast.reports] == ["default"]
    assert "LinAlgError" in fast.reports[0].reason
