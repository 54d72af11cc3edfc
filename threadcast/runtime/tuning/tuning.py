"""Finds the fastest way to run one kind of call, in the caller's own steps.

Every step that is measured counts for the caller, and no training step is applied twice. `TuningMachine` decides; this
module carries out its decisions.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.core import Core, Machine, Plan
from threadcast.core.errors import CaptureError, ThreadcastError
from threadcast.runtime.engines.engine import PlanEngine
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import has_native_engine, open_engine
from threadcast.runtime.fusion.fuse import fused
from threadcast.runtime.plans.curves_in_step import probe_cases
from threadcast.runtime.plans.malleable_plan import counts_below
from threadcast.runtime.plans.model_format import ModelFormat, formats_with_equal_results
from threadcast.runtime.plans.plan_store import PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.contender import Candidate, Contender, Run
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind, plan_of
from threadcast.runtime.tuning.core_follower import CoreFollower
from threadcast.runtime.tuning.instructions import (
    Capture,
    Compared,
    ContenderStep,
    GiveUp,
    Instruction,
    Instructions,
    MakePlan,
    Open,
    OpenBackend,
    Refuse,
    Runner,
    Searched,
    SearchStep,
    Settle,
    Store,
    Unsettle,
    UsePlan,
)  # fmt: skip
from threadcast.runtime.tuning.machine import TuningMachine
from threadcast.runtime.tuning.plan_maker import PlanMaker
from threadcast.runtime.tuning.plan_search import Meanwhile
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.states import State
from threadcast.runtime.tuning.timed_run import TimedRun
from threadcast.runtime.verification.shadow import Ran, Shadowed, checked_step
from threadcast.scheduler.policies import Problem
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")


class Tuning:
    """A callable that runs one kind of call; each call does the caller's whole step, whichever contender runs it.

    `default` runs a step in eager PyTorch. `capture(memory_format)` returns the graph of a call, `model_format` sets
    the order of the model's tensors in memory, `formats` are the memory formats to try. `backends` yields further
    contenders when their turn comes. A plan that `plans` has stored for the graph runs from the first call on; `call`
    identifies the call in that store. With `fuse` the graph with fused operators is tried too.

    `checked` says how PyTorch runs a step, always in the memory format as given: the first step by each plan, and by
    eager PyTorch in another memory format, is then also run that way, and what has other results never runs again.
    Without it nothing is checked. A graph that draws random numbers runs in the format as given only.

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
        backends: Iterable[Contender] = (),
        fuse: bool = True,
        checked: Shadowed | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        formats = plans.formats_first(call, formats)
        first = capture(formats[0])
        equal = formats_with_equal_results(first, formats)
        if equal[0] is not formats[0]:
            first = capture(equal[0])
        self.report = Report()
        self._default, self._capture_graph, self._format = default, capture, model_format
        self._machine, self._call, self._plans, self._clock = machine, call, plans, clock
        self._backends = iter(backends)
        self._first = Variant(equal[0])
        self._graphs = {self._first: first}
        self._contenders = {DEFAULT: Contender(DEFAULT, partial(self._run_eagerly, MemoryFormat.AS_GIVEN))}
        self.fastest = self._contenders[DEFAULT]
        """The fastest contender of the last comparison."""
        self._makers: dict[Variant, PlanMaker] = {}
        self._candidates: dict[Variant, Candidate] = {}
        self._engines: dict[Candidate, PlanEngine] = {}
        self._fewer: dict[Candidate, Mapping[int, Plan]] = {}
        """Plans for fewer cores, by number of cores, once they have been made."""
        self._stored_s: dict[Candidate, float] = {}
        """Seconds of a step of each plan that is stored."""
        self._shadowed = checked
        self._checked: set[ContenderId | SearchStep] = set()
        """What was compared with PyTorch, or was too large to be compared."""
        self._last: Runner = ContenderStep(DEFAULT)
        """What ran the last step."""
        self._follower = CoreFollower(machine)
        self._states = TuningMachine(equal, probe_cases(machine), fuse=fuse, backends=True)
        self._instructions: Instructions = ()

    def __call__(self, *arguments: Any) -> Any:
        runner = self._prepare()
        if isinstance(runner, ContenderStep) and runner.rest:
            for engine in self._engines.values():
                engine.rest()
        self._last = runner
        timed = TimedRun(self._run_of(runner), self._clock)
        difference = None
        if self._needs_check(runner, arguments):
            assert self._shadowed is not None
            result, difference = checked_step(self._shadowed, timed, arguments, self.captured)
            self._checked.add(_plan_of(runner))
        else:
            result = timed(*arguments)
        self._observe(timed.seconds, timed.started_s, None if difference is None else str(difference))
        return result

    @property
    def captured(self) -> Captured:
        """The graph of a call, as it was captured first."""
        return self._graphs[self._first]

    @property
    def ran(self) -> Ran | None:
        """The graph that ran the last step, and an engine maker for its plan; None where no plan ran it."""
        engine: PlanEngine | None = None
        if isinstance(self._last, SearchStep):
            engine = self._makers[self._last.variant].engine if self._last.variant in self._makers else None
        elif self._last.contender.variant in self._candidates:
            engine = self._engines.get(self._candidates[self._last.contender.variant])
        if engine is None:
            return None
        return Ran(engine.captured, partial(open_engine, plan=engine.plan, machine=self._machine))

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
        self._let_go()

    def _prepare(self) -> Runner:
        """Carry out all that has to be done before the next step, and return what runs it."""
        try:
            if self._states.state is State.STARTING:
                self._instructions = self._start()
            self._carry_out(self._instructions)
            self._look()
            runner = self._states.next_runner()
            if isinstance(runner, SearchStep):
                self._makers[runner.variant].prepare(runner.step)
        except Exception as error:  # noqa: BLE001 - of measuring or planning: the step has not begun, and can run as before
            self._carry_out(self._states.give_up(str(error) or "measuring was broken off"))
            runner = self._states.next_runner()
        return runner

    def _run_of(self, runner: Runner) -> Run:
        """A function that runs a whole step and returns its result and its seconds; None: time it by the clock."""
        if isinstance(runner, SearchStep):
            return partial(self._makers[runner.variant].run, runner.step)
        run = self._contenders[runner.contender].run
        return lambda *arguments: (run(*arguments), None)

    def _needs_check(self, runner: Runner, arguments: tuple[Any, ...]) -> bool:
        """Whether this is the first step by a plan or in another memory format: it is compared with PyTorch's."""
        plan = _plan_of(runner)
        differs = isinstance(plan, SearchStep) or plan.kind in {Kind.PLAN, Kind.EAGER}
        if self._shadowed is None or not differs or plan in self._checked:
            return False
        reason = self._shadowed.too_large(arguments, self.captured)
        if reason is not None:
            self._checked.add(plan)
            _logger.warning("the results of %s are not compared with PyTorch's: %s", plan, reason)
        return reason is None

    def _observe(self, seconds: float, started_s: float, difference: str | None) -> None:
        all_cores = self._follower.all_cores
        try:
            self._instructions = self._states.observe(
                seconds, started_s=started_s, difference=difference, all_cores=all_cores
            )
        except ThreadcastError as error:  # the step has run; only what follows from it fails
            self._instructions = self._states.give_up(str(error))

    def _look(self) -> None:
        """Report to the state machine what has happened since the last step: finished plans, stale contenders."""
        if self._states.state is State.PLANNING:
            for maker in self._makers.values():
                if (plan := maker.poll()) is not None:
                    self._carry_out(self._states.planned(plan.makespan_s))
        while stale := [one for one in self._states.contenders if not self._contenders[one].holds()]:
            self._carry_out(self._states.stale(stale[0]))

    def _carry_out(self, instructions: Instructions) -> None:
        self._instructions = ()
        waiting = deque(instructions)
        while waiting:
            waiting.extend(self._done(waiting.popleft()))

    def _done(self, instruction: Instruction) -> Instructions:
        """Carry out one instruction, and return the instructions that its answer brings."""
        match instruction:
            case Capture(variant):
                return self._capture(variant)
            case MakePlan(variant):
                return () if self._makers[variant].start_planning() else self._states.nothing_to_correct()
            case UsePlan(variant, plan):
                self._use(variant, plan)
            case Searched(variants):
                self._report_searched(variants)
            case Open(contender):
                return_free_memory()
                self._open(contender)
                return self._states.opened(contender)
            case OpenBackend():
                return self._open_backend()
            case Compared(contender, verdict):
                self.report.verdicts[str(contender)] = verdict
                _logger.info("%s over the best before it: %.2f", contender, verdict.gain)
            case Refuse(contender, difference):
                self._refuse(contender, difference)
            case Settle(contender):
                self._settle(contender)
            case Unsettle(forget):
                self._unsettle(forget=forget)
            case Store(variant, step_s):
                self._stored_s[self._candidates[variant]] = step_s
                self._write(self._candidates[variant])
            case GiveUp(reason):
                self._give_up(reason)
        return ()

    def _start(self) -> Instructions:
        """Begin with the plan that an earlier process stored, where it can run."""
        first = self._graphs[self._first]
        stored = self._plans.read(first.graph)
        if stored is None or stored.memory_format != self._first.memory_format:
            return self._states.start()
        variant = Variant(stored.memory_format, stored.fused)
        try:
            captured = (fused(first) if stored.fused else None) or first
            problem = None if stored.curves is None else Problem(captured.graph, stored.curves, self._machine)
            candidate = Candidate(variant, captured, stored.plan, first.graph, problem, stored.fewer)
            self._candidates[variant] = candidate
            self._open(plan_of(variant))
        except ThreadcastError as error:
            _logger.warning("a stored plan does not run and is made anew: %s", error)
            return self._states.start()
        self._stored_s[candidate] = stored.step_s
        self.report.predicted_s[str(variant)] = stored.plan.makespan_s
        return self._states.start(stored=variant, step_s=stored.step_s)

    def _capture(self, variant: Variant) -> Instructions:
        if variant not in self._graphs:
            try:
                captured = self._fused(variant) if variant.fused else self._capture_graph(variant.memory_format)
            except CaptureError as error:
                _logger.info("%s: %s", variant, error)
                captured = None
            if captured is None:
                return self._states.not_captured()
            self._graphs[variant] = captured
        self._checked = {one for one in self._checked if isinstance(one, ContenderId) or one.variant != variant}
        before = partial(self._format.set, variant.memory_format)
        self._makers[variant] = PlanMaker(self._graphs[variant], self._machine, before=before)
        return self._states.captured()

    def _fused(self, variant: Variant) -> Captured | None:
        """The graph with fused operators; None where there are none, or (with a log message) cannot be made."""
        try:
            return fused(self._graphs[Variant(variant.memory_format)]) if has_native_engine() else None
        except ThreadcastError as error:
            _logger.warning("operators are not fused: %s", error)
            return None

    def _use(self, variant: Variant, number: int) -> None:
        maker = self._makers.pop(variant)
        maker.close()
        made, unfused = maker.plans[number], self._graphs[Variant(variant.memory_format)].graph
        self._candidates[variant] = Candidate(variant, self._graphs[variant], made.plan, unfused, made.problem)

    def _report_searched(self, variants: Sequence[Variant]) -> None:
        self.report.predicted_s = {str(one): self._candidates[one].plan.makespan_s for one in variants}
        self._report_plan(self._candidates[variants[0]])

    def _report_plan(self, of: Candidate) -> None:
        self.report.layout, self.report.plan, self.report.fused = of.variant.memory_format, of.plan, of.variant.fused

    def _open(self, contender: ContenderId) -> None:
        if contender.variant is not None:
            self._contenders[contender] = self._planned(contender, self._candidates[contender.variant])
        elif contender.memory_format is not None:
            self._contenders[contender] = Contender(contender, partial(self._run_eagerly, contender.memory_format))

    def _open_backend(self) -> Instructions:
        return_free_memory()
        found = next(self._backends, None)
        if found is None:
            return self._states.no_backend()
        self._contenders[found.id] = found
        return self._states.opened(found.id)

    def _planned(self, contender: ContenderId, candidate: Candidate) -> Contender:
        memory_format, captured = candidate.variant.memory_format, candidate.captured
        if candidate not in self._engines:
            self._checked.discard(contender)
            self._engines[candidate] = open_engine(captured, candidate.plan, self._machine)
        engine = self._engines[candidate]

        def run(*arguments: Any) -> Any:
            self._format.set(memory_format)
            return engine.run(captured.bind(*arguments))

        return Contender(contender, run)

    def _run_eagerly(self, memory_format: MemoryFormat, *arguments: Any) -> Any:
        self._format.set(memory_format)
        return self._default(*self._format.arguments(arguments))

    def _refuse(self, contender: ContenderId, difference: str) -> None:
        _logger.warning("%s is not used, its results are not PyTorch's: %s", contender, difference)
        self.report.reason = f"{contender}: {difference}"
        if contender.variant in self._makers:
            self._makers.pop(contender.variant).close()
        if contender.variant in self._candidates:
            self._plans.drop(self._candidates[contender.variant].unfused)

    def _settle(self, contender: ContenderId) -> None:
        candidate = self._candidates[contender.variant] if contender.variant is not None else None
        if candidate is None:
            self._plans.drop(self._graphs[self._first].graph)
        self.fastest = self._contenders[contender]
        self._contenders = {DEFAULT: self._contenders[DEFAULT], contender: self.fastest}
        self._release_engines(but=candidate)
        return_free_memory()
        if candidate is not None:
            self._report_plan(candidate)
            self._follow(candidate)
        self.report.contender = contender
        _logger.info(
            "%s runs, after %d steps and %.3g s", contender, sum(self._states.steps.values()),
            sum(self._states.seconds.values()),
        )  # fmt: skip

    def _unsettle(self, *, forget: bool) -> None:
        self._follower.end(restore=True)
        self.report.contender = None
        if forget:
            self._release_engines()
            self.report = Report()

    def _give_up(self, reason: str) -> None:
        _logger.warning("this step runs as before: %s", reason)
        self._follower.end(restore=False)
        self._let_go()
        self.report.contender, self.report.reason = DEFAULT, reason
        self.fastest = self._contenders[DEFAULT]

    def _follow(self, candidate: Candidate) -> None:
        """Keep the engine of `candidate` on the cores that the model has, from now on."""
        weak = weakref.ref(self)  # a model that is dropped ends its planning, not the other way round

        def note(fewer: Mapping[int, Plan]) -> None:
            if (tuning := weak()) is not None:
                tuning._note(candidate, fewer)

        known = self._fewer.get(candidate, candidate.fewer)
        self._follower.follow(self._engines[candidate], candidate.plan, candidate.problem, known, done=note)

    def _note(self, candidate: Candidate, fewer: Mapping[int, Plan]) -> None:
        self._fewer[candidate] = fewer
        if fewer:
            plans = {**fewer, len(self._machine): candidate.plan}
            this_process().steps.expect({cores: 1 / plan.makespan_s for cores, plan in plans.items()})
        if candidate in self._stored_s and fewer.keys() != candidate.fewer.keys():
            self._write(candidate)

    def _write(self, candidate: Candidate) -> None:
        fewer = self._fewer.get(candidate, candidate.fewer)
        missing = not set(counts_below(len(self._machine))) <= set(fewer)
        curves = candidate.problem.curves if candidate.problem is not None and missing else None
        variant = candidate.variant
        stored = StoredPlan(
            candidate.plan, variant.memory_format, self._stored_s[candidate], variant.fused, fewer, curves
        )
        self._plans.write(self._call, candidate.unfused, stored)

    def _let_go(self) -> None:
        for maker in self._makers.values():
            maker.close()
        self._makers.clear()
        self._release_engines()

    def _release_engines(self, *, but: Candidate | None = None) -> None:
        for candidate in [candidate for candidate in self._engines if candidate is not but]:
            self._engines.pop(candidate).close()


def _plan_of(runner: Runner) -> ContenderId | SearchStep:
    """A key of what runs the step. A step while a plan is being made has the key of the plan that runs it."""
    if isinstance(runner, ContenderStep):
        return runner.contender
    return SearchStep(runner.variant, runner.step.by) if isinstance(runner.step, Meanwhile) else runner
