"""Runs one graph of Dynamo's by the graphs that AOTAutograd made of it, or by eager PyTorch, whichever is faster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from threadcast.runtime.fallback import saves_by_hooks
from threadcast.runtime.graph_calls import GraphCalls
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.short_way import ShortWay
from threadcast.runtime.tuning.guard import Guard, Side, Verdict
from threadcast.threads.forks import forks

_ELSEWHERE = 10
"""Calls in a row with other sizes, after which calls of these sizes are compared. A convention."""
_HOPELESS = 0.8
"""Ratio of eager PyTorch's time to the graphs' under which the other layout is not tried. A convention."""
_LOSS = 0.02
"""Part of their time that calls may lose to graphs that are slower and still learn. A convention."""
_TURN = 8
"""Calls in a row for which such graphs run: the first one after eager PyTorch's starts their threads anew."""
_BEGUN = 8
"""Calls in a layout after which its graphs have begun to learn: the first ones of a kind are only timed. Also calls
before layouts are compared, in which libraries make their kernels."""
_SHORTENED = 4
"""Most calls that wait for the short way to graphs that have settled: one learns it, unless its arguments are special,
or its backward pass comes late. A convention."""
_ORDERING_PAIRS = 5
"""Pairs of blocks by which it is decided which layout is learned first. A convention."""
_HOOKED = 20
"""Calls in a row whose tensors were saved by hooks, after which no others are expected. A convention."""
_AWAITED = 4
"""Calls whose backward pass may still come; of an older one without it, the forward pass alone counts."""


