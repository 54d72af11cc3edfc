"""Whatever memory format a call is tried in, it gives what PyTorch gives in the format of the caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import threadcast
from tests.runtime.small_training import run_until_settled, train_eagerly
from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Machine
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning import duel
from threadcast.runtime.tuning.guard import Guard, Side, Verdict
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.verification.shadow import Shadowed, leaves

CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda y: nn.functional.dropout(y, 0.3),
    "randn_like": lambda y: y + 0.1 * torch.randn_like(y),
    "is_contiguous": lambda y: y * (2 if y.is_contiguous() else 3),
}


class Images(nn.Module):
    """Convolutions with an operator between them whose results depend on the order of numbers in memory."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.second(CHANGES[self.change](self.first(x).relu())).mean((2, 3)))
        return result


class LatestWins(Guard):
    """What is compared last wins each comparison, at its first step."""

    def observe(self, *, started_s: float, seconds: float) -> None:
        self.verdict = Verdict("plan", 1.1, 1.05, 1.2, 6)

    def next_runner(self) -> Side:
        return "plan"

    def step_s(self, side: Side) -> float:
        return 1e-3


@pytest.fixture(autouse=True)
def latest_wins(planned_at_once: None, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duel, "Guard", LatestWins)


def train(change: str) -> Report:
    """The report of optimised training until it is settled, of which each step did what eager PyTorch does."""
    torch.manual_seed(0)
    mine, eager = Images(change), Images(change)
    my_optimizer, eager_optimizer = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (mine, eager))
    with closing(threadcast.optimize_training(mine, cross_entropy, my_optimizer, cores=1)) as step:

        def check(number: int) -> None:
            torch.manual_seed(number)
            x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
            eager.load_state_dict(mine.state_dict())
            start = torch.get_rng_state()
            found, after = step(x, y), torch.get_rng_state()
            torch.set_rng_state(start)
            torch.testing.assert_close(found, train_eagerly(eager, eager_optimizer, x, y), rtol=1e-5, atol=1e-6)
            assert torch.equal(torch.get_rng_state(), after)
            for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

        run_until_settled(step, check)
        for number in range(20):
            check(number)
        (report,) = step.reports
        return report


@pytest.mark.parametrize("change", ["dropout", "randn_like"])
def test_what_draws_random_numbers_runs_in_the_given_format_only(change: str) -> None:
    report = train(change)
    assert {name.removesuffix(", fused") for name in report.predicted_s} == {"as given"}
    assert report.runs == "plan"


def test_a_plan_of_a_model_that_reads_the_order_in_memory_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    report = train("is_contiguous")
    assert "plan, channels last is not used, its results are not PyTorch's: first.weight: differs" in caplog.text
    assert report.layout is MemoryFormat.AS_GIVEN


def shown(format_of: ModelFormat, function: Callable[[Tensor], Tensor], formats: list[MemoryFormat]) -> Any:
    """What makes a `Tuning` its graph, and notes the formats that were asked for."""

    def capture(memory_format: MemoryFormat) -> Captured:
        formats.append(memory_format)
        format_of.set(memory_format)
        return capture_forward(function, torch.ones(1, 2, 3, 4))

    return capture


def test_eager_in_another_format_is_compared_with_eager_as_given(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_format, formats, refused = ModelFormat(None), list[MemoryFormat](), []

    def default(x: Tensor) -> Tensor:
        return x.sin() if model_format.current is MemoryFormat.AS_GIVEN else x.cos()

    def reference(x: Tensor) -> Tensor:
        with model_format.as_given():
            return default(x)

    made = Tuning(
        default, shown(model_format, torch.sin, formats), model_format, tuple(MemoryFormat), machine, call="a call",
        plans=PlanStore(tmp_path, machine), fuse=False, checked=Shadowed(reference, reference, None, None, leaves),
    )  # fmt: skip
    with closing(made) as tuned:
        for number in range(2_000):
            x = torch.full((1, 2, 3, 4), number / 9)
            torch.testing.assert_close(tuned(x), x.sin())
            refused = [line for line in caplog.messages if line.startswith("eager, channels last is not used")]
            if not tuned.report.measuring:
                break
        assert (tuned.report.runs, len(refused)) == ("plan", 1)
    assert set(formats) == set(MemoryFormat)


def test_a_random_graph_is_captured_as_given_where_another_format_came_first(machine: Machine, tmp_path: Path) -> None:
    model_format, formats = ModelFormat(None), list[MemoryFormat]()
    capture = shown(model_format, lambda x: nn.functional.dropout(x), formats)
    made = Tuning(
        nn.functional.dropout, capture, model_format, tuple(MemoryFormat)[::-1], machine, call="a call",
        plans=PlanStore(tmp_path, machine), fuse=False,
    )  # fmt: skip
    with closing(made) as tuned:
        assert formats == [MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN]
        assert model_format.current is MemoryFormat.AS_GIVEN
        assert tuned.captured.program.nodes


def test_what_runs_as_before_runs_in_the_given_format() -> None:
    found = []

    class Reading(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            found.append(self.weight.is_contiguous())
            return super().forward(x)

    with closing(threadcast.optimize(Reading(3, 6, 3), cores=1, backends=False)) as call:
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        with pytest.warns(UserWarning, match="requires a gradient"):
            call(torch.ones(2, 3, 8, 8, requires_grad=True))
    assert found == [True]
