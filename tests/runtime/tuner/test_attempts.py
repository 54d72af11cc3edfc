"""Looks, trials and pairs that were broken off get further the next time; what ran a step is what was named for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.tuning.test_machine import AS_GIVEN, CHANNELS_LAST, LOOKS, World
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, eager_in, plan_of
from threadcast.runtime.tuning.instructions import Refuse, SearchStep
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.states import State
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp

PLAN, OTHER = plan_of(AS_GIVEN), plan_of(CHANNELS_LAST)
SECONDS = {DEFAULT: 0.23, PLAN: 0.2, OTHER: 0.16, eager_in(MemoryFormat.CHANNELS_LAST): 0.26}


class _Reordered(World):
    """Calls after a change of the memory format take longer by `change_s`, which their steps do not."""

    def __init__(self, machine: TuningMachine, seconds: dict[ContenderId, float], change_s: float) -> None:
        super().__init__(machine, seconds)
        self._change_s = change_s

    def run(self, steps: int = 1, **observed: Any) -> None:
        for _ in range(steps):
            runner = self.machine.next_runner()
            contender = plan_of(runner.variant) if isinstance(runner, SearchStep) else runner.contender
            last = self.ran[-1] if self.ran else DEFAULT
            changes = _format(contender) is not _format(last)
            super().run(call_s=self._seconds(contender) + self._change_s * changes, **observed)


def _format(contender: ContenderId) -> MemoryFormat:
    given = contender.memory_format or MemoryFormat.AS_GIVEN
    return given if contender.variant is None else contender.variant.memory_format


def _begun(change_s: float = 0.0, share: float = 0.05) -> tuple[_Reordered, Allowance]:
    allowance = Allowance(share)
    machine = TuningMachine(list(MemoryFormat)[:2], LOOKS, fuse=False, warm_up=WarmUp(allowance))
    world = _Reordered(machine, SECONDS, change_s)
    world.carry_out(machine.start())
    return world, allowance


@pytest.mark.parametrize("state", [State.PROBING, State.TRYING, State.COMPARING])
@pytest.mark.parametrize("change_s", [0.0, 0.1, 0.3])
def test_what_is_broken_off_for_what_was_not_expected_ends_none_the_less(state: State, change_s: float) -> None:
    """As where a change of the memory format takes as long as half a step."""
    world, allowance = _begun(change_s)
    machine = world.machine

    def begun() -> bool:
        part = machine._search or machine.contest.duel
        return machine.state is state and part is not None and part.begun and world.ran[-1] == OTHER

    world.run_until(begun)
    allowance.charge(5.0)
    world.run_to(State.SETTLED)
    assert machine.best == OTHER
    assert len(world.ran) < 1500


@pytest.mark.parametrize("state", [State.TRYING, State.COMPARING])
def test_what_is_refused_is_what_ran_though_another_thread_has_used_up_what_may_be_lost(state: State) -> None:
    """Calls of several kinds share what learning may lose."""
    world, allowance = _begun(share=1.0)
    machine = world.machine
    world.run_until(lambda: machine.best is not DEFAULT and machine.state is state and machine.agenda.pending is None)

    def names_other() -> bool:
        runner = machine.next_runner()
        return (plan_of(runner.variant) if isinstance(runner, SearchStep) else runner.contender) == OTHER

    world.run_until(names_other)
    contest = machine.contest
    if contest.duel is not None:
        world.seconds[OTHER] = 0.3
        world.run_until(lambda: names_other() and contest.duel is not None and contest.duel.pair_cost_s > 0)
    assert names_other()
    allowance.share = 0.0
    allowance.charge(100.0)
    refused = [one.contender for one in machine.observe(0.3, difference="wrong numbers") if isinstance(one, Refuse)]
    assert (refused, machine.best) == ([OTHER], PLAN)
