"""Runs one graph of Dynamo's by the graphs that AOTAutograd made of it, or by eager PyTorch, whichever is faster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from threadcast.core.signal_handlers import Failure
from threadcast.runtime.calls.conditions import saves_by_hooks
from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.compiled.short_way import ShortWay
from threadcast.runtime.compiled.whole_calls import Turn, WholeCalls
from threadcast.runtime.plans.plan_store import FasterGraphs
from threadcast.runtime.tuner.budget import Budget
from threadcast.threads.forks import forks

_AWAITED = 4
"""Calls after which no backward pass is expected any more: the forward pass alone counts."""
_SELDOM = 20
"""Calls from one that is timed, once the fastest way is known or nothing may be learned, to the next. A convention."""
_logger = logging.getLogger("threadcast")


class CompiledCall:
    """A callable that does what `eager` does, with gradients: by `graphs`, or by `eager` itself.

    `eager` runs all calls until something is known to be faster, but for those in which the graphs learn or are
    compared; what these lose is counted in `budget`. AOTAutograd and the graphs' own bookkeeping take time in each
    call, which only the comparison of whole calls shows: once all `parts` (the graphs for inference, or for forward and
    backward pass) have settled, calls run by turns in both ways (`WholeCalls`); where a way around AOTAutograd's
    wrappers (`ShortWay`) is open to the graphs, by that. The backward pass counts, what the caller does between does
    not. What runs all calls is looked at again from time to time.

    Where tensors are saved by hooks, the graphs run: `torch.utils.checkpoint` calls the program again in the backward
    pass, and takes what is saved then for what the first call would have saved.

    What was `found` before for the same program runs from the first call on; `keep` is told what is found now
    (`WholeCalls`).
    Calls in which an input that the graphs write to (`written`, positions) shares memory with another input run by
    `eager`: AOTAutograd divides a program as if they lay apart, and no guard of its says that they do.
    May be called from several threads.
    """

    def __init__(
        self, eager: Callable[..., Any], graphs: Callable[..., Any], parts: Sequence[GraphCalls], *,
        budget: Budget | None = None, clock: Callable[[], float] = time.perf_counter, title: str = "a program",
        written: tuple[int, ...] = (),
        found: FasterGraphs | None = None, keep: Callable[[FasterGraphs | None], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._eager, self._graphs, self._parts, self._clock = eager, graphs, parts, clock
        self._written = written
        told = partial(_logger.info, "%s: %s", title)
        limit = Budget() if budget is None else budget
        self._whole = WholeCalls(graphs, parts, limit, told=told, found=found, keep=keep)
        self._forks, self._lock = forks.number, RLock()
        self._awaited: _Sample | None = None
        """The last call that counts, while its backward pass may still come."""
        self._later = 0
        """Calls since that one."""
        self._runs: Callable[..., Any] | None = None
        """What runs the next calls without being timed; None where that is asked before each."""
        self._for_good = False
        """Whether that runs all further calls, whatever its speed."""
        self._settled: bool | None = None
        """Whether the graphs were found to be faster when nothing was being learned the last time."""
        self._untimed = 0
        """Calls so far of which none was timed, since the last one that was."""

    def __call__(self, *arguments: Any) -> Any:
        runs = self._runs
        if self._written and _share_memory(arguments, self._written):
            return self._eager(*arguments)
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return self._eager(*arguments)  # each of its gradients is looked at
        if not self._for_good and torch.is_grad_enabled() and saves_by_hooks():
            if runs is not self._graphs:
                for part in self._parts:
                    part.use(counts=True)
            return self._graphs(*arguments)
        if runs is None and self._forks != forks.number:  # the lock may be held by a thread that did not come along
            runs = self._eager
        if runs is not None:
            self._untimed += 1
            if self._untimed <= _SELDOM or self._for_good or self._forks != forks.number:
                return runs(*arguments)
        with self._lock:
            sample = self._next(tuple([value for value in arguments if type(value) is int]))
        run = self._by(sample.turn)
        if not sample.turn.counts:
            return run(*arguments)
        result = run(*arguments)
        sample.forward_s = self._clock() - sample.started_s
        with self._lock:
            if sample.waits_for_backward(result):
                self._awaited, self._later = sample, 0
            else:
                self._observe(sample, 0.0)
        return result

    def _next(self, sizes: tuple[int, ...]) -> _Sample:
        """What runs the call that comes. Whatever fails there, it can run as before."""
        if self._runs is not None:
            self._whole.passed(self._untimed)
            self._runs, self._untimed = None, 0
        waiting = self._awaited
        if waiting is not None:
            self._later += 1
            if self._later > _AWAITED:  # its backward pass never comes
                self._observe(waiting, 0.0)
        now_s = self._clock()
        with Failure() as failure:
            return _Sample(self, self._whole.next_turn(sizes, now_s=now_s, waiting=self._awaited is not None), now_s)
        self._leave(str(failure))
        return _Sample(self, Turn(False), now_s)

    def _by(self, turn: Turn) -> Callable[..., Any]:
        """What runs a call."""
        if not turn.by_graphs:
            return partial(self._parts[0].beside_a_plan, self._eager) if turn.disturbed else self._eager
        for part in self._parts:
            part.use(rests=turn.compared)
        return self._graphs

    @property
    def parts(self) -> Sequence[GraphCalls]:
        """The graphs that AOTAutograd has made so far."""
        return self._parts

    @property
    def short_calls(self) -> int:
        """How many calls so far went the short way to the graphs."""
        return self._graphs.calls if isinstance(self._graphs, ShortWay) else 0

    @property
    def by_graphs(self) -> bool:
        """Whether the graphs run calls; False where eager PyTorch does, or it is not known."""
        return not self.measuring and self._whole.by_graphs

    @property
    def measuring(self) -> bool:
        """Whether it is still being found out what runs fastest."""
        return not (self._for_good or self._whole.tournament.settled)

    def _observe(self, sample: _Sample, backward_s: float) -> None:
        """Take note of a call that counts. It has run: only what follows from it can fail."""
        self._awaited = None
        with Failure() as failure:
            self._whole.observe(started_s=sample.started_s, seconds=sample.forward_s + backward_s)
        if failure.error is not None:
            self._leave(str(failure))
        elif self._whole.rests:
            self._settle()
        elif self._whole.tournament.held_back:  # timing calls would tell nothing, and takes up to 0.1 ms of each
            self._runs, self._untimed = self._by(Turn(self._whole.by_graphs)), 0

    def _settle(self) -> None:
        """Run the next calls by the fastest way, without timing them."""
        before, self._settled, self._untimed = self._settled, self._whole.by_graphs, 0
        self._runs = self._graphs if self._settled else self._eager
        if before == self._settled:
            return
        if not self._settled and isinstance(self._graphs, ShortWay):
            self._graphs.forget()
        verdict = self._whole.verdict
        for part in self._parts:
            if self._settled:
                part.use()
            else:
                gain = 1.0 if verdict is None else verdict.gain
                part.leave(f"whole calls are as fast or faster in eager PyTorch ({gain:.2f})")

    def _leave(self, reason: str) -> None:
        """Have eager PyTorch run all further calls, as comparing failed."""
        _logger.warning("a program runs as before: %s", reason)
        self._runs, self._for_good, self._awaited = self._eager, True, None

    def keep_graphs(self) -> None:
        """Run all further calls by the graphs, even if eager PyTorch is faster."""
        with self._lock:
            self._runs, self._for_good, self._awaited = self._graphs, True, None
            for part in self._parts:
                part.use(counts=True)

    def backward_ended(self, sample: _Sample, backward_s: float) -> None:
        """Take note of the seconds of a call's backward pass."""
        with self._lock:
            if sample is self._awaited:
                self._observe(sample, backward_s)


