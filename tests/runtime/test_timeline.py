"""`timeline` shows the plan that runs and a step that ran, and leaves everything as it was; `repr` says what runs."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threadcast
from tests.runtime.small_training import batch, run_until_settled, same_state, train_eagerly
from threadcast.core import Case, Edge, Machine, Op, OpGraph, TensorSpec, Trace
from threadcast.core.errors import ExecutionError
from threadcast.runtime.doors.traced_step import TracedStep, timeline_page
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.tuner.guard import Verdict
from threadcast.threads.this_process import this_process

usual = pytest.mark.usefixtures("plans_win")


def pictures(page: str) -> list[set[str]]:
    """The ids of the operators that each picture of a page shows."""
    found = re.findall(r'<svg class="timeline".*?</svg>', page)
    return [{title.split(" (")[0] for title in re.findall(r"<title>([^<]+)", picture)} for picture in found]


@usual
def test_a_timeline_shows_all_operators_that_ran_and_needs_no_other_file(trained: Any, tmp_path: Path) -> None:
    step, *_ = trained
    run_until_settled(step, lambda seed: step(*batch(seed)))
    step.timeline(tmp_path / "step.html")
    text = (tmp_path / "step.html").read_text()
    assert text.startswith("<!doctype html>")
    assert not re.findall(r"(?:src|href)=|url\(|@import", text)
    assert pictures(text) == [{op.id for op in step.reports[0].plan.ops}]
    assert "no forecast yet" in text  # the planner of these tests gives none
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["step.html"]


def test_a_plan_with_forecasts_is_drawn_above_what_ran_on_the_same_scale() -> None:
    machine, matrix = Machine.uniform("machine", 2), TensorSpec((8, 8))
    graph = OpGraph(("first", "second"), (Op("mm", (matrix, matrix)), Op("relu", (matrix,))), (Edge(0, 1),))
    plan = sequential(graph, machine, Case(2), seconds=[0.003, 0.001])
    trace = Trace(2, "sequential", tuple(replace(op, start_s=op.start_s, finish_s=op.finish_s * 2) for op in plan.ops))
    page = timeline_page("a < b", TracedStep(graph, plan, trace))
    assert pictures(page) == [set(graph.ids)] * 2
    assert page.count('text-anchor="end">8.00 ms<') == 2
    assert "a &lt; b" in page


@usual
def test_training_goes_on_after_a_timeline_as_if_there_had_been_none(trained: Any, tmp_path: Path) -> None:
    step, mine, my_optimizer, eager, eager_optimizer = trained

    def train(seed: int) -> None:
        step(*batch(seed))
        train_eagerly(eager, eager_optimizer, *batch(seed))

    run_until_settled(step, train)
    gradient = torch.ones_like(mine.out.bias)
    mine.out.bias.grad = gradient
    random = torch.get_rng_state()
    step.timeline(tmp_path / "step.html")
    assert mine.out.bias.grad is gradient
    assert torch.equal(torch.get_rng_state(), random)
    assert step.reports[0].runs == "plan"
    train(1)
    same_state(mine, eager)
    for one, other in zip(my_optimizer.state.values(), eager_optimizer.state.values(), strict=True):
        torch.testing.assert_close(one["momentum_buffer"], other["momentum_buffer"], rtol=1e-8, atol=1e-10)


def test_without_a_plan_a_timeline_is_refused_with_the_reason_and_nothing_is_written(tmp_path: Path) -> None:
    def branching(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with closing(threadcast.optimize(branching)) as call:
        with pytest.raises(ExecutionError, match="called"):
            call.timeline(tmp_path / "call.html")
        with pytest.warns(UserWarning, match="as PyTorch does"):
            call(torch.ones(2))
        with pytest.raises(ExecutionError, match=re.escape(call.reports[0].reason)):
            call.timeline(tmp_path / "call.html")
    assert not list(tmp_path.iterdir())


@usual
def test_repr_says_what_is_optimised_what_runs_it_and_by_which_gain(trained: Any) -> None:
    step, *_ = trained
    begins = "OptimizedStep(training of Net by SGD: "
    assert repr(step) == begins + "not called yet)"
    step(*batch(0))
    assert repr(step).startswith(begins + "measuring")
    assert not re.search(r"\d", repr(step).removeprefix(begins)), "nothing is claimed while measuring"
    assert "training of Net by SGD: measuring" in this_process().steps.learning
    run_until_settled(step, lambda seed: step(*batch(seed)))
    step.reports[0].verdicts.clear()
    assert repr(step) == f"{begins}plan)", "nothing was compared"
    step.reports[0].verdicts[str(step.reports[0].candidate)] = Verdict(1.25, 1.21, 1.3, 9, "plan", "default")
    assert repr(step) == f"{begins}plan, 1.25 times as fast as PyTorch (1.21 to 1.30))"
    assert "training of Net by SGD" not in this_process().steps.learning
    assert repr(threadcast.optimize(torch.relu)).startswith("OptimizedCall(inference of relu: ")


def test_a_closed_call_is_not_said_to_be_measured() -> None:
    call = threadcast.optimize(lambda x: x * 2 + 1, backends=False)
    call(torch.ones(8))
    call.close()
    assert call._optimized._learning() == ""
