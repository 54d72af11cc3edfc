"""Finds the fastest way to run one kind of call, in the caller's own steps.

Every step that is measured counts for the caller, but for looks at training steps, which are set back; no training step
is applied twice. `Tournament` decides what runs a step; this module carries it out.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Core, Machine
from threadcast.core.errors import ThreadcastError
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import open_engine
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import Extra, PlanStore, StoredPlan
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_forecasts import may_be_known
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.backends_beside import BackendsBeside
from threadcast.runtime.tuner.before_run import BeforeRun
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.call_plans import CallPlans
from threadcast.runtime.tuner.contender import Contender, Kept, MakeBackends, Run, VariantPlan
from threadcast.runtime.tuner.contender_id import DEFAULT, ContenderId, Kind, backend, eager_in, plan_of
from threadcast.runtime.tuner.core_follower import CoreFollower
from threadcast.runtime.tuner.entrant import Status
from threadcast.runtime.tuner.events import Place
from threadcast.runtime.tuner.first_steps import FirstSteps, Runner, TimedRun
from threadcast.runtime.tuner.open_contenders import OpenContenders
from threadcast.runtime.tuner.plan_candidate import BESIDE_S, Calls, Means, PlanCandidate
from threadcast.runtime.tuner.plan_maker import PlanMaker, Planner
from threadcast.runtime.tuner.plan_search import SearchStep
from threadcast.runtime.tuner.report import COMPILING, Report
from threadcast.runtime.tuner.tournament import Tournament
from threadcast.runtime.tuner.variant_graphs import VariantGraphs
from threadcast.runtime.verification.shadow import Ran, Shadowed

BACKENDS = backend("backends")
"""Stands for all backends until they are found."""

_PAUSE_S = 0.05
"""Seconds after which it is looked again whether another search for backends has ended."""
GIVE_BACK_S = 0.5
"""Seconds that storing measurements is expected to cost calls on 2 cores: as long as a process loads what it needs for
that, steps took 1.5 to 2.5 times as long."""

RAISED, RAISED_SHARE = 3, 0.05
"""Steps in which operators raise because of values, and their share, from which on PyTorch runs all: each costs what
was run until then."""
FOUND_BEFORE = "an earlier process found nothing that is faster"
"""The reason of a report where nothing is tried."""
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
    Without it nothing is checked. A graph that draws random numbers runs in the format as given only. `budget` says how
    much time learning may take; without it, any. `eager_s` are seconds of calls before, by the default. `store` is the
    URL of a store of what is known of operators on this machine; `feedback` adds to it what looks and later steps show.
    `planner` makes the plans, of all calls of the model; without it there is one for this kind. `like` are plans of
    other calls of the same model: the first that fits the graph is compared with the default before anything is
    measured.

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
        budget: Budget | None = None,
        eager_s: Sequence[float] = (),
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
        self._budget = Budget() if budget is None else budget
        self._format, self._machine, self._clock = model_format, machine, clock
        self._steady, self._looking_s, self._fuse, self._like = steady, looking_s, fuse, like
        self._graphs = VariantGraphs(
            capture, plans.formats_first(call, formats), ours=fuse, hurries=lambda: self._budget.unlimited
        )
        self._contenders = OpenContenders(default, model_format, machine, feedback)
        self._backends = BackendsBeside(backends)
        self._planner = planner or Planner(machine)
        self._feedback, self._store = feedback, store
        self._first_steps = FirstSteps(checked, LookSchedule.of(machine))
        self._means = Means(
            self._graphs, self._contenders, self._first_steps, self._maker, may_be_known(store),
            None if feedback is None else [],
        )  # fmt: skip
        self._before = BeforeRun(self._graphs.first)
        self._runs = self._raised = 0
        """Steps that a plan ran, and those in which it raised, but eager PyTorch did not."""
        self.raised: str | None = None
        """What a plan raised in the last step before eager PyTorch ran it, in words."""
        self.left: str | None = None
        """Why eager PyTorch runs all further steps; None unless because plans raise."""
        self._last: Runner = DEFAULT
        """What ran the last step."""
        self._capture_s = 0.0
        """Seconds that the last capture took from a call."""
        self._follower = CoreFollower(machine)
        self._stored = CallPlans(plans, machine, call=call)
        self._tournament = Tournament(DEFAULT, baseline_s=eager_s, told=partial(_logger.info, "%s: %s", title))
        self._candidates: dict[to.Key, PlanCandidate] = {}
        self._todo: deque[to.Instruction] = deque()
        """What is to be done before the next step."""
        self._started = self._closed = self._wants_backends = False
        self._passes = self._passed = 0
        """Next calls that what was kept runs without being timed, and those since the last one that was."""
        self.report = Report()
        """What runs the calls, and why."""
        self.fastest = self._contenders[DEFAULT]
        """The fastest contender of the last comparison."""

    def __call__(self, *arguments: Any) -> Any:
        if self._passes and self.fastest.holds() and self._planner.free:
            self._passes -= 1
            self._passed += 1
            return self._pass(self.fastest, arguments)
        self._passes = 0
        began_s = self._clock() if self._began_s is None else self._began_s
        self._began_s = None
        what = self._prepare(began_s)
        runner = self._runner_of(what)
        if isinstance(what, to.Run) and what.rest:
            self._contenders.rest()
        self._last = runner
        timed = TimedRun(self._run_of(runner), self._clock)
        result, difference = self._ran(runner, timed, arguments)
        self.raised = timed.raised
        if timed.raised is not None and (self.captured.raises or difference is None):
            self._after_raising(timed.raised)  # it says nothing of the plan's speed, nor of its numbers
            return result
        if self._awaits_backends and difference is None:
            self._search_backends(arguments, result)
        self._observe(what, timed, self._clock() - began_s, difference)
        if self.kept is not None and runner == self._best and not self._first_steps.compares(runner):
            self.fastest, self._passes = self._contenders[self._best], self._tournament.passes
        return result

    def _pass(self, kept: Contender, arguments: tuple[Any, ...]) -> Any:
        """Run a call by what was kept, in which nothing is found out."""
        if kept.id.kind is not Kind.PLAN:
            return kept.run(*arguments)
        self._runs += 1
        with Failure(self._before.suffices) as failure:
            return self._noted(kept.run, *arguments)
        self._before.set_back()
        result, self._passes = self._contenders[DEFAULT].run(*arguments), 0
        self.raised = str(failure)
        self._after_raising(self.raised)
        return result

    def _ran(self, runner: Runner, timed: TimedRun, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
        """Run a step, in eager PyTorch from the same state where a plan raises; see `FirstSteps.run`."""
        by_plan = isinstance(runner, SearchStep) or runner.kind is Kind.PLAN
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
            self._give_up(self.left)

    def story(self) -> str:
        """Return what has happened so far, one line for each event of note: for a report of a bug."""
        return self._tournament.story()

    @property
    def eager_s(self) -> float | None:
        """Seconds of a step in eager PyTorch; None until they are known."""
        return self._tournament.baseline_s

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
        found = [one for one in self._candidates.values() if one.found is not None]
        found.sort(key=lambda one: math.inf if one.step_s is None else one.step_s)
        return [one.found for one in found if one.found is not None]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that this object takes, estimated from graphs, example and a backend's weights."""
        by_backend = self._best.kind is Kind.BACKEND
        return self._graphs.size_bytes + (self._graphs.held_bytes if by_backend else 0)

    @property
    def settled(self) -> bool:
        """Whether the fastest contender runs, and no other is being tried."""
        return self._tournament.settled

    def leaves_alone(self, looking_s: float, *, waiting: bool) -> bool:
        """Return whether the next calls need not be looked at, because PyTorch's default runs them in any case.

        Nothing else will be tried, or with `waiting` not before learning may take the time for it, and a look, which
        takes `looking_s` seconds, makes calls slower by more than `LOOKING_SHARE`.
        """
        if self._best is not DEFAULT:
            return False
        if not ((self.settled and not self.learning) or (waiting and self._tournament.held_back)):
            return False
        return looking_s > LOOKING_SHARE * (self.eager_s or 0.0)

    @property
    def learning(self) -> bool:
        """Whether it is still being learned what runs fastest; also while something has not been tried."""
        if self._closed or self._tournament.over is not None:
            return False
        if not (self.settled and self._tournament.idle) or self._todo or self._backends.works or self._awaits_backends:
            return True
        return not self._tournament.confirmed

    @property
    def gain_left(self) -> float:
        """Ratio of a call's seconds now to those that are expected after more learning; unbounded at first."""
        return self._tournament.gain_left() if self._started else math.inf

    @property
    def outlook(self) -> to.Outlook:
        """What is learned next, and where."""
        if self._closed or not (self._started or self.settled):
            return to.Outlook(None if self._closed else to.Place.CALL)
        if self._awaits_backends:
            return to.Outlook(to.Place.CALL)
        return self._tournament.outlook

    def look(self) -> None:
        """Take note of what has become ready beside calls, without a call."""
        self._passes = 0
        if not self._started or self._closed:
            return
        with Failure() as failure:
            self._look()
            self._carry_out()
        if failure.error is not None:
            self._give_up(str(failure.error))

    def wait(self, timeout_s: float) -> None:
        """Leave the cores to what makes a plan, compiles or searches for backends until it has something to tell, or
        for `timeout_s` seconds.

        Returns at once where nothing but calls can tell what runs fastest.
        """
        if self._tournament.learns:
            return
        if self._planner.works:
            self._planner.wait(timeout_s)
        elif self._graphs.awaited is not None:
            self._graphs.wait(self._graphs.awaited, timeout_s)
        elif self._backends.works:
            self._backends.wait(timeout_s)
        elif self._awaits_backends:  # another search is at work
            time.sleep(min(timeout_s, _PAUSE_S))

    @property
    def ran(self) -> Ran | None:
        """The graph that ran the last step, and an engine maker for its plan; None where no plan ran it."""
        if isinstance(self._last, SearchStep):
            maker = self._candidates[plan_of(self._last.variant)].maker
            engine = None if maker is None or self._first_steps.runs_aside(self._last) else maker.engine
        else:
            variant_plan = self._plan_of(self._last)
            engine = None if variant_plan is None else self._contenders.engines.get(variant_plan)
        if engine is None:
            return None
        return Ran(engine.captured, partial(open_engine, plan=engine.plan, machine=self._machine))

    @property
    def ran_by_backend(self) -> Contender | None:
        """The backend that ran the last call; None where something else did."""
        if isinstance(self._last, ContenderId) and self._last.kind is Kind.BACKEND:
            return self._contenders[self._last]
        return None

    def end_search(self) -> None:
        """End the search for backends; what it has found goes on."""
        self._backends.end()

    @property
    def kept(self) -> Kept | None:
        """What runs all calls until something changes; None while anything is being learned."""
        if self.learning or not self.settled:
            return None
        variant_plan = self._plan_of(self._best)
        engine = None if variant_plan is None else self._contenders.engines.get(variant_plan)
        return Kept(self._contenders[self._best].run, engine)

    @property
    def runs_in(self) -> MemoryFormat | None:
        """The memory format in which the next call runs; None where it may run in several."""
        if self._graphs.formats == (MemoryFormat.AS_GIVEN,):
            return MemoryFormat.AS_GIVEN
        rests = self.settled and (self._tournament.idle or self._tournament.held_back)
        if not rests or (self._backends.waits and (self._wants_backends or self._tournament.waits(BACKENDS))):
            return None
        best = self._best
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
        self._closed, self._passes = True, 0
        self._budget.learns(False)
        self._todo.clear()
        self._follower.end(restore=False)
        self._release_all()

    # what runs the next step

    @property
    def _awaits_backends(self) -> bool:
        """Whether a search for backends is to begin with the next step, unless another one is at work."""
        return self._wants_backends and self._backends.waits

    @property
    def _best(self) -> ContenderId:
        best = self._tournament.best
        assert isinstance(best, ContenderId)
        return best

    def _plan_of(self, contender: to.Key) -> VariantPlan | None:
        candidate = self._candidates.get(contender)
        return None if candidate is None else candidate.found

    @property
    def _calls(self) -> Calls:
        """What is known of calls."""
        tournament = self._tournament
        other = tournament.best != DEFAULT or any(one.found is not None for one in self._candidates.values())
        return Calls(tournament.best_s, tournament.baseline_s, other)

    def _prepare(self, began_s: float) -> to.Run | to.RunStage:
        """Carry out all that has to be done before the next step, and return what runs it."""
        with Failure() as failure:
            if not self._started:
                self._begin()
                self._started = True
            self._count_passed()
            self._look()
            what = self._next()
            if self.report.reason in ("", COMPILING):
                self.report.reason = COMPILING if self._graphs.awaits_engine else ""
            compares, beside = self._tournament.learns, self._budget.unlimited
            self._backends.before_step(rests=compares or not beside)
            if not (compares or beside or self._budget.rests) and self._tournament.comes_first(BACKENDS):
                self._backends.turn(self._tournament.best_s or 0.0, left_s=self._budget.left_s, now_s=began_s)
            if isinstance(what, to.RunStage):
                self._candidates[what.key].begin(anew=what.anew)
            return what
        # of measuring or planning: the step has not begun, and can run as before
        self._give_up(str(failure.error) or "measuring was broken off")
        return to.Run(DEFAULT)

    def _next(self) -> to.Run | to.RunStage:
        waits = not self._budget.turn()
        while True:
            self._carry_out()
            disturbed = waits or self._planner.works or self._budget.rests
            self._todo.extend(self._tournament.handle(to.Next(self._budget.left_s, disturbed)))
            what = self._todo.pop()
            self._carry_out()
            if isinstance(what, to.Run | to.RunStage):
                if not waits:
                    self._budget.learns(self._tournament.learns)
                return what
            assert isinstance(what, to.Prepare)
            self._prepare_candidate(what.key)

    def _count_passed(self) -> None:
        """Take note of the calls that were not timed."""
        if self._passed and (best_s := self._tournament.best_s) is not None:
            calls, self._passed = self._passed, 0
            self._tournament.handle(to.Passed(calls))
            self._budget.ran(calls * best_s, eager_s=calls * best_s * self._tournament.gain_now)

    def _runner_of(self, what: to.Run | to.RunStage) -> Runner:
        if isinstance(what, to.RunStage):
            return self._candidates[what.key].step
        assert isinstance(what.key, ContenderId)
        return what.key

    def _run_of(self, runner: Runner) -> Run:
        """A function that runs a whole step and returns its result and its seconds; None: time it by the clock."""
        if isinstance(runner, SearchStep):
            maker = self._candidates[plan_of(runner.variant)].maker
            assert maker is not None
            return partial(self._noted, partial(maker.run, runner.step))
        run = self._contenders[runner].run
        if runner.kind is Kind.PLAN:
            run = partial(self._noted, run)
        elif runner is DEFAULT and not self._planner.free:
            run = partial(self._planner.beside, run)
        return lambda *arguments: (run(*arguments), None)

    def _noted(self, run: Run, *arguments: Any) -> Any:
        """Run a step that can be set back where it raises; what that takes is part of its time."""
        self._before.take(arguments)
        result = run(*arguments)
        self._before.forget()
        return result

    def _observe(self, what: to.Run | to.RunStage, timed: TimedRun, call_s: float, difference: str | None) -> None:
        """Tell what a step took, and what follows from it. The step has run: only what follows can fail."""
        by_default = isinstance(what, to.RunStage) or what.key == DEFAULT
        event = to.Ran(
            timed.started_s, timed.seconds + (0.0 if by_default else self._looking_s()), call_s,
            all_cores=self._follower.all_cores and self._steady,
            alone=not (self._backends.beside or self._graphs.compiling or self._planner.works),
        )  # fmt: skip
        with Failure() as failure:
            eager_s = self._tournament.eager_of(event, what)
            self._budget.ran(call_s, eager_s=timed.seconds if eager_s is None else eager_s)
            if difference is not None:
                self._differs(what, difference)
                return
            self._todo.extend(self._tournament.handle(event))
            if isinstance(what, to.RunStage):
                candidate = self._candidates[what.key]
                candidate.observe(timed.seconds, self._calls)
                self._staged(candidate)
            if not self._tournament.goes_on:  # another one's turn
                self._budget.learns(False)
        if failure.error is not None:
            self._give_up(str(failure.error))

    # what is done between two steps

    def _begin(self) -> None:
        """Begin with the plan that an earlier process stored, else with one of other calls, where one fits."""
        try:
            if (found := self._stored.read(self._graphs)) is not None:
                candidate = self._add(PlanCandidate.of(found[0], self._means))
                candidate.open()
                self._resume(candidate, found[1])
                return
            if "formats" in self._known_from_before(None):
                self._offer_backends()
                return
            for other in self._like:
                if (like := self._graphs.plan_like(other)) is not None:
                    self._offer(self._add(PlanCandidate.of(like, self._means)).key, earlier=True)
                    self._offer_backends()
                    return
        except ThreadcastError as error:
            _logger.warning("a stored plan does not run and is made anew: %s", error)
            self._candidates.clear()
        self._offer_all(self._graphs.formats)

    def _resume(self, candidate: PlanCandidate, stored: StoredPlan) -> None:
        self._todo.extend(self._tournament.handle(to.Resumed(candidate.key, stored.step_s, stored.eager_s)))
        self._fuse = self._fuse and not candidate.variant.fused
        if "formats" in self._known_from_before(candidate.found):
            self._offer_backends()
            return
        self._offer_eager(candidate)
        self._offer_all([one for one in self._graphs.formats if one is not candidate.variant.memory_format])

    def _known_from_before(self, beside: VariantPlan | None) -> frozenset[Extra]:
        """What earlier processes found to be slower than a plan, or than PyTorch, so that it is not tried again."""
        tried = self._stored.tried(self._graphs.first, beside)
        if "backends" in tried:
            self._backends.never()
        self._fuse = self._fuse and "fused" not in tried
        return tried

    def _offer_all(self, formats: Sequence[MemoryFormat]) -> None:
        """Offer a plan in each of these memory formats, and backends."""
        looks_s = self._first_steps.looks.calls * (self.eager_s or 0.0)
        for i, memory_format in enumerate(formats):
            candidate = PlanCandidate(Variant(memory_format), self._means, capture_s=self._capture_s if i else 0.0)
            self._offer(self._add(candidate).key, gain=1.5 - 0.02 * i, cost_s=0.2 + looks_s / 2)
        self._offer_backends()

    def _offer_backends(self) -> None:
        if self._backends.waits and BACKENDS not in self._tournament.entrants:
            expected = self._stored.backends(self._graphs.first)
            gain, most, cost_s = expected.gain, expected.most, expected.cost_s
            self._offer(BACKENDS, gain=gain, most=most, cost_s=cost_s, bit_by_bit=True)
            if self._budget.unlimited and self.eager_s is not None:
                self._prepare_candidate(BACKENDS)  # beside the plans

    def _offer_eager(self, candidate: PlanCandidate) -> None:
        """Offer PyTorch in the memory format of a plan, where that may be faster than the plan."""
        key, given = eager_in(candidate.variant.memory_format), candidate.variant.memory_format is MemoryFormat.AS_GIVEN
        if not (given or candidate.variant.fused or candidate.far_faster or key in self._tournament.entrants):
            self._offer(key, gain=1.1, most=10.0, cost_s=0.0)

    def _offer_fused(self) -> None:
        """Have the fastest plan's variant tried with fused operators, once a plan of each memory format was."""
        if not self._fuse or any(one.found is None and not one.left_out for one in self._candidates.values()):
            return
        fastest = next(iter(self.plans), None)
        if fastest is None or (self._tournament.entrants[self._id(fastest)].offered.earlier and self._like):
            return
        self._fuse = False
        variant = Variant(fastest.variant.memory_format, fused=True)
        cost_s = 0.0 if self._graphs.is_compiled(variant) else self._part_of(BESIDE_S)
        candidate = PlanCandidate(variant, self._means, capture_s=cost_s)
        step_s, eager_s = self._candidates[self._id(fastest)].step_s, self.eager_s
        gain = eager_s / step_s if step_s and eager_s else 1.0
        self._offer(self._add(candidate).key, gain=1.05 * gain, most=1.5 * gain, cost_s=cost_s)

    def _part_of(self, seconds: float) -> float:
        """What calls lose of so many seconds that something computes beside them on one core."""
        return seconds / max(1, len(self._machine) - 1)

    def _offer(self, key: ContenderId, **options: Any) -> None:
        self._todo.extend(self._tournament.handle(to.Offered(key, **options)))

    def _add(self, candidate: PlanCandidate) -> PlanCandidate:
        self._candidates[candidate.key] = candidate
        if candidate.found is not None:
            self.report.predicted_s[str(candidate.variant)] = candidate.found.plan.makespan_s
        return candidate

    def _id(self, variant_plan: VariantPlan) -> to.Key:
        return next(key for key, one in self._candidates.items() if one.found is variant_plan)

    def _look(self) -> None:
        """Report what has happened since the last step: plans, compiled loops, backends, stale contenders."""
        self._planner.unlimited = self._budget.unlimited
        tournament = self._tournament
        for candidate in list(self._candidates.values()):
            if candidate.works and candidate.poll(self._calls):
                self._staged(candidate)
        if tournament.comparison is None:
            self._look_for_backends()
        self._give_back()
        for key in {self._best, tournament.challenger} - {None, DEFAULT}:
            assert isinstance(key, ContenderId)
            if tournament.entrants[key].open and not self._contenders[key].holds():
                if key.kind is Kind.BACKEND:  # weights were written to, which they need not be in later processes
                    self._backends.search_later_too()
                self._todo.extend(tournament.handle(to.LeftOut(key, "what it took for constant was changed")))

    def _maker(self, captured: Captured, variant: Variant) -> PlanMaker:
        """What makes plans of the graph of a variant."""
        self._planner.begin(self)
        before = partial(self._format.set, variant.memory_format)
        return PlanMaker(captured, self._machine, planner=self._planner, store=self._store, before=before)

    def _give_back(self) -> None:
        """Have stored what looks have shown."""
        looked, feedback = self._means.looked, self._feedback
        if feedback is None or not looked or feedback.working or not self.settled:
            return
        if self._budget.allows(self._part_of(GIVE_BACK_S)):
            feedback.add_looks(looked)
            looked.clear()

    def _look_for_backends(self) -> None:
        """Report what the search for backends has found."""
        if not self._backends.works:
            return
        try:
            found = self._backends.poll(unlimited=self._budget.unlimited)
        except Exception as error:  # noqa: BLE001 - whatever stops the search, what was found before goes on
            self._backends.leave_out(error)
            found = None
        if found is not None:
            self._contenders.add(found)
            self._offer(found.id, gain=found.gain or 2.0, most=10.0, ready=True, alone=True)
        if self._backends.over:
            self._end_of_backends()

    def _end_of_backends(self) -> None:
        entrant = self._tournament.entrants.get(BACKENDS)
        if entrant is not None and entrant.status is not Status.OUT:
            self._tournament.handle(to.LeftOut(BACKENDS, "there are no more"))
        self._stored.note_tried(self._graphs.first, self._tried)

    @property
    def _tried(self) -> frozenset[Extra]:
        """What was found to be slower than the best, so that a later process need not try it."""
        waits = self._tournament.waits
        waiting = {one.variant.fused for one in self._candidates.values() if waits(one.key)}
        waiting |= {False for one in self._graphs.formats if waits(eager_in(one))}
        found: list[Extra] = [] if False in waiting else ["formats"]
        found += [] if self._fuse or True in waiting else ["fused"]
        lost = self._backends.finished and self._best.kind is not Kind.BACKEND
        open_ones = filter(waits, self._tournament.entrants)
        lost = lost and not any(isinstance(one, ContenderId) and one.kind is Kind.BACKEND for one in open_ones)
        return frozenset([*found, "backends"] if lost else found)

    def _prepare_candidate(self, key: to.Key) -> None:
        assert isinstance(key, ContenderId)
        if key == BACKENDS:
            self._wants_backends = True
            self._tournament.handle(to.Staged(key, Place.BESIDE, long=True))
        elif key.kind is Kind.BACKEND:
            self._todo.extend(self._tournament.handle(to.LeftOut(key, "it was released")))
        elif key.memory_format is not None:
            self._contenders.open_eager(key.memory_format)
            self._tournament.handle(to.Ready(key))
        else:
            return_free_memory()
            candidate, began_s = self._candidates[key], self._clock()
            candidate.prepare(self._calls)
            if candidate.searching:
                self._capture_s = max(self._capture_s, self._clock() - began_s)
            self._staged(candidate)

    def _staged(self, candidate: PlanCandidate) -> None:
        """Report how far the preparation of a plan is."""
        event = candidate.stage(self._calls)
        self._todo.extend(self._tournament.handle(event))
        if not isinstance(event, to.Ready) or (found := candidate.found) is None:
            return
        self.report.predicted_s[str(candidate.variant)] = found.plan.makespan_s
        if self.report.measuring:
            self._report_plan(found)
        self._offer_eager(candidate)

    def _differs(self, what: to.Run | to.RunStage, difference: str) -> None:
        text = f"its results are not PyTorch's: {difference}"
        self._todo.extend(self._tournament.handle(to.LeftOut(what.key, text, differs=True)))

    def _carry_out(self) -> None:
        """Carry out what is to be done. What Ctrl-C interrupts is begun anew later."""
        while self._todo:
            self._do(self._todo[0])
            self._todo.popleft()

    def _do(self, instruction: to.Instruction) -> None:
        match instruction:
            case to.Compared(key, verdict):
                self.report.verdicts[str(key)] = verdict
                if self._best != DEFAULT:
                    self.conclude()
            case to.Release(key):
                assert isinstance(key, ContenderId)
                self._contenders.close(key, self._plan_of(key))
            case to.Drop(key, reason, differs, earlier):
                assert isinstance(key, ContenderId)
                self._drop(key, reason, differs=differs, earlier=earlier)
            case to.Settle(key):
                assert isinstance(key, ContenderId)
                self._settle(key)
            case to.Unsettle():
                self._follower.end(restore=True)
            case to.Keep(key, step_s):
                if (variant_plan := self._plan_of(key)) is not None:
                    self._stored.write(variant_plan, step_s, eager_s=self._tournament.eager_s)
                    self._stored.note_tried(self._graphs.first, self._tried)
            case to.GiveUp(reason):
                self._given_up(reason)

    def conclude(self) -> None:
        """Report what is the fastest so far, though others may still be tried."""
        if self.eager_s is None and self._best == DEFAULT and not self.settled:
            return
        self.report.contender, self.fastest = self._best, self._contenders[self._best]
        if (variant_plan := self._plan_of(self._best)) is not None:
            self._report_plan(variant_plan)

    def _report_plan(self, of: VariantPlan) -> None:
        self.report.layout, self.report.plan, self.report.fused = of.variant.memory_format, of.plan, of.variant.fused

    def _drop(self, key: ContenderId, reason: str, *, differs: bool, earlier: bool) -> None:
        if differs:
            _logger.warning("%s is not used: %s", key, reason)
        variant_plan = self._plan_of(key)
        if differs and variant_plan is not None:
            self._stored.drop(self._graphs.as_captured(variant_plan.variant))
        self._contenders.close(key, variant_plan)
        if self.report.contender == key:
            self.report.contender = None
        candidate = self._candidates.get(key)
        if candidate is not None and candidate.found is None:
            candidate.leave_out(reason)
        if not earlier:
            if differs:
                self.report.reason = f"{key}: {reason}"
            return
        self._candidates.pop(key, None)
        self.report = Report(reason=f"{key}: {reason}" if differs else "")
        self._like = ()
        self._offer_all(self._graphs.formats)

    def _settle(self, contender: ContenderId) -> None:
        if self._tournament.idle:
            self._planner.done(self)
        variant_plan = self._plan_of(contender)
        if contender == DEFAULT and self._tournament.idle:
            for captured in {self._graphs.first, *(self._graphs.as_captured(one.variant) for one in self.plans)}:
                self._stored.drop(captured)
        if contender.kind is Kind.BACKEND and (gain := self._tournament.entrants[contender].gain) is not None:
            self._stored.note_backend(self._graphs.first, gain)
        self.conclude()
        self._stored.note_tried(self._graphs.first, self._tried)
        if variant_plan is not None:
            self._follower.follow(self._contenders.engines[variant_plan], variant_plan, self._stored)
        slow = [one for one in self._candidates.values() if one.step_s is not None]
        if contender == DEFAULT and slow and not self.report.verdicts and self.eager_s is not None:
            self.report.reason = f"{slow[0].key} took {slow[0].step_s:.3g} s a call, PyTorch {self.eager_s:.3g} s"
        elif contender == DEFAULT and not self._candidates and not self.report.reason:
            self.report.reason = FOUND_BEFORE
        self._offer_fused()

    def _give_up(self, reason: str) -> None:
        """Run the default for good."""
        self._passes = 0
        self._todo.clear()
        self._todo.extend(self._tournament.handle(to.GaveUp(reason)))
        self._carry_out()

    def _given_up(self, reason: str) -> None:
        _logger.warning("this step runs as before: %s", reason)
        self._follower.end(restore=False)
        self._release_all()
        self.report.contender, self.report.reason = DEFAULT, reason
        self.fastest = self._contenders[DEFAULT]

    def _release_all(self) -> None:
        self._backends.close()
        for candidate in self._candidates.values():
            candidate.close()
        self._planner.done(self)
        self._contenders.close_all()

    def _search_backends(self, arguments: tuple[Any, ...], result: Any) -> None:
        """Begin the search for backends by the example of a step and its result."""
        with Failure() as failure:
            if self._backends.make(self._graphs.captured_in(MemoryFormat.AS_GIVEN), arguments, result):
                self._format.set(MemoryFormat.AS_GIVEN)
                self._backends.start()
        if failure.error is not None:  # the step has run; only what follows from it fails
            self._backends.leave_out(failure.error)
        if self._backends.over:
            self._end_of_backends()
