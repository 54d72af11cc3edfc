"""Runs calls that cannot be captured as wholes in parts: `torch.compile` divides them, and plans run what they can.

Where control flow or shapes depend on the values of tensors, where modules have hooks, and where each call sets Python
values, PyTorch's Dynamo finds the graphs between and does the rest as Python does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from threadcast.core import Machine
from threadcast.runtime.compile_options import CompileOptions
from threadcast.runtime.compiled_call import CompiledCall
from threadcast.runtime.shared_learning import allowance
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind
from threadcast.runtime.tuning.guard import Guard
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.tuning import LOOKING_SHARE
from threadcast.runtime.tuning.warm_up import Allowance

EAGER_CALLS = 3
"""Calls in eager PyTorch before anything is compiled; the first does not count, as it fills caches."""
COMPILING_S = 3.0
"""Seconds that dividing a call is expected to take: Dynamo takes 1 to 20 s for models with steps of milliseconds."""
STEADY = 3
"""Calls in a row without a new part after which it is taken that all have been found."""

PATIENCE = 300
"""Calls without a new part after which parts that are still learning are not waited for any longer."""
IDLE = 10
"""Calls after which a part that was in none of them is taken not to be called any more, as a part for sizes of the
first call that later calls do not have."""

DYNAMO: dict[str, Any] = {
    "suppress_errors": True,
    "allow_unspec_int_on_nn_module": True,
    "skip_nnmodule_hook_guards": False,
}
"""Settings of `torch._dynamo.config` for calls in parts."""

Backend = Callable[..., Any]
Divide = Callable[[Backend], Callable[..., Any]]
"""Given a backend for `torch.compile`, returns the call by parts."""


class Parts:
    """Runs calls as `eager` does: by it, or in parts, whichever is faster.

    `divide` makes the call by parts. Calls shorter than `least_s` are left alone. `machine` returns the cores on which
    parts run, and `most` is the largest number of cores that they may use (None: all that the process has). What
    learning loses is counted in `spent`. Nothing is compared while a plan is being made on one of the cores.
    """

    def __init__(
        self, eager: Callable[..., Any], divide: Divide, spent: Allowance, *, least_s: float,
        machine: Callable[[], Machine], most: int | None,
    ) -> None:  # fmt: skip
        self._eager, self._divide, self._spent = eager, divide, spent
        self._spent_by_parts = allowance(share := spent.share)
        self._share = share
        self._least_s, self._machine, self._most = least_s, machine, most
        self._eager_s: list[float] = []
        self._call: Callable[..., Any] | None = None
        self._compiled: list[Any] = []
        """What the backend has returned for each graph that Dynamo found."""
        self._steady = 0
        self._counts: dict[CompiledCall, int] = {}
        """How often each part had been called when that was looked at last."""
        self._idle: set[CompiledCall] = set()
        """The parts that were not called between the last two looks."""
        self._guard: Guard | None = None
        self._left: str | None = None
        """Why calls are left to PyTorch; None where they are not."""

    def __call__(self, *arguments: Any) -> Any:
        if self._left is not None or _has_a_stance() or not self._may_begin():
            return self._timed(self._eager, arguments)[0]
        if self._call is None:
            self._call = self._divided()
        if self._guard is not None:
            return self._compared(self._guard, self._call, arguments)
        known = len(self._compiled)
        result, seconds = self._timed(self._call, arguments)
        self._spent.lost_s += max(0.0, seconds - self._eager_median_s)
        self._steady = self._steady + 1 if len(self._compiled) == known else 0
        if self._steady >= STEADY and not self._compiled:
            self._leave("torch.compile finds no graph in it")
        elif self._steady >= (PATIENCE if self._waits() else STEADY):
            self._guard = Guard()
        return result

    @property
    def begun(self) -> bool:
        """Whether any call was divided."""
        return self._call is not None

    @property
    def learning(self) -> bool:
        """Whether it is still being found out what runs the calls fastest; not while PyTorch must run them."""
        if self._left is not None or _has_a_stance():
            return False
        return self._guard is None or self._guard.verdict is None

    def leaves_alone(self, looking_s: float) -> bool:
        """Return whether the next calls need not be looked at, because PyTorch's default runs them in any case.

        Nothing else will be tried, and a look, which takes `looking_s` seconds, makes calls slower by more than
        `LOOKING_SHARE`.
        """
        lost = self._guard is not None and self._guard.verdict is not None and self._guard.verdict.kept == "default"
        return (self._left is not None or lost) and looking_s > LOOKING_SHARE * self._eager_median_s

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Within the context, parts may learn for any time."""
        with self._spent_by_parts.without_limit():
            yield

    def report(self, reason: str) -> Report:
        """What runs the calls, which cannot be captured as wholes for this reason."""
        if self._left is not None:
            return Report(DEFAULT, f"{reason}; in parts: {self._left}")
        if self._call is None:
            return Report(DEFAULT, reason)
        if self._guard is None or self._guard.verdict is None:
            return Report(None, reason)
        verdict = self._guard.verdict
        contender = ContenderId(Kind.PARTS) if verdict.kept == "plan" else DEFAULT
        return Report(contender, reason, verdicts={str(ContenderId(Kind.PARTS)): verdict})

    def close(self) -> None:
        """End the threads that run the parts; later calls learn anew."""
        self._end_threads()
        self._counts.clear()
        self._idle.clear()
        self._call, self._guard, self._steady = None, None, 0
        self._compiled.clear()

    def _may_begin(self) -> bool:
        """Whether calls in PyTorch have been timed, and learning may take the time of compiling."""
        if self._call is not None:
            return self._guard is not None or self._spent.allows(0.0)
        if len(self._eager_s) < EAGER_CALLS:
            return False
        eager_s = self._eager_median_s
        if eager_s < self._least_s:
            self._leave(f"a call takes {eager_s * 1e6:.0f} us, too short to gain (engine.least_step_us)")
            return False
        return self._spent.allows(COMPILING_S)

    def _timed(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
        began_s = time.perf_counter()
        result = call(*arguments)
        seconds = time.perf_counter() - began_s
        self._spent.ran_eager(seconds)
        if call is self._eager and self._call is None and self._left is None:
            self._eager_s = [*self._eager_s, seconds][-10:]
        return result, seconds

    def _compared(self, guard: Guard, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call by turns in PyTorch and in parts, until it is clear which is faster."""
        if guard.verdict is None and self._disturbed():
            guard.break_off()
            return self._timed(self._eager, arguments)[0]
        run = call if guard.next_runner() == "plan" else self._eager
        began_s = time.perf_counter()
        result = run(*arguments)
        if guard.verdict is None:
            guard.observe(started_s=began_s, seconds=time.perf_counter() - began_s)
            if not self.learning and guard.next_runner() == "default":
                self._end_threads()
        return result

    @property
    def _eager_median_s(self) -> float:
        return median(self._eager_s[1:] or [0.0])

    def _waits(self) -> bool:
        """Whether parts that calls still have are learning; asked once after each call."""
        if self._steady % IDLE == 0:
            counts = {part: part.calls for part in self._graphs()}
            self._idle = {part for part, calls in counts.items() if self._steady and self._counts.get(part) == calls}
            self._counts = counts
        return any(part.measuring and part not in self._idle for part in self._graphs())

    def _disturbed(self) -> bool:
        """Whether a plan is being made on one of the cores, beside which calls tell little of their speed."""
        return any(graph.disturbed for part in self._graphs() for graph in part.parts)

    def _leave(self, reason: str) -> None:
        self._left = reason
        self.close()

    def _graphs(self) -> Iterator[CompiledCall]:
        """The parts that can run by plans."""
        return (part for part in self._compiled if isinstance(part, CompiledCall))

    def _end_threads(self) -> None:
        for part in self._graphs():
            for graph in part.parts:
                graph.close()

    def _divided(self) -> Callable[..., Any]:
        """The call by parts. What Dynamo cannot compile runs as Python does; a counter in a module needs no new graph.

        Dynamo looks for hooks that were registered later, which it does not by default (20 us a call).
        """
        call = self._divide(self._backend)
        change = torch._dynamo.config._make_closure_patcher(**DYNAMO)  # `patch` leaves a context variable in each call

        def run(*arguments: Any) -> Any:
            revert = change()
            try:
                return call(*arguments)
            finally:
                revert()

        return run

    def _backend(self, graph: Any, example_inputs: Any) -> Callable[..., Any]:
        """Run a graph that Dynamo found by plans, and remember it."""
        from threadcast.runtime.compile_backend import Program, graph_call  # imports Dynamo

        options = CompileOptions.of(None, {"cores": self._most, "tuning_share": self._share})
        found = graph_call(Program(options, self._machine()), graph, example_inputs)
        self._compiled.append(found)
        return found


def _has_a_stance() -> bool:
    """Whether `torch.compiler.set_stance` says how all that is compiled runs, the parts among it."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance != type(frames._stance)()
