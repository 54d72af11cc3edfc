"""Runs one graph of Dynamo's by the graphs that AOTAutograd made of it, or by eager PyTorch, whichever is faster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from threadcast.runtime.graph_calls import GraphCalls
from threadcast.runtime.tuning.guard import Guard, Side, Verdict

_ELSEWHERE = 10
"""Calls in a row with other sizes, after which calls of these sizes are compared. A convention."""
_HOPELESS = 0.8
"""Ratio of eager PyTorch's time to the graphs' under which what they still learn is not waited for. A convention."""
_LOSS = 0.02
"""Part of their time that calls may lose to graphs that are slower and still learn. A convention."""
_TURN = 8
"""Calls in a row for which such graphs run: the first one after eager PyTorch's starts their threads anew."""
_AWAITED = 4
"""Calls whose backward pass may still come; of an older one without it, the forward pass alone counts."""


class CompiledCall:
    """A callable that does what `eager` does, with gradients: by `graphs`, or by `eager` itself.

    AOTAutograd and the graphs' own bookkeeping take time in each call, which only the comparison of whole calls shows:
    once all `parts` (the graphs for inference, or for forward and backward pass) have settled, calls run by turns
    in both ways, and the faster is kept. Where that is eager PyTorch, they are compared once more after the parts have
    tried all there is, unless they are far behind; until then they run in so few calls that 2 % of the time is lost at
    most. The backward pass counts, what the caller does between does not.
    May be called from several threads.
    """

    def __init__(
        self, eager: Callable[..., Any], graphs: Callable[..., Any], parts: Sequence[GraphCalls], *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._eager, self._graphs, self._parts, self._clock = eager, graphs, parts, clock
        self._guard: Guard | None = None
        self._lock = RLock()
        self._sizes: tuple[int, ...] = ()
        """The integers among the arguments of the calls that are compared: calls of other sizes take other times."""
        self._elsewhere = 0
        self._patience: _Patience | None = None
        """Which calls the graphs may learn in before the next comparison; None where none waits for them."""
        self._awaited: deque[_Sample] = deque()
        self._runs: Callable[..., Any] | None = None
        """What runs all further calls; None until that is known."""

    def __call__(self, *arguments: Any) -> Any:
        if self._runs is not None:
            return self._runs(*arguments)
        with self._lock:
            side = self._next_side(arguments)
            graphs = side is not None or self._patience is None or self._patience.next_is_graphs()
        if side is None:
            return (self._graphs if graphs else self._eager)(*arguments)
        sample = _Sample(self, side, self._clock())
        result = (self._eager if side == "default" else self._graphs)(*arguments)
        sample.forward_s = self._clock() - sample.started_s
        with self._lock:
            if sample.waits_for_backward(result):
                self._awaited.append(sample)
                while len(self._awaited) > _AWAITED:
                    self._observe(self._awaited.popleft(), 0.0)
            else:
                self._observe(sample, 0.0)
        return result

    @property
    def parts(self) -> Sequence[GraphCalls]:
        """The graphs that AOTAutograd has made so far."""
        return self._parts

    @property
    def verdict(self) -> Verdict | None:
        """How the graphs compare with eager PyTorch; None until that is known."""
        return None if self._guard is None else self._guard.verdict

    @property
    def measuring(self) -> bool:
        """Whether it is still being found out what runs fastest."""
        return self._runs is None

    @property
    def _learning(self) -> bool:
        return any(part.learning for part in self._parts)

    def _next_side(self, arguments: tuple[Any, ...]) -> Side | None:
        """Which side runs the next call; None while the graphs are still learning, and where it is not compared."""
        sizes = tuple([value for value in arguments if type(value) is int])
        if self._guard is None:
            reports = [report for part in self._parts for report in part.reports]
            if not reports or any(report.measuring for report in reports) or (self._patience and self._learning):
                return None
            self._guard, self._sizes, self._patience = Guard(), sizes, None
        if sizes != self._sizes:
            self._elsewhere += 1
            if self._elsewhere < _ELSEWHERE:
                return None
            self._guard, self._sizes = Guard(), sizes
            self._awaited.clear()
        self._elsewhere = 0
        return self._guard.next_runner()

    def _observe(self, sample: _Sample, backward_s: float) -> None:
        if self._guard is None or self._runs is not None or sample.side != self._guard.next_runner():
            return
        self._guard.observe(started_s=sample.started_s, seconds=sample.forward_s + backward_s)
        verdict = self._guard.verdict
        if verdict is not None and verdict.kept == "default" and verdict.gain > _HOPELESS and self._learning:
            self._guard, self._patience = None, _Patience(verdict.gain)  # fused operators or backends may be faster
        elif verdict is not None:
            self._runs = self._graphs if verdict.kept == "plan" else self._eager
            self._awaited.clear()
            if self._runs is self._eager:
                for part in self._parts:
                    part.leave(f"whole calls are as fast or faster in eager PyTorch ({verdict.gain:.2f})")

    def backward_ended(self, sample: _Sample, backward_s: float) -> None:
        """Take note of the seconds of a call's backward pass."""
        with self._lock:
            if sample in self._awaited:
                self._awaited.remove(sample)
                self._observe(sample, backward_s)


class _Patience:
    """Lets graphs that are slower by `gain` learn in some calls, and eager PyTorch run all others.

    Calls lose `_LOSS` of their time at most. `gain` is the ratio of eager PyTorch's time to the graphs'.
    """

    def __init__(self, gain: float) -> None:
        slower_by = max(1.0 / gain - 1.0, 0.0)
        self._of = max(_TURN, ceil(_TURN * slower_by / _LOSS))
        self._calls = 0

    def next_is_graphs(self) -> bool:
        """Whether the graphs run the next call; each question is for one call."""
        turn = self._calls % self._of < _TURN
        self._calls += 1
        return turn


class _Sample:
    """The seconds of one call and of its backward pass."""

    def __init__(self, call: CompiledCall, side: Side, started_s: float) -> None:
        self._call, self.side, self.started_s = call, side, started_s
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