class CompiledCall:
    """A callable that does what `eager` does, with gradients: by `graphs`, or by `eager` itself.

    AOTAutograd and the graphs' own bookkeeping take time in each call, which only the comparison of whole calls shows:
    once all `parts` (the graphs for inference, or for forward and backward pass) have settled, calls run by turns
    in both ways, and the faster is kept; where a way around AOTAutograd's wrappers (`ShortWay`) is open to the graphs,
    by that. Graphs that are not shown to be faster are compared once more after they have tried all there is; until
    then they run in so few calls that 2 % of the time is lost at most, where they are slower. With `unlimited` they
    run in all calls until then, and are compared once. The backward pass counts, what the caller does between does not.
    Nothing is compared while a plan for any graph is being made on one of the cores.

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
        self._unlimited, self._forks = unlimited, forks.number
        self._best: MemoryFormat | None = None
        """The layout in which the graphs are the fastest known way; None while eager PyTorch is."""
        self._layout = MemoryFormat.AS_GIVEN
        """The layout that is learned or compared."""
        self._other: MemoryFormat | None = None
        """The layout that comes after it if it does not win."""
        self._ordered: bool | None = None
        """Whether it is known which layout comes first; None until the first call."""
        self._unseen = 0
        """Calls still to come in the layout before its graphs have begun to learn, or before layouts are compared."""
        self._guard: Guard | None = None
        self._lock = RLock()
        self._sizes: tuple[int, ...] = ()
        """The integers among the arguments of the calls that are compared: calls of other sizes take other times."""
        self._elsewhere = 0
        self._verdicts: dict[MemoryFormat, Verdict] = {}
        self._waits = False
        """Whether the next comparison comes only once the graphs have tried all there is."""
        self._shortened = 0
        """Calls that have waited for the short way to the graphs."""
        self._tries: bool | None = None
        """Whether what is tried runs the next call, which is not compared, whatever else speaks for or against it."""
        self._patience: _Patience | None = None
        """Which calls the graphs may learn in before the next comparison; None where none waits for them."""
        self._awaited: deque[_Sample] = deque()
        self._runs: Callable[..., Any] | None = None
        """What runs all further calls; None until that is known."""
        self._hooked = 0
        """Calls in a row whose tensors were saved by hooks."""
        self.calls = 0
        """Calls so far, those in which it was being found out what runs them."""

    def __call__(self, *arguments: Any) -> Any:
        runs = self._runs
        if runs is None and self._forks != forks.number:  # the lock may be held by a thread that did not come along
            runs = self._graphs
        if runs is not self._graphs and torch.is_grad_enabled() and saves_by_hooks():
            self._hooked += 1
            return self._graphs(*arguments)
        if runs is not None:
            return runs(*arguments)
        with self._lock:
            self._hooked = 0
            self.calls += 1
            side = self._next_side(arguments)
            tried = side == "plan" or (side is None and self._next_is_tried())
            self._unseen -= tried or self._ordered is False
        if side is None:
            return self._by(tried)(*arguments)
        sample = _Sample(self, side, self._clock())
        result = self._by(tried)(*arguments)
        sample.forward_s = self._clock() - sample.started_s
        with self._lock:
            if sample.waits_for_backward(result):
                self._awaited.append(sample)
                while len(self._awaited) > _AWAITED:
                    self._observe(self._awaited.popleft(), 0.0)
            else:
                self._observe(sample, 0.0)
        return result

    def _next_is_tried(self) -> bool:
        """Whether the way that is tried runs the next call, which is not compared."""
        if self._tries is not None:
            return self._tries
        if self._ordered is False:
            return self._unseen % 2 == 0
        return self._patience is None or self._patience.next_is_graphs()

    def _by(self, tried: bool) -> Callable[..., Any]:
        """What runs a call: the layout that is tried, or the fastest way that is known."""
        layout = self._layout if tried else self._best
        if self._ordered is False:
            layout = MemoryFormat.CHANNELS_LAST if tried else MemoryFormat.AS_GIVEN
        if layout is None:
            return self._eager
        for part in self._parts:
            part.use(layout, plainly=self._ordered is False)
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
        return dict(self._verdicts)

    @property
    def runs(self) -> MemoryFormat | None:
        """The layout in which the graphs run all further calls; None where eager PyTorch does, or it is not known."""
        return self._best if self._runs is self._graphs else None

    @property
    def measuring(self) -> bool:
        """Whether it is still being found out what runs fastest."""
        return self._runs is None and self._hooked < _HOOKED

    @property
    def _disturbed(self) -> bool:
        return any(part.disturbed for part in self._parts)

    @property
    def _learning(self) -> bool:
        return any(part.learning for part in self._parts)

    def _next_side(self, arguments: tuple[Any, ...]) -> Side | None:
        """Which side runs the next call; None while the graphs are still learning, and where it is not compared."""
        sizes = tuple([value for value in arguments if type(value) is int])
        self._tries = None
        if self._ordered is None:
            self._ordered = not any(part.has_channels_last for part in self._parts)
            self._unseen = 0 if self._ordered else _BEGUN
        if self._guard is None and not self._ordered and self._unseen <= 0:
            self._guard, self._sizes = Guard(max_pairs=_ORDERING_PAIRS, at_once=False), sizes
        if self._guard is None:
            if self._unseen > 0 or not self._ordered or ((self._waits or self._unlimited) and self._learning):
                return None
            reports = [report for part in self._parts for report in part.reports]
            if not reports or any(report.measuring for report in reports):
                return None
            if self._disturbed or self._gets_shorter():
                return None
            self._guard, self._sizes, self._patience, self._waits = self._new_guard(), sizes, None, False
            self._shortened = 0
        elif self._disturbed:
            self._guard.break_off()
            self._awaited.clear()
            self._tries = False
            return None
        if sizes != self._sizes:
            self._elsewhere += 1
            if self._elsewhere < _ELSEWHERE:
                return None
            self._guard, self._sizes = self._new_guard(), sizes
            self._awaited.clear()
        self._elsewhere = 0
        return self._guard.next_runner()

    def _gets_shorter(self) -> bool:
        """Whether a call waits for the short way to the graphs, without which they would take longer than later on."""
        if self._shortened >= _SHORTENED or not isinstance(self._graphs, ShortWay) or not torch.is_grad_enabled():
            return False
        self._shortened += 1
        self._tries = self._graphs.learns() or None
        return self._tries is not None

    def _observe(self, sample: _Sample, backward_s: float) -> None:
        if self._guard is None or self._runs is not None or sample.side != self._guard.next_runner():
            return
        self._guard.observe(started_s=sample.started_s, seconds=sample.forward_s + backward_s)
        verdict = self._guard.verdict
        if verdict is None:
            return
        if not self._ordered:
            self._order(verdict.gain)
            return
        if self._learning and not (verdict.kept == "plan" and verdict.shown):
            # Fused operators or backends may be faster, and looks at operators or compilers have run in these calls.
            self._guard, self._waits = None, True
            self._awaited.clear()
            self._patience = None if verdict.kept == "plan" else self._patience_for(verdict.gain)
            return
        self._verdicts[self._layout] = verdict
        self._awaited.clear()
        if verdict.kept == "plan":
            self._best = self._layout
        if self._best is None and self._other is not None:
            self._guard, self._layout, self._other, self._unseen = None, self._other, None, _BEGUN
            self._patience = self._patience_for(_HOPELESS)
        else:
            self._end()

    def _order(self, gain: float) -> None:
        """Decide which layout is learned first; in channels last calls by PyTorch are `gain` times as fast."""
        self._guard, self._ordered, self._unseen = None, True, _BEGUN
        self._awaited.clear()
        if not any(part.has_channels_last for part in self._parts):
            return
        if gain > 1.0:
            self._layout, self._other = MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN
        elif gain > _HOPELESS:
            self._other = MemoryFormat.CHANNELS_LAST

    def _end(self) -> None:
        """Run all further calls by the fastest way."""
        self._runs = self._by(tried=False)
        for part in self._parts:
            if self._best is None:
                if isinstance(self._graphs, ShortWay):
                    self._graphs.forget()
                gain = max(verdict.gain for verdict in self._verdicts.values())
                part.leave(f"whole calls are as fast or faster in eager PyTorch ({gain:.2f})")
            else:
                part.use(self._best, alone=True)

    def _patience_for(self, gain: float) -> _Patience | None:
        return None if self._unlimited else _Patience(gain)

    @staticmethod
    def _new_guard() -> Guard:
        return Guard(at_once=False)  # one pair shows only that something else used the cores

    def keep_graphs(self) -> None:
        """Run all further calls by the graphs, even if eager PyTorch is faster."""
        with self._lock:
            self._best, self._runs = self._layout, self._graphs
            self._awaited.clear()
            for part in self._parts:
                part.use(self._layout)

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