class _Sample:
    """The seconds of one call and of its backward pass."""

    def __init__(self, call: CompiledCall, turn: Turn, started_s: float) -> None:
        self._call, self.turn, self.started_s = call, turn, started_s
        self.forward_s = 0.0
        self._backward_s: float | None = None

    def waits_for_backward(self, result: Any) -> bool:
        """Return whether a backward pass of `result` may come; its begin and end are then noted."""
        if not torch.is_grad_enabled():
            return False
        node = next((value.grad_fn for value in _tensors(result) if value.grad_fn is not None), None)
        if node is None:
            return False
        node.register_prehook(self._backward_begins)
        return True

    def _backward_begins(self, _: Any) -> None:
        if self._backward_s is None:
            self._backward_s = self._call._clock()
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        assert self._backward_s is not None
        self._call.backward_ended(self, self._call._clock() - self._backward_s)


def _share_memory(arguments: tuple[Any, ...], written: tuple[int, ...]) -> bool:
    """Whether one of the arguments at these positions lies in the memory of another argument."""
    memory = [one.untyped_storage()._cdata if _is_strided(one) else None for one in arguments]
    return any(memory[at] is not None and memory.count(memory[at]) > 1 for at in written)


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _tensors(result: Any) -> Iterator[Tensor]:
    """The tensors of a graph's result: a tensor, or a flat list or tuple."""
    for value in result if isinstance(result, tuple | list) else (result,):
        if isinstance(value, Tensor):
            yield value
