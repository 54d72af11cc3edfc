"""The steps of a call are run as the tournament says, on real engines; what fails is left to the default."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.runtime.conftest import SequentialPlanner
from tests.runtime.tuner.small_tuning import Clock, function, made, run, run_until
from tests.waiting import attempts
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, CurveTable, Machine, OpGraph
from threadcast.core.errors import ExecutionError
from threadcast.runtime.check.shadow import Shadowed, leaves
from threadcast.runtime.plans import curves_in_step
from threadcast.runtime.plans.curves_in_step import LOOK_CALLS, LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import planning
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import Passed, Place, Ran, Staged
from threadcast.runtime.tuner.looks import Look
from threadcast.runtime.tuner.standings import LOOK
from threadcast.runtime.tuner.tournament import MOST_PASSED
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("planned_at_once")


def test_the_fastest_is_found_stored_and_compared_again_once_it_is_slower(machine: Machine, tmp_path: Path) -> None:
    clock = Clock()
    with made(clock, machine, tmp_path) as tuned:
        assert tuned.report.state == "measuring"
        run_until(tuned, lambda: not tuned.report.measuring)
        assert (tuned.report.runs, tuned.fastest.name) == ("plan", "plan, as given")
        assert tuned.report.plan is not None
        assert list(tuned.report.verdicts) == ["plan, as given"]
        said = tuned.report.verdicts["plan, as given"].against("PyTorch")
        assert tuned.report.state == f"plan, {said}"
        run(tuned, 2 * LOOK)
        assert list(tmp_path.glob("*.json"))
        clock.other_s *= 3
        clock.default_s = 0.0
        run_until(tuned, lambda: tuned.report.runs == "default")
        assert tuned.report.state.startswith("default; plan, as given was not shown to be faster or slower, 1.00 times")
        assert not list(tmp_path.glob("*.json")), "a plan that has become slow is not for the next process"


def test_beside_a_plan_for_other_calls_nothing_is_tried_and_slow_steps_mean_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, works = Clock(), True
    monkeypatch.setattr(planning.Planner, "works", property(lambda _: works))
    with made(clock, machine, tmp_path) as tuned:
        run(tuned, 200)
        assert (tuned.report.runs, tuned.ran) == ("measuring", None)
        works = False
        run_until(tuned, lambda: not tuned.report.measuring)
        assert tuned.report.runs == "plan"
        run(tuned, 2 * LOOK)
        works, clock.other_s = True, 3.0
        run(tuned, 3 * LOOK)
        assert tuned.report.runs == "plan"


@pytest.mark.parametrize("wins", [True, False])
def test_a_plan_that_was_made_and_not_compared_is_all_that_the_next_process_compares(
    machine: Machine, tmp_path: Path, wins: bool
) -> None:
    with made(Clock(), machine, tmp_path) as first:
        run_until(first, lambda: first.tournament.comparison is not None)
    clock = Clock()
    clock.default_s = 1.0 if wins else 0.0
    with made(clock, machine, tmp_path) as second:
        run_until(second, lambda: second.settled)
        assert not any(isinstance(one, Staged) and one.place is Place.CALL for one in second.tournament.log)
        assert second.report.runs == ("plan" if wins else "default")
    assert bool(list(tmp_path.glob("*.json"))) == wins, "what has lost is made anew"


def test_each_look_and_the_first_step_by_a_plan_are_compared_with_pytorch(machine: Machine, tmp_path: Path) -> None:
    compared: list[object] = []
    captured = capture_forward(function, torch.ones(3))

    def eager(x: torch.Tensor) -> torch.Tensor:
        compared.append(tuned._last)
        return function(x)

    made = Tuning(
        function, lambda _: captured, ModelFormat(None), (MemoryFormat.AS_GIVEN,), machine, call="a call",
        plans=PlanStore(tmp_path, machine), fuse=False, checked=Shadowed(eager, eager, None, None, leaves),
    )  # fmt: skip
    with closing(made) as tuned:
        for i in attempts():
            x = torch.arange(3.0) + i
            torch.testing.assert_close(tuned(x), function(x))
            if not tuned.report.measuring:
                break
    (plan,) = (one.key for one in tuned._plan_candidates)
    variant = Variant(MemoryFormat.AS_GIVEN)
    assert compared == [*(Look(variant, i) for i in range(LookSchedule.of(machine).uniform)), plan]


class WaitedFor(SequentialPlanner):
    """Has a plan once it was waited for."""

    def forecast(self) -> Answer | None:
        return super().forecast() if self.waits else None


def test_a_plan_is_waited_for_while_it_is_made(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "ForecastingPlanner", WaitedFor)
    with made(Clock(), machine, tmp_path) as tuned:
        tuned.wait(1.0)
        run_until(tuned, lambda: any(one.works for one in tuned._plan_candidates))
        process = tuned._planner._process
        assert isinstance(process, SequentialPlanner)
        assert process.waits == 0
        tuned.wait(1.0)
        assert process.waits == 1
        run_until(tuned, lambda: not tuned.report.measuring)
        tuned.wait(1.0)
        assert process.waits == 1


def test_calls_of_what_was_kept_are_seldom_looked_at_and_all_are_counted(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path) as tuned:
        run_until(tuned, lambda: tuned._passes > 0)
        tuned.look()
        run(tuned, 200)
        before, spent_s, calls = len(tuned.tournament.log), tuned.budget.spent_s, tuned.tournament.calls
        for _ in range(3):
            run_until(tuned, lambda: tuned._passes == 1)
            run(tuned, 1)
        run(tuned, 1)
        handled = tuned.tournament.log[before:]
        looked = [event for event in handled if isinstance(event, Ran)]
        passed = sum(event.calls for event in handled if isinstance(event, Passed))
        assert passed >= 2 * MOST_PASSED > 2 * len(looked)
        assert tuned.tournament.calls == calls + passed + len(looked)
        per_call_s = (tuned.budget.spent_s - spent_s) / (passed + len(looked))
        assert per_call_s == pytest.approx(tuned.tournament.best_s, rel=0.5)


def test_what_it_takes_to_look_at_calls_that_are_not_timed_is_part_of_what_learning_takes(
    machine: Machine, tmp_path: Path
) -> None:
    spent_s = []
    for looking_s in (0.0, 0.25):
        clock, kept = Clock(), 300
        clock.default_s = 0.0
        with made(clock, machine, tmp_path / str(looking_s), looking_s=looking_s) as tuned:
            run_until(tuned, lambda: tuned.settled and tuned._passes > 0)
            assert tuned.report.runs == "default"
            before_s = tuned.budget.behind_s
            run(tuned, kept)
            run_until(tuned, lambda: tuned._passed == 1)
            spent_s.append(tuned.budget.behind_s - before_s)
    assert spent_s[1] - spent_s[0] == pytest.approx(0.25 * kept, rel=0.15)


def test_what_was_kept_and_raises_is_left_in_a_call_that_is_not_looked_at(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path) as tuned:
        run_until(tuned, lambda: tuned._passes > 0)

        def raises(_: torch.Tensor) -> torch.Tensor:
            raise ValueError("no memory")

        tuned._kept = replace(tuned._kept, run=raises)
        run(tuned, 1)
        assert (tuned.raised, tuned.left) == ("ValueError: no memory", "a plan raised ValueError: no memory")
        run(tuned, 2)
        assert tuned.report.runs == "default"


@pytest.mark.parametrize("stays", [True, False])
def test_one_of_two_that_are_called_in_turns_learns_at_a_time(machine: Machine, tmp_path: Path, *, stays: bool) -> None:
    """Where one is not called any more, the other one does not wait for it."""
    budget, one, other = Budget(0.9), Clock(), Clock()
    budget.charge(-1e6)  # much may be spent, though not any time
    with (
        made(one, machine, tmp_path / "one", budget=budget.part()) as first,
        made(other, machine, tmp_path / "other", budget=budget.part()) as second,
    ):
        run_until(first, lambda: first.tournament.comparison is not None)
        learned = set[int]()
        for _ in attempts():
            for tuning in (first, second) if stays else (second,):
                run(tuning, 1)
                learned.add(id(tuning)) if tuning.tournament.learns else None
                assert not (stays and first.tournament.learns and second.tournament.learns)
            if second.settled and (first.settled or not stays):
                break
        assert learned == {id(second), *([id(first)] if stays else [])}
        assert second.report.runs == "plan"


class Summaries(StepFeedback):
    """Notes what looks have shown."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("sqlite://", machine)
        self.looked: list[tuple[OpGraph, Mapping[str, Observed]]] = []

    def add_looks(self, looks: Iterable[tuple[OpGraph, Mapping[str, Observed]]]) -> None:
        self.looked += looks


