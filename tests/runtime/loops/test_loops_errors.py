"""Steps that raise in the middle of training by a plan leave what eager PyTorch leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy

from tests.runtime.conftest import SequentialPlanner
from tests.runtime.loops.reference import STEPS, Make, trains_as_eager
from tests.runtime.random_plans import make_random_plan
from threadcast.runtime.plans.step_forecasts import Answer
from threadcast.runtime.tuner import planning

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


@pytest.fixture(autouse=True, params=range(2))
def any_order(request: pytest.FixtureRequest, plans_win: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans run the ops in a random order that their edges allow."""

    class RandomPlanner(SequentialPlanner):
        def forecast(self) -> Answer | None:
            answer = super().forecast()
            if answer is None:
                return None
            plan = make_random_plan(self._question.graph, (0,), seed=request.param)
            return Answer(plan, answer.curves, plan.makespan_s)

    monkeypatch.setattr(planning, "ForecastingPlanner", RandomPlanner)


class Words(nn.Module):
    """An embedding, and linear layers with batch norm between them."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 6)
        # A bias before batch norm has a gradient of nothing but rounding.
        self.net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))
        self.double()

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.net(self.words(words))
        return result


GOOD = torch.tensor([1, 2, 7, 3, 4]), torch.tensor([0, 1, 2, 2, 0])


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_grad_norm": 0.5}], ids=str)
@pytest.mark.parametrize(
    "bad", [(torch.tensor([1, 2, 10, 3, 4]), GOOD[1]), (GOOD[0], torch.tensor([0, 1, 2, 3, 0]))], ids=["word", "target"]
)
def test_an_index_out_of_range(bad: tuple[Tensor, Tensor], options: dict[str, Any]) -> None:
    def loop(make: Make) -> Any:
        model = Words()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        step = make(model, cross_entropy, optimizer, **options)
        losses = [step(*GOOD) for _ in range(4 * STEPS)]
        for _ in range(3):
            with pytest.raises(IndexError):
                step(*bad)
        return [*losses, step(*GOOD), step(*GOOD)], model, optimizer

    trains_as_eager(loop)


def test_a_loss_that_no_gradient_waits_for() -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy(scores.squeeze(1).exp() / 8, target)

    def loop(make: Make) -> Any:
        model = Words(outputs=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        step = make(model, loss, optimizer)
        losses = [step(GOOD[0], torch.full((5,), 0.1, dtype=torch.float64)) for _ in range(STEPS)]
        for _ in range(3):
            with pytest.raises(RuntimeError, match="between 0 and 1"):
                step(GOOD[0], torch.full((5,), 2.0, dtype=torch.float64))
        return losses, step(GOOD[0], torch.full((5,), 0.1, dtype=torch.float64)), model, optimizer

    trains_as_eager(loop)


class Weighed(torch.autograd.Function):
    """The identity, of which each row's gradient is weighed by an entry of a table."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, entries: Tensor) -> Tensor:
        ctx.save_for_backward(table, entries)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        table, entries = ctx.saved_tensors
        return gradients[0] * table[entries][:, None], None, None


def test_an_index_out_of_range_in_a_users_backward() -> None:
    class Weighing(Words):
        def __init__(self) -> None:
            super().__init__()
            self.table: Tensor
            self.register_buffer("table", torch.rand(4, dtype=torch.float64))

        def forward(self, words: Tensor, entries: Tensor) -> Tensor:
            result: Tensor = Weighed.apply(super().forward(words), self.table, entries)
            return result

    def loop(make: Make) -> Any:
        model = Weighing()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        step = make(model, cross_entropy, optimizer)
        good, bad = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([0, 1, 4, 3, 0])
        losses = [step(GOOD[0], good, GOOD[1]) for _ in range(2 * STEPS)]
        for _ in range(3):
            with pytest.raises(IndexError):
                step(GOOD[0], bad, GOOD[1])
        return [*losses, step(GOOD[0], good, GOOD[1])], model, optimizer

    trains_as_eager(loop)
