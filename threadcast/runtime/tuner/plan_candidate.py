"""Prepares a plan of one variant of a call's graph: captures it, times operators, has it planned."""

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
from threadcast.runtime.tuner.looks import Look, Looks
from threadcast.runtime.tuner.open_contenders import OpenContenders
from threadcast.runtime.tuner.plan_maker import PlanMaker
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
SLOWER = 1.05
"""Ratio of the seconds that a plan predicts to those of the best way known, above which it is not compared. A plan does
not know what ops cost each other side by side: none took less than it predicted by more than this."""
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

    Steps look at all operators, one after the other; then another process makes a plan, or says that one more look has
    to be taken. With what is known of operators it may make one before any look.

    Capturing the graph takes about `capture_s` seconds.
    """

    def __init__(self, variant: Variant, means: Means, *, capture_s: float = 0.0) -> None:
        self.variant, self.key = variant, plan_of(variant)
        self._means, self._capture_s = means, capture_s
        self._schedule, self._aside = means.first_steps.looks, means.first_steps.aside
        self.maker: PlanMaker | None = None
        """What makes its plan, once its graph is captured and until there is one."""
        self._looks: Looks | None = None
        """Its looks; None while its plan is made from what is known of operators, or before that."""
        self._compiling = False
        self._left_out = ""
        self.refused = False
        """Whether no engine can run its graph."""
        self._last: Look | None = None
        self.found: VariantPlan | None = None
        """The plan, once it was found."""

    @classmethod
    def of(cls, found: VariantPlan, means: Means) -> Self:
        """Return the candidate of a plan that was found elsewhere."""
        made = cls(found.variant, means)
        made.found = found
        return made

    @property
    def works(self) -> bool:
        """Whether something is at work for it beside calls: compilers, or the process that makes plans."""
        return self._compiling or (self.maker is not None and self.maker.works)

    @property
    def left_out(self) -> bool:
        """Whether there will be no plan."""
        return bool(self._left_out)

    @property
    def step(self) -> Look:
        """The look that has begun."""
        assert self._last is not None
        return self._last

    def stage(self, calls: Calls) -> Staged | Ready | LeftOut:
        """Return what comes next."""
        if self._left_out:
            return LeftOut(self.key, self._left_out)
        if self.found is not None:
            return Ready(self.key, self.found.plan.makespan_s, CHECK_STEPS * (calls.eager_s or 0.0))
        if self.maker is None:
            place = Place.BESIDE if self._compiling else Place.BETWEEN
            return Staged(self.key, place, self._capture_s)
        if self.maker.works:
            return Staged(self.key, Place.BESIDE)
        if self._looks is None or self._looks.complete:
            return Staged(self.key, Place.BETWEEN, PLANNING_S)
        return Staged(self.key, Place.CALL, self._look_s(self._looks, calls), begun=self._looks.begun)

    def prepare(self, calls: Calls) -> None:
        """Do the part of the preparation that comes between two calls."""
        if self.found is not None:
            self.open()
        elif self.maker is None:
            self._capture(calls)
        else:
            try:
                self.maker.start_planning()
            except (ExecutionError, OSError) as error:  # such as one process or open file too many
                self._not_planned(error)

    def poll(self, calls: Calls) -> bool:
        """Look at what works beside calls for it; return whether it has come to its end."""
        if self._compiling:
            self._compiling = not self._means.graphs.compiled(self.variant)
            return not self._compiling
        if self.maker is None or not self.maker.works:
            return False
        try:
            answer = self.maker.poll()
        except ExecutionError as error:
            self._not_planned(error)
            return True
        if answer is not None:
            self._answered(answer, calls)
        return answer is not None

    def begin(self, *, anew: bool) -> Look:
        """Open what runs the next step; `anew`: what has begun of it does not count."""
        assert self._looks is not None
        assert self.maker is not None
        if anew:
            self._looks.break_off()
        look = Look(self.variant, len(self._looks.look_s))
        self.maker.prepare(look.number, goes_on=not anew and look == self._last)
        self._last = look
        return look

    def observe(self, seconds: float, calls: Calls) -> None:
        """Record the seconds of the step that was run."""
        assert self._looks is not None
        over = self._looks.observe(seconds)
        if over and calls.best_s is not None and calls.other and self._looks.hopeless(calls.best_s):
            self.leave_out("operators one after the other were far slower")

    def leave_out(self, reason: str) -> None:
        """End the search without a plan."""
        self._left_out, self._compiling = reason, False
        self.close()

    def close(self) -> None:
        """End what makes its plan, if anything does."""
        if self.maker is not None:
            self.maker.close()
            self.maker = None

    def open(self) -> None:
        """Make the plan that was found ready to run."""
        assert self.found is not None
        if self._means.contenders.open_plan(self.found):
            self._means.first_steps.forget(self.key)

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
        for number in range(self._schedule.most):
            first_steps.forget(Look(self.variant, number))
        self.maker = self._means.maker(captured, self.variant)
        if not self._means.known or self._schedule.calls * (calls.eager_s or 0.0) <= FORECAST_S:
            self._looks = Looks(self._schedule, aside=self._aside)

    def _answered(self, answer: Answer, calls: Calls) -> None:
        """Go on with the answer of the planning process: a plan from forecasts alone is accepted where even its
        pessimistic forecast beats the best way known."""
        assert self.maker is not None
        best_s = calls.best_s
        if answer.plan is None or answer.curves is None or answer.pessimistic_s is None:
            accepts = False
        else:
            accepts = self._looks is not None or best_s is None or answer.pessimistic_s < best_s
        if not accepts:
            if self._looks is None:
                self._looks = Looks(self._schedule, aside=self._aside)
            else:
                self._looks.wanted += 1
            return
        assert answer.plan is not None
        assert answer.curves is not None
        predicted_s = answer.plan.makespan_s
        if best_s is not None and calls.other and predicted_s > SLOWER * best_s:
            self.leave_out(f"a plan predicts {predicted_s:.3g} s")
            return
        captured, means = self.maker.captured, self._means
        if means.looked is not None:
            means.looked.append((captured.graph, self.maker.observed))
        unfused, problem = means.graphs.as_captured(self.variant).graph, self.maker.problem(answer.curves)
        self.found = VariantPlan(self.variant, captured, answer.plan, unfused, problem)
        self.close()
        self.open()

    def _not_planned(self, error: Exception) -> None:
        _logger.warning("a plan is not made: %s", error)
        self.leave_out(str(error))

    def _look_s(self, looks: Looks, calls: Calls) -> float:
        """The seconds that the next look is expected to cost calls."""
        best_s, eager_s = calls.best_s or 0.0, calls.eager_s or 0.0
        step_s = (1 + UNKNOWN) * best_s
        if looks.broken_off_s is not None:
            step_s = looks.broken_off_s
        elif looks.look_s:
            step_s = looks.look_s[0] * self._schedule.slowdown(len(looks.look_s))
        if self._aside:
            return self._schedule.runs(step_s) * step_s + (1 + ASIDE_STEPS) * eager_s - min(best_s, eager_s)
        is_checked = looks.begun or looks.broken_off_s is not None
        return looks.steps(step_s) * max(0.0, step_s - best_s) + (0.0 if is_checked else CHECK_STEPS * eager_s)
