"""A plan of one variant of a call's graph as a candidate: captured, looked at, planned by another process, and run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from threadcast.core import Machine, OpGraph
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import Engine, why_not
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.step_forecasts import Answer, may_be_known
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuner.candidate import Calls, Candidate, VariantPlan, Way, plan_of
from threadcast.runtime.tuner.events import LeftOut, Place, Ready, Staged
from threadcast.runtime.tuner.first_steps import FirstSteps
from threadcast.runtime.tuner.looks import Look, Looks
from threadcast.runtime.tuner.planning import Asked, Planner
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
class Means:
    """What plans of one call are made with."""

    graphs: VariantGraphs
    machine: Machine
    format: ModelFormat
    first_steps: FirstSteps
    """Knows which results are known to be PyTorch's, and whether looks run within the caller's steps."""
    planner: Planner
    store: str | None = None
    """URL of a store of what is known of operators on this machine; None: nothing is known."""
    looked: list[tuple[OpGraph, Mapping[str, Observed]]] | None = None
    """Takes what looks have shown of graphs; None where nobody wants to know."""


class PlanCandidate(Candidate):
    """A plan of `variant`, made by steps of its caller. `stage` says what comes next.

    Steps look at all operators, one after the other; then another process makes a plan, or says that one more look has
    to be taken. With what is known of operators it may make one before any look.

    Capturing the graph takes about `capture_s` seconds.
    """

    def __init__(self, variant: Variant, means: Means, *, capture_s: float = 0.0) -> None:
        super().__init__(plan_of(variant))
        self.variant, self._means, self._capture_s = variant, means, capture_s
        self._schedule, self._aside = means.first_steps.looks, means.first_steps.aside
        self.looks: Looks | None = None
        """The looks at its graph, once that is captured and until there is a plan."""
        self._asked: Asked | None = None
        """What the planner was asked last, until there is an answer."""
        self._compiling = False
        self._left_out = ""
        self.refused = False
        """Whether no engine can run its graph."""
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
        return self._compiling or self._asked is not None

    @property
    def left_out(self) -> bool:
        """Whether there will be no plan."""
        return bool(self._left_out)

    def stage(self, calls: Calls) -> Staged | Ready | LeftOut:
        """Return what comes next."""
        if self._left_out:
            return LeftOut(self.key, self._left_out)
        if self.found is not None:
            return Ready(self.key, self.found.plan.makespan_s, CHECK_STEPS * (calls.eager_s or 0.0))
        if self.works:
            return Staged(self.key, Place.BESIDE)
        if self.looks is None:
            return Staged(self.key, Place.BETWEEN, self._capture_s)
        if self.looks.complete:
            return Staged(self.key, Place.BETWEEN, PLANNING_S)
        return Staged(self.key, Place.CALL, self._look_s(self.looks, calls), begun=self.looks.begun)

    def prepare(self, calls: Calls) -> None:
        """Do the part of the preparation that comes between two calls."""
        if self.found is not None:
            self._open(self.found)
        elif self.looks is None:
            self._capture(calls)
        else:
            self._asked = self._means.planner.ask(self.looks.question(self._means.store))

    def poll(self, calls: Calls) -> bool:
        """Look at what works beside calls for it; return whether it has come to its end."""
        if self._compiling:
            self._compiling = not self._means.graphs.compiled(self.variant)
            return not self._compiling
        if self._asked is None:
            return False
        try:
            answer = self._means.planner.answer(self._asked)
        except ExecutionError as error:
            _logger.warning("a plan is not made: %s", error)
            self._asked = None
            self.leave_out(str(error))
            return True
        if answer is not None:
            self._asked = None
            self._answered(answer, calls)
        return answer is not None

    def begin(self, *, anew: bool) -> Look:
        """Open what runs the next step, and return it; `anew`: what has begun of it does not count."""
        assert self.looks is not None
        if anew:
            self.looks.break_off()
        return Look(self.variant, self.looks.open())

    def observe(self, seconds: float, calls: Calls) -> None:
        """Record the seconds of the step that was run."""
        assert self.looks is not None
        over = self.looks.observe(seconds)
        if over and calls.best_s is not None and calls.other and self.looks.hopeless(calls.best_s):
            self.leave_out("operators one after the other were far slower")

    def leave_out(self, reason: str) -> None:
        """End the search without a plan."""
        self._left_out, self._compiling = reason, False
        self.close()

    def close(self) -> None:
        """End what makes its plan, if anything does, and the engine that runs it."""
        if self._asked is not None:
            self._means.planner.give_up(self._asked)
            self._asked = None
        if self.looks is not None:
            self.looks.close()
            self.looks = None
        if self.way is not None and self.way.engine is not None:
            self.way.engine.close()
            return_free_memory()
        self.way = None

    def _capture(self, calls: Calls) -> None:
        means = self._means
        if not means.graphs.compiled(self.variant):
            self._compiling = True
            return
        captured = means.graphs.find(self.variant)
        if captured is None:
            self._left_out = "no graph could be captured"
            return
        if (reason := why_not(captured)) is not None:
            self._left_out, self.refused = reason, True
            return
        for number in range(self._schedule.most):
            means.first_steps.forget(Look(self.variant, number))
        before = partial(means.format.set, self.variant.memory_format)
        self.looks = Looks(captured, means.machine, schedule=self._schedule, aside=self._aside, before=before)
        if may_be_known(means.store) and self._schedule.calls * (calls.eager_s or 0.0) > FORECAST_S:
            self.looks.wanted = 0

    def _answered(self, answer: Answer, calls: Calls) -> None:
        """Go on with the answer of the planning process: a plan from forecasts alone is accepted where even its
        pessimistic forecast beats the best way known."""
        looks, best_s = self.looks, calls.best_s
        assert looks is not None
        if answer.plan is None or answer.curves is None or answer.pessimistic_s is None:
            looks.ask_for_more(answer.look)
            return
        if not looks.look_s and best_s is not None and answer.pessimistic_s >= best_s:
            looks.ask_for_more(None)
            return
        predicted_s = answer.plan.makespan_s
        _logger.info("planned %.3g s a step, at least %.3g s", predicted_s, answer.plan.lower_bound_s)
        if best_s is not None and calls.other and predicted_s > SLOWER * best_s:
            self.leave_out(f"a plan predicts {predicted_s:.3g} s")
            return
        captured, means = looks.captured, self._means
        if means.looked is not None:
            means.looked.append((captured.graph, looks.observed))
        unfused = means.graphs.as_captured(self.variant).graph
        self.found = VariantPlan(self.variant, captured, answer.plan, unfused, looks.problem(answer.curves))
        self.close()
        self._open(self.found)

    def _open(self, found: VariantPlan) -> None:
        """Make the plan that was found ready to run, if it is not."""
        if self.way is not None:
            return
        model_format, memory_format = self._means.format, self.variant.memory_format
        engine = Engine(found.captured, found.plan, self._means.machine)

        def run(*arguments: Any) -> Any:
            model_format.set(memory_format)
            inputs = engine.captured.bind(*arguments)
            return engine.captured.finish(engine.run(inputs), inputs)

        self.way = Way(self.key, run, engine=engine)
        self._means.first_steps.forget(self.key)

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
