"""Prepares a plan of one variant of a call's graph: captures it, times operators, has it planned, tries the plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from threadcast.capture.graph.captured import Captured
from threadcast.core import OpGraph
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import why_not
from threadcast.runtime.plans.step_forecasts import Answer
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuner.contender import VariantPlan, plan_of
from threadcast.runtime.tuner.events import LeftOut, Place, Ready, Staged
from threadcast.runtime.tuner.first_steps import FirstSteps
from threadcast.runtime.tuner.open_contenders import OpenContenders
from threadcast.runtime.tuner.plan_maker import PlanMaker
from threadcast.runtime.tuner.plan_search import Look, Phase, PlanSearch, SearchStep, Try
from threadcast.runtime.tuner.variant_graphs import VariantGraphs

FORECAST_S = 4.0
"""Seconds of looks above which operators are forecast from what is known of others first: a process that loads the
models and a store and forecasts 300 ops takes about as long on one core."""
CHECK_STEPS = 4.0
"""Calls of eager PyTorch that comparing the results of a first step with eager's is expected to take."""
ASIDE_STEPS = 1.0
"""Calls of eager PyTorch that copying what a look changes, and setting it back, is expected to take."""
UNKNOWN = 0.5
"""Share by which a step is expected to be slower than the best way known where nothing is known of it."""
PLANNING_S = 0.2
"""Seconds that making a plan is expected to cost steps, by the cores that it uses."""
BESIDE_S = 1.5
"""Seconds that compilers are expected to cost calls on 2 cores, until they end: at low priority they still make all
threads of an operator wait now and then, and calls took 10 to 25 % longer. On more cores one core's part counts."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True)
class Calls:
    """What is known of calls when a part of a preparation comes: seconds of one by the best way, and by PyTorch.

    `other`: something else is faster than PyTorch, or can be planned.
    """

    best_s: float | None
    eager_s: float | None
    other: bool


@dataclass(frozen=True, slots=True)
class Means:
    """What plans of one call are made with."""

    graphs: VariantGraphs
    contenders: OpenContenders
    first_steps: FirstSteps
    """Knows which results are known to be PyTorch's, and whether looks run within the caller's steps."""
    maker: Callable[[Captured, Variant], PlanMaker]
    """Returns what makes plans of a variant's graph."""
    known: bool = False
    """Whether something is known of operators on this machine, so that plans of long steps are made before any look."""
    looked: list[tuple[OpGraph, Mapping[str, Observed]]] | None = None
    """Takes what looks have shown of graphs; None where nobody wants to know."""


