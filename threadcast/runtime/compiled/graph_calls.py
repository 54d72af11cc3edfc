"""Runs one graph that AOTAutograd has made, by PyTorch or by a plan, whichever is faster for its inputs."""

from __future__ import annotations

import _thread
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.fx import GraphModule

from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.graph.captured import Captured
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core import Machine
from threadcast.core.errors import in_one_line
from threadcast.core.settings import Settings
from threadcast.runtime.backends.libraries import installed
from threadcast.runtime.calls.conditions import why_not_captured
from threadcast.runtime.calls.fallback import Fallback, FirstCall
from threadcast.runtime.calls.kinds import CallKind, kind_of_inputs
from threadcast.runtime.calls.learned_calls import LearnedCalls
from threadcast.runtime.calls.shared_learning import told
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import Runner
from threadcast.runtime.check.shadow import Shadowed, leaves
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_by_pytorch import (
    as_pytorch,
    first_run,
    forward_of,
    is_first_run,
    without_gradients,
)
from threadcast.runtime.engine.native.library import in_step
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.model_cores import core_choice
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.tuner.budget import Budget, PartBudget
from threadcast.runtime.tuner.candidate import Way
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Watch
from threadcast.threads.forks import forks
from threadcast.threads.this_process import this_process

Role = Literal["inference", "forward", "backward"]
"""What a graph is: a whole program without gradients, or one of the two passes of one with gradients."""
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

    _after_first = False

    def __init__(
        self, graph: GraphModule, machine: Machine, options: CompileOptions, *, number: int, title: str, budget: Budget,
        role: Role = "inference", weights: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.number, self.role = number, role
        self._graph, self._as_pytorch = graph, as_pytorch(graph)
        self._weights = tuple(weights) if options.freeze else ()
        self._fixed: FixedWeights | None = None
        self._title, self._part = f"{title}, {role}", PartBudget(budget)
        self._watcher: Watcher | None = None
        self._left: str | None = None
        """Why PyTorch runs all calls; None where it does not."""
        super().__init__(
            self._spec_of(None), machine, Settings.read(), self._part, model_format=ModelFormat(None),
            watch=Watch(nn.Module()), most=options.cores, fuse=options.fuse, verify_every=options.verify_every,
            told=told(),
        )  # fmt: skip
        self._steps = this_process().steps

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
        return super().reports

    @property
    def may_be_passed_by(self) -> bool:
        """Whether the next call may go to what runs it at once: nothing but the kind of its inputs decides."""
        free = self._left is None and not self._verify_every
        return free and self.cores.whole and self._forks == forks.number

    @property
    def has_settled(self) -> bool:
        """Whether it is known what runs all calls, and nothing is being learned."""
        with self._lock:  # other threads' calls may be changing what is kept
            found = list(self._table)
            return bool(found) and all(isinstance(one, Fallback) or one.kept is not None for one in found)

    def keeps(self, runner: Tuning, kept: Way) -> bool:
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
            self._fixed, self._spec = None, self._spec_of(None)
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
        runner = self._on_cores_of_now(self._table.find(kind)) or self._begun(kind, given)
        if isinstance(runner, FirstCall):
            return self._first_call(self._as_pytorch, arguments)
        if isinstance(runner, Fallback):
            return self._as_pytorch(*arguments) if runner.short else self._fallen_back(runner.reason, arguments)
        result = self._verified(runner, given) if self._verify_every else runner(*given)
        if runner.left is not None:  # a plan raised and PyTorch did not: it runs all later calls of this kind too
            self._told.tell(runner.left)
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
            self._spec = self._spec_of(self._fixed)
        elif not self._fixed.same(arguments):  # as where layers share a graph: their weights are inputs from now on
            self._weights = ()
            self.forget_weights()
        return self._fixed

    def _spec_of(self, fixed: FixedWeights | None) -> CallSpec:
        """What calls are; with `fixed`, calls without these weights."""
        called = forward_of(self._graph)
        phase: Literal["backward", "forward"] = "backward" if self.role == "backward" else "forward"
        eager = self._as_pytorch if fixed is None else fixed.as_pytorch

        def capture(given: tuple[Any, ...], _: ModelFormat) -> Captured:
            return capture_graph(called, given, phase=phase) if fixed is None else fixed.captured(given)

        def of_backends(cores: int, cpus: Sequence[int] | None) -> Any:
            history = Settings.read()["engine.plans"] / HISTORY
            return None if fixed is None else fixed.backends(cores, cpus=cpus, history=history)

        def of_stored(cpus: Sequence[int] | None) -> str:
            sizes = [] if fixed is None else [tuple(weight.shape) for weight in fixed.weights]
            return "graph" if fixed is None else f"graph, {installed(cpus)}, weights {sizes}"

        shadowed = Shadowed(eager, lambda _, *inputs: eager(*inputs), None, None, leaves, functional=True)
        return CallSpec(
            shadowed=shadowed, capture=capture, name=self.role, title=self._title, backends=of_backends,
            among=of_stored, breaks="", gives_back=False,
        )  # fmt: skip

    def _captured(self, kind: CallKind, arguments: tuple[Any, ...], budget: Budget) -> Runner | FirstCall:
        if (reason := why_not_captured(without_gradients(arguments))) is not None:
            return Fallback(reason)
        try:
            return super()._captured(kind, arguments, budget)
        except NoTurn:
            raise
        except Exception as error:  # noqa: BLE001 - nothing has run yet, and PyTorch can run it
            return Fallback(f"cannot capture: {in_one_line(error)}")

    def _fallen_back(self, reason: str, arguments: tuple[Any, ...]) -> Any:
        self._told.tell(reason)
        return self._as_pytorch(*arguments)


def _close_soon(graph: weakref.ref[GraphCalls]) -> None:
    """Free, in a thread of its own, the copies of a model's weights that a graph has made: the model was freed.

    The garbage collector may call this where its thread holds the lock that `Thread.start` takes.
    """
    found = graph()
    if found is not None and not sys.is_finalizing():
        with suppress(RuntimeError):  # no more threads are to be had: the process ends
            _thread.start_new_thread(found.forget_weights, ())