def test_what_looks_have_shown_of_operators_is_stored_once(machine: Machine, tmp_path: Path) -> None:
    summaries = Summaries(machine)
    with made(Clock(), machine, tmp_path, feedback=summaries) as tuned:
        run_until(tuned, lambda: not tuned.report.measuring)
        run(tuned, 3)
        ((graph, observed),) = summaries.looked
        assert {op.key for op in graph.ops} == set(observed)


@pytest.mark.parametrize("error", [OSError("no space left"), ValueError()])
def test_what_fails_between_steps_leaves_them_to_the_default(
    error: Exception,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> Any:
        raise error

    monkeypatch.setattr(planning.Planner, "ask", fails)
    with caplog.at_level(logging.WARNING), made(Clock(), machine, tmp_path) as tuned:
        run_until(tuned, lambda: not tuned.report.measuring)
        reason = str(error) or "measuring was broken off"
        assert (tuned.report.runs, tuned.report.reason, tuned.fastest.name) == ("default", reason, "default")
        assert reason in caplog.text
        run(tuned, 2 * LOOK)


class FailsLater(SequentialPlanner):
    """Makes one plan, and none after that."""

    asked = 0

    def ask_forecast(self, question: Question) -> None:
        type(self).asked += 1
        super().ask_forecast(question)

    def forecast(self) -> Answer | None:
        if self.asked > 1:
            raise ExecutionError("no memory")
        return super().forecast()


def test_a_plan_goes_on_where_no_further_one_can_be_made(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(planning, "ForecastingPlanner", FailsLater)
    monkeypatch.setattr(FailsLater, "asked", 0)
    with caplog.at_level(logging.WARNING), made(Clock(), machine, tmp_path, formats=tuple(MemoryFormat)) as tuned:
        run_until(tuned, lambda: not tuned.learning)
        assert FailsLater.asked > 1
        assert (tuned.report.runs, len(tuned.plans)) == ("plan", 1)
        assert "a plan is not made: no memory" in caplog.text


def test_a_step_that_raises_is_not_counted(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path) as tuned:
        run(tuned, 3)
        before = tuned.tournament.calls
        with pytest.raises(TypeError, match="unsupported operand"):  # as PyTorch raises it, which runs it again
            tuned({})
        assert tuned.tournament.calls == before
        run_until(tuned, lambda: not tuned.report.measuring)


class LookingPlanner(SequentialPlanner):
    """Asks for one more look, with one thread for the first op and two for the others, before it makes a plan."""

    asked: ClassVar[list[Question]] = []

    def ask_forecast(self, question: Question) -> None:
        """Remember the question."""
        super().ask_forecast(question)
        self.asked.append(question)

    def forecast(self) -> Answer | None:
        """A look while there may be one more, then a plan."""
        graph, machine = self._question.graph, self._question.machine
        if len(self.asked) == 1:
            return Answer(look=(Case(1), *[Case(2)] * (len(graph) - 1)))
        plan = sequential(graph, machine, Case(1))
        times = np.full((len(graph), 1), 1e-4)
        curves = CurveTable((Case(1),), times, times, times, np.zeros(times.shape, dtype=np.int8), "test")
        return Answer(plan, curves, plan.makespan_s)


def test_on_a_large_machine_each_op_is_looked_at_where_forecasts_say(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(machine) < 2:
        pytest.skip("one core has one thread count")
    monkeypatch.setattr(curves_in_step, "UNIFORM", 1)  # so that two cores are many
    monkeypatch.setattr(planning, "ForecastingPlanner", LookingPlanner)
    LookingPlanner.asked.clear()
    with made(Clock(), machine, tmp_path) as tuned:
        run_until(tuned, lambda: not tuned.report.measuring)
        first, second = LookingPlanner.asked[:2]
        ops = tuned.captured.graph.ops
        assert (first.looks, {tuple(cases) for cases in first.observed.values()}) == (True, {(Case(2),)})
        shown = {key: {case: len(seconds) for case, seconds in cases.items()} for key, cases in second.observed.items()}
        assert set(shown[ops[0].key]) == {Case(2), Case(1)}
        assert (
            sum(map(sum, (cases.values() for cases in shown.values()))) == 2 * len(ops) * LookSchedule.of(machine).steps
        )
        looked = [one for one in tuned.tournament.log if isinstance(one, Staged) and one.place is Place.CALL]
        assert len(looked) <= LOOK_CALLS + 2


def test_it_is_known_which_calls_pytorch_itself_ran(machine: Machine, tmp_path: Path) -> None:
    """They are not verified: PyTorch's kernels need not repeat their bits."""
    with made(Clock(), machine, tmp_path) as tuned:
        seen = set()
        for _ in range(100):
            run(tuned, 1)
            seen.add((tuned.ran is None, tuned.ran_by_pytorch))
        assert {(True, True), (False, False)} <= seen
        assert (True, False) not in seen