class PlanCandidate:
    """A plan of `variant`, made by steps of its caller. `stage` says what comes next.

    Capturing the graph takes about `capture_s` seconds.
    """

    def __init__(self, variant: Variant, means: Means, *, capture_s: float = 0.0) -> None:
        self.variant, self.key = variant, plan_of(variant)
        self._means, self._capture_s = means, capture_s
        self._looks, self._aside = means.first_steps.looks, means.first_steps.aside
        self.maker: PlanMaker | None = None
        """What makes its plans, while it is being searched."""
        self._search: PlanSearch | None = None
        self._compiling = self._asked = self._unchecked = False
        self._left_out = ""
        self.refused = False
        """Whether no engine can run its graph."""
        self._last: SearchStep | None = None
        self.found: VariantPlan | None = None
        """The plan, once it was found."""
        self.step_s: float | None = None
        """Seconds of its steps, as it was tried."""
        self.far_faster = False
        """Whether it is so much faster than operators one after the other that eager PyTorch in its format cannot be.
        """

    @classmethod
    def of(cls, found: VariantPlan, means: Means) -> Self:
        """Return the candidate of a plan that was found elsewhere."""
        made = cls(found.variant, means)
        made.found = found
        return made

    @property
    def works(self) -> bool:
        """Whether something is at work for it beside calls: compilers, or the process that makes plans."""
        return self._compiling or self._asked

    @property
    def searching(self) -> bool:
        """Whether its graph is captured, and a plan not found yet."""
        return self._search is not None

    @property
    def left_out(self) -> bool:
        """Whether there will be no plan."""
        return bool(self._left_out)

    @property
    def step(self) -> SearchStep:
        """The step that has begun."""
        assert self._last is not None
        return self._last

    def stage(self, calls: Calls) -> Staged | Ready | LeftOut:
        """Return what comes next."""
        if self._left_out:
            return LeftOut(self.key, self._left_out)
        if self.found is not None:
            return Ready(self.key, self.step_s)
        search = self._search
        if search is None:
            place = Place.BESIDE if self._compiling else Place.BETWEEN
            return Staged(self.key, place, self._capture_s)
        if search.phase is Phase.PLANNING:
            return Staged(self.key, Place.BESIDE) if self._asked else Staged(self.key, Place.BETWEEN, PLANNING_S)
        return Staged(self.key, Place.CALL, self._search_s(search, calls), begun=search.begun)

    def prepare(self, calls: Calls) -> None:
        """Do the part of the preparation that comes between two calls."""
        if self.found is not None:
            self.open()
        elif self._search is None:
            self._capture(calls)
        else:
            self._make_plan(self._search, calls)

    def poll(self, calls: Calls) -> bool:
        """Look at what works beside calls for it; return whether it has come to its end."""
        if self._compiling:
            self._compiling = not self._means.graphs.compiled(self.variant)
            return not self._compiling
        if not self._asked:
            return False
        try:
            answer = self._makes.poll()
        except ExecutionError as error:
            self._not_planned(error, calls)
            return True
        if answer is not None:
            self._asked = False
            self._answered(answer, calls)
        return answer is not None

    def begin(self, *, anew: bool) -> SearchStep:
        """Open what runs the next step; `anew`: what has begun of it does not count."""
        assert self._search is not None
        if anew:
            self._search.break_off()
        step = SearchStep(self.variant, self._search.next)
        self._makes.prepare(step.step, goes_on=not anew and step == self._last)
        self._last = step
        return step

    def observe(self, seconds: float, calls: Calls) -> None:
        """Record the seconds of the step that was run."""
        search = self._search
        assert search is not None
        before = len(search.look_s)
        search.observe(seconds)
        self._unchecked = not search.begun and search.phase is not Phase.OVER
        slow = len(search.look_s) > before and calls.best_s is not None and search.hopeless(calls.best_s)
        if slow and calls.other:
            self.leave_out("operators one after the other were far slower")
        elif search.phase is Phase.OVER:
            self._found(search)

    def leave_out(self, reason: str) -> None:
        """End the search without a plan."""
        self._left_out, self._search, self._asked, self._compiling = reason, None, False, False
        self.close()

    def close(self) -> None:
        """End what makes its plans, if anything does."""
        if self.maker is not None:
            self.maker.close()
            self.maker = None

    @property
    def _makes(self) -> PlanMaker:
        assert self.maker is not None
        return self.maker

    def _capture(self, calls: Calls) -> None:
        graphs, first_steps = self._means.graphs, self._means.first_steps
        if not graphs.compiled(self.variant):
            self._compiling = True
            return
        captured = graphs.find(self.variant)
        if captured is None:
            self._left_out = "no graph could be captured"
            return
        if (reason := why_not(captured)) is not None:
            self._left_out, self.refused = reason, True
            return
        first_steps.forget(self.variant, search=True)
        self.maker = self._means.maker(captured, self.variant)
        forecasts = self._means.known and self._looks.calls * (calls.eager_s or 0.0) > FORECAST_S
        self._search, self._unchecked = PlanSearch(self._looks, aside=self._aside, known=forecasts), True

    def _make_plan(self, search: PlanSearch, calls: Calls) -> None:
        try:
            self._asked = self._makes.start_planning()
        except (ExecutionError, OSError) as error:  # such as one process or open file too many
            self._not_planned(error, calls)
            return
        if not self._asked:
            search.nothing_to_correct()
            self._found(search)

    def _answered(self, answer: Answer, calls: Calls) -> None:
        """Go on with the answer of the planning process: a plan from forecasts alone is tried where even its
        pessimistic forecast beats the best way known."""
        search = self._search
        assert search is not None
        if answer.plan is None or answer.pessimistic_s is None:
            accepts = False
        else:
            accepts = bool(search.look_s) or calls.best_s is None or answer.pessimistic_s < calls.best_s
        self._unchecked = True
        if not accepts:
            search.look_again()
            return
        assert answer.plan is not None
        self._makes.accept(answer)
        predicted_s = answer.plan.makespan_s
        if calls.best_s is not None and calls.other and search.too_slow(predicted_s, calls.best_s):
            self.leave_out(f"a plan predicts {predicted_s:.3g} s")
            return
        search.planned(predicted_s)
        if search.phase is Phase.OVER:
            self._found(search)

    def _not_planned(self, error: Exception, calls: Calls) -> None:
        self._asked = False
        _logger.warning("a plan is not made: %s", error)
        search = self._search
        assert search is not None
        if search.step_s:
            search.nothing_to_correct()
            self._found(search)
        else:
            self.leave_out(str(error))

    def _found(self, search: PlanSearch) -> None:
        best, means, maker = search.best, self._means, self._makes
        assert best is not None
        engine = maker.handed_over(best)
        if means.looked is not None:
            means.looked.append((maker.captured.graph, maker.observed))
        made, unfused = maker.plans[best], means.graphs.as_captured(self.variant).graph
        self.found = VariantPlan(self.variant, maker.captured, made.plan, unfused, made.problem)
        self.step_s, self.far_faster, self._search = search.step_s[best], search.far_faster, None
        self.close()
        if engine is not None:
            means.contenders.take_over(self.found, engine)
            means.first_steps.goes_on_as(SearchStep(self.variant, Try(best)), self.key)
        self.open()

    def open(self) -> None:
        """Make the plan that was found ready to run."""
        assert self.found is not None
        if self._means.contenders.open_plan(self.found):
            self._means.first_steps.forget(self.variant, search=False)

    def _search_s(self, search: PlanSearch, calls: Calls) -> float:
        """The seconds that the next look or trial is expected to cost calls."""
        best_s, eager_s, step = calls.best_s or 0.0, calls.eager_s or 0.0, search.next
        step_s = (1 + UNKNOWN) * best_s
        if search.broken_off_s is not None:
            step_s = search.broken_off_s
        elif isinstance(step, Look) and search.look_s:
            step_s = search.look_s[0] * self._looks.slowdown(step.number)
        elif not isinstance(step, Look):
            step_s = search.predicted_s[-1] * (1 + UNKNOWN / 2)
        if self._aside and isinstance(step, Look):
            return self._looks.runs(step_s) * step_s + (1 + ASIDE_STEPS) * eager_s - min(best_s, eager_s)
        check_s = CHECK_STEPS * eager_s if self._unchecked else 0.0
        return check_s + search.steps(step_s) * max(0.0, step_s - best_s)
