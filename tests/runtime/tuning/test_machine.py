"""Whatever happens in whatever order, the tuning's states hold what they promise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from threadcast.core import Case
from threadcast.runtime.plans.curves_in_step import LEAST_STEPS, TRIAL_STEPS, WARM_UP, LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.confirmation import ALONE_STEPS
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind, backend, eager_in, plan_of
from threadcast.runtime.tuning.drift import DRIFT_LIMIT, DRIFT_STEPS
from threadcast.runtime.tuning.expected_costs import BESIDE_S
from threadcast.runtime.tuning.instructions import (
    Capture,
    ContenderStep,
    GiveUp,
    Instruction,
    Instructions,
    LeaveOut,
    MakePlan,
    Open,
    Refuse,
    SearchStep,
    Settle,
    Store,
    UsePlan,
)  # fmt: skip
from threadcast.runtime.tuning.machine import LONG_S, PAYS, TuningMachine
from threadcast.runtime.tuning.plan_search import Look, Meanwhile
from threadcast.runtime.tuning.states import LEGAL_MOVES, IllegalMove, SearchStage, State
from threadcast.runtime.tuning.warm_up import START_S, Allowance, WarmUp

LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
AS_GIVEN, CHANNELS_LAST = Variant(MemoryFormat.AS_GIVEN), Variant(MemoryFormat.CHANNELS_LAST)
FUSED = Variant(MemoryFormat.AS_GIVEN, fused=True)


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


def check_invariants(machine: TuningMachine) -> None:
    """What holds after every event."""
    history = machine.moves.history
    assert all(move.target in LEGAL_MOVES[move.source] for move in history)
    assert all(one.target is two.source for one, two in pairwise(history))
    assert machine.state is (history[-1].target if history else State.STARTING)
    assert not {machine.best, machine.contest.challenger} & machine.contest.refused.keys()
    assert DEFAULT not in machine.contest.refused
    assert len(set(machine.variants)) == len(machine.variants)
    if machine.state is State.STARTING and machine.agenda.awaited is None:
        return
    if machine.state in (State.CLOSED, State.GIVEN_UP):
        assert machine.agenda.awaited is None
    if machine.state is State.CLOSED:
        return
    assert machine.contest.contenders[0] == machine.best
    assert (machine.contest.challenger is None) == (len(machine.contest.contenders) == 1)
    if machine.agenda.awaited is not None:
        with pytest.raises(IllegalMove):
            machine.next_runner()
        return
    runner = machine.next_runner()
    assert machine.next_runner() == runner, "asking changes nothing"
    searching = machine.state in (State.PROBING, State.PLANNING, State.TRYING)
    if isinstance(runner, SearchStep):
        assert searching
        assert isinstance(runner.step, Meanwhile) == (machine.state is State.PLANNING)
        return
    assert runner.contender in machine.contest.contenders
    assert machine.contest.challenger is None or machine.state is State.COMPARING
    if machine.state is State.GIVEN_UP:
        assert runner == ContenderStep(DEFAULT)
    elif machine.state is not State.RESUMED and machine.best.variant is not None:
        assert machine.best.variant in machine.variants


class Shell:
    """Carries out instructions as `Tuning` does, without running anything."""

    def __init__(
        self, machine: TuningMachine, *, captures: Any = True, backends: int = 0, compiled: bool = True
    ) -> None:  # fmt: skip
        self.machine, self.captures, self.backends, self.compiled = machine, captures, backends, compiled
        self.stage = SearchStage.OVER
        """How far the search for backends is; it begins when it may, where it waits."""
        self.done: list[Instruction] = []
        self.planning: Variant | None = None

    def look(self) -> None:
        """What comes before each step."""
        if self.stage is SearchStage.WAITS and self.machine.may_search_backends():
            self.machine.searches_backends()
            self.stage = SearchStage.WORKS
        if self.machine.state is State.SETTLED and self.stage is not SearchStage.WAITS:
            if self.backends:
                self.backends -= 1
                self.carry_out(self.machine.contest.found_backend(backend(f"backend {self.backends}")))
            else:
                self.stage = SearchStage.OVER
        self.carry_out(self.machine.due(compiled=self.compiled, backends=self.stage))

    def carry_out(self, instructions: Instructions) -> None:
        waiting = list(instructions)
        while waiting:
            self.done.append(instruction := waiting.pop(0))
            waiting.extend(self._answer(instruction))
            check_invariants(self.machine)

    def _answer(self, instruction: Instruction) -> Instructions:
        match instruction:
            case Capture(variant):
                there = self.captures if isinstance(self.captures, bool) else self.captures(variant)
                return self.machine.captured() if there else self.machine.not_captured()
            case MakePlan(variant):
                self.planning = variant
            case UsePlan() | LeaveOut():
                self.planning = None
            case Open(contender):
                return self.machine.contest.opened(contender)
        return ()


class World(Shell):
    """Each contender and each plan takes its own time."""

    def __init__(
        self, machine: TuningMachine, seconds: dict[ContenderId, float], *, captures: Any = True, backends: int = 0,
        compiled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(machine, captures=captures, backends=backends, compiled=compiled)
        self.seconds, self.now_s, self.ran = seconds, 0.0, list[ContenderId]()
        self.looks: dict[Variant, float] = {}
        """Seconds of looks, where they are others than those of the plan."""

    def run(self, steps: int = 1, **observed: Any) -> None:
        for _ in range(steps):
            if self.planning is not None and self.machine.state is State.PLANNING:
                self.carry_out(self.machine.planned(self._seconds(plan_of(self.planning))))
                self.planning = None
            self.look()
            runner = self.machine.next_runner()
            contender = plan_of(runner.variant) if isinstance(runner, SearchStep) else runner.contender
            self.ran.append(contender)
            seconds = self._seconds(contender)
            if isinstance(runner, SearchStep) and isinstance(runner.step, Look):
                seconds = self.looks.get(runner.variant, seconds)
            self.carry_out(self.machine.observe(seconds, started_s=self.now_s, **observed))
            self.now_s += seconds

    def run_to(self, state: State) -> None:
        self.run_until(lambda: self.machine.state is state)

    def run_until(self, wanted: Callable[[], bool], *, limit: int = 10_000) -> None:
        for _ in range(limit):
            if wanted():
                return
            self.run()
        raise AssertionError(f"{self.machine.state} after {limit} steps: {self.machine.moves.history}")

    def _seconds(self, contender: ContenderId) -> float:
        return self.seconds.get(contender, 1.0)


def settled(seconds: dict[ContenderId, float], *, formats: int = 2, **more: Any) -> World:
    machine = TuningMachine(list(MemoryFormat)[:formats], LOOKS, fuse=more.pop("fuse", True))
    world = World(machine, seconds, **more)
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is State.SETTLED and machine.tried_fused and not world.backends)
    return world


@pytest.mark.parametrize(
    "fastest",
    [
        DEFAULT, plan_of(AS_GIVEN), plan_of(CHANNELS_LAST), plan_of(Variant(MemoryFormat.AS_GIVEN, fused=True)),
        eager_in(MemoryFormat.CHANNELS_LAST), backend("backend 0"), backend("backend 1"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_fastest_runs_in_the_end(fastest: ContenderId) -> None:
    world = settled({fastest: 0.5}, backends=2)
    assert world.machine.best == fastest
    assert world.done[-1] == Settle(fastest)
    best_plan = MemoryFormat.CHANNELS_LAST if fastest == plan_of(CHANNELS_LAST) else MemoryFormat.AS_GIVEN
    assert Capture(Variant(best_plan, fused=True)) in world.done
    world.run(DRIFT_STEPS)
    stored = [one for one in world.done if isinstance(one, Store)]
    assert stored == ([Store(fastest.variant, 0.5)] if fastest.variant else [])


def test_each_probe_and_trial_takes_its_steps_and_no_more() -> None:
    world = settled({DEFAULT: 0.01, plan_of(AS_GIVEN): 0.01}, formats=1, fuse=False)
    assert world.machine.steps[State.PROBING] == LOOKS.uniform * (WARM_UP + LOOKS.steps)
    assert world.machine.steps[State.TRYING] == WARM_UP + TRIAL_STEPS
    assert sum(world.machine.steps.values()) == len(world.ran)
    assert sum(world.machine.seconds.values()) == pytest.approx(world.now_s)


def test_a_variant_that_cannot_be_captured_is_left_out() -> None:
    world = settled({}, captures=lambda variant: variant == AS_GIVEN)
    assert world.machine.variants == (AS_GIVEN,)
    assert Open(eager_in(MemoryFormat.CHANNELS_LAST)) not in world.done


def test_where_nothing_can_be_captured_the_default_runs() -> None:
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True)
    world = World(machine, {}, captures=False)
    world.carry_out(machine.start())
    world.run_to(State.GIVEN_UP)
    assert isinstance(world.done[-1], GiveUp)
    world.run(3)
    assert set(world.ran) == {DEFAULT}


def test_drift_is_compared_anew_and_only_then() -> None:
    world = settled({plan_of(AS_GIVEN): 0.5}, formats=1, fuse=False)
    world.run(5 * DRIFT_STEPS)
    assert world.machine.state is State.SETTLED
    world.seconds = {plan_of(AS_GIVEN): 0.5 * DRIFT_LIMIT * 2, DEFAULT: 1.0}
    world.run(DRIFT_STEPS)
    assert world.machine.state is State.COMPARING
    world.run_to(State.SETTLED)
    assert world.machine.best == DEFAULT


def test_steps_on_fewer_cores_say_nothing_of_drift() -> None:
    world = settled({plan_of(AS_GIVEN): 0.5}, formats=1, fuse=False)
    world.run(2 * DRIFT_STEPS)
    world.seconds = {}
    world.run(5 * DRIFT_STEPS, all_cores=False)
    assert world.machine.state is State.SETTLED


def test_slow_steps_beside_compilers_are_no_reason_for_a_doubt() -> None:
    world = settled({plan_of(AS_GIVEN): 0.5}, formats=1, fuse=False)
    world.seconds = {plan_of(AS_GIVEN): 0.7}
    world.run(DRIFT_STEPS - 1, alone=False)
    assert (world.machine.state, world.machine.contest.confirmed) == (State.SETTLED, False)
    world.run(ALONE_STEPS)
    assert world.machine.state is State.COMPARING


def test_a_stored_plan_runs_at_once_until_it_is_slower_than_it_was() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 1.0})
    world.carry_out(machine.start(stored=AS_GIVEN, step_s=1.0))
    world.run(3 * DRIFT_STEPS)
    assert (machine.state, set(world.ran)) == (State.SETTLED, {plan_of(AS_GIVEN)})
    world.seconds = {plan_of(AS_GIVEN): 2.0}
    world.run(DRIFT_STEPS)
    assert machine.state is State.COMPARING
    world.run_to(State.SETTLED)
    assert machine.best == DEFAULT


def test_a_stored_plan_that_is_slower_than_it_was_is_made_anew() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 2.0})
    world.carry_out(machine.start(stored=AS_GIVEN, step_s=1.0))
    world.run(DRIFT_STEPS)
    assert machine.state is State.COMPARING
    world.run_to(State.SETTLED)
    assert machine.best == DEFAULT
    assert MakePlan(AS_GIVEN) in world.done


def test_a_stored_plan_on_a_machine_that_has_become_slower_goes_on() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 2.0, DEFAULT: 3.0})
    world.carry_out(machine.start(stored=AS_GIVEN, step_s=1.0))
    world.run(3 * DRIFT_STEPS)
    assert (machine.state, machine.best, MakePlan(AS_GIVEN) in world.done) == (State.SETTLED, plan_of(AS_GIVEN), False)


@pytest.mark.parametrize("fuse", [True, False])
def test_what_was_not_tried_beside_a_stored_plan_is_tried(fuse: bool) -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=True)
    world = World(machine, {plan_of(FUSED): 0.5, backend("backend 0"): 0.1}, backends=1)
    world.carry_out(machine.start(stored=AS_GIVEN, step_s=1.0, fuse=fuse))
    world.run(200)
    assert (Capture(FUSED) in world.done) == fuse
    assert Capture(AS_GIVEN) not in world.done
    assert machine.best == backend("backend 0")


def test_a_plan_of_other_shapes_that_has_become_slow_is_made_anew() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=True)
    world = World(machine, {plan_of(AS_GIVEN): 0.5})
    world.carry_out(machine.start(like=AS_GIVEN))
    world.run(3 * DRIFT_STEPS)
    assert (machine.state, machine.best, MakePlan(AS_GIVEN) in world.done) == (State.SETTLED, plan_of(AS_GIVEN), False)
    world.seconds = {plan_of(AS_GIVEN): 2.0}
    world.run(2 * DRIFT_STEPS)
    world.run_to(State.SETTLED)
    assert MakePlan(AS_GIVEN) in world.done


def test_a_plan_of_other_shapes_that_is_slower_makes_way_for_a_search() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 2.0})
    world.carry_out(machine.start(like=AS_GIVEN))
    world.run_to(State.SETTLED)
    assert MakePlan(AS_GIVEN) in world.done


def test_a_plan_waits_while_the_planner_makes_another() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is State.PLANNING)
    assert (machine.due(planner_free=False), machine.planning) == ((), False)
    assert machine.due(planner_free=True) == (MakePlan(AS_GIVEN),)
    assert machine.planning
    assert isinstance(machine.next_runner(), SearchStep), "with a core less"
    machine.planner_yields()
    assert (machine.planning, machine.next_runner()) == (False, ContenderStep(DEFAULT))
    world.carry_out(machine.planned(0.5))
    with pytest.raises(IllegalMove):
        machine.planner_yields()


def test_looks_that_run_aside_do_not_run_steps_while_a_plan_is_made() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, aside=True)
    world = World(machine, {})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.awaits_plan)
    assert machine.planning
    assert machine.next_runner() == ContenderStep(DEFAULT)


@pytest.mark.parametrize("aside", [True, False])
def test_looks_that_run_aside_are_expected_to_cost_all_that_they_take(aside: bool) -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, aside=aside, warm_up=WarmUp(Allowance(0.0)))
    world = World(machine, {DEFAULT: 0.3})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is State.PROBING)
    assert machine.held_back == (world.ran[-1] is DEFAULT) == aside, "2.1 s, or 1.35 s where looks are steps"


@pytest.mark.parametrize("wrong", [plan_of(AS_GIVEN), backend("backend 0")], ids=str)
def test_a_faster_contender_with_different_results_never_runs_again(wrong: ContenderId) -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {wrong: 0.1}, backends=1)
    world.carry_out(machine.start())
    world.run_until(lambda: machine.contest.challenger == wrong)
    world.run(difference="output 0 differs by 3")
    assert (Refuse(wrong, "output 0 differs by 3") in world.done, machine.contest.refused) == (
        True, {wrong: "output 0 differs by 3"}
    )  # fmt: skip
    world.ran.clear()
    world.run_to(State.SETTLED)
    world.run(10 * DRIFT_STEPS)
    assert wrong not in world.ran


def test_a_settled_plan_that_is_found_to_differ_makes_way_for_the_default() -> None:
    world = settled({plan_of(AS_GIVEN): 0.5}, formats=1, fuse=False)
    world.run(difference="a parameter moved otherwise")
    world.run_to(State.SETTLED)
    assert world.machine.best == DEFAULT


def test_a_stored_plan_that_is_found_to_differ_is_made_anew() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 0.5})
    world.carry_out(machine.start(stored=AS_GIVEN, step_s=0.5))
    world.run(difference="output 0 differs")
    assert machine.state is State.WAITING
    world.run_to(State.SETTLED)
    assert machine.best == plan_of(AS_GIVEN), "the new plan is another one"


def test_a_backend_whose_weights_were_changed_makes_way_for_the_fastest_plan() -> None:
    world = settled({backend("backend 0"): 0.2, plan_of(AS_GIVEN): 0.5}, formats=1, fuse=False, backends=1)
    world.carry_out(world.machine.contest.stale(backend("backend 0")))
    world.run_to(State.SETTLED)
    assert world.machine.best == plan_of(AS_GIVEN)


def with_search(
    seconds: dict[ContenderId, float], *, backends: int, share: float = 1.0, captures: bool = True
) -> World:
    """A world whose search for backends finds so many, once it may begin."""
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(Allowance(share)))
    world = World(machine, seconds, backends=backends, captures=captures)
    world.stage = SearchStage.WAITS
    world.carry_out(machine.start())
    return world


def is_over(world: World) -> bool:
    """Whether nothing will be tried any more."""
    machine = world.machine
    return machine.state is State.SETTLED and world.stage is SearchStage.OVER and machine.agenda.empty


@pytest.mark.parametrize("backend_s", [LONG_S / PAYS, LONG_S / PAYS * 1.1, 2 * LONG_S])
def test_long_steps_have_backends_tried_first_and_plans_where_no_backend_is_far_faster(backend_s: float) -> None:
    name = backend("backend 0")
    world = with_search({DEFAULT: LONG_S, name: backend_s, plan_of(AS_GIVEN): LONG_S / 4}, backends=1)
    machine = world.machine
    world.run_until(lambda: is_over(world))
    plan_ran = plan_of(AS_GIVEN) in world.ran
    assert plan_ran == (backend_s > LONG_S / PAYS)
    assert machine.best == (plan_of(AS_GIVEN) if plan_ran else name)
    assert next(contender for contender in world.ran if contender is not DEFAULT) == name
    if not plan_ran:
        world.run(50)
        world.carry_out(machine.contest.stale(name))
        world.run_until(lambda: plan_of(AS_GIVEN) in world.ran)
        world.run_until(lambda: is_over(world))
        assert machine.best == plan_of(AS_GIVEN), "plans are searched once the backend is gone"


@pytest.mark.parametrize(("eager_s", "share"), [(0.9 * LONG_S, 1.0), (2 * LONG_S, 0.05)])
def test_plans_are_tried_before_backends_where_steps_are_short_or_learning_may_not_take_any_time(
    eager_s: float, share: float
) -> None:
    name = backend("backend 0")
    world = with_search({DEFAULT: eager_s, name: eager_s / 2, plan_of(AS_GIVEN): eager_s / 4}, backends=1, share=share)
    world.run_until(lambda: name in world.ran)
    assert plan_of(AS_GIVEN) in world.ran


def test_backends_go_first_also_once_learning_may_take_any_time_before_the_first_look() -> None:
    name, allowance = backend("backend 0"), Allowance(0.05)
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(allowance))
    world = World(machine, {DEFAULT: 10 * LONG_S, name: LONG_S}, backends=1)
    world.stage = SearchStage.WAITS
    world.carry_out(machine.start())
    world.run_to(State.PROBING)
    assert machine.held_back
    allowance.share = 1.0
    world.run_until(lambda: is_over(world))
    assert set(world.ran) == {DEFAULT, name}
    assert [done for done in world.done if isinstance(done, LeaveOut)] == [LeaveOut(AS_GIVEN)]


def test_a_search_that_learning_leaves_no_time_for_does_not_keep_plans_waiting() -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = World(machine, {DEFAULT: 2 * LONG_S, plan_of(AS_GIVEN): LONG_S})
    world.stage = SearchStage.WAITS
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    allowance.share = 0.01
    world.run_until(lambda: plan_of(AS_GIVEN) in world.ran)


def test_a_plan_that_waits_for_time_after_the_search_is_not_forgotten_when_the_default_becomes_slower() -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    name = backend("backend 0")
    world = World(machine, {DEFAULT: 2 * LONG_S, plan_of(AS_GIVEN): LONG_S, name: 4 * LONG_S}, backends=1)
    world.stage = SearchStage.WAITS
    world.carry_out(machine.start())
    world.run_until(lambda: name in world.ran and machine.state is State.SETTLED)
    allowance.share, allowance.lost_s = 0.0, 1e3
    world.run_until(lambda: machine.agenda.variant is not None)
    world.run(2 * DRIFT_STEPS)
    assert machine.agenda.variant == AS_GIVEN
    assert machine.deferred
    world.seconds[DEFAULT] *= 2 * DRIFT_LIMIT
    world.run(4 * DRIFT_STEPS)
    assert machine.state is State.SETTLED
    allowance.share, machine.warm_up.lost_s = 1.0, 0.0
    world.run_until(lambda: is_over(world))
    assert machine.best == plan_of(AS_GIVEN)
    assert not machine.deferred


def test_a_backend_runs_where_no_graph_of_a_plan_can_be_captured() -> None:
    name = backend("backend 0")
    world = with_search({DEFAULT: LONG_S, name: 0.9 * LONG_S}, backends=1, captures=False)
    world.run_until(lambda: is_over(world))
    assert world.machine.best == name
    world.run(100)
    assert world.machine.state is State.SETTLED


def test_an_event_out_of_turn_tells_the_history() -> None:
    world = settled({}, formats=1, fuse=False)
    for event in (world.machine.captured, world.machine.later, world.machine.nothing_to_correct):
        with pytest.raises(IllegalMove, match="waiting -> settled: default is the fastest"):
            event()


@pytest.mark.parametrize(("far_slower", "more_s"), [(0.12, 0.05), (1.0, 2.0)])
def test_learning_loses_no_more_time_than_it_may(far_slower: float, more_s: float) -> None:
    share = 0.05
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(Allowance(share)))
    seconds = {
        plan_of(AS_GIVEN): 0.08, DEFAULT: 0.1, plan_of(CHANNELS_LAST): 0.11, plan_of(FUSED): 0.085,
        eager_in(MemoryFormat.CHANNELS_LAST): far_slower,
    }  # fmt: skip
    world = World(machine, seconds)
    world.carry_out(machine.start())
    worst = 0.0
    for _ in range(5_000):
        world.run()
        worst = max(worst, machine.warm_up.lost_s - max(START_S, share * machine.warm_up.seconds))
    assert (machine.state, machine.tried_fused) == (State.SETTLED, True)
    assert machine.best == plan_of(AS_GIVEN)
    assert worst < more_s, "not more than what two steps were not expected to take"


@pytest.mark.parametrize("state", [State.PROBING, State.TRYING, State.COMPARING])
def test_what_goes_on_is_broken_off_once_learning_has_lost_too_much(state: State) -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = World(machine, {DEFAULT: 1.0, plan_of(AS_GIVEN): 1.1})
    world.carry_out(machine.start())
    world.run_to(state)
    world.ran.clear()
    world.run_until(lambda: world.ran.count(plan_of(AS_GIVEN)) == 2)
    assert (machine.state, machine.held_back) == (state, False)
    allowance.share = 0.05
    allowance.charge(100.0)
    world.ran.clear()
    assert machine.held_back
    world.run(100)
    assert (machine.state, set(world.ran)) == (state, {DEFAULT})
    world.run_to(State.SETTLED)
    assert allowance.seconds > 100.0 / 0.05, "it waits for the share"
    assert machine.best is DEFAULT


def test_what_is_not_slower_is_compared_though_learning_has_lost_too_much() -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = World(machine, {DEFAULT: 1.0, backend("backend 0"): 0.9})
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    allowance.share = 0.05
    allowance.charge(1e6)
    world.carry_out(machine.contest.found_backend(backend("backend 0")))
    world.run(100)
    assert (machine.state, machine.best) == (State.SETTLED, backend("backend 0"))


def test_a_comparison_waits_until_learning_may_lose_its_next_pair() -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = World(machine, {DEFAULT: 1.0, plan_of(AS_GIVEN): 2.0})
    world.carry_out(machine.start())
    world.run_to(State.COMPARING)
    world.ran.clear()
    world.run_until(lambda: plan_of(AS_GIVEN) in world.ran)
    allowance.share, waited = 0.05, False
    while machine.state is State.COMPARING:
        world.run()
        over_s = allowance.lost_s - max(START_S, allowance.share * allowance.seconds)
        waited |= over_s <= 0
        assert over_s < 1e-9 or not waited
    assert (machine.best, waited) == (DEFAULT, True)


def test_what_runs_beside_the_calls_begins_once_its_cost_may_be_lost() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=True, warm_up=WarmUp(Allowance(0.05)))
    world = World(machine, {DEFAULT: 0.1, plan_of(AS_GIVEN): 0.08}, compiled=False)
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    assert Capture(FUSED) not in world.done, "the plan is in use and stored before"
    world.run_until(lambda: Capture(FUSED) in world.done)
    assert 0.05 * machine.warm_up.seconds > 0.75 * BESIDE_S, "looks faster than the best way had gained the rest"
    world.run_until(machine.may_search_backends)
    machine.searches_backends()
    assert not machine.may_search_backends(), "the first one's cost is counted"


def test_fused_operators_that_are_compiled_cost_nothing_beforehand() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=True, warm_up=WarmUp(Allowance(0.0)))
    world = World(machine, {DEFAULT: 0.01, plan_of(AS_GIVEN): 0.008})
    world.carry_out(machine.start())
    world.run_until(lambda: Capture(FUSED) in world.done)


def test_without_any_share_learning_ends_after_its_first_second() -> None:
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(Allowance(0.0)))
    world = World(machine, {DEFAULT: 1.0})
    world.carry_out(machine.start())
    assert not machine.held_back, "eager's steps are timed"
    world.run(500)
    assert set(world.ran) == {DEFAULT}, "a look costs more than a second"
    assert machine.held_back
    machine.warm_up.ran(1e6, lost_s=-1e6)
    assert machine.held_back, "nothing may be lost for good"


def test_learning_goes_on_once_it_may_take_the_time() -> None:
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(Allowance(0.05)))
    world = World(machine, {DEFAULT: 1.0, plan_of(AS_GIVEN): 0.5})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.held_back)
    assert world.ran[-1] is DEFAULT
    world.run_until(lambda: not machine.held_back)
    world.run_to(State.SETTLED)
    assert machine.best == plan_of(AS_GIVEN)


def test_a_variant_whose_first_look_is_far_slower_is_left_out() -> None:
    world = settled({plan_of(AS_GIVEN): 0.5, plan_of(CHANNELS_LAST): 2.0}, fuse=False)
    assert LeaveOut(CHANNELS_LAST) in world.done
    assert world.ran.count(plan_of(CHANNELS_LAST)) == WARM_UP + LEAST_STEPS


@pytest.mark.parametrize(("looked_s", "compared"), [(0.5, True), (0.6, False)])
def test_eager_in_another_format_is_compared_unless_the_plan_is_far_faster_than_its_look(
    looked_s: float, compared: bool
) -> None:
    eager = eager_in(MemoryFormat.CHANNELS_LAST)
    machine = TuningMachine([MemoryFormat.CHANNELS_LAST], LOOKS, fuse=False)
    world = World(machine, {plan_of(CHANNELS_LAST): 0.5, eager: 0.4})
    world.looks = {CHANNELS_LAST: looked_s}
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    assert (Open(eager) in world.done) == compared
    assert machine.best == (eager if compared else plan_of(CHANNELS_LAST))


def test_eager_in_another_format_is_compared_where_the_plan_is_refused() -> None:
    eager = eager_in(MemoryFormat.CHANNELS_LAST)
    machine = TuningMachine([MemoryFormat.CHANNELS_LAST], LOOKS, fuse=False)
    world = World(machine, {plan_of(CHANNELS_LAST): 0.5, eager: 0.4})
    world.looks = {CHANNELS_LAST: 0.6}
    world.carry_out(machine.start())
    world.run_until(lambda: machine.contest.challenger == plan_of(CHANNELS_LAST))
    world.run(difference="differs")
    world.run_to(State.SETTLED)
    assert machine.best == eager


@pytest.mark.parametrize(("predicted_s", "tried"), [(0.52, True), (0.6, False)])
def test_a_plan_that_predicts_to_be_slower_than_the_best_way_is_not_tried(predicted_s: float, tried: bool) -> None:
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 0.5, plan_of(CHANNELS_LAST): predicted_s})
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    assert machine.best == plan_of(AS_GIVEN)
    assert (LeaveOut(CHANNELS_LAST) in world.done) == (not tried)
    assert (Open(plan_of(CHANNELS_LAST)) in world.done) == tried


def test_the_first_plan_is_tried_whatever_it_predicts() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {plan_of(AS_GIVEN): 1.4})
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    assert Open(plan_of(AS_GIVEN)) in world.done


def test_a_graph_that_is_not_ready_is_asked_for_again_while_the_best_runs() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = World(machine, {})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.warm_up.eager_s is not None)
    for _ in range(3):
        assert machine.due() == (Capture(AS_GIVEN),)
        machine.later()
        assert machine.next_runner() == ContenderStep(DEFAULT)
        machine.observe(1.0)
    world.run_to(State.SETTLED)


SELDOM = st.integers(0, 15).map(lambda number: number == 15)
"""For what ends a tuning: most runs shall go on."""


class AnyOrder(RuleBasedStateMachine):
    """Steps, plans, changes, differences and failures in any order."""

    @initialize(
        formats=st.permutations(list(MemoryFormat)), both=st.booleans(), fuse=st.booleans(),
        backends=st.integers(0, 2), known=st.booleans(), stored=st.none() | st.floats(0.01, 10.0),
        other_format=st.booleans(), can_fuse=st.booleans(), like=st.booleans(),
    )  # fmt: skip
    def begin(
        self, formats: list[MemoryFormat], both: bool, fuse: bool, backends: int, known: bool, stored: float | None,
        other_format: bool, can_fuse: bool, like: bool,
    ) -> None:  # fmt: skip
        formats = formats[: 1 + both]
        self.allowance = Allowance(1.0)
        self.machine = TuningMachine(formats, LOOKS, fuse=fuse, known=known, warm_up=WarmUp(self.allowance))
        variants = [*map(Variant, formats)]
        self.shell = Shell(
            self.machine, backends=backends,
            captures=lambda variant: variant == variants[0] or (can_fuse if variant.fused else other_format),
        )  # fmt: skip
        self.now_s, self.steps = 0.0, 0
        start = {"like": variants[0]} if like else {}
        if stored is not None:
            start = {"stored": variants[0], "step_s": stored}
        self.shell.carry_out(self.machine.start(**start))  # type: ignore[arg-type]

    def _running(self) -> bool:
        return self.machine.state is not State.CLOSED

    def _step(self, seconds: float, **observed: Any) -> None:
        self.shell.look()
        self.shell.carry_out(self.machine.observe(seconds, started_s=self.now_s, **observed))
        self.now_s += seconds
        self.steps += 1

    @precondition(_running)
    @rule(count=st.integers(1, 60), seconds=st.floats(0.01, 10.0), ratio=st.floats(0.2, 5.0))
    def step(self, count: int, seconds: float, ratio: float) -> None:
        for _ in range(count):
            self.shell.look()
            challenger = self.machine.contest.challenger
            challenging = challenger is not None and self.machine.next_runner() == ContenderStep(challenger)
            self._step(seconds * ratio if challenging else seconds)

    @rule(share=st.sampled_from([1.0, 1.0, 0.05]), lost_s=st.sampled_from([0.0, 1.0, 100.0]))
    def may_lose(self, share: float, lost_s: float) -> None:
        self.allowance.share = share
        self.allowance.charge(lost_s)

    @precondition(_running)
    @rule(seconds=st.floats(0.01, 10.0))
    def step_on_fewer_cores(self, seconds: float) -> None:
        self._step(seconds, all_cores=False)

    @precondition(lambda self: self._running() and self.machine.state is State.PLANNING and self.shell.planning)
    @rule(predicted_s=st.floats(0.01, 10.0))
    def plan_comes(self, predicted_s: float) -> None:
        self.shell.planning = None
        self.shell.carry_out(self.machine.planned(predicted_s))

    @precondition(lambda self: self._running() and self.machine.state is State.PLANNING and self.shell.planning)
    @rule()
    def planner_yields(self) -> None:
        if self.machine.planning:
            self.machine.planner_yields()

    @precondition(lambda self: self._running() and self.machine.state is State.PLANNING and self.shell.planning)
    @rule()
    def look_again(self) -> None:
        search = self.machine._search
        if search is not None and len(search.look_s) < 5:
            self.shell.planning = None
            self.shell.carry_out(self.machine.look_again())

    @precondition(lambda self: self.machine.state is State.PLANNING and self.shell.planning)
    @rule()
    def nothing_to_correct(self) -> None:
        search = self.machine._search
        if search is not None and search.step_s:
            self.shell.carry_out(self.machine.nothing_to_correct())

    @precondition(lambda self: self._running() and self.machine.contest.contenders[-1:] not in ((), (DEFAULT,)))
    @rule(first=st.booleans())
    def become_stale(self, first: bool) -> None:
        contender = self.machine.contest.contenders[0 if first else -1]
        if contender != DEFAULT:
            self.shell.carry_out(self.machine.contest.stale(contender))

    @precondition(lambda self: self._running() and self.machine.contest.contenders[-1:] not in ((), (DEFAULT,)))
    @rule()
    def differ(self) -> None:
        self.shell.look()
        wrong = self.machine.contest.contenders[-1]
        resumed = self.machine.state is State.RESUMED or wrong in self.machine.contest.earlier.contenders
        held_back = self.machine._spending.holds_back(self.machine._search or self.machine.contest.duel)
        if isinstance(self.machine.next_runner(), SearchStep) or held_back:
            return
        self._step(1.0, difference="differs")
        assert wrong not in self.machine.contest.contenders
        assert (wrong in self.machine.contest.refused) == (not resumed)

    @precondition(lambda self: self.machine.state not in (State.CLOSED, State.GIVEN_UP))
    @rule(seldom=SELDOM)
    def fail(self, seldom: bool) -> None:
        if not seldom:
            return
        self.shell.carry_out(self.machine.give_up("no space left"))
        assert self.machine.best == DEFAULT

    @rule(seldom=SELDOM)
    def close(self, seldom: bool) -> None:
        if seldom:
            self.machine.close()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "machine"):
            check_invariants(self.machine)
            assert sum(self.machine.steps.values()) == self.steps
            opened = {one.contender for one in self.shell.done if isinstance(one, Open)}
            settled_on = {one.contender for one in self.shell.done if isinstance(one, Settle)}
            assert all(
                one in opened or one.kind in (Kind.DEFAULT, Kind.BACKEND) for one in settled_on - self._resumed()
            )

    def _resumed(self) -> set[ContenderId]:
        first = self.machine.moves.history[:1]
        return {self.shell.done[0].contender} if first and first[0].target is State.RESUMED else set()  # type: ignore[union-attr]


AnyOrder.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)  # fmt: skip
"""Without shrinking, which could take minutes: a failure shows the first example found, and the moves before it."""
TestAnyOrder = AnyOrder.TestCase
