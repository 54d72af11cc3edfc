"""Learning loses no more time than it may."""

from __future__ import annotations

import pytest

from tests.runtime.tuning.machine_world import AS_GIVEN, CHANNELS_LAST, FUSED, LOOKS, World
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender_id import DEFAULT, backend, eager_in, plan_of
from threadcast.runtime.tuning.expected_costs import BESIDE_S
from threadcast.runtime.tuning.instructions import Capture
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.states import State
from threadcast.runtime.tuning.warm_up import START_S, Allowance, WarmUp


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


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
        worst = max(worst, machine.warm_up._allowance.lost_s - max(START_S, share * machine.warm_up._allowance.seconds))
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
    assert 0.05 * machine.warm_up._allowance.seconds > 0.75 * BESIDE_S, (
        "looks faster than the best way had gained the rest"
    )
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
