"""What may run one kind of call: offered to a tournament, prepared, and dropped, as that decides."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.core.errors import ThreadcastError
from threadcast.runtime.check.shadow import Ran, Shadowed
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.backend_history import Forecast
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import Extra, PlanStore, StoredPlan
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.backends_beside import BackendsBeside
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.call_plans import CallPlans
from threadcast.runtime.tuner.candidate import (
    DEFAULT,
    BackendCandidate,
    Calls,
    Candidate,
    CandidateId,
    EagerCandidate,
    Kind,
    MakeBackends,
    Run,
    VariantPlan,
    Way,
    backend,
    eager_in,
    plan_of,
)  # fmt: skip
from threadcast.runtime.tuner.core_follower import CoreFollower
from threadcast.runtime.tuner.first_steps import BeforeRun, FirstSteps
from threadcast.runtime.tuner.plan_candidate import BESIDE_S, Means, PlanCandidate
from threadcast.runtime.tuner.planning import Planner
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.standings import Status
from threadcast.runtime.tuner.tournament import Tournament
from threadcast.runtime.tuner.variant_graphs import VariantGraphs

BACKENDS = backend("backends")
"""Stands for all backends until they are found."""
GIVE_BACK_S = 0.5
"""Seconds that storing measurements is expected to cost calls on 2 cores: as long as a process loads what it needs for
that, steps took 1.5 to 2.5 times as long."""

FOUND_BEFORE = "an earlier process found nothing that is faster"
"""The reason of a report where nothing is tried."""

_logger = logging.getLogger("threadcast")


class Candidates(Rounds):
    """Carries out between the calls of one kind what `tournament` decides, and tells it what came of it.

    `default` runs a step in eager PyTorch. `capture(memory_format)` returns the graph of a call, `model_format` sets
    the order of the model's tensors in memory, `formats` are the memory formats to try. `backends` returns a search for
    further ways, which begins once the fastest plan is known; it takes the graph in the format as given. A plan
    that `plans` has stored for the graph runs from the first call on; `call` identifies the call in that store. With
    `fuse` the graph with fused operators is tried too.

    `checked` says how PyTorch runs a step, always in the memory format as given: the first step by each plan, and by
    eager PyTorch in another memory format, is then also run that way, and what has other results never runs again.
    Without it nothing is checked. A graph that draws random numbers runs in the format as given only. `budget` says how
    much time learning may take; without it, any. `eager_s` are seconds of calls before, by the default. `store` is the
    URL of a store of what is known of operators on this machine; `feedback` adds to it what looks show.
    `planner` makes the plans, of all calls of the model; without it there is one for this kind. `like` are plans of
    other calls of the same model: the first that fits the graph is compared with the default before anything is
    measured.

    `title` names the call in log messages, one at each change of state. `looking_s()` are the seconds that it takes
    before each call to find what runs it: without a plan most calls need not be looked at (`leaves_alone`), so that
    they count as part of what others than the default take.
    """

    def __init__(
        self, default: Run, capture: Callable[[MemoryFormat], Captured], model_format: ModelFormat,
        formats: Sequence[MemoryFormat], machine: Machine, *, call: object, plans: PlanStore,
        backends: MakeBackends | None = None, fuse: bool = True, checked: Shadowed | None = None,
        budget: Budget | None = None, eager_s: Sequence[float] = (), store: str | None = None,
        feedback: StepFeedback | None = None, planner: Planner | None = None, like: Sequence[VariantPlan] = (),
        title: str = "a call", looking_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._began_s: float | None = clock()
        """When the call that comes began, or, before the first one, when this object was begun; None: then."""
        super().__init__(
            Tournament(DEFAULT, baseline_s=eager_s, told=partial(_logger.info, "%s: %s", title)), budget or Budget()
        )
        self._machine, self._clock, self._looking_s = machine, clock, looking_s
        self._planner, self._format, self._feedback = planner or Planner(machine), model_format, feedback
        self._fuse, self._like = fuse, like
        self._graphs = VariantGraphs(
            capture, plans.formats_first(call, formats), ours=fuse,
            hurries=lambda: self.budget.unlimited and not self._backends.works,
        )  # fmt: skip
        self._before = BeforeRun(self._graphs.first)
        self._backends, self._stored = BackendsBeside(backends), CallPlans(plans, machine, call=call)
        self._in_order = partial(_in_order, default, model_format)
        self._first_steps = FirstSteps(checked, LookSchedule.of(machine), ran=lambda: self.ran, in_order=self._in_order)
        self._means = Means(
            self._graphs, machine, model_format, self._first_steps, self._planner, store,
            None if feedback is None else [],
        )  # fmt: skip
        eager = [EagerCandidate(default, model_format, one) for one in MemoryFormat]
        self._candidates: dict[to.Key, Candidate] = {one.key: one for one in eager}
        """What is known by its key, offered or not."""
        self._follower = CoreFollower(machine)
        self._wants_backends = self._over = False
        """Whether the search for backends is to begin, and whether the default runs all further calls."""
        self._backend_s: float | None = None
        """Seconds of a call by the backend that an earlier process found to be the fastest; None: there is none."""
        self._of_backends = Forecast(1.0, 1.0, 0.0)
        """What was expected of the best backend before the search."""
        self._capture_s = 0.0
        """Seconds that the last capture took from a call."""
        self.report = Report()
        """What runs the calls, and why."""
        self.fastest = self._way(DEFAULT)
        """The fastest way of the last comparison."""

    @property
    def ran(self) -> Ran | None:
        """The plan that ran the last step; None where none did."""
        return None

    def _way(self, key: CandidateId) -> Way:
        """What runs a call by this candidate, which is prepared."""
        found = self._candidates[key].way
        assert found is not None
        return found

    @property
    def _best(self) -> CandidateId:
        """What is the fastest so far."""
        best = DEFAULT if self._over else self.tournament.best
        assert isinstance(best, CandidateId)
        return best

    @property
    def _plan_candidates(self) -> list[PlanCandidate]:
        """The plans that are offered, made or not."""
        return [one for one in self._candidates.values() if isinstance(one, PlanCandidate)]

    def _plan_of(self, key: to.Key) -> VariantPlan | None:
        """The plan of a candidate; None where it has none, or not yet."""
        candidate = self._candidates.get(key)
        return candidate.found if isinstance(candidate, PlanCandidate) else None

    @property
    def _calls(self) -> Calls:
        """What is known of calls."""
        tournament = self.tournament
        other = tournament.best != DEFAULT or any(one.found is not None for one in self._plan_candidates)
        return Calls(tournament.best_s, tournament.baseline_s, other)

    @property
    def _awaits_backends(self) -> bool:
        """Whether a search for backends is to begin with the next step, unless another one is at work."""
        return self._wants_backends and self._backends.waits

    @property
    def plans(self) -> Sequence[VariantPlan]:
        """The plans of all variants that have been searched, the fastest first."""
        found = [one.found for one in self._plan_candidates if one.found is not None]
        return sorted(found, key=lambda one: self._step_s(plan_of(one.variant)) or math.inf)

    def _step_s(self, key: CandidateId) -> float | None:
        """Seconds of a call by a way, as the last comparison has shown, or its plan predicts; None: not known."""
        return self.tournament.standings[key].step_s

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of the cores, or whole calls are compared."""
        return self._planner.works or self.budget.rests

    def _begin(self) -> None:
        """Begin with the plan that an earlier process stored, else with one of other calls, where one fits."""
        try:
            if (found := self._stored.read(self._graphs)) is not None:
                candidate = self._add(PlanCandidate.of(found[0], self._means))
                candidate.prepare(self._calls)
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
            for key in [one.key for one in self._plan_candidates]:
                self._candidates.pop(key).close()
        self._offer_all(self._graphs.formats)

    def _resume(self, candidate: PlanCandidate, stored: StoredPlan) -> None:
        if stored.step_s is None:
            self._offer(candidate.key, cost_s=0.0)
        else:
            self.tell(to.Resumed(candidate.key, stored.step_s, stored.eager_s))
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
            self._backends.close(later_too=False)
        self._fuse = self._fuse and "fused" not in tried
        return tried

    def _offer_all(self, formats: Sequence[MemoryFormat]) -> None:
        """Offer a plan in each of these memory formats, and backends."""
        looks_s = self._first_steps.looks.calls * (self.tournament.baseline_s or 0.0)
        for i, memory_format in enumerate(formats):
            candidate = PlanCandidate(Variant(memory_format), self._means, capture_s=self._capture_s if i else 0.0)
            self._offer(self._add(candidate).key, gain=1.5 - 0.02 * i, cost_s=0.2 + looks_s / 2)
        self._offer_backends()

    def _offer_backends(self) -> None:
        if self._backends.waits and BACKENDS not in self.tournament.standings:
            expected = self._of_backends = self._stored.backends(self._graphs.first)
            gain, most, cost_s, self._backend_s = expected.gain, expected.most, expected.cost_s, expected.step_s
            self._offer(BACKENDS, gain=gain, most=most, cost_s=cost_s, bit_by_bit=True)
            if self.budget.unlimited or self._backend_s is not None:
                self.prepare(BACKENDS)  # beside the plans

    @property
    def _backends_left(self) -> float:
        """Ratio of the best's seconds to those expected of it or of a backend that is still to be found, if any is."""
        standing = self.tournament.standings.get(BACKENDS)
        is_open = standing is not None and standing.status is not Status.OUT
        return self._of_backends.beyond(self.tournament.gain_now) if is_open else 1.0

    def _offer_eager(self, candidate: PlanCandidate) -> None:
        """Offer PyTorch in the memory format of a plan, where that may be faster than the plan."""
        key, given = eager_in(candidate.variant.memory_format), candidate.variant.memory_format is MemoryFormat.AS_GIVEN
        if not (given or candidate.variant.fused or key in self.tournament.standings):
            self._offer(key, gain=1.1, most=10.0, cost_s=0.0)

    def _offer_fused(self) -> None:
        """Have the fastest plan's variant tried with fused operators, once a plan of each memory format was."""
        if not self._fuse or any(one.found is None and not one.left_out for one in self._plan_candidates):
            return
        fastest = next(iter(self.plans), None)
        if fastest is None or (self.tournament.standings[plan_of(fastest.variant)].offered.earlier and self._like):
            return
        self._fuse = False
        variant = Variant(fastest.variant.memory_format, fused=True)
        cost_s = 0.0 if self._graphs.is_compiled(variant) else self._part_of(BESIDE_S)
        candidate = PlanCandidate(variant, self._means, capture_s=cost_s)
        step_s, eager_s = self._step_s(plan_of(fastest.variant)), self.tournament.baseline_s
        gain = eager_s / step_s if step_s and eager_s else 1.0
        self._offer(self._add(candidate).key, gain=1.05 * gain, most=1.5 * gain, cost_s=cost_s)

    def _part_of(self, seconds: float) -> float:
        """What calls lose of so many seconds that something computes beside them on one core."""
        return seconds / max(1, len(self._machine) - 1)

    def _offer(self, key: CandidateId, **options: Any) -> None:
        self.tell(to.Offered(key, **options))

    def _add(self, candidate: PlanCandidate) -> PlanCandidate:
        self._candidates[candidate.key] = candidate
        if candidate.found is not None:
            self.report.predicted_s[str(candidate.variant)] = candidate.found.plan.makespan_s
        return candidate

    def _look(self) -> None:
        """Report what has happened since the last step: plans, compiled loops, backends, stale ways."""
        self._planner.unlimited = self.budget.unlimited
        tournament = self.tournament
        for candidate in list(self._candidates.values()):
            if candidate.works and candidate.poll(self._calls):
                self._staged(candidate)
        if tournament.comparison is None:
            self._look_for_backends()
        self._give_back()
        for key in {self._best, tournament.challenger} - {None, DEFAULT}:
            assert isinstance(key, CandidateId)
            if tournament.standings[key].open and not self._way(key).holds():
                if key.kind is Kind.BACKEND:  # weights were written to, which they need not be in later processes
                    self._backends.search_later_too()
                self.tell(to.LeftOut(key, "what it took for constant was changed"))

    def _give_back(self) -> None:
        """Have stored what looks have shown."""
        looked, feedback = self._means.looked, self._feedback
        if feedback is None or not looked or feedback.working or not self.tournament.settled:
            return
        if self.budget.allows(self._part_of(GIVE_BACK_S)):
            feedback.add_looks(looked)
            looked.clear()

    def _look_for_backends(self) -> None:
        """Report what the search for backends has found."""
        if not self._backends.works:
            return
        found = self._backends.poll(unlimited=self.budget.unlimited)
        if found is not None:
            self._candidates[found.id] = BackendCandidate(found, self._format, self._machine)
            gain, step_s = self.tournament.standings[BACKENDS].offered.gain, self._backend_s
            if step_s is not None and self.tournament.standings.keys() == {DEFAULT, BACKENDS}:
                self.tell(to.Resumed(found.id, step_s, gain * step_s))
            else:
                self._offer(found.id, gain=found.gain or 2.0, most=10.0, ready=True)
        if self._backends.over:
            self._end_of_backends()

    def _end_of_backends(self) -> None:
        standing = self.tournament.standings.get(BACKENDS)
        if standing is not None and standing.status is not Status.OUT:
            self.tournament.handle(to.LeftOut(BACKENDS, "there are no more"))
        self._note_tried()

    def _note_tried(self) -> None:
        """Note for later processes what is slower than the best; times that others disturbed do not tell that."""
        if not self.loud:
            self._stored.note_tried(self._graphs.first, self._tried, best=self._plan_of(self._best))

    @property
    def _tried(self) -> frozenset[Extra]:
        """What was found to be slower than the best, so that a later process need not try it."""
        waits = self.tournament.waits
        waiting = {one.variant.fused for one in self._plan_candidates if waits(one.key)}
        waiting |= {False for one in self._graphs.formats if waits(eager_in(one))}
        found: list[Extra] = [] if False in waiting else ["formats"]
        found += [] if self._fuse or True in waiting else ["fused"]
        lost = self._backends.finished and self._best.kind is not Kind.BACKEND
        open_ones = filter(waits, self.tournament.standings)
        lost = lost and not any(isinstance(one, CandidateId) and one.kind is Kind.BACKEND for one in open_ones)
        return frozenset([*found, "backends"] if lost else found)

    def prepare(self, key: to.Key) -> None:
        assert isinstance(key, CandidateId)
        if key == BACKENDS:
            self._wants_backends = True
            self.tournament.handle(to.Staged(key, to.Place.BESIDE))
            return
        candidate, began_s = self._candidates[key], self._clock()
        if isinstance(candidate, PlanCandidate):
            return_free_memory()
            self._planner.begin(self)
        candidate.prepare(self._calls)
        if isinstance(candidate, PlanCandidate) and candidate.found is None and candidate.looks is not None:
            self._capture_s = max(self._capture_s, self._clock() - began_s)
        self._staged(candidate)

    def _staged(self, candidate: Candidate) -> None:
        """Report how far the preparation of a candidate is."""
        event = candidate.stage(self._calls)
        self.tell(event)
        if not isinstance(candidate, PlanCandidate):
            return
        if isinstance(event, to.LeftOut) and candidate.refused:
            self.report.reason = event.reason
            self._offer_eager(candidate)
        if not isinstance(event, to.Ready) or (found := candidate.found) is None:
            return
        self.report.predicted_s[str(candidate.variant)] = found.plan.makespan_s
        standing = self.tournament.standings[candidate.key]
        if not (standing.losses or standing.offered.earlier):
            self._stored.write(found, None)
        if self.report.measuring:
            self._report_plan(found)
        self._offer_eager(candidate)

    def _ran_step(self, what: to.Run | to.RunStage, event: to.Ran, difference: str | None) -> None:
        """Take note of a step; `difference`: its results are not PyTorch's, or cannot be compared."""
        if difference is not None:
            known = "are not PyTorch's" if self._first_steps.comparable else "are not known to be PyTorch's"
            text = f"its results {known}: {difference}"
            self.tell(to.LeftOut(what.key, text, differs=True))
            return
        self.tell(event)
        if isinstance(what, to.RunStage):
            candidate = self._candidates[what.key]
            assert isinstance(candidate, PlanCandidate)
            candidate.observe(event.seconds, self._calls)
            self._staged(candidate)
        if not self.tournament.goes_on:  # another one's turn
            self.budget.learns(False)

    def carry_out(self, instruction: to.Instruction) -> None:
        match instruction:
            case to.Compared(key, verdict):
                self.report.verdicts[str(key)] = verdict
                if verdict.kept == "default" and (variant_plan := self._plan_of(key)) is not None:
                    self._stored.lost(variant_plan)
                if self._best != DEFAULT:
                    self.conclude()
            case to.Release(key):
                assert isinstance(key, CandidateId)
                self._candidates[key].close()
            case to.Drop(key, reason, differs, earlier):
                assert isinstance(key, CandidateId)
                self._drop(key, reason, differs=differs, earlier=earlier)
            case to.Settle(key):
                assert isinstance(key, CandidateId)
                self._settle(key)
            case to.Unsettle():
                self._follower.end(restore=True)
            case to.Keep(key, step_s):
                if (variant_plan := self._plan_of(key)) is not None:
                    self._stored.write(variant_plan, step_s, eager_s=self.tournament.eager_s)
                    self._note_tried()

    def conclude(self) -> None:
        """Report what is the fastest so far, though others may still be tried."""
        if self.tournament.baseline_s is None and self._best == DEFAULT and not self.tournament.settled:
            return
        self.report.candidate, self.fastest = self._best, self._way(self._best)
        if (variant_plan := self._plan_of(self._best)) is not None:
            self._report_plan(variant_plan)

    def _report_plan(self, of: VariantPlan) -> None:
        self.report.layout, self.report.plan, self.report.fused = of.variant.memory_format, of.plan, of.variant.fused

    def _drop(self, key: CandidateId, reason: str, *, differs: bool, earlier: bool) -> None:
        if differs:
            _logger.warning("%s is not used: %s", key, reason)
        variant_plan = self._plan_of(key)
        if variant_plan is not None:
            self._stored.lost(variant_plan)
        if differs and variant_plan is not None and self._first_steps.comparable:
            self._stored.drop(self._graphs.as_captured(variant_plan.variant))
        candidate = self._candidates[key]
        candidate.close()
        if self.report.candidate == key:
            self.report.candidate = None
        if isinstance(candidate, PlanCandidate) and candidate.found is None:
            candidate.leave_out(reason)
        if not earlier:
            if differs:
                self.report.reason = f"{key}: {reason}"
            return
        del self._candidates[key]
        self.report = Report(reason=f"{key}: {reason}" if differs else "")
        self._like = ()
        self._offer_all(self._graphs.formats)

    def _settle(self, key: CandidateId) -> None:
        variant_plan = self._plan_of(key)
        if self.tournament.idle:
            self._planner.done(self)
            for one in self.plans:
                if one is not variant_plan:
                    self._stored.lost(one)
        if key == DEFAULT and self.tournament.idle and not self.loud:
            for captured in {self._graphs.first, *(self._graphs.as_captured(one.variant) for one in self.plans)}:
                self._stored.drop(captured)
        standing = self.tournament.standings[key]
        if key.kind is Kind.BACKEND and standing.gain is not None and standing.step_s is not None:
            self._stored.note_backend(self._graphs.first, standing.gain, standing.step_s)
        self.conclude()
        self._note_tried()
        if variant_plan is not None:
            engine = self._way(key).engine
            assert engine is not None
            self._follower.follow(engine, variant_plan, self._stored)
        slow, eager_s = next(iter(self.plans), None), self.tournament.baseline_s
        if key == DEFAULT and slow is not None and not self.report.verdicts and eager_s is not None:
            self.report.reason = f"a plan predicts {slow.plan.makespan_s:.3g} s a call, PyTorch takes {eager_s:.3g} s"
        elif key == DEFAULT and not self.report.verdicts and not self.report.reason:
            left_out = (self.tournament.standings[one.key].reason for one in self._plan_candidates)
            self.report.reason = next(filter(None, left_out), "" if self._plan_candidates else FOUND_BEFORE)
        self._offer_fused()

    def _give_up(self, reason: str) -> None:
        """Run the default for good."""
        _logger.warning("this step runs as before: %s", reason)
        self.close()
        self.report.candidate, self.report.reason, self.fastest = DEFAULT, reason, self._way(DEFAULT)

    def close(self) -> None:
        """End engines, searches and what makes plans: PyTorch runs all further calls."""
        self._todo.clear()
        self._over = True
        self.budget.learns(False)
        self._follower.end(restore=False)
        self._backends.close()
        for candidate in self._candidates.values():
            candidate.close()
        self._planner.done(self)

    def _search_backends(self, arguments: tuple[Any, ...], result: Any) -> None:
        """Begin the search for backends by the example of a step and its result."""
        given = MemoryFormat.AS_GIVEN
        self._backends.begin(
            self._graphs.captured_in(given), arguments, result, before=partial(self._format.set, given)
        )
        if self._backends.over:
            self._end_of_backends()


def _in_order(default: Run, model_format: ModelFormat, *arguments: Any) -> Any:
    """Run a step by PyTorch in channels last."""
    model_format.set(MemoryFormat.CHANNELS_LAST)
    return default(*model_format.arguments(arguments))
