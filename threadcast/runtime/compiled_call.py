"""Runs one graph of Dynamo's by the graphs that AOTAutograd made of it, or by eager PyTorch, whichever is faster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from threadcast.runtime.fallback import saves_by_hooks
from threadcast.runtime.fused_updates import Steps
from threadcast.runtime.graph_calls import GraphCalls
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.short_way import ShortWay
from threadcast.runtime.tuner.guard import Verdict
from threadcast.runtime.whole_calls import Graphs, Stage, Turn, WholeCalls
from threadcast.threads.forks import forks

_HOOKED = 20
"""Calls in a row whose tensors were saved by hooks, after which no others are expected. A convention."""
_AWAITED = 4
"""Calls whose backward pass may still come; of an older one without it, the forward pass alone counts."""
_LOOK = 100
"""Calls by graphs after which it is looked again what runs these. A convention."""


class CompiledCall:
    """A callable that does what `eager` does, with gradients: by `graphs`, or by `eager` itself.

    AOTAutograd and the graphs' own bookkeeping take time in each call, which only the comparison of whole calls shows:
    once all `parts` (the graphs for inference, or for forward and backward pass) have settled, calls run by turns
    in both ways, and the faster is kept; where a way around AOTAutograd's wrappers (`ShortWay`) is open to the graphs,
    by that. Graphs that are not shown to be faster are compared once more after they have tried all there is; until
    then they run in so few calls that 2 % of the time is lost at most, where they are slower. With `unlimited` they
    run in all calls until then, and are compared once. The backward pass counts, what the caller does between does not.
    Nothing is compared while a plan for any graph is being made on one of the cores. Graphs that were kept are compared
    once more where one of them that a plan ran has been left to PyTorch since.

    Where tensors are saved by hooks, the graphs run: `torch.utils.checkpoint` calls the program again in the backward
    pass, and takes what is saved then for what the first call would have saved.

    Graphs that can run in channels last first run by turns in both layouts, by PyTorch. The faster layout is learned
    first; the other one only where that does not win, and where it is not far behind.
    May be called from several threads.
    """

    def __init__(
        self, eager: Callable[..., Any], graphs: Callable[..., Any], parts: Sequence[GraphCalls], *,
        unlimited: bool = False, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._eager, self._graphs, self._parts, self._clock = eager, graphs, parts, clock
        self._whole, self._forks = WholeCalls(Graphs(graphs, parts), unlimited=unlimited), forks.number
        self._lock = RLock()
        self._awaited: deque[_Sample] = deque()
        self._runs: Callable[..., Any] | None = None
        """What runs all further calls; None until that is known."""
        self._hooked = 0
        """Calls in a row whose tensors were saved by hooks."""
        self._unlooked = _LOOK
        """Calls by the graphs until it is looked again what runs these."""

    def __call__(self, *arguments: Any) -> Any:
        runs = self._runs
        if runs is None and self._forks != forks.number:  # the lock may be held by a thread that did not come along
            runs = self._graphs
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return self._eager(*arguments)  # each of its gradients is looked at
        if runs is not self._graphs and torch.is_grad_enabled() and saves_by_hooks():
            self._hooked += 1
            return self._graphs(*arguments)
        if runs is not None:
            self._unlooked -= 1
            if self._unlooked < 0:
                self._look_again()
            return runs(*arguments)
        with self._lock:
            self._hooked = 0
            turn = self._whole.next_turn(tuple([value for value in arguments if type(value) is int]))
        if turn.side is None:
            return self._by(turn)(*arguments)
        sample = _Sample(self, turn, self._clock())
        result = self._by(turn)(*arguments)
        sample.forward_s = self._clock() - sample.started_s
        with self._lock:
            if sample.waits_for_backward(result):
                self._awaited.append(sample)
                while len(self._awaited) > _AWAITED:
                    self._observe(self._awaited.popleft(), 0.0)
            else:
                self._observe(sample, 0.0)
        return result

    def _by(self, turn: Turn) -> Callable[..., Any]:
        """What runs a call."""
        if turn.layout is None:
            return self._eager
        for part in self._parts:
            part.use(turn.layout, plainly=turn.plainly)
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
    def verdicts(self) -> Mapping[MemoryFormat, Verdict]:
        """How the graphs in each layout compare with the fastest way before, as far as that is known."""
        return self._whole.verdicts

    @property
    def runs(self) -> MemoryFormat | None:
        """The layout in which the graphs run all further calls; None where eager PyTorch does, or it is not known."""
        return self._whole.best if self._runs is self._graphs else None

    @property
    def measuring(self) -> bool:
        """Whether it is still being found out what runs fastest."""
        return self._runs is None and self._hooked < _HOOKED

    @property
    def steps(self) -> Steps:
        """What is known of the steps of which these calls are a part; does not keep this alive."""
        this = ref(self)

        def disturbed() -> bool:
            call = this()
            return call is not None and any(part.disturbed or part.measuring for part in call.parts)

        def learn() -> bool:
            call = this()
            return call is not None and (call.measuring or any(part.learning for part in call.parts))

        return Steps(disturbed, learn)

    def _observe(self, sample: _Sample, backward_s: float) -> None:
        if self._runs is None:
            seconds = sample.forward_s + backward_s
            self._whole.observe(sample.turn, started_s=sample.started_s, seconds=seconds)
            if self._whole.stage is Stage.OVER:
                self._end()

    def _end(self) -> None:
        """Run all further calls by the fastest way."""
        best, verdicts = self._whole.best, self._whole.verdicts
        self._runs = self._eager if best is None else self._graphs
        self._awaited.clear()
        if best is None and isinstance(self._graphs, ShortWay):
            self._graphs.forget()
        for part in self._parts:
            if best is None:
                gain = max(verdict.gain for verdict in verdicts.values())
                part.leave(f"whole calls are as fast or faster in eager PyTorch ({gain:.2f})")
            else:
                part.use(best, alone=True)

    def _look_again(self) -> None:
        """Compare whole calls anew if the graphs that run them have been left to PyTorch."""
        self._unlooked = _LOOK
        if self._forks != forks.number:
            return
        with self._lock:
            if self._runs is not None and self._whole.doubt():
                self._runs = None

    def keep_graphs(self) -> None:
        """Run all further calls by the graphs, even if eager PyTorch is faster."""
        with self._lock:
            self._whole.keep_graphs()
            self._runs = self._graphs
            self._awaited.clear()
            for part in self._parts:
                part.use(self._whole.layout)

    def backward_ended(self, sample: _Sample, backward_s: float) -> None:
        """Take note of the seconds of a call's backward pass."""
        with self._lock:
            if sample in self._awaited:
                self._awaited.remove(sample)
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


def _tensors(result: Any) -> Iterator[Tensor]:
    """The tensors of a graph's result: a tensor, or a flat list or tuple."""
    for value in result if isinstance(result, tuple | list) else (result,):
        if isinstance(value, Tensor):
            yield value
