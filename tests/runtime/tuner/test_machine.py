"""What the tuning machine finds to be the fastest, and what changes that."""

from __future__ import annotations

import pytest

from tests.runtime.tuning.machine_world import AS_GIVEN, CHANNELS_LAST, FUSED, LOOKS, World, settled
from threadcast.runtime.plans.curves_in_step import LEAST_STEPS, TRIAL_STEPS, WARM_UP
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.confirmation import ALONE_STEPS
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, backend, eager_in, plan_of
from threadcast.runtime.tuning.drift import DRIFT_LIMIT, DRIFT_STEPS
from threadcast.runtime.tuning.instructions import (
    Capture,
    ContenderStep,
    GiveUp,
    LeaveOut,
    MakePlan,
    Open,
    Refuse,
    SearchStep,
    Settle,
    Store,
    UsePlan,
)  # fmt: skip
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.states import IllegalMove, State
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


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


def test_what_is_slower_than_it_was_runs_on_until_it_may_be_compared_with_a_default_that_was_slower_still() -> None:
    allowance = Allowance(1.0)
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = World(machine, {plan_of(AS_GIVEN): 0.5})
    world.carry_out(machine.start())
    world.run_to(State.SETTLED)
    world.run(2 * DRIFT_STEPS)
    allowance.share = 0.05
    allowance.charge(1e3)
    world.seconds = {plan_of(AS_GIVEN): 0.5 * DRIFT_LIMIT * 1.1}
    world.ran.clear()
    world.run(3 * DRIFT_STEPS)
    assert (machine.state, set(world.ran)) == (State.SETTLED, {plan_of(AS_GIVEN)})
    allowance.share = 1.0
    world.run_to(State.COMPARING)
    world.run_to(State.SETTLED)
    assert DEFAULT in world.ran
    assert machine.best == plan_of(AS_GIVEN)


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


@pytest.mark.parametrize("state", [State.PROBING, State.TRYING, State.COMPARING])
def test_nothing_is_tried_beside_a_plan_that_is_made_for_other_calls(state: State) -> None:
    """A step by a plan took 2.9 ms there, alone 0.7 (decision 9)."""
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=WarmUp(Allowance(1.0)))
    world = World(machine, {plan_of(AS_GIVEN): 0.5})
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is state)
    world.run()
    world.ran.clear()
    world.seconds = {plan_of(AS_GIVEN): 50.0, DEFAULT: 1.5}
    counted = list(machine.warm_up._eager_s)
    world.run(100, disturbed=True)
    assert (machine.state, set(world.ran)) == (state, {DEFAULT})
    assert list(machine.warm_up._eager_s) == counted
    world.seconds = {plan_of(AS_GIVEN): 0.5}
    world.run_to(State.SETTLED)
    assert machine.best == plan_of(AS_GIVEN)


def test_a_plan_is_waited_for_with_meanwhile_steps_beside_it() -> None:
    world = planning(AS_GIVEN, {})
    assert isinstance(world.machine.next_runner(disturbed=True), SearchStep)


def planning(variant: Variant, seconds: dict[ContenderId, float], *, fuse: bool = False) -> World:
    """A world in which a plan of `variant` is being made."""
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=fuse)
    world = World(machine, seconds)
    world.carry_out(machine.start())
    world.run_until(lambda: world.planning == variant and machine.awaits_plan)
    return world


def test_where_a_further_plan_cannot_be_made_what_was_found_goes_on() -> None:
    world = planning(FUSED, {plan_of(AS_GIVEN): 0.5, plan_of(FUSED): 0.5}, fuse=True)
    world.carry_out(world.machine.not_planned("no memory"))
    assert LeaveOut(FUSED) in world.done
    assert (world.done[-1], world.machine.state) == (Settle(plan_of(AS_GIVEN)), State.SETTLED)
    world.run(DRIFT_STEPS)
    assert world.machine.best == plan_of(AS_GIVEN)


def test_where_a_plan_cannot_be_corrected_the_one_that_was_tried_stays() -> None:
    world = planning(AS_GIVEN, {plan_of(AS_GIVEN): 0.5})
    world.carry_out(world.machine.planned(0.1))
    world.planning = None
    world.run_until(lambda: world.machine.awaits_plan)
    world.carry_out(world.machine.not_planned("no memory"))
    assert UsePlan(AS_GIVEN, 0) in world.done
    world.run_to(State.SETTLED)
    assert world.machine.best == plan_of(AS_GIVEN)


def test_where_no_plan_can_be_made_the_default_runs() -> None:
    world = planning(AS_GIVEN, {})
    world.carry_out(world.machine.not_planned("no memory"))
    assert (world.done[-1], world.machine.state) == (GiveUp("no memory"), State.GIVEN_UP)


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


def test_an_event_out_of_turn_tells_the_history() -> None:
    world = settled({}, formats=1, fuse=False)
    for event in (world.machine.captured, world.machine.later, world.machine.nothing_to_correct):
        with pytest.raises(IllegalMove, match="waiting -> settled: default is the fastest"):
            event()


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
