"""When a tuning machine tries backends before plans."""

from __future__ import annotations

import pytest

from tests.runtime.tuning.machine_world import AS_GIVEN, CHANNELS_LAST, FUSED, LOOKS, World
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, backend, plan_of
from threadcast.runtime.tuning.drift import DRIFT_LIMIT, DRIFT_STEPS
from threadcast.runtime.tuning.instructions import LeaveOut
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.put_off import LONG_S, PAYS
from threadcast.runtime.tuning.states import SearchStage, State
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


def with_search(
    seconds: dict[ContenderId, float],
    *,
    backends: int,
    share: float = 1.0,
    captures: bool = True,
    plan_first: bool = False,
) -> World:
    """A world whose search for backends finds so many, once it may begin."""
    machine = TuningMachine(list(MemoryFormat), LOOKS, fuse=True, warm_up=WarmUp(Allowance(share)))
    world = World(machine, seconds, backends=backends, captures=captures)
    world.stage, world.plan_first = SearchStage.WAITS, plan_first
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


@pytest.mark.parametrize("backend_s", [LONG_S / 4, LONG_S])
def test_one_plan_comes_before_backends_that_take_long_to_build(backend_s: float) -> None:
    name, plan, fused = backend("backend 0"), plan_of(AS_GIVEN), plan_of(FUSED)
    world = with_search(
        {DEFAULT: LONG_S, name: backend_s, plan: LONG_S / 2, fused: LONG_S / 3}, backends=1, plan_first=True
    )
    machine = world.machine
    world.run_until(lambda: name in world.ran)
    assert set(world.ran) == {DEFAULT, plan, name}
    world.run_until(lambda: is_over(world) and not machine.deferred)
    assert machine.best == (name if backend_s < LONG_S / 3 else fused)
    assert (plan_of(CHANNELS_LAST) in world.ran) == (backend_s == LONG_S), "other formats where no backend is fast"
    assert machine.tried_fused


def test_backends_are_searched_where_the_plan_before_them_was_no_faster() -> None:
    name, plan = backend("backend 0"), plan_of(AS_GIVEN)
    world = with_search({DEFAULT: LONG_S, name: LONG_S / 2, plan: 2 * LONG_S}, backends=1, plan_first=True)
    world.run_until(lambda: is_over(world))
    assert world.machine.best == name


def test_plans_follow_where_no_backend_is_found_after_the_first_plan() -> None:
    world = with_search(
        {DEFAULT: LONG_S, plan_of(AS_GIVEN): LONG_S / 2, plan_of(FUSED): 1.0}, backends=0, plan_first=True
    )
    world.run_until(lambda: is_over(world))
    assert world.machine.best == plan_of(AS_GIVEN)
    assert plan_of(FUSED) in world.ran


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
    allowance.share = 1.0
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
