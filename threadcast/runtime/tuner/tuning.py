"""Finds the fastest way to run one kind of call, in the caller's own steps.

Every step that is measured counts for the caller, but for looks at training steps, which are set back; no training step
is applied twice. `Tournament` decides what runs a step; this module carries it out.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Core
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.check.shadow import Ran
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.candidate import DEFAULT, CandidateId, Kind, Run, VariantPlan, Way, plan_of
from threadcast.runtime.tuner.candidates import BACKENDS, Candidates
from threadcast.runtime.tuner.first_steps import Runner, TimedRun, is_ordered
from threadcast.runtime.tuner.looks import Look
from threadcast.runtime.tuner.plan_candidate import PlanCandidate
from threadcast.runtime.tuner.report import COMPILING

_PAUSE_S = 0.05
"""Seconds after which it is looked again whether another search for backends has ended."""

RAISED, RAISED_SHARE = 3, 0.05
"""Steps in which operators raise because of values, and their share, from which on PyTorch runs all: each costs what
was run until then."""
LITTLE, IN_A_ROW = 0.05, 20
"""Share of a call from which on what the caller does before the next one counts, and calls in a row with less between
them after which a search works beside calls: it would take a core from what the caller computes between them."""
BURST_S = 0.25
"""Seconds that calls may lose from which on a search that rested works beside them, until they are lost: by turns of a
few calls, each with other threads, calls of 7.7 ms took 9.4, and a second of a search's work cost them 2, not 0.5."""
LOOKING_SHARE = 0.01
"""Share of a call that a look at its arguments may take: less is lost in the noise of calls."""

_logger = logging.getLogger("threadcast")


