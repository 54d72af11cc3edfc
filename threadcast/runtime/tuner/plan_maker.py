"""Makes plans for one captured graph: runs the steps that measure its operators, and starts the planner."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

import torch

from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, CurveTable, Machine, Plan, Trace
from threadcast.core.errors import ExecutionError, ThreadcastError
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.engines.native.library import return_free_memory
from threadcast.runtime.engines.open_engine import engine_costs, open_engine
from threadcast.runtime.plans.curves_in_step import (
    MOST_STEPS,
    WARM_UP,
    LookSchedule,
    curves_in_step,
    curves_side_by_side,
    seconds_in_step,
)
from threadcast.runtime.plans.forecasting_planner import ForecastingPlanner
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.tuner.plan_search import Look, Try
from threadcast.scheduler.compile_planner import is_compiled
from threadcast.scheduler.policies import Problem
from threadcast.threads.lasting import in_lasting_thread

PLANNING_S = 0.2
"""Time budget in seconds of the search for a plan, which takes cores from the steps meanwhile. A convention."""

SMALL = 1_000
"""Largest number of ops times cores for which the planner's loops run as Python in any case: for 70 ops on 2 cores the
first plan takes 0.4 s of a core, and 1.0 s where the process loads compiled loops. Plans took up to 1 % longer."""
AS_PYTHON = 10_000
"""Largest number of ops times cores for which the planner's loops run as Python where they were never compiled on this
machine: a plan then takes up to 2 s, and compiling 20 s of a core, which steps would lose."""

ANSWER_S = 60.0
"""Longest time in seconds that a plan may take, with reading a store and loading libraries."""
PATIENCE_S = 1.0
"""Seconds of all cores' time that one core is left to the planning process for a plan: 2 s of two cores, 54 s of many.
Then steps use all cores again, unless learning may lose any time."""
IDLE_ANSWER_S = 900.0
"""Longest time in seconds that a plan may take once that is so."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """A problem, and the plan that the planner found for it."""

    plan: Plan
    problem: Problem


@dataclass(slots=True, eq=False)
class Asked:
    """A question to a `Planner`: it waits until `answer` is there, or `error` says why there will be none."""

    question: Question
    answer: Answer | None = None
    error: ExecutionError | None = None

    @property
    def waits(self) -> bool:
        """Whether there is neither answer nor error."""
        return self.answer is None and self.error is None


_at_work: WeakSet[Planner] = WeakSet()
"""The planners of this process that have a process."""
_at_work_lock = Lock()


class Planner:
    """One planning process for all that is called in this process, on the cores of `machine`; for any thread.

    It starts at the first question, answers one after the other, and ends when no user is left that may ask. It has the
    lowest priority and gets CPU time that nothing else wants, so that the caller's own operators between two steps run
    as fast as without it. Steps leave it a core, unless a plan takes long (`yields`).
    """

    def __init__(self, machine: Machine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, RLock()
        self._cpus, self._others = sorted(cpu for core in machine.cores for cpu in core.cpus), max(1, len(machine) - 1)
        self._patience_s = min(PATIENCE_S * len(machine), 0.9 * ANSWER_S)  # later it would be given up
        self.yields = False
        """Whether the last plan takes long, so that steps need not leave its process a core."""
        self.unlimited = False
        """Whether a plan may take a core from the steps for as long as it takes."""
        self._process: ForecastingPlanner | None = None
        self._users: WeakSet[object] = WeakSet()
        self._asked: Asked | None = None
        """The question that is being answered; None where none is."""
        self._asked_s = 0.0
        self._waiting: deque[Asked] = deque()

    @property
    def free(self) -> bool:
        """Whether nothing is being planned: every question has its answer."""
        if self._asked is None:
            return True
        with self._lock:
            self._receive()
            return self._asked is None

    @property
    def works(self) -> bool:
        """Whether a plan is being made now on a core that steps want, too: for this model, or for another one."""
        if not self.free and not self.yields:
            return True
        with _at_work_lock:
            return any(one.takes_from(self._cpus) for one in _at_work if one is not self)

    def takes_from(self, cpus: Collection[int]) -> bool:
        """Return whether a plan is being made on one of these CPUs; one for a model that is not called any more takes
        no longer than others."""
        waited_s = self._clock() - self._asked_s
        computes = self._asked is not None and not self.yields
        return computes and waited_s < self._patience_s and any(cpu in cpus for cpu in self._cpus)

    def begin(self, user: object) -> None:
        """Take note that `user` may ask, until it is `done`, or there is no other reference to it."""
        with self._lock:
            self._users.add(user)

    def ask(self, question: Question) -> Asked:
        """Have a plan made, after those that were asked for before."""
        asked = Asked(question)
        with self._lock:
            self._waiting.append(asked)
            self._begin_next()
        return asked

    def _begin_next(self) -> None:
        while self._asked is None and self._waiting:
            self._asked, self._asked_s, self.yields = self._waiting.popleft(), self._clock(), False
            try:
                self._start(self._asked.question)
            except (ThreadcastError, OSError) as error:  # such as one process or open file too many
                self._end(str(error))

    def _start(self, question: Question) -> None:
        size = len(question.graph) * len(question.machine)
        compiles = size > AS_PYTHON or (size > SMALL and is_compiled())
        if self._process is not None and compiles and not self._process.compiles:
            self._process.close()
            self._process = None
        if self._process is None:
            # it ends with the thread that starts it, which of a server may be one for this request
            start = partial(ForecastingPlanner, cpus=self._cpus, compiles=compiles, background=True)
            self._process = in_lasting_thread(start)
        self._process.ask_forecast(question)
        with _at_work_lock:
            _at_work.add(self)

    def answer(self, asked: Asked) -> Answer | None:
        """Return the answer to a question; None until it is there. ExecutionError where there is none."""
        with self._lock:
            if asked.waits:
                self._receive()
            if asked.error is not None:
                raise asked.error
            return asked.answer

    def wait(self, timeout_s: float) -> None:
        """Return when the question that is being answered has its answer, or after `timeout_s` seconds."""
        process = self._process
        if self._asked is not None and process is not None:
            process.wait(timeout_s)

    def give_up(self, asked: Asked) -> None:
        """Wait for this answer no longer."""
        with self._lock:
            if asked is self._asked:
                self._end("it was given up")
                self._begin_next()
            elif asked in self._waiting:
                self._waiting.remove(asked)
                asked.error = ExecutionError("it was given up")

    def beside(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step of PyTorch's on the cores that the planning process leaves.

        All threads of an operator would wait for the one that shares a core with that process.
        """
        if self.yields:
            return run(*arguments)
        before = torch.get_num_threads()
        fewer = min(self._others, before)
        torch.set_num_threads(fewer)
        try:
            return run(*arguments)
        finally:
            if torch.get_num_threads() == fewer:  # else the step, or an arbiter meanwhile, has set another number
                torch.set_num_threads(before)

    def done(self, user: object) -> None:
        """Take note that `user` will not ask again; the process ends where no other may."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self.close()

    def close(self) -> None:
        """End the process; closing again does nothing."""
        with self._lock:
            while self._waiting:
                self._waiting.pop().error = ExecutionError("the planner was closed")
            self._end("the planner was closed")

    def _receive(self) -> None:
        if self._asked is None:
            return
        assert self._process is not None
        try:
            self._asked.answer = self._process.forecast()
        except ThreadcastError as error:
            self._end(str(error))
        else:
            self._be_patient(self._asked)
        self._begin_next()

    def _be_patient(self, asked: Asked) -> None:
        """Give up a plan that has taken too long, and leave the process no core where it takes long."""
        if not asked.waits:
            self._asked = None
            return
        waited_s, most_s = self._clock() - self._asked_s, IDLE_ANSWER_S if self.yields else ANSWER_S
        if waited_s > most_s:
            self._end(f"planning took longer than {most_s:g} s")
        elif waited_s > self._patience_s and not (self.yields or self.unlimited):
            self.yields = True

    def _end(self, reason: str) -> None:
        if self._asked is not None:
            self._asked.error, self._asked = ExecutionError(reason), None
        if self._process is not None:
            self._process.close()
            self._process = None
        with _at_work_lock:
            _at_work.discard(self)


class PlanMaker:
    """Makes plans of `captured` for `machine`, from the traces of the steps that a `PlanSearch` asks for.

    Each of these is a whole step of the caller. `planner` makes the plans. `store` is the URL of a store of what is
    known of operators on this machine; None: nothing is known. `before` is called before each step and sets the memory
    format of the model's tensors, which other calls of the same model may have changed.
    """

    def __init__(
        self, captured: Captured, machine: Machine, *, planner: Planner, store: str | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plans: list[SolvedProblem] = []
        """All plans so far, in the order in which they were made."""
        self.captured, self._machine, self._before, self._planner = captured, machine, before, planner
        self._schedule, self._store = LookSchedule.of(machine), store
        self._cases: list[Case | tuple[Case, ...]] = list(self._schedule.cases)
        """For each look, the case of all ops, or the case of each op in the graph's order."""
        self._traces: dict[Look | Try, deque[Trace]] = {}
        """Traces of the latest steps of each look and trial. The first step, which warms up, drops out."""
        self._looks: dict[Look, Plan] = {}
        self._alone: CurveTable | None = None
        """The curves of operators that run alone, by which the first plan was made."""
        self._looked = 0
        """Number of looks that there were when a plan was asked for last; corrected plans do not count."""
        self._asked: Asked | None = None
        """What was asked last, until there is an answer."""
        self._correcting = False
        self.engine: Engine | None = None
        """The engine that ran the last step; None before the first step and once closed."""
        self._tried: dict[Try, Engine] = {}
        """The engines that have tried plans; they stay open, as one may be kept."""

    def prepare(self, step: Look | Try, *, goes_on: bool) -> None:
        """Open the engine for `step`, which must then be the next one. Where this raises, no step has begun.

        Unless the look or trial `goes_on` from the step before, what earlier steps of it have shown is forgotten.
        """
        if not goes_on:
            self._traces.pop(step, None)
        self._engine_for(step)

    def run(self, step: Look | Try, *arguments: Any) -> tuple[Any, float]:
        """Run one step; return its result and its makespan in seconds."""
        self._before()
        inputs = self.captured.bind(*arguments)
        result, trace = self._engine_for(step).run_traced(inputs)
        traces = self._traces.setdefault(step, deque(maxlen=MOST_STEPS + WARM_UP))
        traces.append(trace)
        return self.captured.finish(result, inputs), trace.makespan_s

    def start_planning(self) -> bool:
        """Start making a plan from all steps so far; return False where they would not change the last plan."""
        looks = [step for step in self._traces if isinstance(step, Look)]
        if self._alone is not None and len(looks) == self._looked and self._traces.keys() & {Try(len(self.plans) - 1)}:
            curves = curves_side_by_side(self._alone, self.captured.graph, self._warm(Try(len(self.plans) - 1)))
            if curves is self._alone:
                return False
            self._correcting = True
            self._ask(curves=curves)
            return True
        self._correcting = False
        self._looked, complete = len(looks), len(self._cases) == len(self._schedule.cases)
        if complete and looks and self._schedule.most == self._schedule.uniform:
            traces = {case: self._warm(look) for look, case in zip(looks, self._schedule.cases, strict=True)}
            self._ask(curves=curves_in_step(self.captured.graph, traces), observed=self._observed(looks))
        else:
            self._ask(observed=self._observed(looks), looks=0 < len(looks) < self._schedule.most)
        return True

    def poll(self) -> Answer | None:
        """Return the answer to `start_planning`; None until there is one. ExecutionError where planning failed.

        `accept` a plan before it is tried. A look is one more look to take.
        """
        answer = None if self._asked is None else self._planner.answer(self._asked)
        if answer is None:
            return None
        self._asked = None
        if answer.look is not None:
            self._cases.append(answer.look)
        return answer

    def accept(self, answer: Answer) -> None:
        """Take the plan of an answer for the next one."""
        assert answer.plan is not None
        assert answer.curves is not None
        _logger.info("planned %.3g s a step, at least %.3g s", answer.plan.makespan_s, answer.plan.lower_bound_s)
        if not self._correcting:
            self._alone = answer.curves
        problem = Problem(self.captured.graph, engine_costs().added(answer.curves), self._machine)
        self.plans.append(SolvedProblem(answer.plan, problem))

    def _ask(
        self, *, curves: CurveTable | None = None, observed: Mapping[str, Observed] = MappingProxyType({}),
        looks: bool = False,
    ) -> None:  # fmt: skip
        self._asked = self._planner.ask(Question(
            self.captured.graph, self._machine, engine_costs(), observed, self._store, looks,
            curves, {"budget_s": PLANNING_S},
        ))  # fmt: skip

    @property
    def observed(self) -> Mapping[str, Observed]:
        """What all looks so far show of each distinct op, by key: seconds of each of some steps, by case."""
        return self._observed([step for step in self._traces if isinstance(step, Look)])

    def _observed(self, looks: Sequence[Look]) -> dict[str, dict[Case, list[float]]]:
        """What the looks show of each distinct op, by key and case."""
        found: dict[str, dict[Case, list[float]]] = {}
        for look in looks:
            cases = self._cases[look.number]
            of_op = [cases] * len(self.captured.graph) if isinstance(cases, Case) else cases
            for trace in self._warm(look):
                for op, case, seconds in zip(
                    self.captured.graph.ops, of_op, seconds_in_step(self.captured.graph, trace), strict=True
                ):
                    found.setdefault(op.key, {}).setdefault(case, []).append(seconds)
        return found

    def handed_over(self, number: int) -> Engine | None:
        """Return the open engine that has tried plan `number`, which `close` then leaves open; None if it has none."""
        engine = self._tried.pop(Try(number), None)
        if engine is self.engine:
            self.engine = None
        return engine

    def close(self) -> None:
        """End the engines' threads, and give up the plan that is being made; closing again does nothing."""
        if self._asked is not None:
            self._planner.give_up(self._asked)
            self._asked = None
        if self.engine is not None and self.engine not in self._tried.values():
            self.engine.close()
        for engine in self._tried.values():
            engine.close()
        self._tried.clear()
        self.engine = None

    def _warm(self, step: Look | Try) -> list[Trace]:
        """The traces of a look or trial without those that warm up."""
        return list(self._traces[step])[WARM_UP:]

    def _engine_for(self, step: Look | Try) -> Engine:
        plan = self._plan_of(step)
        if self.engine is not None and self.engine.plan is plan:
            return self.engine
        if self.engine is not None and self.engine not in self._tried.values():
            self.engine.close()
            self.engine = None
        self.engine = self._tried[step] if isinstance(step, Try) and step in self._tried else self._opened(plan)
        if isinstance(step, Try):
            self._tried[step] = self.engine
        return self.engine

    def _opened(self, plan: Plan) -> Engine:
        engine = open_engine(self.captured, plan, self._machine)
        return_free_memory()
        return engine

    def _plan_of(self, step: Look | Try) -> Plan:
        if isinstance(step, Try):
            return self.plans[step.plan].plan
        if step not in self._looks:
            self._looks[step] = sequential(self.captured.graph, self._machine, self._cases[step.number])
        return self._looks[step]
