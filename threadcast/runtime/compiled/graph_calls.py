"""Runs one graph that AOTAutograd has made, by PyTorch or by a plan, whichever is faster for its inputs."""

from __future__ import annotations

import _thread
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.fx import GraphModule

from threadcast.capture.guards.one_capture import NoTurn, one_capture
from threadcast.core import Machine
from threadcast.core.errors import in_one_line
from threadcast.core.settings import Settings
from threadcast.runtime.calls.conditions import why_not_captured
from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind, kind_of_inputs
from threadcast.runtime.calls.learned_calls import LearnedCalls
from threadcast.runtime.calls.shared_learning import told
from threadcast.runtime.calls.tunings import CallTunings
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.check.shadow import shadow_step
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_by_pytorch import as_pytorch, first_run, is_first_run, without_gradients
from threadcast.runtime.compiled.graph_tunings import Role, graph_tunings
from threadcast.runtime.engine.native.library import in_step
from threadcast.runtime.plans.core_choice import core_choice
from threadcast.runtime.tuner.budget import Budget, PartBudget
from threadcast.runtime.tuner.contender import Contender
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.threads.forks import forks
from threadcast.threads.this_process import this_process

Watcher = Callable[[Tuning, tuple[Any, ...], Any], None]
"""Is told of a call: what decided what runs it, its inputs and its results."""