class Tuning(Candidates):
    """A callable that runs one kind of call; each call does the caller's whole step, whichever way runs it.

    For its arguments see `Candidates`. CaptureError where the call cannot be captured. Use it from one thread at a
    time; only `resize` is for any thread.
    """

    raised: str | None = None
    """What a plan raised in the last step before eager PyTorch ran it, in words."""
    left: str | None = None
    """Why eager PyTorch runs all further steps; None unless because plans raise."""
    _runs = _raised = 0
    """Steps that a plan ran, and those in which it raised, but eager PyTorch did not."""
    _last: Runner = DEFAULT
    """What ran the last step."""
    _started = False
    _spares = False
    """Whether the next call leaves a core to a search for backends."""
    _unpaid = False
    """Whether a search for backends rests until calls have paid for its next burst."""
    _ended_s, _in_a_row = 0.0, 0
    """When the last call ended, and calls in a row: whatever else the caller does after one, as to print a line each
    second, takes off some."""
    _kept: Way | None = None
    _passes = _passed = 0
    """What was kept, the next calls that it runs without being timed, and those since the last one that was."""

    @property
    def passes(self) -> bool:
        """Whether the next call is run by what was kept, and nothing is found out in it."""
        free = self._planner.asked is None or self._planner.free
        return self._over or (self._passes > 0 and free and self._kept is not None and self._kept.holds())

    def __call__(self, *arguments: Any) -> Any:
        if self._over:
            self._last, self.raised = DEFAULT, None
            return self._way(DEFAULT).run(*arguments)
        if (kept := self._kept) is not None and self.passes:
            self._passes -= 1
            self._passed += 1
            self._began_s = None
            return self._pass(kept, arguments)
        self._passes = 0
        began_s = self._clock() if self._began_s is None else self._began_s
        self._began_s = None
        what, runner = self._prepare(began_s)
        self._last = runner
        timed = TimedRun(self._run_of(runner), self._clock)
        result, difference = self._ran(runner, timed, arguments)
        self.raised = timed.raised
        if timed.raised is not None and (self.captured.raises or difference is None):
            self._after_raising(timed.raised)  # it says nothing of the plan's speed, nor of its numbers
            return result
        if difference is None and self._awaits_backends:
            self._search_backends(arguments, result)
        self._observe(what, timed, self._clock() - began_s, difference)
        if (kept := self.kept) is not None and runner == kept.id and not self._first_steps.compares(runner):
            self._kept, self._passes = kept, self.tournament.passes
        self._ended_s = self._clock()
        return result

    def begun(self, began_s: float) -> None:
        """Take note when the call that comes now began: looking at it, and capturing it, belong to it."""
        self._began_s = began_s

    def _pass(self, kept: Way, arguments: tuple[Any, ...]) -> Any:
        """Run a call by what was kept, in which nothing is found out."""
        if kept.id.kind is not Kind.PLAN:
            return kept.run(*arguments)
        self._runs += 1
        with Failure(self._before.suffices) as failure:
            return self._noted(kept.run, *arguments)
        self._before.set_back()
        result, self._passes = self._way(DEFAULT).run(*arguments), 0
        self.raised = str(failure)
        self._after_raising(self.raised)
        return result

    def _ran(self, runner: Runner, timed: TimedRun, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
        """Run a step, in eager PyTorch from the same state where a plan raises; see `FirstSteps.run`."""
        by_plan = isinstance(runner, Look) or runner.kind is Kind.PLAN
        self._runs += by_plan
        if not by_plan or self._first_steps.compares(runner):
            return self._first_steps.run(runner, timed, arguments, self.captured)
        with Failure(self._before.suffices):
            return timed(*arguments), None
        self._before.set_back()
        return self._way(DEFAULT).run(*arguments), None

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
        return self.tournament.story()

    @property
    def eager_s(self) -> float | None:
        """Seconds of a step in eager PyTorch; None until they are known."""
        return self.tournament.baseline_s

    @property
    def captured(self) -> Captured:
        """The graph of a call, as it was captured first."""
        return self._graphs.first

    @property
    def plan(self) -> VariantPlan | None:
        """The plan that was found to be the fastest; None where something else was, or nothing is known yet."""
        found = self.report.candidate
        return None if found is None else self._plan_of(found)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that this object takes, estimated from graphs, example and a backend's weights."""
        by_backend = self._best.kind is Kind.BACKEND
        return self._graphs.size_bytes + (self._graphs.held_bytes if by_backend else 0)

    @property
    def settled(self) -> bool:
        """Whether the fastest way runs, and no other is being tried."""
        return self._over or self.tournament.settled

    def leaves_alone(self, looking_s: float) -> bool:
        """Return whether the next calls need not be looked at, because PyTorch's default runs them in any case.

        Nothing else will be tried, or not before learning may take the time for it, and a look, which takes `looking_s`
        seconds, makes calls slower by more than `LOOKING_SHARE`.
        """
        if self._best is not DEFAULT:
            return False
        if not ((self.settled and not self.learning) or self.tournament.held_back or self._unpaid):
            return False
        return looking_s > LOOKING_SHARE * (self.eager_s or 0.0)

    @property
    def learning(self) -> bool:
        """Whether it is still being learned what runs fastest; also while something has not been tried."""
        if self._over:
            return False
        if not (self.settled and self.tournament.idle) or self.pending:
            return True
        if self._backends.works or self._awaits_backends:
            return True
        return not self.tournament.confirmed

    @property
    def gain_left(self) -> float:
        """Ratio of a call's seconds now to those that are expected after more learning; unbounded at first."""
        if self._over:
            return 1.0
        return max(self.tournament.gain_left(), self._backends_left) if self._started else math.inf

    @property
    def outlook(self) -> to.Outlook:
        """What is learned next, and where."""
        if self._over:
            return to.Outlook(None)
        if not (self._started or self.settled) or self._awaits_backends:
            return to.Outlook(to.Place.CALL)
        return self.tournament.outlook

    def look(self) -> None:
        """Take note of what has become ready beside calls, without a call."""
        self._passes = 0
        if not self._started or self._over:
            return
        with Failure() as failure:
            self._look()
            self.do()
        if failure.error is not None:
            self._give_up(str(failure.error))

    def wait(self, timeout_s: float) -> None:
        """Leave the cores to what makes a plan, compiles or searches for backends until it has something to tell, or
        for `timeout_s` seconds.

        Returns at once where nothing but calls can tell what runs fastest.
        """
        if self._over or self.tournament.learns:
            return
        if self._planner.works:
            self._planner.wait(timeout_s)
        elif self._graphs.awaited is not None:
            self._graphs.wait(self._graphs.awaited, timeout_s)
        elif self._backends.works and self.eager_s is not None:  # else calls tell that
            self._backends.wait(timeout_s)
        elif self._awaits_backends:  # another search is at work
            time.sleep(min(timeout_s, _PAUSE_S))

    @property
    def ran(self) -> Ran | None:
        """The graph that ran the last step, and an engine maker for its plan; None where no plan ran it."""
        runner = self._last
        candidate = self._candidates.get(plan_of(runner.variant) if isinstance(runner, Look) else runner)
        if isinstance(runner, Look):
            looks = candidate.looks if isinstance(candidate, PlanCandidate) else None
            engine = None if looks is None or self._first_steps.runs_aside(runner) else looks.engine
        else:
            way = None if candidate is None else candidate.way
            engine = None if way is None else way.engine
        if engine is None:
            return None
        return Ran(engine.captured, engine.plan, partial(Engine, plan=engine.plan, machine=self._machine))

    @property
    def ran_by_pytorch(self) -> bool:
        """Whether the last step was the caller's own, by eager PyTorch in the order as given."""
        if isinstance(self._last, Look):
            return self._first_steps.runs_aside(self._last)
        return self._last.kind is Kind.DEFAULT

    @property
    def ran_in_order(self) -> Run | None:
        """What runs a step by PyTorch in channels last, if the last one ran so; None where it did not."""
        return self._in_order if is_ordered(self._last) else None

    @property
    def kept(self) -> Way | None:
        """What runs all calls until something changes; None while anything is being learned."""
        return None if self.learning or not self.settled else self._way(self._best)

    @property
    def runs_in(self) -> MemoryFormat | None:
        """The memory format in which the next call runs; None where it may run in several."""
        if self._graphs.formats == (MemoryFormat.AS_GIVEN,):
            return MemoryFormat.AS_GIVEN
        rests = self._over or (self.settled and (self.tournament.idle or self.tournament.held_back))
        begins = self._backends.waits and self.tournament.waits(BACKENDS)
        if not rests or begins or self._awaits_backends:
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

    # what runs the next step

    def _prepare(self, began_s: float) -> tuple[to.Run | to.RunStage, Runner]:
        """Carry out all that has to be done before the next step, and return what runs it."""
        with Failure() as failure:
            if not self._started:
                self._begin()
                self._started = True
            if self._passed:
                self.passed(self._passed)
                self.budget.charge(self._passed * self._looking_s() if self._best is DEFAULT else 0.0)
                self._passed = 0
            self._look()
            what = self.next()
            if self.report.reason in ("", COMPILING):
                self.report.reason = COMPILING if self._graphs.awaits_engine else ""
            self._let_backends_work(began_s)
            assert isinstance(what.key, CandidateId)
            if isinstance(what, to.Run):
                return what, what.key
            candidate = self._candidates[what.key]
            assert isinstance(candidate, PlanCandidate)
            return what, candidate.begin(anew=what.anew)
        # of measuring or planning: the step has not begun, and can run as before
        self._give_up(str(failure.error) or "measuring was broken off")
        return to.Run(DEFAULT), DEFAULT

    def _let_backends_work(self, now_s: float) -> None:
        """Let the search for backends work beside the next step, or before it, or rest, whichever is right.

        It rests while a plan is made: that has the lowest priority, and all waits for it. Beside a search that compiled
        on both of two cores it waited for 24 s, and what the search had found was not compared.
        """
        step_s, unlimited = self.tournament.best_s or 0.0, self.budget.unlimited
        compares = self.tournament.learns or self._planner.works
        at_once = self._unpaid or now_s - self._ended_s <= LITTLE * step_s  # some may have been left alone
        self._in_a_row = min(self._in_a_row + 1, 2 * IN_A_ROW) if at_once else max(0, self._in_a_row - IN_A_ROW)
        pays = not (compares or unlimited or self.budget.rests) and self.tournament.comes_first(BACKENDS)
        follows, least_s = self._in_a_row >= IN_A_ROW, step_s if self._spares else BURST_S
        beside = unlimited or (pays and follows and self.budget.allows(least_s))
        self._unpaid = pays and follows and not beside
        rests = compares or not beside or self.eager_s is None
        self._backends.before_step(rests=rests)
        self._spares = not (rests or unlimited) and self._backends.has_turn
        self._follower.spare(self._spares)
        if pays and not follows:
            self._backends.turn(step_s, left_s=self.budget.left_s, now_s=now_s)

    def _run_of(self, runner: Runner) -> Run:
        """A function that runs a whole step and returns its result and its seconds; None: time it by the clock."""
        if isinstance(runner, Look):
            candidate = self._candidates[plan_of(runner.variant)]
            assert isinstance(candidate, PlanCandidate)
            assert candidate.looks is not None
            return partial(self._noted, candidate.looks.run)
        run = self._way(runner).run
        if runner.kind is Kind.PLAN:
            run = partial(self._noted, run)
        elif runner.kind is not Kind.BACKEND and (self._spares or self._planner.works):
            run = partial(self._planner.leaving_a_core, run)
        return lambda *arguments: (run(*arguments), None)

    def _noted(self, run: Run, *arguments: Any) -> Any:
        """Run a step that can be set back where it raises; what that takes is part of its time."""
        if not self._before.takes:
            return run(*arguments)
        self._before.take(arguments)
        result = run(*arguments)
        self._before.forget()
        return result

    def _observe(self, what: to.Run | to.RunStage, timed: TimedRun, call_s: float, difference: str | None) -> None:
        """Tell what a step took, and what follows from it. The step has run: only what follows can fail."""
        by_default = isinstance(what, to.RunStage) or what.key == DEFAULT
        event = to.Ran(
            timed.started_s, timed.seconds + (0.0 if by_default else self._looking_s()), call_s,
            all_cores=self._follower.all_cores,
            alone=not (self._backends.beside or self._graphs.compiling or self._planner.works),
        )  # fmt: skip
        if self._over:
            return
        with Failure() as failure:
            self.count(event, what)
            self._ran_step(what, event, difference)
        if failure.error is not None:
            self._give_up(str(failure.error))
