"""Finds the fastest way to run one kind of call, in the caller's own steps.

Every step that is measured counts for the caller, but for looks at training steps, which are set back; no training step
is applied twice. `TuningMachine` decides; this module carries out its decisions.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import Core, Machine, OpGraph, Plan
from threadcast.core.errors import ThreadcastError
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import open_engine
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import Extra, PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import Answer, may_be_known
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.structure import same_structure
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.backends_beside import BackendsBeside
from threadcast.runtime.tuning.call_plans import CallPlans
from threadcast.runtime.tuning.contender import Contender, Kept, MakeBackends, Run, VariantPlan
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind, plan_of
from threadcast.runtime.tuning.core_follower import CoreFollower
from threadcast.runtime.tuning.expected_costs import BESIDE_S
from threadcast.runtime.tuning.first_steps import FirstSteps
from threadcast.runtime.tuning.instructions import ContenderStep, Instruction, Instructions, Runner, SearchStep
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.open_contenders import OpenContenders
from threadcast.runtime.tuning.plan_maker import PlanMaker, Planner
from threadcast.runtime.tuning.plan_search import Try
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.search_pace import SearchPace
from threadcast.runtime.tuning.states import Move, State
from threadcast.runtime.tuning.timed_run import TimedRun
from threadcast.runtime.tuning.variant_graphs import VariantGraphs
from threadcast.runtime.tuning.warm_up import WarmUp
from threadcast.runtime.verification.shadow import Ran, Shadowed
from threadcast.threads.this_process import this_process

_PAUSE_S = 0.05
"""Seconds after which it is looked again whether another search for backends has ended."""

LOOKING_SHARE = 0.01
"""Share of a call that a look at its arguments may take: less is lost in the noise of calls."""

_logger = logging.getLogger("threadcast")


class Tuning:
    """A callable that runs one kind of call; each call does the caller's whole step, whichever contender runs it.

    `default` runs a step in eager PyTorch. `capture(memory_format)` returns the graph of a call, `model_format` sets
    the order of the model's tensors in memory, `formats` are the memory formats to try. `backends` returns a search for
    further contenders, which begins once the fastest plan is known; it takes the graph in the format as given. A plan
    that `plans` has stored for the graph runs from the first call on; `call` identifies the call in that store. With
    `fuse` the graph with fused operators is tried too.

    `checked` says how PyTorch runs a step, always in the memory format as given: the first step by each plan, and by
    eager PyTorch in another memory format, is then also run that way, and what has other results never runs again.
    Without it nothing is checked. A graph that draws random numbers runs in the format as given only. `warm_up` says
    how much time learning may lose; without it, any. `store` is the URL of a store of what is known of operators on
    this machine; `feedback` adds to it what looks and later steps show. `planner` makes the plans, of all
    calls of the model; without it there is one for this kind. `like` are plans of other calls of the same model: the
    first that fits the graph is compared with the default before anything is measured.

    `title` names the call in log messages, one at each change of state. Without `steady` the calls' sizes vary, so that
    settled calls which take longer than at first have not become slower. `looking_s()` are the seconds that it takes
    before each call to find what runs it: without a plan most calls need not be looked at (`leaves_alone`), so that
    they count as part of what others than the default take.

    CaptureError where the call cannot be captured. Use it from one thread at a time; only `resize` is for any thread.
    """

    def __init__(
        self,
        default: Run,
        capture: Callable[[MemoryFormat], Captured],
        model_format: ModelFormat,
        formats: Sequence[MemoryFormat],
        machine: Machine,
        *,
        call: object,
        plans: PlanStore,
        backends: MakeBackends | None = None,
        fuse: bool = True,
        checked: Shadowed | None = None,
        warm_up: WarmUp | None = None,
        store: str | None = None,
        feedback: StepFeedback | None = None,
        planner: Planner | None = None,
        like: Sequence[VariantPlan] = (),
        title: str = "a call",
        steady: bool = True,
        looking_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._began_s: float | None = clock()
        """When this object was begun: its making belongs to the first call."""
        self._graphs = VariantGraphs(capture, plans.formats_first(call, formats))
        self._warm_up = warm_up or WarmUp()
        self.report = Report(warm_up=self._warm_up)
        self._format, self._machine, self._clock = model_format, machine, clock
        self._stored = CallPlans(plans, machine, call=call)
        self._feedback = feedback
        self._looked: list[tuple[OpGraph, Mapping[str, Observed]]] = []
        """What looks have shown of graphs, to be given back once no step is measured and learning may take the time."""
        self._contenders = OpenContenders(default, model_format, machine, feedback)
        self._backends = BackendsBeside(backends)
        self._pace = SearchPace()
        self._searched = False
        """Whether a search for backends works beside the next step, or did beside the last."""
        self.fastest = self._contenders[DEFAULT]
        """The fastest contender of the last comparison."""
        self._planner = planner or Planner(machine)
        self._makers: dict[Variant, PlanMaker] = {}
        self._plans: dict[Variant, VariantPlan] = {}
        looks = LookSchedule.of(machine)
        self._first_steps = FirstSteps(checked, looks)
        self._last: Runner = ContenderStep(DEFAULT)
        """What ran the last step."""
        self._follower = CoreFollower(machine)
        self._store, self._like, self._steady, self._looking_s = store, like, steady, looking_s
        self._states = TuningMachine(
            self._graphs.formats, looks, fuse=fuse, known=may_be_known(store),
            aside=self._first_steps.aside, warm_up=self._warm_up, moved=partial(_log_move, title),
        )  # fmt: skip
        self._instructions: Instructions = ()

    def __call__(self, *arguments: Any) -> Any:
        began_s = self._clock() if self._began_s is None else self._began_s
        self._began_s = None
        runner = self._prepare()
        if isinstance(runner, ContenderStep) and runner.rest:
            self._contenders.rest()
        self._last = runner
        timed = TimedRun(self._run_of(runner), self._clock)
        result, difference = self._first_steps.run(runner, timed, arguments, self.captured)
        if self._backends.waits and difference is None and self._states.may_search_backends():
            self._search_backends(arguments, result)
        ended_s = self._clock()
        if self._backends.works:
            self._pace.ran(
                started_s=began_s, ended_s=ended_s, share=self._warm_up.share, beside=self._searched,
                by=runner if self._states.state is State.SETTLED else None,
            )  # fmt: skip
        self._observe(timed, ended_s - began_s, difference)
        return result

    @property
    def captured(self) -> Captured:
        """The graph of a call, as it was captured first."""
        return self._graphs.first

    @property
    def plan(self) -> VariantPlan | None:
        """The plan that was found to be the fastest; None where something else was, or nothing is known yet."""
        contender = self.report.contender
        return None if contender is None else self._plan_of(contender)

    @property
    def plans(self) -> Sequence[VariantPlan]:
        """The plans of all variants that have been searched, the fastest first."""
        return [self._plans[variant] for variant in self._states.variants if variant in self._plans]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that this object takes, estimated from graphs, example and a backend's weights."""
        backend = self._states.best.kind is Kind.BACKEND
        return self._graphs.size_bytes + (self._graphs.held_bytes if backend else 0)

    @property
    def settled(self) -> bool:
        """Whether the fastest contender runs, and no other is being tried."""
        return self._states.state in (State.SETTLED, State.GIVEN_UP)

    def leaves_alone(self, looking_s: float, *, waiting: bool) -> bool:
        """Return whether the next calls need not be looked at, because PyTorch's default runs them in any case.

        Nothing else will be tried, or with `waiting` not before learning may take the time for it, and a look, which
        takes `looking_s` seconds, makes calls slower by more than `LOOKING_SHARE`.
        """
        if self._states.best is not DEFAULT:
            return False
        if not ((self.settled and not self.learning) or (waiting and self._states.held_back)):
            return False
        return looking_s > LOOKING_SHARE * (self._warm_up.eager_s or 0.0)

    @property
    def learning(self) -> bool:
        """Whether it is still being learned what runs fastest; also while something has not been tried."""
        state = self._states.state
        if state in (State.GIVEN_UP, State.CLOSED):
            return False
        searching = not self._backends.over or bool(self._instructions)
        if searching or state is not State.SETTLED or self._states.agenda.variant is not None:
            return True
        return not self._states.contest.confirmed

    def wait(self, timeout_s: float) -> None:
        """Leave the cores to what makes a plan, compiles or searches for backends until it has something to tell, or
        for `timeout_s` seconds.

        Returns at once where nothing but calls can tell what runs fastest.
        """
        if self._states.awaits_plan:
            self._planner.wait(timeout_s)
        elif (variant := self._states.agenda.variant) is not None and self._graphs.awaited:
            self._graphs.wait(variant, timeout_s)
        elif self._backends.works and self._states.state is State.SETTLED:
            self._backends.wait(timeout_s)
        elif self._backends.waits and self._states.may_search_backends():  # another search is at work
            time.sleep(min(timeout_s, _PAUSE_S))

    @property
    def ran(self) -> Ran | None:
        """The graph that ran the last step, and an engine maker for its plan; None where no plan ran it."""
        if isinstance(self._last, SearchStep):
            maker = None if self._first_steps.runs_aside(self._last) else self._makers.get(self._last.variant)
            engine = None if maker is None else maker.engine
        else:
            variant_plan = self._plan_of(self._last.contender)
            engine = None if variant_plan is None else self._contenders.engines.get(variant_plan)
        if engine is None:
            return None
        return Ran(engine.captured, partial(open_engine, plan=engine.plan, machine=self._machine))

    @property
    def ran_by_backend(self) -> Contender | None:
        """The backend that ran the last call; None where something else did."""
        if isinstance(self._last, ContenderStep) and self._last.contender.kind is Kind.BACKEND:
            return self._contenders[self._last.contender]
        return None

    def end_search(self) -> None:
        """End the search for backends; what it has found goes on."""
        self._backends.close()
        self._backends.never()

    @property
    def kept(self) -> Kept | None:
        """What runs all calls until something changes; None while anything is being learned."""
        if self.learning or not self.settled:
            return None
        best = self._states.best
        variant_plan = self._plan_of(best)
        engine = None if variant_plan is None else self._contenders.engines.get(variant_plan)
        return Kept(self._contenders[best].run, engine)

    @property
    def follows(self) -> bool:
        """Whether calls can go on with other cores than those of the machine that they were measured on."""
        return self._follower.active

    def resize(self, cores: Sequence[Core]) -> None:
        """Use these cores from the next operator on, as soon as `follows` is true. May be called from any thread."""
        self._follower.resize(cores)

    def close(self) -> None:
        """End the engines' threads and the planning processes."""
        self._states.close()
        self._follower.end(restore=False)
        self._release_all()

    def _prepare(self) -> Runner:
        """Carry out all that has to be done before the next step, and return what runs it."""
        try:
            if self._states.state is State.STARTING:
                self._instructions = self._start()
            self._carry_out(self._instructions)
            self._look()
            self._carry_out(self._due())
            compares = self._states.contest.challenger is not None and not self._states.held_back
            rests = compares or self._pace.rests
            self._backends.pause(rests)
            self._searched = self._backends.works and not rests
            runner = self._states.next_runner()
            if isinstance(runner, SearchStep):
                self._makers[runner.variant].prepare(runner.step, goes_on=runner == self._last)
        except Exception as error:  # noqa: BLE001 - of measuring or planning: the step has not begun, and can run as before
            self._carry_out(self._states.give_up(str(error) or "measuring was broken off"))
            runner = self._states.next_runner()
        return runner

    def _due(self) -> Instructions:
        """The instructions whose turn has come."""
        variant = self._states.agenda.variant
        compiled = variant is None or self._graphs.is_compiled(variant)
        return self._states.due(compiled=compiled, planner_free=self._planner.free)

    def _run_of(self, runner: Runner) -> Run:
        """A function that runs a whole step and returns its result and its seconds; None: time it by the clock."""
        if isinstance(runner, SearchStep):
            return partial(self._makers[runner.variant].run, runner.step)
        run = self._contenders[runner.contender].run
        if runner.contender is DEFAULT and not self._planner.free:
            run = partial(self._planner.beside, run)
        return lambda *arguments: (run(*arguments), None)

    def _observe(self, timed: TimedRun, call_s: float, difference: str | None) -> None:
        all_cores = self._follower.all_cores and self._steady
        of_default = isinstance(self._last, SearchStep) or self._last.contender is DEFAULT
        seconds = timed.seconds if of_default else timed.seconds + self._looking_s()
        try:
            self._instructions = self._states.observe(
                seconds, started_s=timed.started_s, call_s=call_s, difference=difference, all_cores=all_cores,
                alone=not (self._searched or self._graphs.compiling),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the step has run; only what follows from it fails
            self._instructions = self._states.give_up(str(error))

    def _look(self) -> None:
        """Report to the state machine what has happened since the last step: plans, backends, stale contenders."""
        self._planner.unlimited = self._warm_up.unlimited
        if self._states.state is State.PLANNING:
            for maker in list(self._makers.values()):
                if (answer := maker.poll()) is not None:
                    self._carry_out(self._answered(maker, answer))
            if self._planner.yields and self._states.planning:
                self._states.planner_yields()
        elif self._states.state is State.SETTLED:
            if self._looked and self._states.may_give_back():
                assert self._feedback is not None
                self._feedback.add_looks(self._looked)
                self._looked.clear()
            self._look_for_backends()
        while stale := [one for one in self._states.contest.contenders if not self._contenders[one].holds()]:
            self._carry_out(self._states.contest.stale(stale[0]))

    def _carry_out(self, instructions: Instructions) -> None:
        """Carry out instructions, and those that their answers bring. What Ctrl-C interrupts is begun anew later."""
        self._instructions = ()
        waiting = deque(instructions)
        try:
            while waiting:
                waiting.extend(self._done(waiting[0]))
                waiting.popleft()
        except BaseException:
            self._instructions = tuple(waiting)
            raise

    def _done(self, instruction: Instruction) -> Instructions:
        """Carry out one instruction, and return the instructions that its answer brings."""
        match instruction:
            case do.Capture(variant):
                return self._capture(variant)
            case do.MakePlan(variant):
                return () if self._makers[variant].start_planning() else self._states.nothing_to_correct()
            case do.UsePlan(variant, plan):
                self._use(variant, plan)
            case do.LeaveOut(variant):
                if (maker := self._makers.get(variant)) is not None:  # else it was interrupted, and is done again
                    maker.close()
                    self._makers.pop(variant, None)
            case do.Open(contender):
                return_free_memory()
                self._open(contender)
                return self._states.contest.opened(contender)
            case do.Compared(contender, verdict):
                self.report.verdicts[str(contender)] = verdict
                _logger.info("%s over the best before it: %.2f", contender, verdict.gain)
                self._contenders.close_all_but(self._states.best, self._plan_of(self._states.best))
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

    def _search_backends(self, arguments: tuple[Any, ...], result: Any) -> None:
        """Begin the search for backends by the example of a step and its result."""
        try:
            if self._backends.make(self._graphs.find(Variant(MemoryFormat.AS_GIVEN)), arguments, result):
                self._states.searches_backends()
                self._format.set(MemoryFormat.AS_GIVEN)
                self._backends.start()
        except Exception as error:  # noqa: BLE001 - likewise
            self._backends.leave_out(error)

    def _look_for_backends(self) -> None:
        """Report what the search for backends has found."""
        if not self._backends.works:
            return
        try:
            found = self._backends.poll(unlimited=self._warm_up.unlimited)
        except Exception as error:  # noqa: BLE001 - whatever stops the search, what was found before goes on
            self._backends.leave_out(error)
            return
        if found is not None:
            self._contenders.add(found)
            self._carry_out(self._states.contest.found_backend(found.id))
        elif self._backends.over and (variant_plan := self._plan_of(self._states.best)) is not None:
            self._stored.add_tried(variant_plan, self._tried)

    @property
    def _tried(self) -> frozenset[Extra]:
        """What was tried beside plans without fused operators."""
        found: list[Extra] = ["fused"] if self._states.tried_fused else []
        return frozenset([*found, "backends"] if self._backends.over else found)

    def _answered(self, maker: PlanMaker, answer: Answer) -> Instructions:
        """Pass the answer of the planning process on to the state machine."""
        if answer.plan is None or answer.pessimistic_s is None or not self._states.accepts(answer.pessimistic_s):
            return self._states.look_again()
        maker.accept(answer)
        return self._states.planned(answer.plan.makespan_s)

    def _start(self) -> Instructions:
        """Begin with the plan that an earlier process stored, where it can run."""
        try:
            found = self._stored.read(self.captured, self._graphs.formats[0], self._graphs.compiled)
            if found is None:
                return self._start_like()
            variant_plan, stored = found
            self._plans[variant_plan.variant] = variant_plan
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
            unfused_variant = Variant(other.variant.memory_format)
            if other.variant.memory_format not in self._graphs.formats or self._graphs.find(unfused_variant) is None:
                continue
            if self._graphs.compiled(other.variant):
                captured = self._graphs.find(other.variant)
                if captured is not None and same_structure(captured.graph, other.captured.graph):
                    unfused = self._graphs.unfused(other.variant).graph
                    self._plans[other.variant] = VariantPlan(other.variant, captured, other.plan, unfused)
                    self.report.predicted_s[str(other.variant)] = other.plan.makespan_s
                    return self._states.start(like=other.variant)
        return self._states.start()

    def _capture(self, variant: Variant) -> Instructions:
        if not self._graphs.compiled(variant):
            return self._states.later()
        captured = self._graphs.find(variant)
        if captured is None:
            return self._states.not_captured()
        self._first_steps.forget(variant, search=True)
        self._planner.begin(self)
        before = partial(self._format.set, variant.memory_format)
        self._makers[variant] = PlanMaker(
            captured, self._machine, planner=self._planner, store=self._store, before=before
        )
        return self._states.captured()

    def _use(self, variant: Variant, number: int) -> None:
        maker = self._makers.pop(variant)
        engine = maker.handed_over(number)
        maker.close()
        if self._feedback is not None:
            self._looked.append((maker.captured.graph, maker.observed))
        planned = maker.plans[number]
        self._plans[variant] = VariantPlan(
            variant, maker.captured, planned.plan, self._graphs.unfused(variant).graph, planned.problem
        )
        if engine is not None:
            self._contenders.take_over(self._plans[variant], engine)
            self._first_steps.goes_on_as(SearchStep(variant, Try(number)), plan_of(variant))
        self.report.predicted_s[str(variant)] = planned.plan.makespan_s
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
        if contender.variant in self._makers:
            self._makers.pop(contender.variant).close()
        if (variant_plan := self._plan_of(contender)) is not None:
            self._stored.drop(self._graphs.unfused(variant_plan.variant))

    def _settle(self, contender: ContenderId) -> None:
        if self._states.agenda.variant is None or not self._warm_up.allows(BESIDE_S):
            self._planner.done(self)  # else it is needed again soon
        variant_plan = self._plan_of(contender)
        if variant_plan is None and contender.kind is not Kind.BACKEND:
            self._stored.drop(self.captured)
        self.fastest = self._contenders[contender]
        self._contenders.close_all_but(contender, variant_plan)
        if variant_plan is not None:
            self._report_plan(variant_plan)
            self._follow(variant_plan)
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
            self.report = Report(warm_up=self._warm_up)

    def _give_up(self, reason: str) -> None:
        _logger.warning("this step runs as before: %s", reason)
        self._follower.end(restore=False)
        self._release_all()
        self.report.contender, self.report.reason = DEFAULT, reason
        self.fastest = self._contenders[DEFAULT]

    def _follow(self, variant_plan: VariantPlan) -> None:
        """Keep the engine of `variant_plan` on the cores that the model has, from now on."""
        weak = weakref.ref(self)  # a model that is dropped ends its planning, not the other way round

        def note(fewer: Mapping[int, Plan]) -> None:
            if (tuning := weak()) is not None:
                tuning._note(variant_plan, fewer)

        engine, known = self._contenders.engines[variant_plan], self._stored.fewer(variant_plan)
        self._follower.follow(engine, variant_plan.plan, variant_plan.problem, known, done=note)

    def _note(self, variant_plan: VariantPlan, fewer: Mapping[int, Plan]) -> None:
        if fewer:
            plans = {**fewer, len(self._machine): variant_plan.plan}
            this_process().steps.expect({cores: 1 / plan.makespan_s for cores, plan in plans.items()})
        self._stored.add_fewer(variant_plan, fewer)

    def _plan_of(self, contender: ContenderId) -> VariantPlan | None:
        """The variant_plan that a contender runs; None for one that is not a plan."""
        return None if contender.variant is None else self._plans.get(contender.variant)

    def _release_all(self) -> None:
        self._backends.close()
        for maker in self._makers.values():
            maker.close()
        self._makers.clear()
        self._planner.done(self)
        self._contenders.close_all_but(DEFAULT)


def _log_move(title: str, move: Move) -> None:
    _logger.info("%s: %s -> %s: %s", title, move.source.value, move.target.value, move.reason)
