"""What won a comparison by noise is found out by its steps alone, and gives way to what is faster."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import pytest

from tests.runtime.tuning.test_machine import AS_GIVEN, LOOKS, World
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.confirmation import ALONE_STEPS, BROKEN, MOST_COMPARISONS, Confirmation
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, backend, plan_of
from threadcast.runtime.tuning.drift import DRIFT_LIMIT, DRIFT_STEPS
from threadcast.runtime.tuning.duel import Duel
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.guard import CLEAR
from threadcast.runtime.tuning.instructions import Compared, Settle
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.states import State
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp

PLAN, BACKEND = plan_of(AS_GIVEN), backend("backend 0")


class Misleading(World):
    """Contenders take other times in their first comparison than later."""

    def __init__(self, *arguments: Any, at_first: dict[ContenderId, float], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.at_first = at_first

    def _seconds(self, contender: ContenderId) -> float:
        first = self.machine.contest.challenger == contender and not comparisons(self, contender)
        return (self.at_first if first else {}).get(contender, super()._seconds(contender))


def misled(
    alone: dict[ContenderId, float], at_first: dict[ContenderId, float], *, backends: int = 0,
    warm_up: WarmUp | None = None,
) -> Misleading:  # fmt: skip
    """A world that has settled for the first time on the last contender."""
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False, warm_up=warm_up)
    world = Misleading(machine, alone, at_first=at_first, backends=backends)
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is State.SETTLED and not world.backends)
    return world


def comparisons(world: World, contender: ContenderId) -> int:
    return sum(isinstance(one, Compared) and one.contender == contender for one in world.done)


@pytest.mark.parametrize(("kept", "backends"), [(PLAN, 0), (BACKEND, 1)], ids=["plan", "backend"])
def test_what_is_slower_alone_than_the_default_gives_way_to_it(kept: ContenderId, backends: int) -> None:
    world = misled({kept: 0.0125, DEFAULT: 0.01, PLAN: 0.0125}, {kept: 0.008}, backends=backends)
    assert world.machine.best == kept
    assert not world.machine.contest.confirmed
    world.run_until(lambda: world.machine.best == DEFAULT)
    world.run_to(State.SETTLED)
    assert (world.machine.best, world.machine.contest.confirmed, world.done[-1]) == (DEFAULT, True, Settle(DEFAULT))
    last = next(one for one in reversed(world.done) if isinstance(one, Compared))
    assert (last.contender, last.verdict.kept, last.verdict.gain) == (kept, "default", pytest.approx(0.8))
    world.ran.clear()
    world.run(10 * DRIFT_STEPS)
    assert set(world.ran) == {DEFAULT}


def test_what_is_slower_beside_a_search_is_not_doubted() -> None:
    world = misled({PLAN: 0.008, DEFAULT: 0.01}, {})
    world.seconds[PLAN] = 0.0125
    world.ran.clear()
    world.run(2 * ALONE_STEPS, alone=False)
    assert (world.machine.contest.confirmed, set(world.ran)) == (False, {PLAN})
    world.run(ALONE_STEPS)
    assert world.machine.state is State.COMPARING


def test_what_is_clearly_faster_alone_is_not_disturbed() -> None:
    world = misled({PLAN: 0.005, DEFAULT: 0.01, BACKEND: 0.004}, {}, backends=1)
    world.run(5)
    assert not world.machine.contest.confirmed
    world.ran.clear()
    world.run(2_000)
    assert (world.machine.contest.confirmed, set(world.ran)) == (True, {BACKEND})


def test_what_is_a_little_faster_is_compared_again_and_kept_a_few_times_at_growing_distances() -> None:
    world = misled({PLAN: 0.0095, DEFAULT: 0.01}, {})
    before, settled_at = comparisons(world, PLAN), []
    for _ in range(20_000):
        state = world.machine.state
        world.run()
        if state is State.SETTLED and world.machine.state is State.COMPARING:
            settled_at.append(world.machine.steps[State.SETTLED])
    assert comparisons(world, PLAN) - before == len(settled_at) == MOST_COMPARISONS
    assert [b - a for a, b in pairwise(settled_at)] == [2 * ALONE_STEPS, 3 * ALONE_STEPS]
    assert (world.machine.state, world.machine.best) == (State.SETTLED, PLAN)


def test_the_second_best_follows_where_what_was_kept_is_slower_than_the_default() -> None:
    world = misled({PLAN: 0.008, BACKEND: 0.0125, DEFAULT: 0.01}, {BACKEND: 0.006}, backends=1)
    assert world.machine.best == BACKEND
    world.run_until(lambda: world.machine.best == DEFAULT)
    world.run_until(lambda: world.machine.best == PLAN)
    world.run_to(State.SETTLED)
    world.run(5 * DRIFT_STEPS)
    assert (world.machine.state, world.machine.best) == (State.SETTLED, PLAN)


def test_what_is_slower_alone_than_the_second_best_was_gives_way_to_that() -> None:
    world = misled({PLAN: 0.005, DEFAULT: 0.01}, {})
    world.run(2 * ALONE_STEPS)
    world.seconds[BACKEND], world.at_first[BACKEND], world.backends = 0.006, 0.004, 1
    world.run_until(lambda: world.machine.best == BACKEND)
    world.ran.clear()
    world.run_until(lambda: world.machine.best == PLAN)
    assert DEFAULT not in world.ran, "which is clearly slower"
    world.run_to(State.SETTLED)
    assert world.machine.best == PLAN


def test_on_fewer_cores_nothing_is_doubted_nor_waited_for() -> None:
    world = misled({PLAN: 0.02, DEFAULT: 0.01}, {PLAN: 0.008})
    world.run(2 * DRIFT_STEPS, all_cores=False)
    assert (world.machine.state, world.machine.best, world.machine.contest.confirmed) == (State.SETTLED, PLAN, True)
    world.run_until(lambda: world.machine.best == DEFAULT)


def test_drift_is_still_found_after_a_confirmation() -> None:
    world = misled({PLAN: 0.0095, DEFAULT: 0.01}, {})
    world.run(3_000)
    assert world.machine.state is State.SETTLED
    world.seconds = {PLAN: 0.0095 * DRIFT_LIMIT * 1.1, DEFAULT: 0.01}
    world.run_until(lambda: world.machine.best == DEFAULT, limit=3 * DRIFT_STEPS)


def test_a_plan_of_other_shapes_that_was_kept_by_noise_makes_way_for_a_search() -> None:
    machine = TuningMachine([MemoryFormat.AS_GIVEN], LOOKS, fuse=False)
    world = Misleading(machine, {PLAN: 0.0125, DEFAULT: 0.01}, at_first={PLAN: 0.008})
    world.carry_out(machine.start(like=AS_GIVEN))
    world.run_to(State.SETTLED)
    assert machine.best == PLAN
    world.run_to(State.PROBING)


def test_a_doubted_contender_with_other_results_is_refused_not_the_default() -> None:
    world = misled({PLAN: 0.0125, DEFAULT: 0.01}, {PLAN: 0.008})
    world.run_to(State.COMPARING)
    world.run(difference="output 0 differs")
    assert set(world.machine.contest.refused) == {PLAN}
    world.run_to(State.SETTLED)
    assert world.machine.best == DEFAULT


def test_a_doubted_backend_that_is_stale_meanwhile_makes_way_for_the_plan() -> None:
    world = misled({PLAN: 0.009, BACKEND: 0.0125, DEFAULT: 0.01}, {BACKEND: 0.006}, backends=1)
    world.run_to(State.COMPARING)
    world.carry_out(world.machine.contest.stale(BACKEND))
    world.run_to(State.SETTLED)
    assert world.machine.best == PLAN


def test_a_comparison_waits_until_learning_may_take_its_time_and_is_counted() -> None:
    warm_up = WarmUp(Allowance(0.05))
    world = misled({PLAN: 0.95, DEFAULT: 1.0}, {}, warm_up=warm_up)
    assert world.machine.best == PLAN
    world.run_to(State.COMPARING)
    lost_s = warm_up._allowance.lost_s
    world.ran.clear()
    world.run_to(State.SETTLED)
    assert warm_up._allowance.lost_s - lost_s == pytest.approx(0.05 * world.ran.count(DEFAULT))
    stuck = misled({PLAN: 0.95, DEFAULT: 1.0}, {}, warm_up=WarmUp(Allowance(1.0)))
    stuck.machine.warm_up._allowance.share = 0.0
    stuck.machine.warm_up.charge(100.0)
    stuck.run(20 * ALONE_STEPS)
    assert (stuck.machine.state, stuck.machine.contest.confirmed) == (State.SETTLED, True)


@pytest.mark.parametrize(
    ("best", "challenger", "alone"),
    [(DEFAULT, PLAN, False), (PLAN, BACKEND, True), (BACKEND, PLAN, True), (BACKEND, DEFAULT, True)],
)
def test_backends_are_compared_in_rows_of_steps_alone(best: ContenderId, challenger: ContenderId, alone: bool) -> None:
    duel, now_s, ran = Duel(best, challenger), 0.0, list[ContenderId]()
    while (verdict := duel.observe(started_s=now_s, seconds=1e-3)) is None:
        now_s += 1e-3
        ran.append(duel.next_runner().contender)
    assert (duel.base, verdict.kept) == (DEFAULT if DEFAULT in (best, challenger) else best, "default")
    longest = max(len(list(steps)) for _, steps in groupby(ran))
    assert (longest > 100) == alone


def watched(*, promised_s: float, gain: float) -> Confirmation:
    confirmation = Confirmation(ExpectedCosts(LOOKS, WarmUp()))
    confirmation.won(PLAN, DEFAULT, gain=gain, step_s=promised_s)
    confirmation.won(BACKEND, PLAN, gain=1.0, step_s=promised_s)
    confirmation.settled(BACKEND, PLAN)
    return confirmation


@pytest.mark.parametrize(
    ("alone_s", "promised_s", "gain", "other"),
    [
        (0.008, 0.008, 1.25, None), (0.0092, 0.0092, 1.1, DEFAULT), (0.008, 0.008 / 1.25, 1.25, PLAN),
        (0.008, 0.008 * 1.25, 1.25, DEFAULT), (0.005, 0.005, 1.3, DEFAULT), (0.005, 0.005, 2.6, DEFAULT),
        (0.01 / CLEAR, 0.009, 1.1, None), (0.008, 0.008 / BROKEN, 1.25, None), (0.005, 0.005, 2 * BROKEN, None),
    ],
)  # fmt: skip
def test_doubts_come_from_the_default_and_from_what_comparisons_have_shown(
    alone_s: float, promised_s: float, gain: float, other: ContenderId | None
) -> None:
    confirmation = watched(promised_s=promised_s, gain=gain)
    doubts = [confirmation.observe(alone_s, all_cores=True, eager_s=0.01) for _ in range(ALONE_STEPS)]
    assert doubts[:-1] == [None] * (ALONE_STEPS - 1)
    assert (doubts[-1].other if doubts[-1] else None) == other


def test_single_slow_steps_raise_no_doubt() -> None:
    confirmation = watched(promised_s=0.005, gain=2.0)
    for i in range(100):
        assert confirmation.observe(0.5 if i % 5 == 2 else 0.005, all_cores=True, eager_s=0.01) is None


def test_what_was_found_while_the_machine_was_busy_is_compared_again() -> None:
    world = misled({PLAN: 0.03, DEFAULT: 0.05}, {})
    world.seconds = {PLAN: 0.0125, DEFAULT: 0.01}
    world.run_until(lambda: world.machine.best == DEFAULT, limit=200)


def test_what_beat_a_stored_plan_is_not_doubted_for_its_gain() -> None:
    confirmation = Confirmation(ExpectedCosts(LOOKS, WarmUp()))
    confirmation.won(BACKEND, PLAN, gain=1.15, step_s=0.0045)  # the plan was stored: its gain is not known
    confirmation.settled(BACKEND, PLAN)
    assert all(confirmation.observe(0.0045, all_cores=True, eager_s=0.0104) is None for _ in range(40))