class GraphCalls(LearnedCalls):
    """A callable that takes the inputs of `graph` and returns its outputs, which are new tensors.

    `graph` calls operators below autograd and writes to none of its inputs; weights are inputs as all others. With
    the option `freeze`, those at the positions `weights` are expected to be the same tensors in all calls
    (`FixedWeights`); where they are not, they count as other inputs do. The calls themselves measure and plan
    (`Tuning`), within the program's `budget`. What cannot run by a plan runs as the graph does in PyTorch, with a
    warning that says why. May be called from several threads, which wait for each other.
    """

    def __init__(
        self, graph: GraphModule, machine: Machine, options: CompileOptions, *, number: int, title: str, budget: Budget,
        role: Role = "inference", weights: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.number, self.title, self.role = number, f"{title}, {role}", role
        self._part = PartBudget(budget)
        super().__init__(machine, Settings.read(), self._part, most=options.cores)
        self._graph, self._options = graph, options
        self._weights = tuple(weights) if options.freeze else ()
        self._fixed: FixedWeights | None = None
        self._made: tuple[FixedWeights | None, CallTunings] | None = None
        """What finds the fastest way to run calls, and the fixed weights that these have in common."""
        self._as_pytorch = as_pytorch(graph)
        self._calls = 0
        self._watcher: Watcher | None = None
        self._left: str | None = None
        """Why PyTorch runs all calls; None where it does not."""
        self._steps = this_process().steps
        self._steps.ask_learning(self._learning)

    def __call__(self, *arguments: Any) -> Any:
        if self._left is not None or self._forks != forks.number or in_step():  # a fork has none of the threads
            return self._as_pytorch(*arguments)
        with self._lock:
            if self.role != "inference" or self._steps.is_counting:  # an optimizer's step is what counts
                return self._run(arguments)
            with self._steps.step():
                return self._run(arguments)

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of inputs: what runs it and why. In order of first use."""
        if self._left is not None:
            return [Report.as_default(self._left)]
        return [Report.as_default(t.reason) if isinstance(t, Fallback) else t.report for t in self._table]

    @property
    def may_be_passed_by(self) -> bool:
        """Whether the next call may go to what runs it at once: nothing but the kind of its inputs decides."""
        free = self._left is None and not self._options.verify_every
        return free and self.cores.whole and self._forks == forks.number

    @property
    def has_settled(self) -> bool:
        """Whether it is known what runs all calls, and nothing is being learned."""
        with self._lock:  # other threads' calls may be changing what is kept
            found = list(self._table)
            return bool(found) and all(isinstance(one, Fallback) or one.kept is not None for one in found)

    def keeps(self, runner: Tuning, kept: Contender) -> bool:
        """Return whether `runner`, which decides what runs calls of one kind, still has `kept` run them."""
        with self._lock:
            return runner.kept is kept

    def watch(self, watcher: Watcher | None) -> None:
        """Have `watcher` told of each of the next calls that something other than PyTorch may run."""
        self._watcher = watcher

    def use(self, *, rests: bool = False, counts: bool = False) -> None:
        """Use a graph again that was left. `rests`: nothing is learned; `counts`: nobody else counts what it takes."""
        self._left = None
        self._part.rests, self._part.counts = rests, counts

    @property
    def learning(self) -> bool:
        """Whether something has not been tried yet for some kind of inputs, such as fused operators or backends."""
        return any(tuning.learning for tuning in self._table.tunings)

    @property
    def outlook(self) -> Outlook:
        """What is learned next: in calls, if it is for one kind of inputs."""
        if not len(self._table):
            return Outlook(Place.CALL)
        return Outlook.of(tuning.outlook for tuning in self._table.tunings)

    def look(self) -> None:
        """Take note of what has become ready beside calls."""
        with self._lock:
            for tuning in self._table.tunings:
                tuning.look()

    @property
    def measuring(self) -> bool:
        """Whether it is still being found out what runs calls of some kind of inputs."""
        return any(not tuning.settled for tuning in self._table.tunings)

    @property
    def disturbed(self) -> bool:
        """Whether a plan, for whatever graph, is being made on one of the cores: calls tell little of their speed."""
        return self._planner.works

    def leave(self, reason: str) -> None:
        """Leave all calls to PyTorch, and end the threads that run the graph, until it is used (`use`) again.

        Its cores are free for others.
        """
        with self._lock:
            self._left = reason
            self._table.close()
            core_choice().remove(self.cores)

    def forget_weights(self) -> None:
        """Free what was made for the weights that all calls had so far; later calls may have others."""
        with self._lock:
            self._fixed = self._made = None
            self._table.close()

    def close(self) -> None:
        """End the threads that run the graph; a later call measures anew."""
        with self._lock:
            self._table.close()

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        reason = why_not_captured(())
        if reason is not None:
            return first_run(self._as_pytorch, arguments) if is_first_run() else self._fallen_back(reason, arguments)
        fixed = self._fixed_for(arguments)
        given = arguments if fixed is None else fixed.without(arguments)
        kind = kind_of_inputs(given, fixed=fixed is not None)
        found = self._on_cores_of_now(self._table.find(kind))
        if found is None:
            tunings = self._tunings(fixed)
            new = self._short.wants(kind, captured_s=self._captured_s(tunings))
            if new and (kind in self._short.kinds or not tunings.knows(kind, self.machine, self.cores.chosen)):
                return self._timed(kind, self._as_pytorch, arguments)
        runner = self._new(kind, given, fixed) if found is None else found
        if runner is None:
            return self._as_pytorch(*arguments)
        if isinstance(runner, Fallback):
            return self._as_pytorch(*arguments) if runner.short else self._fallen_back(runner.reason, arguments)
        self._calls += 1
        if self._options.verify_every and self._calls % self._options.verify_every == 0:
            shadowed = self._shadowed(fixed)
            if shadowed.too_large(arguments, None) is None:
                run = partial(_verified, shadowed, runner)
                return self._by(runner, run, arguments, given)
        return self._by(runner, runner, arguments, given)

    def _tunings(self, fixed: FixedWeights | None) -> CallTunings:
        """What finds the fastest way to run calls with these fixed weights."""
        if self._made is None or self._made[0] is not fixed:
            how: Any = {"role": self.role, "title": self.title, "table": self._table}
            self._made = fixed, graph_tunings(self._graph, fixed, self._options, **how)
        return self._made[1]

    def _shadowed(self, fixed: FixedWeights | None) -> FunctionalShadow:
        """How PyTorch runs calls, to be compared with; it takes no `fixed` weights, as a plan does not."""
        if fixed is None:
            return FunctionalShadow(self._as_pytorch)
        return FunctionalShadow(fixed.as_given_by_pytorch, lambda *inputs: fixed.as_pytorch(*fixed.arguments(inputs)))

    def _by(self, runner: Tuning, run: Callable[..., Any], arguments: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """Run a call by `run`, which has `runner` run `given`, the inputs without fixed weights.

        Where a plan raised and PyTorch does not, PyTorch runs all later calls of this kind too.
        """
        result = run(*given)
        if runner.left is not None:
            told().tell(runner.left)
        elif self._watcher is not None:
            self._watcher(runner, arguments, result)
        return result

    def _fixed_for(self, arguments: tuple[Any, ...]) -> FixedWeights | None:
        """The weights that a call has in common with all before; None where there are none."""
        if not self._weights:
            return None
        if self._fixed is None:
            gone = partial(_close_soon, weakref.ref(self))
            self._fixed = FixedWeights(self._graph, self._weights, arguments, gone=gone)
        elif not self._fixed.same(arguments):  # as where layers share a graph: their weights are inputs from now on
            self._weights, self._fixed = (), None
            self._table.close()
        return self._fixed

    def _new(self, kind: CallKind, given: tuple[Any, ...], fixed: FixedWeights | None) -> Tuning | Fallback | None:
        """Find out what is to run calls of a new kind; with `fixed`, `given` are all inputs but these weights.

        None where a later call finds it out, as other threads capture.
        """
        if (reason := self._short.why_left_alone(kind)) is not None:
            runner: Tuning | Fallback | None = Fallback(reason, short=True)
        elif (reason := why_not_captured(without_gradients(given))) is not None:
            runner = Fallback(reason)
        else:
            runner = self._captured(kind, given, fixed)
        if runner is not None:
            self._learned(kind, runner)
        return runner

    def _captured(self, kind: CallKind, given: tuple[Any, ...], fixed: FixedWeights | None) -> Tuning | Fallback | None:
        """What finds the fastest way to run calls of a kind, or why PyTorch runs them; None: other threads capture."""
        try:
            with one_capture(wait_s=None if self._budget.unlimited else 0.0):
                found = self._tunings(fixed).make(
                    given, kind, self.machine, chosen=self.cores.chosen, budget=self._budget,
                    eager_s=self._short.take(kind), looking_s=lambda: 0.0,
                )  # fmt: skip
        except NoTurn:
            return None
        except Exception as error:  # noqa: BLE001 - nothing has run yet, and PyTorch can run it
            return Fallback(f"cannot capture: {in_one_line(error)}")
        return found if isinstance(found, Tuning | Fallback) else None

    def _fallen_back(self, reason: str, arguments: tuple[Any, ...]) -> Any:
        told().tell(reason)
        return self._as_pytorch(*arguments)

    def _learning(self) -> str:
        """What is still being learned, in one line; empty where nothing is. May be called from any thread."""
        learning = sum(report.measuring for report in self.reports)
        return f"{self.title}: measuring" if learning else ""


def _verified(shadowed: FunctionalShadow, runner: Tuning, *given: Any) -> Any:
    """Run a call by `runner` and by PyTorch; WrongResult where the results differ beyond rounding."""
    return shadow_step(
        shadowed, runner, given, runner.captured, lambda: runner.ran, lambda: runner.ran_in_order,
        lambda: runner.ran_by_pytorch,
    )  # fmt: skip


def _close_soon(graph: weakref.ref[GraphCalls]) -> None:
    """Free, in a thread of its own, the copies of a model's weights that a graph has made: the model was freed.

    The garbage collector may call this where its thread holds the lock that `Thread.start` takes.
    """
    found = graph()
    if found is not None and not sys.is_finalizing():
        with suppress(RuntimeError):  # no more threads are to be had: the process ends
            _thread.start_new_thread(found.forget_weights, ())
