"""Whatever happens in whatever order, the tuning's states hold what they promise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.runtime.tuning.machine_world import LOOKS, Shell, check_invariants
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind
from threadcast.runtime.tuning.instructions import ContenderStep, Open, SearchStep, Settle
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.states import SearchStage, State
from threadcast.runtime.tuning.warm_up import Allowance, WarmUp


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


SELDOM = st.integers(0, 15).map(lambda number: number == 15)
"""For what ends a tuning: most runs shall go on."""


class AnyOrder(RuleBasedStateMachine):
    """Steps, plans, changes, differences and failures in any order."""

    @initialize(
        formats=st.permutations(list(MemoryFormat)), both=st.booleans(), fuse=st.booleans(),
        backends=st.integers(0, 2), known=st.booleans(), stored=st.none() | st.floats(0.01, 10.0),
        other_format=st.booleans(), can_fuse=st.booleans(), like=st.booleans(), waits=st.booleans(),
        plan_first=st.booleans(),
    )  # fmt: skip
    def begin(
        self, formats: list[MemoryFormat], both: bool, fuse: bool, backends: int, known: bool, stored: float | None,
        other_format: bool, can_fuse: bool, like: bool, waits: bool, plan_first: bool,
    ) -> None:  # fmt: skip
        formats = formats[: 1 + both]
        self.allowance = Allowance(1.0)
        self.machine = TuningMachine(formats, LOOKS, fuse=fuse, known=known, warm_up=WarmUp(self.allowance))
        variants = [*map(Variant, formats)]
        self.shell = Shell(
            self.machine, backends=backends,
            captures=lambda variant: variant == variants[0] or (can_fuse if variant.fused else other_format),
        )  # fmt: skip
        self.shell.plan_first = plan_first
        if waits:
            self.shell.stage = SearchStage.WAITS
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
    @rule(seldom=SELDOM)
    def no_plan_comes(self, seldom: bool) -> None:
        search = self.machine._search
        if seldom or self.machine.variants or (search is not None and search.step_s):  # else the default runs for good
            self.shell.planning = None
            self.shell.carry_out(self.machine.not_planned("no memory"))

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
