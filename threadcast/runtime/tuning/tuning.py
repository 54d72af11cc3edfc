"""Finds the fastest way to run one kind of call, in the caller's own steps.

Every step that is measured counts for the caller, but for looks at training steps, which are set back; no training step
is applied twice. `TuningMachine` decides; `BetweenSteps` carries out its decisions, and this module runs the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import Core, Machine
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.engines.open_engine import open_engine
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import may_be_known
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.backends_beside import BackendsBeside
from threadcast.runtime.tuning.before_run import BeforeRun
from threadcast.runtime.tuning.between_steps import BetweenSteps
from threadcast.runtime.tuning.call_plans import CallPlans
from threadcast.runtime.tuning.contender import Contender, Kept, MakeBackends, Run, VariantPlan
from threadcast.runtime.tuning.contender_id import DEFAULT, Kind, plan_of
from threadcast.runtime.tuning.core_follower import CoreFollower
from threadcast.runtime.tuning.first_steps import FirstSteps
from threadcast.runtime.tuning.instructions import ContenderStep, Runner, SearchStep
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.open_contenders import OpenContenders
from threadcast.runtime.tuning.plan_maker import Planner
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.states import Move, State
from threadcast.runtime.tuning.timed_run import TimedRun
from threadcast.runtime.tuning.variant_graphs import VariantGraphs
from threadcast.runtime.tuning.variant_plans import VariantPlans
from threadcast.runtime.tuning.warm_up import WarmUp
from threadcast.runtime.verification.shadow import Ran, Shadowed

_PAUSE_S = 0.05
"""Seconds after which it is looked again whether another search for backends has ended."""

RAISED, RAISED_SHARE = 3, 0.05
"""Steps in which operators raise because of values, and their share, from which on PyTorch runs all. Conventions: each
costs what was run until then."""
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
        self._warm_up = warm_up or WarmUp()
        self._format, self._machine, self._clock = model_format, machine, clock
        self._steady, self._looking_s = steady, looking_s
        self._graphs = VariantGraphs(
            capture, plans.formats_first(call, formats), ours=fuse, hurries=lambda: self._warm_up.unlimited
        )
        self._contenders = OpenContenders(default, model_format, machine, feedback)
        self._backends = BackendsBeside(backends)
        self._planner = planner or Planner(machine)
        self._plans = VariantPlans(
            self._graphs, machine, model_format, planner=self._planner, store=store, feedback=feedback
        )  # fmt: skip
        looks = LookSchedule.of(machine)
        self._first_steps = FirstSteps(checked, looks)
        self._before = BeforeRun(self._graphs.first)
        self._runs = self._raised = 0
        """Steps that a plan ran, and those in which it raised, but eager PyTorch did not."""
        self.raised: str | None = None
        """What a plan raised in the last step before eager PyTorch ran it, in words."""
        self.left: str | None = None
        """Why eager PyTorch runs all further steps; None unless because plans raise."""
        self._last: Runner = ContenderStep(DEFAULT)
        """What ran the last step."""
        self._follower = CoreFollower(machine)
        self._states = TuningMachine(
            self._graphs.formats, looks, fuse=fuse, known=may_be_known(store),
            aside=self._first_steps.aside, warm_up=self._warm_up, moved=partial(_log_move, title),
        )  # fmt: skip
        self._between = BetweenSteps(
            self._states, self._plans, self._contenders, first_steps=self._first_steps, backends=self._backends,
            follower=self._follower, stored=CallPlans(plans, machine, call=call), like=like,
        )  # fmt: skip

    def __call__(self, *arguments: Any) -> Any:
        began_s = self._clock() if self._began_s is None else self._began_s
        self._began_s = None
        runner = self._prepare()
        if isinstance(runner, ContenderStep) and runner.rest:
            self._contenders.rest()
        self._last = runner
        timed = TimedRun(self._run_of(runner), self._clock)
        result, difference = self._ran(runner, timed, arguments)
        self.raised = timed.raised
        if timed.raised is not None and (self.captured.raises or difference is None):
            self._after_raising(timed.raised)  # it says nothing of the plan's speed, nor of its numbers
            return result
        if self._backends.waits and difference is None and self._states.may_search_backends():
            self._search_backends(arguments, result)
        ended_s = self._clock()
        self._backends.after_step(
            started_s=began_s, ended_s=ended_s, share=self._warm_up.share,
            by=runner if self._states.state is State.SETTLED else None,
        )  # fmt: skip
        self._observe(timed, ended_s - began_s, difference)
        return result

    def _ran(self, runner: Runner, timed: TimedRun, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
        """Run a step, in eager PyTorch from the same state where a plan raises; see `FirstSteps.run`."""
        by_plan = isinstance(runner, SearchStep) or runner.contender.kind is Kind.PLAN
        self._runs += by_plan
        if not by_plan or self._first_steps.compares(runner):
            return self._first_steps.run(runner, timed, arguments, self.captured)
        with Failure(self._before.suffices):
            return timed(*arguments), None
        self._before.set_back()
        return self._contenders[DEFAULT].run(*arguments), None

    def _after_raising(self, raised: str) -> None:
        """Take note of a step that has raised where eager PyTorch has not; if many do, PyTorch runs all later ones.

        Operators that raise because of values do so in few steps, and the callable goes on; others will do it again.
        """
        self._raised += 1
        if not self.captured.raises or (self._raised >= RAISED and self._raised >= RAISED_SHARE * self._runs):
            self.left = f"a plan raised {raised}"
            self._between.give_up(self.left)

    @property
    def report(self) -> Report:
        """What runs the calls, and why."""
        return self._between.report

    @property
    def eager_s(self) -> float | None:
        """Seconds of a step in eager PyTorch; None until they are known."""
        return self._warm_up.eager_s

    @property
    def fastest(self) -> Contender:
        """The fastest contender of the last comparison."""
        return self._between.fastest

    @property
    def captured(self) -> Captured:
        """The graph of a call, as it was captured first."""
        return self._graphs.first

    @property
    def plan(self) -> VariantPlan | None:
        """The plan that was found to be the fastest; None where something else was, or nothing is known yet."""
        contender = self.report.contender
        return None if contender is None else self._plans.of(contender)

    @property
    def plans(self) -> Sequence[VariantPlan]:
        """The plans of all variants that have been searched, the fastest first."""
        found = map(self._plans.of, map(plan_of, self._states.variants))
        return [variant_plan for variant_plan in found if variant_plan is not None]

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
        searching = not self._backends.over or bool(self._between.instructions)
        if searching or state is not State.SETTLED or self._states.agenda.variant is not None or self._states.deferred:
            return True
        return not self._states.contest.confirmed

    def wait(self, timeout_s: float) -> None:
        """Leave the cores to what makes a plan, compiles or searches for backends until it has something to tell, or
        for `timeout_s` seconds.

        Returns at once where nothing but calls can tell what runs fastest.
        """
        if self._states.awaits_plan or self._planner.works:
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
            maker = None if self._first_steps.runs_aside(self._last) else self._plans.makers.get(self._last.variant)
            engine = None if maker is None else maker.engine
        else:
            variant_plan = self._plans.of(self._last.contender)
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
        self._backends.end()

    @property
    def kept(self) -> Kept | None:
        """What runs all calls until something changes; None while anything is being learned."""
        if self.learning or not self.settled:
            return None
        best = self._states.best
        variant_plan = self._plans.of(best)
        engine = None if variant_plan is None else self._contenders.engines.get(variant_plan)
        return Kept(self._contenders[best].run, engine)

    @property
    def runs_in(self) -> MemoryFormat | None:
        """The memory format in which the next call runs; None where it may run in several."""
        if self._graphs.formats == (MemoryFormat.AS_GIVEN,):
            return MemoryFormat.AS_GIVEN
        if not self._states.rests or self._backends.waits:
            return None
        best = self._states.best
        return best.memory_format or (MemoryFormat.AS_GIVEN if best.variant is None else best.variant.memory_format)

    @property
    def follows(self) -> bool:
        """Whether calls can go on with other cores than those of the machine that they were measured on."""
        return self._follower.active

    def resize(self, cores: Sequence[Core]) -> None:
        """Use these cores from the next operator on, as soon as `follows` is true. May be called from any thread."""
        self._follower.resize(cores)

    def close(self) -> None:
        """End the engines' threads and the planning processes."""
        self._between.close()

    def _prepare(self) -> Runner:
        """Carry out all that has to be done before the next step, and return what runs it."""
        with Failure() as failure:
            self._between.prepare()
            planner_works = self._planner.works
            waits = self._states.held_back or planner_works
            self._backends.before_step(compares=self._states.contest.challenger is not None and not waits)
            runner = self._states.next_runner(disturbed=planner_works)
            if isinstance(runner, SearchStep):
                self._plans.makers[runner.variant].prepare(runner.step, goes_on=runner == self._last)
            return runner
        # of measuring or planning: the step has not begun, and can run as before
        self._between.give_up(str(failure.error) or "measuring was broken off")
        return self._states.next_runner()

    def _run_of(self, runner: Runner) -> Run:
        """A function that runs a whole step and returns its result and its seconds; None: time it by the clock."""
        if isinstance(runner, SearchStep):
            return partial(self._noted, partial(self._plans.makers[runner.variant].run, runner.step))
        run = self._contenders[runner.contender].run
        if runner.contender.kind is Kind.PLAN:
            run = partial(self._noted, run)
        elif runner.contender is DEFAULT and not self._planner.free:
            run = partial(self._planner.beside, run)
        return lambda *arguments: (run(*arguments), None)

    def _noted(self, run: Run, *arguments: Any) -> Any:
        """Run a step that can be set back where it raises; what that takes is part of its time."""
        self._before.take(arguments)
        result = run(*arguments)
        self._before.forget()
        return result

    def _observe(self, timed: TimedRun, call_s: float, difference: str | None) -> None:
        all_cores = self._follower.all_cores and self._steady
        of_default = isinstance(self._last, SearchStep) or self._last.contender is DEFAULT
        seconds = timed.seconds if of_default else timed.seconds + self._looking_s()
        with Failure() as failure:
            self._between.instructions = self._states.observe(
                seconds, started_s=timed.started_s, call_s=call_s, difference=difference, all_cores=all_cores,
                alone=not (self._backends.beside or self._graphs.compiling),
            )  # fmt: skip
        if failure.error is not None:  # the step has run; only what follows from it fails
            self._between.instructions = self._states.give_up(str(failure.error))

    def _search_backends(self, arguments: tuple[Any, ...], result: Any) -> None:
        """Begin the search for backends by the example of a step and its result."""
        with Failure() as failure:
            if self._backends.make(self._graphs.captured_in(MemoryFormat.AS_GIVEN), arguments, result):
                self._states.searches_backends()
                self._format.set(MemoryFormat.AS_GIVEN)
                self._backends.start()
        if failure.error is not None:  # likewise
            self._backends.leave_out(failure.error)


def _log_move(title: str, move: Move) -> None:
    _logger.info("%s: %s -> %s: %s", title, move.source.value, move.target.value, move.reason)
