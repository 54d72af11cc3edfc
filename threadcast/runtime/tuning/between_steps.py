"""What is done between the caller's steps: the state machine is told what has happened, and what it answers is done."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from threadcast.core.errors import ExecutionError, ThreadcastError
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.plans.plan_store import Extra
from threadcast.runtime.plans.step_forecasts import Answer
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.backends_beside import BackendsBeside
from threadcast.runtime.tuning.call_plans import CallPlans
from threadcast.runtime.tuning.contender import VariantPlan
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind, plan_of
from threadcast.runtime.tuning.core_follower import CoreFollower
from threadcast.runtime.tuning.expected_costs import BESIDE_S
from threadcast.runtime.tuning.first_steps import FirstSteps
from threadcast.runtime.tuning.instructions import Instruction, Instructions, SearchStep
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.open_contenders import OpenContenders
from threadcast.runtime.tuning.plan_maker import PlanMaker
from threadcast.runtime.tuning.plan_search import Try
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.states import State
from threadcast.runtime.tuning.variant_plans import VariantPlans

_logger = logging.getLogger("threadcast")


class BetweenSteps:
    """Carries out the instructions of `states`, by what it shares with the `Tuning` that runs the steps.

    These are the plans of the call and its contenders, what compares the results of first steps, the search for
    backends, and what keeps the running plan on the cores that the model has. `stored` are the call's plans in the
    store. `like` are plans of other calls of the same model: the first that fits the graph is compared with the default
    before anything is measured.
    """

    def __init__(
        self, states: TuningMachine, plans: VariantPlans, contenders: OpenContenders, *, first_steps: FirstSteps,
        backends: BackendsBeside, follower: CoreFollower, stored: CallPlans, like: Sequence[VariantPlan] = (),
    ) -> None:  # fmt: skip
        self._states, self._plans, self._contenders, self._first_steps = states, plans, contenders, first_steps
        self._backends, self._follower, self._stored, self._like = backends, follower, stored, like
        self._graphs, self._planner = plans.graphs, plans.planner
        self.report = Report()
        self.fastest = contenders[DEFAULT]
        """The fastest contender of the last comparison."""
        self.instructions: Instructions = ()
        """What is to be carried out before the next step."""

    def prepare(self) -> None:
        """Do all that has to be done before the next step."""
        if self._states.state is State.STARTING:
            self.instructions = self._start()
        self._carry_out(self.instructions)
        self._look()
        variant = self._states.agenda.variant
        compiled = variant is None or self._graphs.is_compiled(variant)
        self._carry_out(
            self._states.due(
                compiled=compiled, planner_free=self._planner.free, backends=self._backends.stage,
                plan_first=self._graphs.plan_first,
            )
        )  # fmt: skip

    def give_up(self, reason: str) -> None:
        """Have the default run for good."""
        self._carry_out(self._states.give_up(reason))

    def close(self) -> None:
        """End tuning, the engines' threads and the planning processes."""
        self._states.close()
        self._follower.end(restore=False)
        self._release_all()

    def _start(self) -> Instructions:
        """Begin with the plan that an earlier process stored, where it can run."""
        try:
            found = self._stored.read(self._graphs)
            if found is None:
                return self._start_like()
            variant_plan, stored = found
            self._plans.add(variant_plan)
            self._open(plan_of(variant_plan.variant))
        except ThreadcastError as error:
            _logger.warning("a stored plan does not run and is made anew: %s", error)
            return self._states.start()
        self.report.predicted_s[str(variant_plan.variant)] = variant_plan.plan.makespan_s
        if "backends" in stored.tried:
            self._backends.never()
        return self._states.start(
            stored=variant_plan.variant, step_s=stored.step_s, fuse="fused" not in stored.tried
        )  # fmt: skip

    def _start_like(self) -> Instructions:
        """Begin with the plan of another call, where one fits; else with nothing."""
        for other in self._like:
            if (variant_plan := self._graphs.plan_like(other)) is not None:
                self._plans.add(variant_plan)
                self.report.predicted_s[str(variant_plan.variant)] = variant_plan.plan.makespan_s
                return self._states.start(like=variant_plan.variant)
        return self._states.start()

    def _look(self) -> None:
        """Report to the state machine what has happened since the last step: plans, backends, stale contenders."""
        self._planner.unlimited = self._states.warm_up.unlimited
        if self._states.state is State.PLANNING:
            try:
                answers = list(self._plans.answers())
            except ExecutionError as error:
                answers = []
                self._carry_out(self._not_planned(error))
            for maker, answer in answers:
                self._carry_out(self._answered(maker, answer))
            if self._planner.yields and self._states.planning:
                self._states.planner_yields()
        elif self._states.state is State.SETTLED:
            if self._plans.have_looked and self._states.may_give_back():
                self._plans.give_back()
            self._look_for_backends()
        while stale := [one for one in self._states.contest.contenders if not self._contenders[one].holds()]:
            if stale[0].kind is Kind.BACKEND:  # weights were written to, which they need not be in later processes
                self._backends.search_later_too()
            self._carry_out(self._states.contest.stale(stale[0]))

    def _answered(self, maker: PlanMaker, answer: Answer) -> Instructions:
        """Pass the answer of the planning process on to the state machine."""
        if answer.plan is None or answer.pessimistic_s is None or not self._states.accepts(answer.pessimistic_s):
            return self._states.look_again()
        maker.accept(answer)
        return self._states.planned(answer.plan.makespan_s)

    def _look_for_backends(self) -> None:
        """Report what the search for backends has found."""
        if not self._backends.works:
            return
        try:
            found = self._backends.poll(unlimited=self._states.warm_up.unlimited)
        except Exception as error:  # noqa: BLE001 - whatever stops the search, what was found before goes on
            self._backends.leave_out(error)
            return
        if found is not None:
            self._contenders.add(found)
            self._carry_out(self._states.contest.found_backend(found.id))
        elif self._backends.over and (variant_plan := self._plans.of(self._states.best)) is not None:
            self._stored.add_tried(variant_plan, self._tried)

    @property
    def _tried(self) -> frozenset[Extra]:
        """What was tried beside plans without fused operators, so that a later process need not."""
        found: list[Extra] = ["fused"] if self._states.tried_fused else []
        return frozenset([*found, "backends"] if self._backends.finished else found)

    def _carry_out(self, instructions: Instructions) -> None:
        """Carry out instructions, and those that their answers bring. What Ctrl-C interrupts is begun anew later."""
        self.instructions = ()
        waiting = deque(instructions)
        try:
            while waiting:
                waiting.extend(self._done(waiting[0]))
                waiting.popleft()
        except BaseException:
            self.instructions = tuple(waiting)
            raise

    def _done(self, instruction: Instruction) -> Instructions:
        """Carry out one instruction, and return the instructions that its answer brings."""
        match instruction:
            case do.Capture(variant):
                return self._capture(variant)
            case do.MakePlan(variant):
                return self._make_plan(variant)
            case do.UsePlan(variant, plan):
                self._use(variant, plan)
            case do.LeaveOut(variant):
                self._plans.leave_out(variant)
            case do.Open(contender):
                return_free_memory()
                self._open(contender)
                return self._states.contest.opened(contender)
            case do.Compared(contender, verdict):
                self.report.verdicts[str(contender)] = verdict
                _logger.info("%s: %s", contender, verdict.against(verdict.over))
                self._contenders.close_all_but(self._states.best, self._plans.of(self._states.best))
            case do.Refuse(contender, difference):
                self._refuse(contender, difference)
            case do.Settle(contender):
                self._settle(contender)
            case do.Unsettle(forget, further):
                self._unsettle(forget=forget, further=further)
            case do.Store(variant, step_s):
                self._stored.write(self._plans[variant], step_s, tried=self._tried)
            case do.GiveUp(reason):
                self._give_up(reason)
        return ()

    def _make_plan(self, variant: Variant) -> Instructions:
        try:
            asked = self._plans.makers[variant].start_planning()
        except (ExecutionError, OSError) as error:  # such as one process or open file too many
            return self._not_planned(error)
        return () if asked else self._states.nothing_to_correct()

    def _not_planned(self, error: Exception) -> Instructions:
        _logger.warning("a plan is not made: %s", error)
        return self._states.not_planned(str(error))

    def _capture(self, variant: Variant) -> Instructions:
        if not self._graphs.compiled(variant):
            return self._states.later()
        captured = self._graphs.find(variant)
        if captured is None:
            return self._states.not_captured()
        self._first_steps.forget(variant, search=True)
        self._plans.begin(variant, captured)
        return self._states.captured()

    def _use(self, variant: Variant, number: int) -> None:
        variant_plan, engine = self._plans.take(variant, number)
        if engine is not None:
            self._contenders.take_over(variant_plan, engine)
            self._first_steps.goes_on_as(SearchStep(variant, Try(number)), plan_of(variant))
        self.report.predicted_s[str(variant)] = variant_plan.plan.makespan_s
        if self.report.measuring:
            self._report_plan(self._plans[self._states.variants[0]])

    def _report_plan(self, of: VariantPlan) -> None:
        self.report.layout, self.report.plan, self.report.fused = of.variant.memory_format, of.plan, of.variant.fused

    def _open(self, contender: ContenderId) -> None:
        if contender.memory_format is not None:
            self._contenders.open_eager(contender.memory_format)
        elif contender.variant is not None and self._contenders.open_plan(self._plans[contender.variant]):
            self._first_steps.forget(contender.variant, search=False)

    def _refuse(self, contender: ContenderId, difference: str) -> None:
        _logger.warning("%s is not used, its results are not PyTorch's: %s", contender, difference)
        self.report.reason = f"{contender}: {difference}"
        if contender.variant is not None:
            self._plans.leave_out(contender.variant)
        if (variant_plan := self._plans.of(contender)) is not None:
            self._stored.drop(self._graphs.as_captured(variant_plan.variant))

    def _settle(self, contender: ContenderId) -> None:
        if self._states.agenda.variant is None or not self._states.warm_up.allows(BESIDE_S):
            self._plans.rest()  # else a plan is asked for soon
        variant_plan = self._plans.of(contender)
        if variant_plan is None and contender.kind is not Kind.BACKEND and not self._states.deferred:
            self._stored.drop(self._graphs.first)
        self.fastest = self._contenders[contender]
        self._contenders.close_all_but(contender, variant_plan)
        if variant_plan is not None:
            self._report_plan(variant_plan)
            self._follower.follow(self._contenders.engines[variant_plan], variant_plan, self._stored)
        self.report.contender = contender
        _logger.info(
            "%s runs, after %d steps and %.3g s", contender, sum(self._states.steps.values()),
            sum(self._states.seconds.values()),
        )  # fmt: skip

    def _unsettle(self, *, forget: bool, further: bool) -> None:
        self._follower.end(restore=True)
        if not further:
            self.report.contender = None
        if forget:
            self._contenders.close_all_but(DEFAULT)
            self.report = Report()

    def _give_up(self, reason: str) -> None:
        _logger.warning("this step runs as before: %s", reason)
        self._follower.end(restore=False)
        self._release_all()
        self.report.contender, self.report.reason = DEFAULT, reason
        self.fastest = self._contenders[DEFAULT]

    def _release_all(self) -> None:
        self._backends.close()
        self._plans.close()
        self._contenders.close_all_but(DEFAULT)
